//! Conditions of a query and the index of a capture file: the rows are those without an index, from
//! fewer parts of the file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use strait_capture::index::{Place, load, path_of};

use crate::index::{forge, index_files};
use crate::traffic::{ACK, MILLISECOND, SECOND, START_NS, Traffic};
use crate::{Scene, printed, refused, run, text};

/// Number of flows.
const FLOWS: u16 = 120;

/// Returns flows of 40 segments, of which four overlap at a time, with pauses longer than the
/// timeouts of flows, and a datagram of one flow now and then: about six parts.
fn traffic() -> Traffic {
    let mut traffic = Traffic::default();
    for flow in 0..FLOWS {
        let pause = u64::from(flow / 20) * 70 * SECOND;
        let start = pause + u64::from(flow) * SECOND;
        let ends = [(1 + (flow % 5) as u8, 20_000 + flow), (9, 443)];
        for packet in 0..40_u32 {
            let after = start + u64::from(packet) * 100 * MILLISECOND;
            traffic.tcp(after, ends, [100 + packet * 1000, 1], ACK, 1000, 1400);
        }
        if flow % 30 == 0 {
            traffic.udp(start + 500 * MILLISECOND, [(3, 7), (4, 9)], b"now and then");
        }
    }
    traffic
}

fn scene() -> (Scene, PathBuf) {
    Scene::with_large(&traffic())
}

/// Returns the rows of a query in CSV, and the read and all bytes, if parts were skipped.
fn rows(sql: &str, file: &Path) -> (String, Option<(u64, u64)>) {
    let output = run(&["--csv", sql, &text(file)]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{sql}: {errors}");
    let numbers = errors
        .strip_prefix("strait-query: ")
        .unwrap_or(&errors)
        .split_once(" parts were read, ")
        .map(|(_, rest)| {
            let numbers: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            (numbers[0], numbers[1])
        });
    assert!(errors.is_empty() || numbers.is_some() && errors.lines().count() == 1, "{sql}: {errors}");
    (String::from_utf8(output.stdout).unwrap(), numbers)
}

/// Generator of predicates: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }

    /// Returns a time of the capture, before it, or after it.
    fn time(&mut self) -> String {
        let nanoseconds =
            START_NS - 20 * SECOND + self.below(700) * SECOND + self.below(3) * 50 * MILLISECOND;
        format!("to_timestamp_nanos({nanoseconds})")
    }

    /// Returns the endpoints of a flow that may exist.
    fn ends(&mut self) -> [(u8, u16); 2] {
        let flow = self.below(u64::from(FLOWS) + 3) as u16;
        let ends = [(1 + (flow % 5) as u8, 20_000 + flow), (9, 443)];
        match self.below(8) {
            0 => [(3, 7), (4, 9)],
            1 | 2 => [ends[1], ends[0]],
            _ => ends,
        }
    }

    /// Returns a predicate on the table `packets`.
    fn of_packets(&mut self, depth: u32) -> String {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => format!("time {} {}", self.pick(&["<", "<=", ">", ">=", "=", "<>"]), self.time()),
            1 => format!("{} {} time", self.time(), self.pick(&["<", "<=", ">", ">="])),
            2 => format!("time {}between {} and {}", self.pick(&["", "", "not "]), self.time(), self.time()),
            3 => format!("time in ({}, {}, {})", self.time(), self.time(), self.time()),
            4 => {
                let [(source, source_port), (destination, destination_port)] = self.ends();
                let protocol =
                    self.pick(&["", " and protocol = 6", " and protocol = 17", " and protocol = 1"]);
                format!(
                    "source_address = '10.0.0.{source}' and {source_port} = source_port and \
                     destination_address = '10.0.0.{destination}' and destination_port = {destination_port}{protocol}"
                )
            }
            5 => self.pick(&["length > 100", "source_port = 20007", "tcp_flags is null", "true"]).to_owned(),
            6 | 7 => format!("({} and {})", self.of_packets(depth - 1), self.of_packets(depth - 1)),
            _ => format!("({} or {})", self.of_packets(depth - 1), self.of_packets(depth - 1)),
        }
    }

    /// Returns a predicate on the table `flows`; `ids` are some identifiers.
    fn of_flows(&mut self, ids: &[String], depth: u32) -> String {
        let id = |random: &mut Self| ids[random.below(ids.len() as u64) as usize].clone();
        match self.below(if depth == 0 { 5 } else { 8 }) {
            0 | 1 => format!("communityId = '{}'", id(self)),
            2 => format!("communityId in ('{}', '{}', 'none')", id(self), id(self)),
            3 => {
                let [(source, source_port), (destination, destination_port)] = self.ends();
                format!(
                    "sourceAddress = '10.0.0.{source}' and sourceTransportPort = {source_port} and \
                     destinationAddress = '10.0.0.{destination}' and destinationTransportPort = {destination_port}"
                )
            }
            4 => format!("flowStartNanoseconds > {}", self.time()),
            5 | 6 => format!("({} and {})", self.of_flows(ids, depth - 1), self.of_flows(ids, depth - 1)),
            _ => format!("({} or {})", self.of_flows(ids, depth - 1), self.of_flows(ids, depth - 1)),
        }
    }
}

