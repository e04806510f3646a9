//! Tests of the queue and the thread: every packet is written or counted as lost.

use std::fs;
use std::path::Path;

use strait_ledger::{Capture, LaneCounts};
use strait_packet::summary::link_type;

use super::*;
use crate::flows::FlowLimits;
use crate::options::{FileNumbers, Selected};
use crate::packets::Columns;

fn options(directory: &Path, waits: bool) -> Options {
    Options {
        directory: directory.to_owned(),
        sensor: "s".into(),
        capture: "c".into(),
        numbers: FileNumbers::default(),
        selected: Selected { packets: true, flows: false, ..Selected::default() },
        flows: FlowLimits::default(),
        columns: Columns::default(),
        frame_bytes: 0,
        rotate_bytes: 1 << 30,
        rotate_every: Duration::from_mins(1),
        spool: None,
        waits,
    }
}

fn open(options: Options) -> TableSink {
    let mut sink = TableSink::open(options, Arc::new(|_| None), 0).unwrap();
    sink.start().unwrap();
    sink
}

fn packet(lane: u32) -> Packet<'static> {
    Packet {
        bytes: &[0; 60],
        link_type: link_type::ETHERNET,
        wire_len: 60,
        time_ns: 1,
        interface: 0,
        lane,
        direction: None,
        owner: None,
    }
}

/// More packets than the queue holds.
const MANY: u64 = ((QUEUE_BLOCKS + 50) * BLOCK_PACKETS) as u64;

#[test]
fn file_input_waits_for_the_tables_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(options(directory.path(), true));
    for _ in 0..MANY {
        sink.push(&packet(0)).unwrap();
    }
    sink.complete().unwrap();
    assert_eq!(sink.lost_packets().total(), 0);
    let summary = sink.close(&Report::default(), 2).unwrap();
    assert_eq!(summary.packets.rows, MANY);
}

#[test]
fn full_queue_loses_packets_of_a_live_capture_and_counts_them_by_lane() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(options(directory.path(), false));
    // The thread waits for the lock when it has taken the first block.
    let shared = Arc::clone(&sink.shared);
    let held = shared.lock().unwrap();
    sink.send(Task::Ledger(Vec::new()), true).unwrap();
    let mut pushed = [0; 2];
    let block = loop {
        let lane = usize::from(pushed[0] > pushed[1]);
        pushed[lane] += BLOCK_PACKETS as u64;
        let packets = vec![Headers::of(&packet(lane as u32)); BLOCK_PACKETS];
        let block = Block { packets, ..Block::default() };
        if let Some(Task::Packets(block)) = sink.send(Task::Packets(block), false).unwrap() {
            break block;
        }
    };
    drop(held);
    sink.drop_block(block);
    sink.complete().unwrap();
    let lost = [sink.lost_packets().of(0), sink.lost_packets().of(1)];
    assert_eq!(
        (lost[0] + lost[1], sink.lost_packets().total()),
        (BLOCK_PACKETS as u64, BLOCK_PACKETS as u64)
    );
    let summary = sink.close(&Report::default(), 2).unwrap();
    assert_eq!(summary.packets.rows + lost[0] + lost[1], pushed[0] + pushed[1]);
}

#[test]
fn failure_of_the_thread_is_returned_and_every_packet_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(options(directory.path(), true));
    fs::write(directory.path().join("packets"), "").unwrap();
    for _ in 0..10 {
        sink.push(&packet(3)).unwrap();
    }
    let error = sink.complete().unwrap_err().to_string();
    assert!(error.starts_with("create "), "{error}");
    assert_eq!((sink.lost_packets().of(3), sink.lost_packets().total()), (10, 10));
    assert!(sink.flush_due(Instant::now()).is_err());
    let summary = sink.close(&Report::default(), 2).unwrap();
    assert_eq!(summary.packets, Written::default());
}

