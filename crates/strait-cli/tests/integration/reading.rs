//! `strait capture -r`: complete files with any filter, damaged files up to the damage, and files
//! of other formats.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use lab::{Finished, Launch, wait_until};
use rustix::process::Signal;
use strait_capture::file::FileReader;
use strait_capture::sink::{FileSink, Format, FrameRef, LinkType, SinkInterface, SinkOptions, Target};

use crate::refusals::RECORDING;
use crate::rig::{
    LIMIT, STRAIT, assert_complete, count, failure, ledger, numbered, packets, run, status, tagged,
};
use crate::tools;

/// Writes a capture file of `frames` with one second between two of them.
fn file(directory: &Path, format: Format, frames: &[Vec<u8>]) -> PathBuf {
    let path = directory.join("input");
    let options = SinkOptions { format, ..SinkOptions::new(Target::Path(path.clone()), 0) };
    let mut sink = FileSink::create(options).unwrap();
    for (bytes, second) in frames.iter().zip(1_700_000_000_u64..) {
        let timestamp_ns = second * 1_000_000_000 + 5;
        let frame = FrameRef { timestamp_ns, bytes, wire_len: bytes.len() as u32, ..FrameRef::default() };
        sink.write(&frame).unwrap();
    }
    sink.close(&[]).unwrap();
    path
}

fn read(file: &Path, options: &[&str]) -> Finished {
    run(&[&["capture", "-r", file.to_str().unwrap()], options].concat())
}

#[test]
fn filters_match_the_same_packets_as_tcpdump() {
    let directory = tempfile::tempdir().unwrap();
    let frames = [numbered(40), tagged(40)].concat();
    for format in [Format::Pcapng, Format::Pcap] {
        let input = file(directory.path(), format, &frames);
        for filter in ["", "udp", "vlan", "vlan and ip6", "not tcp and greater 500", "tcp[13] & 8 != 0"] {
            let finished = read(&input, &["--json", filter]).success();
            let ledger = ledger(&finished);
            let expected = matched_by_tcpdump(&input, filter);
            assert_eq!((count(&ledger, "received"), count(&ledger, "delivered")), (80, expected), "{filter}");
            assert_eq!((&ledger["path"], count(&ledger, "filtered")), (&"file".into(), 80 - expected));
        }
    }
}

fn matched_by_tcpdump(file: &Path, filter: &str) -> u64 {
    let launch = Launch::new("tcpdump").args(["-nn", "-r"]).arg(file).arg(filter);
    launch.run(LIMIT).unwrap().success().text().lines().count() as u64
}

#[test]
fn file_is_converted_with_filter_and_snaplen() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(directory.path(), Format::Pcapng, &numbered(40));
    let output = directory.path().join("output");
    let out = output.to_str().unwrap();
    let _ = read(&input, &["-w", out, "--format", "pcap", "--snaplen", "80", "udp"]).success();
    let mut reader = FileReader::open(out).unwrap();
    let udp: Vec<u64> = (0..40).filter(|number| number % 2 == 0).collect();
    for number in udp {
        let packet = reader.next().unwrap().unwrap();
        assert_eq!(strait_packet::probe::read(packet.bytes).unwrap().sequence, number);
        assert_eq!(packet.timestamp_ns, (1_700_000_000 + number) * 1_000_000_000 + 5);
        assert_eq!(packet.bytes.len(), 80.min(packet.wire_len as usize));
    }
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.format(), Some(Format::Pcap));
}

#[test]
fn count_ends_the_reading() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(directory.path(), Format::Pcapng, &numbered(40));
    let finished = read(&input, &["--count", "7"]).success();
    assert_eq!(finished.text().lines().count(), 7);
    assert!(finished.stderr.contains("the ledger balances"), "{}", finished.stderr);
}

#[test]
fn standard_input_is_read_like_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let input = fs::read(file(directory.path(), Format::Pcap, &numbered(40))).unwrap();
    let mut command = Command::new(STRAIT);
    let output = command.args(["capture", "-r", "-", "udp"]).write_stdin(input).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 20, "{text}");
}

