//! Forms of the result.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::traffic::{QUERY, SECOND, Traffic, dns};
use crate::{Scene, printed, text};

const SQL: &str = "select query, count(*) as n from dns group by query order by n desc, query";

#[test]
fn a_table_is_aligned_and_ends_with_the_number_of_rows() {
    let scene = Scene::new();
    let expected = "query         n\nnone.example  4\ngood.example  2\nlost.example  1\n(3 rows)\n";
    assert_eq!(printed(&[SQL, &scene.capture()]), expected);
}

#[test]
fn numbers_are_aligned_to_the_right_and_text_to_the_left() {
    let sql = "select * from (values ('a', 1, 'x'), ('abc', 1000, null)) as t(name, n, note)";
    assert_eq!(printed(&[sql]), "name     n  note\na        1  x\nabc   1000\n(2 rows)\n");
}

#[test]
fn csv_and_json_have_one_line_for_each_row() {
    let scene = Scene::new();
    let expected = "query,n\nnone.example,4\ngood.example,2\nlost.example,1\n";
    assert_eq!(printed(&["--csv", SQL, &scene.capture()]), expected);
    let expected = "{\"query\":\"none.example\",\"n\":4}\n{\"query\":\"good.example\",\"n\":2}\n\
        {\"query\":\"lost.example\",\"n\":1}\n";
    assert_eq!(printed(&["--json", SQL, &scene.capture()]), expected);
    let sql = "select time, response_code from dns where transaction_id = 4";
    let expected = "{\"time\":\"2025-11-25T16:01:04Z\",\"response_code\":null}\n";
    assert_eq!(printed(&["--json", sql, &scene.capture()]), expected);
}

#[test]
fn a_result_in_parquet_is_complete_and_replaces_a_file() {
    let scene = Scene::new();
    let path = scene.path("result.parquet");
    std::fs::write(&path, "old").unwrap();
    let sql = "select * from packets";
    assert_eq!(printed(&["--output", &text(&path), sql, &scene.capture()]), "");
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn text_of_packets_cannot_control_the_terminal() {
    let scene = Scene::new();
    let mut traffic = Traffic::default();
    traffic.udp(SECOND, [(1, 5000), (2, 53)], &dns(1, QUERY, "a\x1b[2J\nb.example"));
    let path = scene.path("evil.pcap");
    traffic.write(&path);
    let table = printed(&["select query from dns", &text(&path)]);
    assert!(!table.contains('\x1b') && table.lines().count() == 3, "{table:?}");
}

#[test]
fn an_interrupted_query_leaves_no_file() {
    let scene = Scene::new();
    let path = scene.path("result.parquet");
    // Hours of work.
    let sql = "select a.time from packets a, packets b, packets c, packets d order by a.length + b.length";
    let mut query = Command::new(env!("CARGO_BIN_EXE_strait-query"))
        .args(["--output", &text(&path), sql, &scene.capture()])
        .env("TMPDIR", scene.path("."))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let names = || std::fs::read_dir(scene.path(".")).unwrap().count();
    while names() == 1 {
        assert_eq!(query.try_wait().unwrap(), None, "the query has ended before its file was begun");
        std::thread::sleep(Duration::from_millis(10));
    }
    let kill = Command::new("kill").args(["-TERM", &query.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = query.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), message.as_str()),
        (Some(1), "strait-query: the query was interrupted\n")
    );
    assert_eq!(names(), 1, "files are left");
}
