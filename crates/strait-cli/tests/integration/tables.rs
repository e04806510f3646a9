//! Tables: pyarrow and DuckDB read the same packets as tshark, and the same counts as the ledger.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lab::{Launch, Wire, fetched_or_skip, wait_until};
use rustix::process::Signal;
use strait_capture::sink::{FileSink, FrameRef, SinkOptions, Target};

use crate::disk::SmallDisk;
use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, count, failure, ledger, numbered, run, send, strait, tagged};
use crate::tools::{self, tshark};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/tables.py");

/// Query engines, and a directory of tables.
pub(crate) struct Lake {
    python: PathBuf,
    directory: tempfile::TempDir,
}

impl Lake {
    /// Skips the test if the engines are not installed.
    pub(crate) fn or_skip() -> Option<Self> {
        let python = fetched_or_skip("tables/bin/python")?;
        Some(Self { python, directory: tempfile::tempdir().unwrap() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the value of --to.
    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.path().display())
    }

    pub(crate) fn ask(&self, directory: &Path, words: &[&str]) -> Vec<Vec<String>> {
        let launch = Launch::new(&self.python).arg(SCRIPT).arg(words[0]).arg(directory).args(&words[1..]);
        let finished = launch.run(LIMIT).unwrap().success();
        finished.text().lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    /// Returns columns of the table `packets`, in the order of the files.
    pub(crate) fn rows(&self, columns: &[&str]) -> Vec<Vec<String>> {
        self.ask(self.path(), &[&["rows"], columns].concat())
    }

    /// Returns DuckDB's answer, which is one row of numbers.
    pub(crate) fn numbers(&self, query: &str) -> Vec<i64> {
        self.numbers_below(self.path(), query)
    }

    pub(crate) fn numbers_below(&self, directory: &Path, query: &str) -> Vec<i64> {
        let rows = self.ask(directory, &["sql", query]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows[0].iter().map(|number| number.parse().unwrap()).collect()
    }
}

/// Writes generated frames with and without VLAN tags, one of them cut, and the recorded protocols.
pub(crate) fn mixed_file(directory: &Path) -> PathBuf {
    let recorded = crate::rig::packets(Path::new(RECORDING)).into_iter().map(|packet| packet.bytes);
    let frames = numbered(300).into_iter().chain(tagged(100)).chain(recorded);
    file_of(&directory.join("mixed.pcapng"), frames)
}

/// Writes frames, one of them cut. Returns the path.
pub(crate) fn file_of(path: &Path, frames: impl Iterator<Item = Vec<u8>>) -> PathBuf {
    let mut sink = FileSink::create(SinkOptions::new(Target::Path(path.to_owned()), 0)).unwrap();
    for (i, bytes) in frames.enumerate() {
        let timestamp_ns = 1_764_000_000_123_456_789 + i as u64 * 1_000_003;
        let captured = if i == 7 { &bytes[..100] } else { &bytes[..] };
        sink.write(&FrameRef {
            timestamp_ns,
            bytes: captured,
            wire_len: bytes.len() as u32,
            ..FrameRef::default()
        })
        .unwrap();
    }
    sink.close(&[]).unwrap();
    path.to_owned()
}

/// Fields of tshark, each with the column of the same value.
const FIELDS: [(&str, &str); 15] = [
    ("frame.time_epoch", "time"),
    ("frame.len", "length"),
    ("frame.cap_len", "captured_length"),
    ("vlan.id", "vlan"),
    ("ip.src", "source_address"),
    ("ip.dst", "destination_address"),
    ("ip.proto", "protocol"),
    ("ip.ttl", "ttl"),
    ("ip.id", "ip_id"),
    ("tcp.srcport", "source_port"),
    ("tcp.dstport", "destination_port"),
    ("tcp.flags", "tcp_flags"),
    ("tcp.seq_raw", "tcp_sequence"),
    ("tcp.ack_raw", "tcp_acknowledgment"),
    ("tcp.window_size_value", "tcp_window"),
];
/// Fields of tshark for IPv6, UDP and outer tags, with the column of each.
const OTHER_FIELDS: [(&str, &str); 7] = [
    ("ipv6.src", "source_address"),
    ("ipv6.dst", "destination_address"),
    ("ipv6.hlim", "ttl"),
    ("udp.srcport", "source_port"),
    ("udp.dstport", "destination_port"),
    ("ipv6.fraghdr.ident", "ip_id"),
    ("ieee8021ad.id", "vlan"),
];

#[test]
fn rows_of_packets_have_the_fields_that_tshark_prints() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let file = mixed_file(lake.path());
    let url = lake.url();
    let arguments = [
        "capture",
        "-r",
        file.to_str().unwrap(),
        "--to",
        &url,
        "--sensor",
        "s1",
        "--columns",
        "all",
        "--json",
    ];
    let ledger = ledger(&run(&arguments).success());

    let columns = FIELDS.map(|(_, column)| column);
    let rows = lake.rows(&columns);
    let names: Vec<&str> = FIELDS.iter().chain(&OTHER_FIELDS).map(|(field, _)| *field).collect();
    let options = ["-E", "occurrence=f", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"];
    let fields = tshark(&file, &options, &names);
    assert_eq!((rows.len() as u64, rows.len()), (count(&ledger, "delivered"), fields.len()));
    for (number, (row, fields)) in rows.iter().zip(&fields).enumerate() {
        assert_eq!(row, &expected(fields), "packet {} of {}", number + 1, file.display());
    }
    let sums = lake.numbers("select count(*), sum(length), count(distinct sensor), count(source_address_bytes) from packets where sensor = 's1'");
    assert_eq!(sums[..3], [rows.len() as i64, count(&ledger, "wire_bytes") as i64, 1]);
    assert_eq!(sums[3], rows.iter().filter(|row| !row[4].is_empty()).count() as i64);
}

/// Returns the row for tshark's fields.
fn expected(fields: &[String]) -> Vec<String> {
    let is_icmp = matches!(fields[6].as_str(), "1");
    let value = |(field, (name, column)): (&String, &(&str, &str))| {
        let field = if field.is_empty() { other(fields, column).unwrap_or(field) } else { field };
        match *name {
            "frame.time_epoch" => field.replace('.', ""),
            "vlan.id" => other(fields, column).filter(|outer| !outer.is_empty()).unwrap_or(field).clone(),
            // The packet in an ICMP error has ports of its own.
            "tcp.srcport" | "tcp.dstport" if is_icmp => String::new(),
            "ip.id" | "tcp.flags" => decimal(field),
            _ => field.clone(),
        }
    };
    let mut row: Vec<String> = fields.iter().zip(&FIELDS).map(value).collect();
    if row[6].is_empty() && !row[4].is_empty() {
        // tshark has the protocol of IPv6 in several fields: see the ports and the payload.
        row[6] = if !fields[11].is_empty() {
            "6"
        } else if !row[9].is_empty() {
            "17"
        } else {
            "58"
        }
        .into();
    }
    row
}

/// Returns the field for IPv6 or UDP of a column.
fn other<'a>(fields: &'a [String], column: &str) -> Option<&'a String> {
    let at = OTHER_FIELDS.iter().position(|(_, of)| *of == column)?;
    Some(&fields[FIELDS.len() + at])
}

fn decimal(hexadecimal: &str) -> String {
    hexadecimal
        .strip_prefix("0x")
        .map_or_else(String::new, |digits| u32::from_str_radix(digits, 16).unwrap().to_string())
}

#[test]
fn flows_have_the_packets_of_each_community_id_that_tshark_computes() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let file = mixed_file(lake.path());
    let url = lake.url();
    let _ = run(&["capture", "-r", file.to_str().unwrap(), "--to", &url, "--tables", "flows"]).success();
    assert!(files(lake.path(), ".parquet").iter().all(|file| !file.starts_with(lake.path().join("packets"))));

