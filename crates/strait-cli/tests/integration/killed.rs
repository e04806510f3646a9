//! A killed capture: flushed packets are in the file `.part`, which every reader accepts.

use std::fs;
use std::path::Path;

use lab::{Wire, wait_until};
use rustix::process::Signal;
use strait_capture::file::FileReader;
use strait_capture::probe;

use crate::rig::{Capture, LIMIT, ledger, numbered, run, send, sequence, strait};
use crate::tools::{self, capinfos, tcpdump, tshark};

/// Frames that are flushed before the program is killed.
const SAFE: u64 = 500;
/// Frames that may still be in memory then.
const LATE: u64 = 100;

#[test]
fn pcapng_file_of_a_killed_capture_is_readable_up_to_the_last_flush() {
    killed("pcapng");
}

#[test]
fn pcap_file_of_a_killed_capture_is_readable_up_to_the_last_flush() {
    killed("pcap");
}

fn killed(format: &str) {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (file, part) = (directory.path().join("capture"), directory.path().join("capture.part"));
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap(), "--format", format]);
    let frames = numbered(SAFE + LATE);
    send(&wire, &frames[..SAFE as usize]);
    let flushed = || len(&part) > frames[..SAFE as usize].iter().map(|frame| frame.len() as u64).sum();
    assert!(wait_until(LIMIT, flushed), "a quiet capture flushes");
    // The next flush is a second away: these are in the ring or in memory.
    send(&wire, &frames[SAFE as usize..]);
    let finished = capture.end(Signal::KILL);
    assert_eq!(finished.status.code(), None);

    assert!(!file.exists(), "an unfinished file does not have the final name");
    let kept = sequence(&part);
    assert!((SAFE..=SAFE + LATE).contains(&(kept.len() as u64)), "{}", kept.len());
    assert_eq!(kept, (0..kept.len() as u64).collect::<Vec<_>>());
    assert_eq!(capinfos(&part).0, kept.len());
    assert_eq!(tcpdump(&part).len(), kept.len());
    assert_eq!(tshark(&part, &[], &["frame.len"]).len(), kept.len());
    let read = run(&["capture", "-r", part.to_str().unwrap(), "--json"]).success();
    assert_eq!(ledger(&read)["delivered"], kept.len());
}

fn len(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

#[test]
fn capture_killed_under_load_leaves_all_packets_up_to_the_last_write() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (file, part) = (directory.path().join("capture"), directory.path().join("capture.part"));
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap(), "--ring-mib", "64"]);
    let generate = ["generate", "-o", "left", "--size", "1518", "--rate", "20000", "--duration", "600"];
    let generator = strait(wire.left(), &generate).spawn().unwrap();
    let write = strait_capture::sink::FLUSH_BYTES as u64;
    assert!(wait_until(LIMIT, || len(&part) > 8 * write), "a busy capture writes");
    capture.end(Signal::KILL);
    drop(generator);

    let mut reader = FileReader::open(part.to_str().unwrap()).unwrap();
    let mut packets = 0;
    // If the last write was interrupted, the file is truncated after complete packets.
    while let Ok(Some(packet)) = reader.next() {
        assert_eq!(strait_packet::probe::read(packet.bytes).unwrap().sequence, packets);
        packets += 1;
    }
    assert!(len(&part) - reader.offset() < write, "{packets} packets");
    assert!(packets * 1514 > 7 * write, "{packets} packets");
}

#[test]
fn part_of_a_killed_capture_is_set_aside_by_the_next() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (file, part) = (directory.path().join("capture"), directory.path().join("capture.part"));
    fs::write(&part, vec![0xff; 100_000]).unwrap();
    fs::write(&file, "an older capture").unwrap();
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap()]);
    assert_eq!(fs::read(&file).unwrap(), b"an older capture", "kept until the new one is complete");
    send(&wire, &numbered(10));
    let stderr = capture.finish().stderr;
    assert_eq!(sequence(&file), (0..10).collect::<Vec<_>>());
    assert!(!part.exists());
    let aside = directory.path().join("capture.part.1");
    assert_eq!(len(&aside), 100_000);
    assert!(stderr.contains(&format!("is kept as {}\n", aside.display())), "{stderr}");
}

/// The programs of a tap are held by descriptors of its process alone.
#[test]
fn killed_tap_leaves_no_program_on_its_interface() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let index = wire.right().interface().index;
    let programs = || wire.right().run(|| probe::tcx_programs(index)).unwrap();
    let capture = Capture::start(wire.right(), &["--path", "tap", "--json"]);
    assert_eq!(programs(), ["strait_tap", "strait_tap"]);
    let finished = capture.end(Signal::KILL);
    assert_eq!(finished.status.code(), None);
    assert!(wait_until(LIMIT, || programs().is_empty()), "{:?}", programs());
}
