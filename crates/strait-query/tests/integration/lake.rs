//! Queries of the Parquet files that `strait capture --to` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strait_capture::file::FileReader;
use strait_ledger::{Capture, LaneCounts, Report};
use strait_table::flows::FlowLimits;
use strait_table::messages::SelectedMessages;
use strait_table::packets::Columns;
use strait_table::sink::TableSink;
use strait_table::{FileNumbers, Options, Packet, Selected};

use crate::{Scene, printed, refused, run, text};

/// Writes the tables of a capture file, as `strait capture -r FILE --to file:DIR` does.
pub(crate) fn write_tables(capture: &Path, directory: &Path, sensor: &str, columns: Columns) {
    let options = Options {
        directory: directory.to_owned(),
        sensor: sensor.into(),
        capture: "0001".into(),
        numbers: FileNumbers::default(),
        selected: Selected {
            messages: SelectedMessages { dns: true, tls: true, http: true },
            ..Selected::default()
        },
        flows: FlowLimits::default(),
        columns,
        frame_bytes: 0,
        rotate_bytes: 1 << 30,
        rotate_every: Duration::from_hours(1),
        spool: None,
        waits: true,
    };
    let mut sink = TableSink::open(options, Arc::new(|_| None), 0).unwrap();
    sink.start().unwrap();
    let mut reader = FileReader::open(capture.to_str().unwrap()).unwrap();
    let mut received = 0;
    while let Some(packet) = reader.next().unwrap() {
        received += 1;
        sink.push(&Packet {
            bytes: packet.bytes,
            link_type: packet.link_type as u16,
            wire_len: packet.wire_len,
            time_ns: packet.timestamp_ns,
            interface: 0,
            lane: 0,
            direction: None,
            owner: None,
        })
        .unwrap();
    }
    sink.end_flows().unwrap();
    sink.complete().unwrap();
    let capture = Capture { received, delivered: received, ..Capture::default() };
    let lane = LaneCounts { queue: 0, cpu: None, capture };
    let report = Report {
        path: "file".into(),
        mode: "read".into(),
        interface: "scenes".into(),
        ..Report::from_lanes(vec![lane], &Capture::default())
    };
    sink.close(&report, crate::traffic::START_NS).unwrap();
}

/// Capture and its tables.
fn lake() -> (Scene, String) {
    let scene = Scene::new();
    let directory = scene.path("lake [1]");
    write_tables(&scene.path("scenes.pcap"), &directory, "fr1", Columns::default());
    let directory = text(&directory);
    (scene, directory)
}

/// Returns the first Parquet file of a table.
fn file_of(directory: &str, table: &str) -> PathBuf {
    let mut path = Path::new(directory).join(table);
    while path.is_dir() {
        path = fs::read_dir(&path).unwrap().next().unwrap().unwrap().path();
    }
    path
}

#[test]
fn tables_have_the_rows_of_the_capture_and_their_partitions() {
    let (scene, directory) = lake();
    for sql in [
        "select count(*), sum(length), min(time), max(time) from packets",
        "select count(*), sum(octetDeltaCount) from flows",
        "select source_address, count(*) from packets group by 1 order by 1",
        "select query, response_code, community_id from dns order by time, query",
    ] {
        assert_eq!(printed(&["--csv", sql, &directory]), printed(&["--csv", sql, &scene.capture()]), "{sql}");
    }
    let sql = "select date, hour, sensor, count(*) as n from dns group by 1, 2, 3";
    assert_eq!(printed(&["--csv", sql, &directory]), "date,hour,sensor,n\n2025-11-25,16,fr1,7\n");
    let sql = "select received = (select count(*) from packets) as same from ledger";
    assert_eq!(printed(&["--csv", sql, &directory]), "same\ntrue\n");
}

#[test]
fn excluded_partitions_are_not_read() {
    let (_scene, directory) = lake();
    let damaged = file_of(&directory, "dns");
    let whole = fs::read(&damaged).unwrap();
    // The footer is valid, so that only a read of the pages fails.
    let mut bytes = whole.clone();
    bytes[4..200].fill(0xff);
    fs::write(&damaged, bytes).unwrap();
    let sql = "select count(query) as n from dns where hour = '03'";
    assert_eq!(printed(&["--csv", sql, &directory]), "n\n0\n");
    let output = run(&["--csv", "select * from dns", &directory]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
}

#[test]
fn damaged_files_and_files_of_other_programs_are_one_line() {
    let (scene, directory) = lake();
    let path = file_of(&directory, "flows");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let message = refused(&["select count(*) from flows", &directory], 1);
    assert!(message.starts_with(&format!("read {}: ", path.display())), "{message}");
    // Other tables are not affected.
    printed(&["select count(*) from packets", &directory]);
    let message = refused(&["select 1 as n", &text(&path)], 1);
    assert!(message.starts_with(&format!("read {}", path.display())), "{message}");
    let other = text(&scene.path("other.parquet"));
    printed(&["-o", &other, "select 1 as n"]);
    assert!(refused(&["select 1 as n", &other], 1).contains("no table of strait capture"));
    assert!(refused(&["select 1 as n", &directory, &scene.capture()], 2).contains("not both"));
}

#[test]
fn unfinished_files_are_skipped_and_a_table_without_files_is_empty() {
    let (_scene, directory) = lake();
    let path = file_of(&directory, "packets");
    let unfinished = path.with_file_name(format!(".{}.part", path.file_name().unwrap().to_str().unwrap()));
    fs::write(unfinished, "PAR1 unfinished").unwrap();
    let before = printed(&["--csv", "select count(*) from packets where hour = '16'", &directory]);
    assert!(before.lines().nth(1).unwrap().parse::<u64>().unwrap() > 0);
    fs::remove_file(file_of(&directory, "dns")).unwrap();
    assert_eq!(
        printed(&["--csv", "select count(query) as n, max(hour) as h from dns", &directory]),
        "n,h\n0,\n"
    );
}

#[test]
fn directories_and_files_with_different_columns_are_one_table() {
    let (scene, directory) = lake();
    let second = scene.path("second");
    write_tables(&scene.path("scenes.pcap"), &second, "fr2", Columns::parse("basic").unwrap());
    let sql = "select sensor, count(*) = count(ttl) as has_ttl from packets group by 1 order by 1";
    let expected = "sensor,has_ttl\nfr1,true\nfr2,false\n";
    assert_eq!(printed(&["--csv", sql, &directory, &text(&second)]), expected);
    let file = text(&file_of(&directory, "dns"));
    assert_eq!(printed(&["--csv", "select count(*) as n from dns", &file]), "n\n7\n");
}

#[test]
fn files_that_would_be_left_out_are_refused() {
    let (_scene, directory) = lake();
    let stored = file_of(&directory, "flows");
    let misplaced = Path::new(&directory).join("flows/copy.parquet");
    fs::copy(&stored, &misplaced).unwrap();
    let sql = "select count(*) as n from flows";
    let message = refused(&[sql, &directory], 1);
    assert!(message.contains("copy.parquet") && message.contains("query it by its name"), "{message}");
    fs::remove_file(&misplaced).unwrap();
    fs::write(stored.with_file_name("empty.parquet"), "").unwrap();
    let message = refused(&[sql, &directory], 1);
    assert!(message.contains("empty.parquet") && message.contains("it is empty"), "{message}");
}
