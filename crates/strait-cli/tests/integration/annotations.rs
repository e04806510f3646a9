//! Comments and names of addresses in pcapng files, as capinfos and tshark read them.

use std::fs;
use std::path::{Path, PathBuf};

use strait_capture::sink::{FileSink, FrameRef, SinkOptions, Target};

use crate::refusals::RECORDING;
use crate::rig::{failure, run};
use crate::tools::{self, capinfos, tshark};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a copy of `file` to OUT.pcapng with further options.
fn copy(file: &str, directory: &tempfile::TempDir, name: &str, options: &[&str]) -> PathBuf {
    let out = directory.path().join(name);
    let _ = run(&[&["capture", "-r", file, "-w", text(&out)], options].concat()).success();
    out
}

/// Returns the values of lines of capinfos that start with `name`.
fn values(file: &Path, name: &str) -> Vec<String> {
    let lines = capinfos(file).1;
    let values = lines.lines().filter_map(|line| line.strip_prefix(name));
    values.map(|value| value.trim_start_matches(':').trim().to_owned()).collect()
}

#[test]
fn each_file_has_the_comments() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let long = "é".repeat(1024);
    let options = ["--comment", "day – one", "--comment", &long, "--rotate-mib", "16k"];
    copy(RECORDING, &directory, "out.pcapng", &options);
    let files: Vec<PathBuf> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 3);
    for file in files {
        assert_eq!(values(&file, "Capture comment"), ["day – one", &long], "{}", file.display());
    }
}

#[test]
fn comments_and_names_that_no_file_can_hold_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (pcapng, pcap) = (directory.path().join("out.pcapng"), directory.path().join("out.pcap"));
    let long = "é".repeat(1025);
    let many = ["--comment", "x"].repeat(17);
    for (file, options, words) in [
        (Some(&pcap), &["--comment", "x"][..], "only pcapng holds comments"),
        (Some(&pcap), &["--names"], "only pcapng holds names"),
        (Some(&pcapng), &["--comment", &long], "a comment has 2050 bytes: give at most 2048"),
        (Some(&pcapng), &many, "17 comments: give at most 16"),
        (None, &["--comment", "x"], "--comment needs an output: give -w FILE"),
        (None, &["--names"], "--names needs an output: give -w FILE"),
    ] {
        let mut arguments = vec!["capture", "-r", RECORDING];
        arguments.extend(file.into_iter().flat_map(|file| ["-w", text(file)]));
        let (code, line) = failure(&run(&[&arguments, options].concat()));
        assert!(code == 2 && line.contains(words), "{words}: {code} {line}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn tshark_shows_the_names_of_dns_answers_without_these_packets() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let hosts = |file: &Path| -> Vec<String> {
        let fields = tshark(file, &["-N", "n"], &["ip.dst_host", "ipv6.dst_host"]);
        let mut hosts: Vec<String> = fields.into_iter().flatten().filter(|host| !host.is_empty()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    };
    // The second copy has no packets of DNS.
    let web = "tcp port 80";
    let plain = copy(RECORDING, &directory, "plain.pcapng", &[web]);
    assert!(!hosts(&plain).iter().any(|host| host == "www.example.org"), "{:?}", hosts(&plain));
    let named = copy(RECORDING, &directory, "named.pcapng", &["--names"]);
    let web = copy(text(&named), &directory, "web.pcapng", &[web]);
    assert_eq!(hosts(&web), ["192.0.2.1", "2001:db8::1", "www.example.org"]);
    for file in [&named, &web] {
        assert_eq!(values(file, "Number of resolved IPv4 addresses in file"), ["1"]);
        assert_eq!(values(file, "Number of resolved IPv6 addresses in file"), ["1"]);
    }
}

/// Returns an Ethernet frame with an IPv4 packet to 10.0.0.2 or `to`, with this payload.
fn packet(protocol: u8, to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let [high, low] = length.to_be_bytes();
    let ethernet = [&[2; 12][..], &[8, 0]].concat();
    let header = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1];
    [&ethernet[..], &header, &to, payload].concat()
}

/// Returns the response of a name server with an address, and a connection to it.
fn answer_and_connection(number: u16) -> [Vec<u8>; 2] {
    let [high, low] = number.to_be_bytes();
    let address = [10, 1, high, low];
    let name = format!("host{number}");
    let mut message = vec![0, 1, 0x81, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, name.len() as u8];
    message.extend(name.bytes());
    message.extend([0, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
    message.extend(address);
    let length = 8 + message.len() as u8;
    let datagram = [&[0, 53, 0x10, 0, 0, length, 0, 0][..], &message].concat();
    let syn = [0x10, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0];
    [packet(17, [10, 0, 0, 2], &datagram), packet(6, address, &syn)]
}

#[test]
fn name_is_in_the_file_before_the_packet_behind_its_answer() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("input.pcapng");
    let mut sink = FileSink::create(SinkOptions::new(Target::Path(input.clone()), 0)).unwrap();
    for bytes in (0..400).flat_map(answer_and_connection) {
        sink.write(&FrameRef { bytes: &bytes, wire_len: bytes.len() as u32, ..FrameRef::default() }).unwrap();
    }
    sink.close(&[]).unwrap();
    let out = copy(text(&input), &directory, "named.pcapng", &["--names"]);
    // In one pass, in which tshark knows only the names before a packet.
    let rows = tshark(&out, &["-N", "n", "-Y", "tcp"], &["ip.dst_host"]);
    let expected: Vec<Vec<String>> = (0..400).map(|number| vec![format!("host{number}")]).collect();
    assert_eq!(rows, expected);
}
