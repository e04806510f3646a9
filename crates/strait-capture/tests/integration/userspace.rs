//! Filters that the kernel refuses: they run in this process with equal counts, and are refused on
//! AF_XDP.

use std::time::{Duration, Instant};

use lab::Wire;
use strait_capture::{Builder, ErrorKind, Lane, Path, Session};
use strait_filter::cbpf::{Instruction, Program, opcode as op};
use strait_ledger::Report;

use crate::rig::{Capture, drain, incoming, send};

const PASSING: [Path; 4] = [Path::Recv, Path::V2, Path::V3, Path::Tap];
const CHAIN: &str = "ip6 protochain 17";
/// Frames of each kind.
const EACH: usize = 50;
/// Size in bytes up to the UDP header of the longest chain.
const CHAIN_BYTES: usize = 14 + 40 + 8 * 20;

/// UDP after extension headers, TCP after the same headers, and IPv4.
fn frames() -> Vec<Vec<u8>> {
    let frame = |sequence: usize, last: u8| {
        let headers = sequence % 21;
        let next = |at: usize| if at == headers { last } else { 60 };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
        frame.extend(((8 * headers + 20) as u16).to_be_bytes());
        frame.extend([next(0), 64]);
        frame.extend([0x20; 32]);
        (0..headers).for_each(|at| frame.extend([next(at + 1), 0, 1, 4, 0, 0, 0, 0]));
        frame.extend([0; 20]);
        frame
    };
    let ipv4 = || [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45][..], &[0; 45]].concat();
    (0..EACH).flat_map(|sequence| [frame(sequence, 17), frame(sequence, 6), ipv4()]).collect()
}

/// Returns a filter for IPv6 with more than the kernel's 4,096 instructions.
fn long() -> Program {
    let mut code = vec![Instruction::statement(op::LD | op::IMM, 0); 5000];
    code.extend([
        Instruction::statement(op::LD | op::H | op::ABS, 12),
        Instruction::jump(op::JMP | op::JEQ | op::K, 0x86dd, 0, 1),
        Instruction::statement(op::RET | op::K, u32::MAX),
        Instruction::statement(op::RET | op::K, 0),
    ]);
    strait_capture::check_filter(code).unwrap()
}

fn open(wire: &Wire, builder: Builder) -> (Session, Vec<Lane>) {
    let mut session = wire.right().run(|| builder.open()).unwrap();
    let lanes = session.take_lanes();
    (session, lanes)
}

fn send_all(wire: &Wire) {
    let before = wire.right().stats().rx_packets;
    send(wire, &frames());
    wire.await_arrival(before, 3 * EACH as u64);
}

/// Returns the captured bytes and the report, and checks that it balances.
fn finish(wire: &Wire, mut session: Session, lanes: Vec<Lane>) -> (Vec<Vec<u8>>, Report) {
    wire.right().run(|| session.stop()).unwrap();
    let (mut captured, mut accounts) = (Vec::new(), Vec::new());
    for mut lane in lanes {
        captured.extend(drain(&mut lane).into_iter().map(|captured| captured.seen.bytes));
        accounts.push(lane.finish().unwrap());
    }
    let report = session.report(accounts);
    assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
    (captured, report)
}

/// Returns true if exactly one note reports that the filter runs in this process, for `reason`.
fn has_note(session: &Session, reason: &str) -> bool {
    let is_it =
        |note: &String| note.starts_with("the filter runs in this process: ") && note.contains(reason);
    session.notes().iter().filter(|note| is_it(note)).count() == 1
}

#[test]
fn filter_with_a_loop_runs_in_this_process_and_counts_rejected_frames() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PASSING {
        // The snaplen applies to matched frames: the filter sees the whole chain.
        let (session, lanes) = open(&wire, incoming().path(path).filter(CHAIN).snaplen(20));
        assert!(has_note(&session, "loop"), "{path:?}: {:?}", session.notes());
        send_all(&wire);
        let (captured, report) = finish(&wire, session, lanes);
        assert!(captured.iter().all(|bytes| bytes.len() == 20), "{path:?}");
        let account = &report.capture;
        assert_eq!(captured.len(), EACH, "{path:?}: {report}");
        assert_eq!((account.received, account.filtered), (3 * EACH as u64, 2 * EACH as u64), "{report}");
        let sent: usize = frames().iter().map(Vec::len).sum();
        assert_eq!(account.copied_bytes, sent as u64, "the kernel copies all for the filter to see");
    }
}

#[test]
fn filter_above_the_kernels_limit_runs_in_this_process() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PASSING {
        let (session, lanes) = open(&wire, incoming().path(path).program(long()));
        assert!(has_note(&session, "5004 instructions"), "{path:?}: {:?}", session.notes());
        send_all(&wire);
        let (captured, report) = finish(&wire, session, lanes);
        assert_eq!((captured.len(), report.capture.filtered), (2 * EACH, EACH as u64), "{path:?}: {report}");
    }
}