#[test]
fn signal_or_a_duration_ends_the_reading_of_a_quiet_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let input = fs::read(file(directory.path(), Format::Pcapng, &numbered(20))).unwrap();
    let read_all = ["-r", "-", "--duration", "2"];
    for (arguments, signal) in
        [(&read_all[..2], Some(Signal::INT)), (&read_all[..2], Some(Signal::TERM)), (&read_all, None)]
    {
        let (stdin, mut pipe) = std::io::pipe().unwrap();
        let process = Launch::new(STRAIT).arg("capture").args(arguments).stdin(stdin).spawn().unwrap();
        pipe.write_all(&input).unwrap();
        assert!(wait_until(LIMIT, || process.stdout().lines().count() == 20), "{}", process.stderr());
        if let Some(signal) = signal {
            process.signal(signal);
        }
        let finished = process.wait(LIMIT).unwrap().success();
        assert!(finished.stderr.contains("the ledger balances"), "{}", finished.stderr);
    }
}

#[test]
fn signal_ends_the_wait_for_the_first_byte() {
    let (stdin, pipe) = std::io::pipe().unwrap();
    let process = Launch::new(STRAIT).args(["capture", "-r", "-"]).stdin(stdin).spawn().unwrap();
    assert!(wait_until(LIMIT, || catches(process.id(), Signal::TERM)));
    process.signal(Signal::TERM);
    let _ = process.wait(LIMIT).unwrap().success();
    drop(pipe);
}

/// Returns true if the process has a handler for a signal.
fn catches(id: u32, signal: Signal) -> bool {
    let caught = status(&id.to_string(), "SigCgt").unwrap_or_default();
    u64::from_str_radix(&caught, 16).is_ok_and(|caught| caught >> (signal.as_raw() - 1) & 1 == 1)
}

#[test]
fn signal_ends_the_reading_of_an_endless_file() {
    let directory = tempfile::tempdir().unwrap();
    let input = fs::read(file(directory.path(), Format::Pcap, &numbered(40))).unwrap();
    let output = directory.path().join("output");
    let (header, records) = input.split_at(24);
    // The last filter matches nothing.
    for filter in ["", "udp", "arp"] {
        let (stdin, mut pipe) = std::io::pipe().unwrap();
        let arguments = ["capture", "-r", "-", "--json", "-w", output.to_str().unwrap(), filter];
        let process = Launch::new(STRAIT).args(arguments).stdin(stdin).spawn().unwrap();
        std::thread::scope(|scope| {
            pipe.write_all(header).unwrap();
            // Until the reader closes the pipe.
            scope.spawn(move || while pipe.write_all(records).is_ok() {});
            let open = wait_until(LIMIT, || directory.path().join("output.part").exists());
            assert!(open, "{}", process.stderr());
            let ledger = ledger(&process.interrupt(LIMIT).unwrap().success());
            assert_eq!(packets(&output).len() as u64, count(&ledger, "delivered"), "{ledger}");
        });
    }
}

#[test]
fn lines_have_the_format_of_tcpdump() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // tcpdump decodes another protocol on the first port of flow 0.
    let frames: Vec<_> =
        numbered(40).into_iter().enumerate().filter(|(i, _)| i % 16 != 0).map(|(_, f)| f).collect();
    let input = file(directory.path(), Format::Pcapng, &frames);
    let finished = read(&input, &[]).success();
    let theirs = tools::tcpdump(&input);
    for (ours, theirs) in finished.text().lines().zip(&theirs) {
        // Nanoseconds and microseconds.
        let (time, line) = ours.split_once(' ').unwrap();
        let (their_time, their_line) = theirs.split_once(' ').unwrap();
        assert!(time.starts_with(their_time), "{ours}\n{theirs}");
        let beginning = |line: &str| line.split(": ").next().unwrap().to_owned();
        assert_eq!(beginning(line), beginning(their_line));
        assert_eq!(line.split("length ").nth(1), their_line.split("length ").nth(1), "{ours}\n{theirs}");
    }
    assert_eq!(finished.text().lines().count(), theirs.len());
}

#[test]
fn truncated_file_delivers_all_packets_before_the_cut() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    for format in [Format::Pcapng, Format::Pcap] {
        let input = file(directory.path(), format, &numbered(9));
        let whole = fs::read(&input).unwrap();
        // Within the last block, within a packet, within a header.
        for cut in [whole.len() - 1, whole.len() / 2, 300] {
            fs::write(&input, &whole[..cut]).unwrap();
            let finished = read(&input, &["--json", "-w", output.to_str().unwrap()]);
            let (code, line) = failure(&finished);
            assert_eq!(code, 1, "{line}");
            assert!(line.contains(&format!("is cut at byte {cut}")), "{line}");
            let delivered = count(&ledger(&finished), "delivered");
            assert_eq!(delivered, whole_packets(&input), "{line}");
            assert_complete(&output, delivered);
        }
    }
}

