//! Other programs as oracles: tshark, capinfos and tcpdump must read the files without a warning
//! and agree.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use strait_pcapng::pcap::Precision;
use strait_pcapng::{Direction, Interface, LinkType, Packet, Section, Statistics, pcap, pcapng};

use crate::owned::packets;

/// Number of packets in the test files.
const COUNT: u32 = 50;

fn frame(number: u32) -> (u64, Vec<u8>, u32) {
    let timestamp_ns = 1_700_000_000_123_456_789 + u64::from(number) * 1_001_001;
    let len = 60 + number as usize;
    // Ethernet frame of an experimental type (IEEE 802 s9.2), which no dissector decodes.
    let mut bytes = vec![number as u8; len];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    (timestamp_ns, bytes, len as u32 + number % 3 * 100)
}

fn pcapng_file() -> Vec<u8> {
    let mut file = Vec::new();
    let section =
        Section { hardware: Some("x86_64"), os: Some("Linux"), application: Some("strait"), comments: &[] };
    let mut encoder = pcapng::Encoder::begin(&mut file, &section);
    for name in ["veth0", "veth1"] {
        let interface = Interface {
            snaplen: 262_144,
            name: Some(name),
            description: Some("a link"),
            filter: Some("udp"),
            os: Some("Linux"),
            ..Interface::default()
        };
        encoder.interface(&mut file, &interface).unwrap();
    }
    for number in 0..COUNT {
        let (timestamp_ns, bytes, wire_len) = frame(number);
        let direction = [None, Some(Direction::In), Some(Direction::Out)][number as usize % 3];
        let queue = (number % 5 == 0).then_some(number);
        let packet = Packet {
            timestamp_ns,
            bytes: &bytes,
            wire_len,
            interface: number % 2,
            direction,
            queue,
            comment: None,
        };
        encoder.packet(&mut file, &packet).unwrap();
    }
    for interface in 0..2 {
        let statistics = Statistics {
            interface,
            timestamp_ns: 1_700_000_001_000_000_000,
            received: Some(25),
            os_dropped: Some(0),
            start_ns: Some(1_700_000_000_000_000_000),
            end_ns: Some(1_700_000_001_000_000_000),
            dropped: Some(0),
            filter_accepted: Some(25),
            delivered: Some(25),
        };
        encoder.statistics(&mut file, &statistics).unwrap();
    }
    file
}

fn pcap_file(precision: Precision) -> Vec<u8> {
    let mut file = Vec::new();
    let encoder = pcap::Encoder::begin(&mut file, LinkType::ETHERNET, 0, precision);
    for number in 0..COUNT {
        let (timestamp_ns, bytes, wire_len) = frame(number);
        let packet = Packet { timestamp_ns, bytes: &bytes, wire_len, ..Packet::default() };
        encoder.packet(&mut file, &packet).unwrap();
    }
    file
}

fn files() -> [(&'static str, Vec<u8>); 3] {
    [
        ("a.pcapng", pcapng_file()),
        ("ns.pcap", pcap_file(Precision::Nanoseconds)),
        ("us.pcap", pcap_file(Precision::Microseconds)),
    ]
}

/// Returns the standard output of `program`, which must succeed without messages. Returns `None` if
/// it is not installed.
fn run(program: &str, arguments: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).arg(file).env("LC_ALL", "C").output() else {
        eprintln!("SKIP {program} is not installed");
        return None;
    };
    let complaints: Vec<_> = std::str::from_utf8(&output.stderr)
        .expect("messages in UTF-8")
        .lines()
        // Messages of every run: the name of the file, and that root runs the program.
        .filter(|line| !line.starts_with("reading from file") && !line.contains("Running as user"))
        .collect();
    assert!(output.status.success() && complaints.is_empty(), "{program} {}: {complaints:?}", file.display());
    Some(String::from_utf8(output.stdout).expect("output in UTF-8"))
}

fn each_file(check: impl Fn(&Path, &[u8])) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, bytes) in files() {
        let path = directory.path().join(name);
        std::fs::write(&path, &bytes).expect("a file in it");
        check(&path, &bytes);
    }
}

/// Returns `seconds.nanoseconds captured wire`, one line per packet, as this crate decodes the
/// file.
fn listing(file: &[u8]) -> String {
    packets(file).iter().fold(String::new(), |mut all, packet| {
        let (s, ns) = (packet.timestamp_ns / 1_000_000_000, packet.timestamp_ns % 1_000_000_000);
        writeln!(all, "{s}.{ns:09}\t{}\t{}", packet.bytes.len(), packet.wire_len).unwrap();
        all
    })
}

#[test]
fn tshark_sees_the_same_packets() {
    let fields =
        ["-n", "-T", "fields", "-e", "frame.time_epoch", "-e", "frame.cap_len", "-e", "frame.len", "-r"];
    each_file(|path, bytes| {
        let Some(output) = run("tshark", &fields, path) else { return };
        assert_eq!(output, listing(bytes), "{}", path.display());
    });
}

#[test]
fn tshark_sees_directions_interfaces_and_queues() {
    let fields = [
        "-n",
        "-T",
        "fields",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "frame.interface_queue",
        "-r",
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("a.pcapng");
    std::fs::write(&path, pcapng_file()).expect("a file in it");
    let Some(output) = run("tshark", &fields, &path) else { return };
    for (number, line) in output.lines().enumerate() {
        let mut columns = line.split('\t');
        assert_eq!(columns.next(), Some(["veth0", "veth1"][number % 2]));
        let direction =
            columns.next().map(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        assert_eq!(direction, Some([None, Some(1), Some(2)][number % 3]), "packet {number}");
        let queue = columns.next().and_then(|text| text.parse().ok());
        assert_eq!(queue, (number % 5 == 0).then_some(number), "packet {number}");
    }
}

#[test]
fn capinfos_counts_the_same() {
    each_file(|path, bytes| {
        let Some(output) = run("capinfos", &["-M"], path) else { return };
        let data: u64 = packets(bytes).iter().map(|packet| u64::from(packet.wire_len)).sum();
        let line = |name: &str| {
            let line = output.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        assert_eq!(line("Number of packets"), COUNT.to_string(), "{output}");
        assert_eq!(line("Data size"), format!("{data} bytes"), "{output}");
        let name = path.extension().unwrap_or_default() == "pcapng";
        assert!(!name || output.contains("Capture application: strait"), "{output}");
        assert!(!name || output.contains("Number of stat entries = 1"), "{output}");
    });
}

#[test]
fn tcpdump_reads_them_to_the_end() {
    each_file(|path, bytes| {
        let arguments = ["-n", "-tt", "--nano", "-r"];
        let Some(output) = run("tcpdump", &arguments, path) else { return };
        let seen: Vec<_> = output
            .lines()
            .filter(|line| line.contains("ethertype"))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let listing = listing(bytes);
        let expected: Vec<_> = listing.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(seen, expected, "{}", path.display());
    });
}
