//! Tests of maps, loads, test runs and links against the running kernel; they skip without the
//! privilege.

use std::os::fd::AsFd;

use strait_os::netlink::Netlink;
use strait_os::netns::Namespace;
use strait_sys::bpf::{
    AttachMode, Link, LoadOptions, Map, SocketFilter, TestRun, XdpContext, XdpProgram, program_info,
    program_info_by_id,
};
use strait_sys::{Kind, Result};

/// `r0 = XDP_PASS; exit`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, EXIT];
const EXIT: u64 = 0x95;
/// `r0 = *(u32 *)(r1 + 16); exit`: the receive queue.
const QUEUE: [u64; 2] = [0x0000_0000_0010_1061, EXIT];

/// Returns the result of a privileged call, or prints SKIP with the reason and returns `None` if it
/// is refused.
fn or_skip<T>(result: Result<T>) -> Option<T> {
    match result {
        Err(error) if error.kind() == Kind::Refused => {
            eprintln!("SKIP bpf: {error}");
            None
        }
        result => Some(result.expect("the call works where it is allowed")),
    }
}

fn load(instructions: &[u64]) -> Option<XdpProgram> {
    or_skip(XdpProgram::load("test", instructions, LoadOptions::default()))
}

#[test]
fn a_mapped_array_shares_its_counters_with_the_map() {
    let Some(map) = or_skip(Map::mappable_array("test", 12, 3)) else { return };
    let mapped = map.mapped().unwrap();
    map.set(2, &[1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]).unwrap();
    assert_eq!((mapped.load(2, 0), mapped.load(2, 1), mapped.load(1, 0)), (1, 7, 0));
    mapped.store(0, 1, 9);
    let mut value = [0; 12];
    map.get(0, &mut value).unwrap();
    assert_eq!(value[8], 9);
    assert_eq!((mapped.load(3, 0), mapped.load(0, 2)), (0, 0), "there is nothing beyond the end");
}

#[test]
fn wrong_index_or_length_is_a_usage_error() {
    let Some(map) = or_skip(Map::array("test", 8, 2)) else { return };
    assert_eq!(map.set(2, &[0; 8]).unwrap_err().kind(), Kind::Usage);
    assert_eq!(map.get(0, &mut [0; 7]).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_test_run_gives_return_value_and_data() {
    let Some(program) = load(&PASS) else { return };
    let data: Vec<u8> = (0..64).collect();
    let mut out = [0; 64];
    let run = TestRun { data: &data, data_out: Some(&mut out), repeat: 3, ..TestRun::default() };
    let outcome = program.test_run(run).unwrap();
    assert_eq!((outcome.returned, outcome.data_bytes, outcome.metadata_bytes), (2, 64, 0));
    assert_eq!(out[..], data);
}

#[test]
fn test_run_passes_metadata_and_queue() {
    let Some(program) = load(&QUEUE) else { return };
    let context = XdpContext { ingress_ifindex: 1, rx_queue: 0, metadata_bytes: 8, linear_bytes: None };
    let run = TestRun { data: &[0; 64], context: Some(context), ..TestRun::default() };
    let outcome = program.test_run(run).unwrap();
    assert_eq!((outcome.returned, outcome.metadata_bytes), (0, 8));
}

#[test]
fn error_contains_the_verifiers_log() {
    if load(&PASS).is_none() {
        return;
    }
    let error = XdpProgram::load("test", &[EXIT], LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("R0 !read_ok"), "{error}");
    assert!(SocketFilter::load("test", &PASS).is_ok());
}

#[test]
fn program_info_has_name_and_number() {
    let Some(program) = load(&PASS) else { return };
    let info = program_info(program.as_fd()).unwrap();
    assert_eq!(info.name, "test");
    assert_eq!(program_info_by_id(info.id).unwrap(), info);
}

#[test]
fn a_link_holds_the_interface_until_it_is_dropped() {
    let Some(program) = load(&PASS) else { return };
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    namespace
        .run(|| {
            let loopback = Netlink::open().unwrap().interface("lo").unwrap().index;
            let link = Link::attach_xdp(&program, loopback, AttachMode::Generic).unwrap();
            let second = Link::attach_xdp(&program, loopback, AttachMode::Generic).unwrap_err();
            assert_eq!((second.errno(), second.kind()), (Some(libc::EBUSY), Kind::Refused));
            drop(link);
            Link::attach_xdp(&program, loopback, AttachMode::Generic).unwrap();
        })
        .unwrap();
}