/// Returns the number of complete packets in a file, as counted by capinfos, which also reads
/// truncated files.
fn whole_packets(file: &Path) -> u64 {
    let finished = Launch::new("capinfos").arg("-Mc").arg(file).run(LIMIT).unwrap();
    let text = finished.text() + &finished.stderr;
    let line = text.lines().find_map(|line| {
        line.strip_prefix("Number of packets:").or_else(|| line.split(" after reading ").nth(1))
    });
    let digits = line.unwrap_or("0").trim().split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[test]
fn packets_before_a_damaged_block_are_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let input = file(directory.path(), Format::Pcapng, &numbered(9));
    let mut bytes = fs::read(&input).unwrap();
    // The block of the fourth packet gets an invalid length.
    let block = nth_block(&bytes, 2 + 3);
    bytes[block + 4..block + 8].copy_from_slice(&13_u32.to_le_bytes());
    fs::write(&input, &bytes).unwrap();
    let finished = read(&input, &["--json", "-w", output.to_str().unwrap()]);
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains(&block.to_string()), "the line has the offset: {line}");
    assert_eq!(count(&ledger(&finished), "delivered"), 3);
    assert_complete(&output, 3);
}

/// Returns the offset of block `n` in a little-endian pcapng file.
fn nth_block(bytes: &[u8], n: usize) -> usize {
    let len = |at: usize| u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
    (0..n).fold(0, |at, _| at + len(at))
}

#[test]
fn packets_before_a_damaged_pcap_record_are_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let input = file(directory.path(), Format::Pcap, &numbered(9));
    let mut bytes = fs::read(&input).unwrap();
    let record = 24 + numbered(2).iter().map(|frame| 16 + frame.len()).sum::<usize>();
    bytes[record + 8..record + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    fs::write(&input, &bytes).unwrap();
    let finished = read(&input, &["--json", "-w", output.to_str().unwrap()]);
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{line}");
    assert_eq!(count(&ledger(&finished), "delivered"), 2);
    assert_complete(&output, 2);
}

#[test]
fn packets_before_one_of_another_link_type_are_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let (input, output) = (directory.path().join("mixed"), directory.path().join("output"));
    let raw = SinkInterface { linktype: LinkType(101), ..SinkInterface::default() };
    let interfaces = vec![SinkInterface::default(), raw];
    let options = SinkOptions { interfaces, ..SinkOptions::new(Target::Path(input.clone()), 0) };
    let mut sink = FileSink::create(options).unwrap();
    for (bytes, interface) in numbered(5).iter().zip([0, 0, 0, 1, 0]) {
        let wire_len = bytes.len() as u32;
        sink.write(&FrameRef { bytes, wire_len, interface, ..FrameRef::default() }).unwrap();
    }
    sink.close(&[]).unwrap();
    let finished = read(&input, &["--json", "-w", output.to_str().unwrap()]);
    let (code, line) = failure(&finished);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("it has packets of link types 1 and 101:"), "{line}");
    assert_eq!(count(&ledger(&finished), "received"), 3);
    assert_complete(&output, 3);
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("text"), "this is not a capture file at all").unwrap();
    fs::write(at("short"), [0x0a]).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let cases = [
        ("empty", "empty"),
        ("text", "not a pcap or pcapng file"),
        ("short", "short"),
        ("folder", "directory"),
    ];
    for (name, words) in cases.into_iter().chain([("nothing", "No such file")]) {
        let (code, line) = failure(&read(&at(name), &[]));
        assert_eq!(code, 1, "{line}");
        assert!(line.contains(words) && line.contains(at(name).to_str().unwrap()), "{line}");
    }
}

#[test]
fn invalid_filter_is_reported_for_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(directory.path(), Format::Pcap, &numbered(1));
    let (code, line) = failure(&read(&input, &["tcp", "prot", "80"]));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("tcp prot 80") && line.contains("syntax error"), "{line}");
}

#[test]
fn times_are_in_the_local_zone() {
    let line = |zone: &str| {
        let launch = Launch::new(STRAIT).args(["capture", "-r", RECORDING, "-c", "1"]).env("TZ", zone);
        launch.run(LIMIT).unwrap().success().text()
    };
    let (utc, east) = (line("UTC0"), line("EAST-2"));
    let hour = |line: &str| line[..2].parse::<u32>().unwrap();
    assert_eq!(hour(&east), (hour(&utc) + 2) % 24);
    assert_eq!(east[2..], utc[2..]);
}