    // Flows of fragments have neither ports nor a type.
    let options = ["--enable-protocol", "communityid", "-E", "occurrence=f", "-o", "ip.defragment:FALSE"];
    let filter = ["-Y", "(ip.flags.mf == 0 && ip.frag_offset == 0) || (ipv6 && !ipv6.fraghdr)"];
    let fields = tshark(&file, &[&options[..], &filter].concat(), &["communityid", "ip.len", "ipv6.plen"]);
    let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for fields in fields.iter().filter(|fields| !fields[0].is_empty()) {
        let octets = fields[1].parse().unwrap_or_else(|_| fields[2].parse::<u64>().unwrap() + 40);
        let (packets, sum) = expected.entry(fields[0].clone()).or_default();
        (*packets, *sum) = (*packets + 1, *sum + octets);
    }
    let query = "select communityId, sum(packetDeltaCount + reversePacketDeltaCount), \
                 sum(octetDeltaCount + reverseOctetDeltaCount) from flows \
                 where coalesce(sourceTransportPort, icmpTypeCode) is not null group by 1";
    let found = lake.ask(lake.path(), &["sql", query]);
    let number = |text: &String| text.parse::<u64>().unwrap();
    let found: BTreeMap<String, (u64, u64)> =
        found.iter().map(|row| (row[0].clone(), (number(&row[1]), number(&row[2])))).collect();
    assert!(expected.len() > 10, "{expected:?}");
    assert_eq!(found, expected, "{}", file.display());
}