#[test]
fn failure_of_one_table_loses_the_packets_of_all_until_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path(), true);
    options.selected.flows = true;
    let mut sink = open(options);
    fs::write(directory.path().join("flows"), "").unwrap();
    let frame = frame_of_http(0, b"data");
    let sent = Packet { bytes: &frame, wire_len: frame.len() as u32, ..packet(3) };
    sink.push(&sent).unwrap();
    assert!(sink.complete().unwrap_err().to_string().starts_with("create "));
    assert_eq!(sink.lost_packets().total(), 0, "the packet is in its table");
    // The directory can be written to again.
    fs::remove_file(directory.path().join("flows")).unwrap();
    for _ in 0..10 {
        sink.push(&sent).unwrap();
    }
    assert!(sink.complete().is_err());
    assert_eq!((sink.lost_packets().of(3), sink.lost_packets().total()), (10, 10));
    let summary = sink.close(&Report::default(), 2).unwrap();
    assert_eq!((summary.packets.rows, summary.flows.rows), (1, 0));
}

#[test]
fn block_with_the_shortest_messages_is_sent_at_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path(), false);
    options.selected.messages.dns = true;
    // Its thread does not start, so blocks stay in the queue.
    let mut sink = TableSink::open(options, Arc::new(|_| None), 0).unwrap();
    let messages = [&[0, 12][..], &[0; 12]].concat().repeat(100);
    let mut frame = [&[2; 12][..], &[8, 0, 0x45, 0], &(40 + 1400_u16).to_be_bytes()].concat();
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([4, 0, 0, 53, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, 0, 0, 9, 0, 0, 0, 0]);
    frame.extend(messages);
    let per_packet = 100 * (size_of::<Message>() + 12);
    let mut packets = 0;
    while sink.block.packets.len() == packets {
        frame[38..42].copy_from_slice(&(packets as u32 * 1400).to_be_bytes());
        sink.push(&Packet { bytes: &frame, wire_len: frame.len() as u32, ..packet(0) }).unwrap();
        packets += 1;
    }
    assert_eq!((packets, sink.block.message_bytes), (BLOCK_BYTES.div_ceil(per_packet), 0));
}

/// Returns a frame with `data` of port 80.
fn frame_of_http(sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut frame = [&[2; 12][..], &[8, 0, 0x45, 0], &(40 + data.len() as u16).to_be_bytes()].concat();
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80]);
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 0, 5 << 4, 0, 0, 9, 0, 0, 0, 0]);
    frame.extend(data);
    frame
}

#[test]
fn messages_of_equal_files_do_not_depend_on_the_number_of_sinks() {
    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    // The end of a file is not the first part of a message in the next one.
    let file = [&HEAD[9..], HEAD, &HEAD[..9]];
    for sinks in [1, 2] {
        let mut summary = Summary::default();
        for _ in 0..sinks {
            let directory = tempfile::tempdir().unwrap();
            let mut options = options(directory.path(), true);
            options.selected.messages.http = true;
            let mut sink = open(options);
            for _ in 0..2 / sinks {
                let mut sequence = 0;
                for data in file {
                    let frame = frame_of_http(sequence, data);
                    let packet = Packet { bytes: &frame, wire_len: frame.len() as u32, ..packet(0) };
                    sink.push(&packet).unwrap();
                    sequence += data.len() as u32;
                }
                sink.end_flows().unwrap();
            }
            summary.add(&sink.close(&Report::default(), 2).unwrap());
        }
        assert_eq!(summary.messages.rows, 2, "{sinks}");
        assert_eq!(summary.missed, Missed { gaps: 2, ..Missed::default() }, "{sinks}");
    }
}

#[test]
fn ledger_has_a_row_for_each_lane_and_interval() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = open(options(directory.path(), false));
    let report = |delivered| {
        let capture = Capture { received: delivered, delivered, ..Capture::default() };
        Report::from_lanes(vec![LaneCounts { queue: 0, cpu: None, capture }], &Capture::default())
    };
    sink.ledger(&report(5), 10);
    sink.ledger(&report(7), 20);
    let summary = sink.close(&report(9), 30).unwrap();
    assert_eq!((summary.ledger.rows, summary.ledger.files), (3, 1));
}
