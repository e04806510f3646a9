//! Tests of maps, loads, test runs and links against the running kernel; they skip without the
//! privilege.

use std::os::fd::AsFd;

use strait_os::netlink::Netlink;
use strait_os::netns::Namespace;
use strait_sys::bpf::{
    AttachMode, Classifier, Doorbell, Link, LoadOptions, Map, RingLayout, RingReader, Rings, SocketFilter,
    TcxHook, TestRun, XdpContext, XdpProgram, program_info, program_info_by_id, tcx_programs,
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

const LAYOUT: RingLayout =
    RingLayout { producer: 0, consumer: 8, wakeup: 16, data: 64, ring_bytes: 128, end: 256 };

/// Writes a ring's value as a program would: `produced` bytes, all of them `byte`.
fn produce(map: &Map, produced: u64, byte: u8) {
    let mut value = [byte; 256];
    value[..64].fill(0);
    value[..8].copy_from_slice(&produced.to_ne_bytes());
    map.set(1, &value).unwrap();
}

#[test]
fn ring_lends_published_bytes_until_they_are_returned() {
    let Some(map) = or_skip(Map::mappable_array("test", 256, 2)) else { return };
    let (rings, mut readers) = Rings::map(&map, &[LAYOUT]).unwrap();
    assert_eq!((rings.count(), readers.len()), (2, 2));
    let reader = &mut readers[1];
    assert_eq!((reader.poll(), reader.bytes(0, 1)), (0, None), "nothing was published");
    produce(&map, 100, 7);
    assert_eq!(reader.bytes(0, 1), None, "not polled");
    assert_eq!(reader.poll(), 100);
    assert_eq!(reader.bytes(40, 60), Some(&[7; 60][..]));
    assert_eq!(reader.bytes(40, 61), None, "beyond the last published byte");
    assert_eq!(reader.bytes(u64::MAX, 2), None);
    reader.advance(90);
    assert_eq!((reader.consumed(), rings.counter(1, LAYOUT.consumer)), (90, 90));
    assert_eq!((reader.bytes(80, 10), reader.bytes(90, 10)), (None, Some(&[7; 10][..])));
    produce(&map, 200, 8);
    assert_eq!(reader.poll(), 200);
    assert_eq!(reader.bytes(120, 72), Some(&[8; 72][..]), "behind the end of the ring");
    assert_eq!(reader.bytes(120, 73), None, "behind the end of the value");
    produce(&map, 300, 9);
    assert_eq!(reader.poll(), 200, "a program that overran the ring");
    reader.advance(1000);
    assert_eq!(reader.consumed(), 200, "no further than published");
    assert_eq!((rings.counter(2, 0), rings.counter(0, 64)), (0, 0), "there is no such counter");
}

#[test]
fn rings_of_a_value_have_positions_and_bytes_of_their_own() {
    let Some(map) = or_skip(Map::mappable_array("test", 256, 2)) else { return };
    let first = RingLayout { ring_bytes: 64, end: 136, ..LAYOUT };
    let second = RingLayout { producer: 24, consumer: 32, data: 136, ring_bytes: 64, end: 256, ..LAYOUT };
    let (_, mut readers) = Rings::map(&map, &[first, second]).unwrap();
    assert_eq!(readers.iter().map(RingReader::value).collect::<Vec<_>>(), [0, 1, 0, 1]);
    let mut value = [1; 256];
    value[..64].fill(0);
    value[136..].fill(2);
    value[0] = 40;
    value[24] = 50;
    map.set(1, &value).unwrap();
    assert_eq!((readers[1].poll(), readers[3].poll()), (40, 50));
    assert_eq!(readers[1].bytes(0, 40), Some(&[1; 40][..]));
    assert_eq!(readers[3].bytes(0, 50), Some(&[2; 50][..]));
    readers[3].advance(50);
    assert_eq!((readers[1].consumed(), readers[3].consumed()), (0, 50));
}

#[test]
fn ring_layout_that_does_not_fit_is_a_usage_error() {
    let Some(map) = or_skip(Map::mappable_array("test", 256, 1)) else { return };
    for layout in [
        RingLayout { producer: 60, ..LAYOUT },
        RingLayout { consumer: 64, ..LAYOUT },
        RingLayout { ring_bytes: 100, ..LAYOUT },
        RingLayout { ring_bytes: 256, ..LAYOUT },
        RingLayout { data: usize::MAX, ..LAYOUT },
        RingLayout { end: 264, ..LAYOUT },
    ] {
        assert_eq!(Rings::map(&map, &[layout]).unwrap_err().kind(), Kind::Usage, "{layout:?}");
    }
    for layouts in [&[][..], &[LAYOUT, LAYOUT], &[LAYOUT, RingLayout { data: 250, ..LAYOUT }]] {
        assert_eq!(Rings::map(&map, layouts).unwrap_err().kind(), Kind::Usage, "{layouts:?}");
    }
}

#[test]
fn wakeup_is_requested_for_one_ring() {
    let Some(map) = or_skip(Map::mappable_array("test", 256, 2)) else { return };
    let (rings, readers) = Rings::map(&map, &[LAYOUT]).unwrap();
    readers[1].request_wakeup(true);
    assert_eq!((rings.counter(0, LAYOUT.wakeup), rings.counter(1, LAYOUT.wakeup)), (0, 1));
    readers[1].request_wakeup(false);
    assert_eq!(rings.counter(1, LAYOUT.wakeup), 0);
}

#[test]
fn tcx_programs_are_listed_in_their_order_until_their_links_close() {
    /// `r0 = TCX_NEXT; exit`.
    const NEXT: [u64; 2] = [0xffff_ffff_0000_00b7, EXIT];
    let Some(first) = or_skip(Classifier::load("first", &NEXT)) else { return };
    let second = Classifier::load("second", &NEXT).unwrap();
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let id = |program: &Classifier| program_info(program.as_fd()).unwrap().id;
    namespace
        .run(|| {
            let lo = Netlink::open().unwrap().interface("lo").unwrap().index;
            let list = |hook| tcx_programs(lo, hook).unwrap();
            assert!(list(TcxHook::Ingress).is_empty());
            let links =
                [&first, &second].map(|program| Link::attach_tcx(program, lo, TcxHook::Ingress).unwrap());
            assert_eq!(list(TcxHook::Ingress), [id(&second), id(&first)], "the last one runs first");
            assert!(list(TcxHook::Egress).is_empty());
            drop(links);
            assert!(list(TcxHook::Ingress).is_empty());
        })
        .unwrap();
}

#[test]
fn silent_doorbell_is_not_readable() {
    let Some(doorbell) = or_skip(Doorbell::new("test")) else { return };
    doorbell.silence();
    let [bell] = strait_sys::wait::readable([Some(doorbell.as_fd())], std::time::Duration::ZERO).unwrap();
    assert!(!bell.readable && !bell.failed);
}

#[test]
fn classifier_test_run_returns_its_result() {
    /// `r0 = *(u32 *)(r1 + 0); exit`: the length.
    const LENGTH: [u64; 2] = [0x0000_0000_0000_1061, EXIT];
    let Some(program) = or_skip(Classifier::load("test", &LENGTH)) else { return };
    assert_eq!(program.test_run(&[0; 60]).unwrap(), 60);
}