/// Query for the counts of a ledger in the table.
const SUMS: &str = "select sum(received), sum(delivered), sum(filtered), sum(lost_nic_missed + lost_ring_full + \
    lost_fill_empty + lost_sink + lost_unread + lost_other), sum(bytes), sum(wire_bytes) from ledger";

#[test]
fn live_tables_add_up_to_the_ledger_on_every_lane() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let options = ["--to", &url, "--sensor", "s1", "--queues", "0-1", "--json", "udp"];
    let capture = Capture::start(wire.right(), &options);
    send(&wire, &numbered(500));
    let ledger = ledger(&capture.finish());
    let counts =
        ["received", "delivered", "filtered", "bytes", "wire_bytes"].map(|name| count(&ledger, name) as i64);
    assert!(counts[1] > 0 && counts[2] > 0, "{ledger}");
    assert_eq!(
        lake.numbers(SUMS),
        [counts[0], counts[1], counts[2], crate::rig::lost(&ledger) as i64, counts[3], counts[4]]
    );
    let query = "select count(*), sum(captured_length), sum(length) from packets where interface = 'right' and direction = 'in'";
    assert_eq!(lake.numbers(query), [counts[1], counts[3], counts[4]]);
    for lane in ledger["lanes"].as_array().unwrap() {
        let queue = count(lane, "queue");
        let query = format!("select sum(delivered) from ledger where lane = {queue}");
        assert_eq!(lake.numbers(&query), [count(lane, "delivered") as i64]);
    }
}

/// Returns the files below a directory that end with `suffix`.
pub(crate) fn files(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, suffix));
        } else if path.to_str().unwrap().ends_with(suffix) {
            found.push(path);
        }
    }
    found
}

#[test]
fn killed_capture_leaves_readable_files_and_the_next_one_recovers_the_rest() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let options = ["--to", &url, "--sensor", "s1", "--rotate-s", "1", "--rotate-mib", "64KiB"];
    let capture = Capture::start(wire.right(), &options);
    let generate = ["generate", "-o", "left", "--size", "64", "--rate", "20000", "--duration", "600"];
    let generator = strait(wire.left(), &generate).spawn().unwrap();
    assert!(wait_until(LIMIT, || files(lake.path(), ".parquet").len() > 2), "complete files");
    assert!(wait_until(LIMIT, || !files(lake.path(), ".part").is_empty()), "an unfinished file");
    let finished = capture.end(Signal::KILL);
    assert_eq!(finished.status.code(), None);
    drop(generator);
    let (complete, left) = (files(lake.path(), ".parquet").len(), files(lake.path(), ".part").len());
    let before = lake.numbers("select count(*), count(distinct tcp_sequence) from packets");
    assert!(before[0] > 0);
    assert_eq!(lake.rows(&["time"]).len() as i64, before[0], "pyarrow skips unfinished files");

    let stderr = Capture::start(wire.right(), &options).finish().stderr;
    let reported = stderr.matches("which a killed capture has left").count();
    assert_eq!((reported > 0, files(lake.path(), ".part").len()), (left > 0, 0), "{stderr}");
    assert!(files(lake.path(), ".parquet").len() >= complete);
    assert!(lake.numbers("select count(*) from packets")[0] >= before[0]);
}