/// `net.core.optmem_max` limits a socket's memory: the kernel refuses the filter when it is
/// attached.
#[test]
fn filter_above_the_sockets_memory_runs_in_this_process_from_the_start() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut code = long().instructions().to_vec();
    code.drain(..3000);
    let program = strait_capture::check_filter(code).unwrap();
    assert_eq!(program.refusal(), None);
    let optmem = "/proc/sys/net/core/optmem_max";
    let Ok(before) = wire.right().run(|| std::fs::read_to_string(optmem)) else {
        return lab::skip("net.core.optmem_max is not visible in a namespace");
    };
    wire.right().run(|| std::fs::write(optmem, "4096")).unwrap();
    for path in [Path::Recv, Path::V2, Path::V3] {
        let opened = wire.right().run(|| incoming().path(path).program(program.clone()).open());
        let mut session = opened.unwrap();
        let lanes = session.take_lanes();
        assert!(has_note(&session, "memory"), "{path:?}: {:?}", session.notes());
        send_all(&wire);
        assert_eq!(finish(&wire, session, lanes).0.len(), 2 * EACH, "{path:?}");
    }
    wire.right().run(|| std::fs::write(optmem, before)).unwrap();
}

#[test]
fn changed_filter_moves_to_this_process_and_back() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for path in PASSING {
        let (mut session, mut lanes) = open(&wire, incoming().path(path));
        for _ in 0..3 {
            wire.right().run(|| session.set_filter(&mut lanes, &long())).unwrap();
            assert!(has_note(&session, "5004 instructions"), "one note, however often it is set");
        }
        send_all(&wire);
        wire.right().run(|| session.set_filter(&mut lanes, &Program::reject_all())).unwrap();
        assert!(session.notes().is_empty(), "{:?}", session.notes());
        send_all(&wire);
        wire.right().run(|| session.set_filter(&mut lanes, &long())).unwrap();
        send_all(&wire);
        assert_eq!(finish(&wire, session, lanes).0.len(), 2 * EACH, "{path:?}: those of the last filter");
    }
}

/// A socket reports a link that went down as an error of its next call of any kind.
#[test]
fn filter_set_while_the_link_is_down_runs_in_the_kernel() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let is_running = || [wire.left(), wire.right()].iter().all(|end| end.interface().is_running());
    for path in PASSING {
        let (mut session, mut lanes) = open(&wire, incoming().path(path));
        wire.right().set_up(false);
        wire.right().run(|| session.set_filter(&mut lanes, &Program::reject_all())).unwrap();
        assert!(session.notes().is_empty(), "{path:?}: {:?}", session.notes());
        wire.right().set_up(true);
        assert!(lab::wait_until(Duration::from_secs(10), is_running));
        send_all(&wire);
        let (captured, report) = finish(&wire, session, lanes);
        let account = &report.capture;
        assert_eq!((captured.len(), account.copied_bytes), (0, 0), "{path:?}: {report}");
        assert_eq!(account.filtered, 3 * EACH as u64, "{path:?}: {report}");
    }
}

#[test]
fn af_xdp_refuses_a_userspace_filter_with_the_reason() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let refused = |error: strait_capture::Error| {
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Usage, "{message}");
        assert!(message.contains("do not reach the host") && message.contains("--path v3"), "{message}");
    };
    let xdp = || incoming().path(Path::Xdp);
    refused(Capture::open(wire.right(), xdp().filter(CHAIN)).err().unwrap());
    refused(Capture::open(wire.right(), xdp().program(long())).err().unwrap());
    let (mut session, mut lanes) = open(&wire, xdp());
    refused(wire.right().run(|| session.set_filter(&mut lanes, &long())).unwrap_err());
    send_all(&wire);
    assert_eq!(finish(&wire, session, lanes).0.len(), 3 * EACH, "the earlier filter is in place");
}

#[test]
fn filter_with_a_loop_applies_to_a_file() {
    let Some(oracle) = oracle(CHAIN) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chains.pcap");
    let frames = frames();
    assert_eq!(frames.iter().map(Vec::len).max(), Some(CHAIN_BYTES + 20));
    write_pcap(&file, &frames);
    let mut session = Session::builder(file.to_str().unwrap()).filter(CHAIN).open_file().unwrap();
    let mut lane = session.take_lanes().remove(0);
    let mut captured = Vec::new();
    while let Some(mut batch) = lane.next_batch(Instant::now() + Duration::from_secs(5)).unwrap() {
        captured.extend(batch.frames().map(|frame| frame.bytes.to_vec()));
    }
    let matches: Vec<Vec<u8>> =
        frames.into_iter().filter(|frame| oracle.run(frame, frame.len() as u32) != 0).collect();
    assert_eq!((captured.len(), &captured), (EACH, &matches));
    let report = session.report(vec![lane.finish().unwrap()]);
    assert_eq!((report.capture.filtered, report.capture.check_balance()), (2 * EACH as u64, Ok(())));
}

fn oracle(text: &str) -> Option<strait_sys::libpcap::Oracle> {
    use strait_sys::libpcap::{Compiler, LINKTYPE_ETHERNET};
    let compiler = Compiler::offline(LINKTYPE_ETHERNET, 262_144);
    let compiler = compiler.map_err(|error| lab::skip(error.to_string())).ok()?;
    Some(compiler.compile_for_oracle(text, true).unwrap())
}

/// Returns a pcap file (pcap-savefile(5)) without times.
fn write_pcap(file: &std::path::Path, frames: &[Vec<u8>]) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let mut bytes = words(&[0xa1b2_c3d4]);
    bytes.extend([2_u16, 4].into_iter().flat_map(u16::to_ne_bytes));
    bytes.extend(words(&[0, 0, 262_144, 1]));
    for frame in frames {
        let len = frame.len() as u32;
        bytes.extend(words(&[0, 0, len, len]));
        bytes.extend(frame);
    }
    std::fs::write(file, bytes).unwrap();
}