#[test]
fn rows_of_random_conditions_are_those_without_an_index() {
    let (_scene, large) = scene();
    let ids = printed(&["--csv", "select distinct communityId from flows order by 1", &text(&large)]);
    let ids: Vec<String> = ids.lines().skip(1).map(str::to_owned).collect();
    assert!(ids.len() > usize::from(FLOWS));
    let mut random = Random(0x5eed_0001);
    let mut queries = Vec::new();
    for _ in 0..60 {
        let condition = random.of_packets(2);
        queries.push(format!(
            "select time, source_address, source_port, destination_port, tcp_sequence from packets \
             where {condition} order by 1, 2, 3, 4, 5"
        ));
    }
    for _ in 0..40 {
        let condition = random.of_flows(&ids, 2);
        queries.push(format!("select * from flows where {condition} order by 1, 2, 3, 4, 5, 6, 7"));
    }
    let without: Vec<String> = queries.iter().map(|sql| rows(sql, &large).0).collect();
    index_files(&[&large]);
    let (mut skipped, mut found) = (0, 0);
    for (sql, expected) in queries.iter().zip(&without) {
        let (with, extent) = rows(sql, &large);
        assert_eq!(with, *expected, "{sql}");
        skipped += u32::from(extent.is_some());
        found += u32::from(extent.is_some() && expected.lines().count() > 1);
    }
    assert!(skipped > 40 && found > 20, "parts were skipped in {skipped} queries, {found} of them with rows");
}

#[test]
fn bytes_of_skipped_parts_are_not_read() {
    let (_scene, large) = scene();
    index_files(&[&large]);
    let file = File::options().read(true).write(true).open(&large).unwrap();
    let index = load(&large, &file).unwrap();
    let parts: Vec<_> = index.parts().collect();
    assert!(parts.len() > 4, "{}", parts.len());
    let second = START_NS + SECOND;
    let queries = [
        format!("select count(*) as n from packets where time < to_timestamp_nanos({second})"),
        "select count(*) as n from packets where source_address = '10.0.0.1' and source_port = 20000 \
         and destination_address = '10.0.0.9' and destination_port = 443"
            .to_owned(),
        "select sum(packetDeltaCount) as n from flows where sourceAddress = '10.0.0.1' and sourceTransportPort = 20000 \
         and destinationAddress = '10.0.0.9' and destinationTransportPort = 443"
            .to_owned(),
    ];
    let before = queries.clone().map(|sql| rows(&sql, &large));
    assert_eq!(before[1].0, "n\n40\n");
    assert_eq!(before[2].0, "n\n40\n");
    for (_, extent) in &before {
        let (read, all) = extent.expect("skipped parts");
        assert_eq!(all, fs::metadata(&large).unwrap().len());
        assert!(read < all / 2 && read >= parts[1].end - parts[1].start, "{read} of {all}");
    }
    // Garbage in the middle of the file, which keeps its length and its time.
    let modified = file.metadata().unwrap().modified().unwrap();
    let middle = parts[3];
    file.write_all_at(&vec![0xff; (middle.end - middle.start) as usize], middle.start).unwrap();
    file.set_modified(modified).unwrap();
    for (sql, before) in queries.iter().zip(&before) {
        assert_eq!(rows(sql, &large), *before, "{sql}");
    }
    let all = "select count(*) from packets where time > to_timestamp_nanos(0)";
    let output = run(&["--csv", all, &text(&large)]);
    assert_eq!(output.status.code(), Some(1), "the damaged part is read");
}

#[test]
fn indexes_that_are_stale_or_lie_are_reported() {
    let (_scene, large) = scene();
    let second = START_NS + SECOND;
    let sql = format!("select count(*) as n from packets where time < to_timestamp_nanos({second})");
    let expected = rows(&sql, &large).0;
    index_files(&[&large]);
    let valid = fs::read(path_of(&large)).unwrap();
    fs::write(path_of(&large), &valid[..valid.len() - 1]).unwrap();
    let output = run(&["--csv", &sql, &text(&large)]);
    assert!(output.status.success() && output.stdout == expected.as_bytes());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("note: read completely: ") && errors.contains("its index is not valid"),
        "{errors}"
    );
    // Packets with other times than the index says.
    let places = [Place { end: 24 + 1470, time_ns: START_NS - 5, flow: None, describes: false }];
    forge(&large, 24, &places);
    let message = refused(&["--csv", &sql, &text(&large)], 1);
    assert!(
        message.contains("its index does not describe it: write it again by strait query --index"),
        "{message}"
    );
}

#[test]
fn flows_of_a_file_with_times_that_fall_back_are_read_completely() {
    let scene = Scene::new();
    let large = scene.path("merged.pcap");
    // Two captures of the same time, one after the other, as a merged file may have them.
    let bytes = traffic().pcap();
    fs::write(&large, [&bytes[..], &bytes[24..]].concat()).unwrap();
    let flows = "select * from flows where sourceTransportPort = 20050 and sourceAddress = '10.0.0.1' \
                 and destinationTransportPort = 443 and destinationAddress = '10.0.0.9' order by 1, 2";
    let packets =
        flows.replace("sourceTransportPort", "source_port").replace("sourceAddress", "source_address");
    let packets = packets.replace("destinationTransportPort", "destination_port");
    let packets =
        packets.replace("destinationAddress", "destination_address").replace("from flows", "from packets");
    let expected = [flows, &packets].map(|sql| rows(sql, &large).0);
    assert!(expected.iter().all(|rows| rows.lines().count() > 2), "{expected:?}");
    index_files(&[&large]);
    let [of_flows, of_packets] = [flows, &packets].map(|sql| rows(sql, &large));
    assert_eq!([&of_flows.0, &of_packets.0], [&expected[0], &expected[1]]);
    assert!(of_flows.1.is_none() && of_packets.1.is_some());
}