#[test]
fn full_disk_ends_the_capture_and_its_packets_are_lost_in_the_sink() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let disk = SmallDisk::mount("64k");
    let capture = disk.capture(&wire, &["--to", "file:/mnt/lake", "--sensor", "s1", "--rotate-s", "1"]);
    let generate = ["generate", "-o", "left", "--size", "64", "--rate", "20000", "--duration", "600"];
    let generator = strait(wire.left(), &generate).spawn().unwrap();
    let finished = capture.wait();
    drop(generator);
    let (code, line) = failure(&finished);
    assert!(code == 1 && line.contains("No space left on device"), "{code} {line}");
    let ledger = ledger(&finished);
    assert!(ledger["lost"]["sink"].as_u64().unwrap() > 0, "{ledger}");
    let directory = disk.directory().join("lake");
    let delivered = count(&ledger, "delivered") as i64;
    if delivered > 0 {
        assert_eq!(lake.numbers_below(&directory, "select count(*) from packets"), [delivered]);
    }
    assert!(files(&directory, ".part").is_empty());
}

#[test]
fn schema_and_wrong_options_are_printed() {
    let text = run(&["capture", "--schema"]).success().text();
    for words in [
        "packets, version 1: ",
        "flows, version 1: ",
        "ledger, version 1: ",
        "  source_address ",
        "timestamp (ns, UTC)",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    for (options, words) in [
        (
            &["--to", "lake"][..],
            "give a directory, as in file:/srv/lake, a bucket, as in s3://lake/raw, a collector, as in ipfix://192.0.2.1, a",
        ),
        (&["--to", "file:"], "give the directory of the tables"),
        (&["--to", "file://localhost"], "give the directory of the tables"),
        (&["--to", "file://srv/lake"], "srv is the host in this URL, not a directory"),
        (&["--to", "file:x", "--sensor", "a/b"], "letters, digits"),
        (&["--to", "file:x", "--columns", "tll"], "tll: no such column"),
        (&["--to", "file:x", "--tables", "flow"], "flow: no such table"),
        (&["--to", "file:x", "-w", "y"], "cannot be used with"),
        (&["--to", "file:x", "--rotate-mib", "1k"], "too small: give at least 64KiB"),
    ] {
        let finished = run(&[&["capture", "-r", RECORDING], options].concat());
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
    }
}

#[test]
fn tables_of_a_file_have_its_packets_and_one_row_of_the_ledger() {
    let Some(lake) = Lake::or_skip() else { return };
    let url = lake.url();
    let arguments = ["capture", "-r", RECORDING, "--to", &url, "--sensor", "s1"];
    let finished = run(&arguments).success();
    let packets = lake.numbers("select count(*) from packets")[0];
    assert!(finished.stderr.contains(&format!("wrote {packets} packets and ")), "{}", finished.stderr);
    assert_eq!(lake.numbers("select count(*) from ledger where path = 'file' and lane = 0"), [1]);
    let count = files(lake.path(), ".parquet").len();
    assert!(finished.stderr.contains(&format!("to {count} files below ")), "{}", finished.stderr);
    let nothing = run(&[&arguments[..], &["ether proto 0x1234"]].concat()).success();
    assert!(nothing.stderr.contains("wrote 0 packets, ") && nothing.stderr.contains("to 1 file below "));
}
