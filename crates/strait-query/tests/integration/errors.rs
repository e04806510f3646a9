//! Wrong files and wrong SQL: one line each.

use std::fs;

use crate::{Scene, refused, run, text};

const COUNT: &str = "select count(*) from packets";

#[test]
fn unknown_tables_and_columns_are_refused_with_the_names_that_exist() {
    let scene = Scene::new();
    let message = refused(&["select * from packet", &scene.capture()], 2);
    assert_eq!(message, "packet: no such table; there are packets, flows, dns, tls, http");
    let message = refused(&["select sourceaddress from flows", &scene.capture()], 2);
    assert_eq!(message, "sourceaddress: no such column; its name is sourceAddress");
    let message = refused(&["select port from packets", &scene.capture()], 2);
    assert!(message.starts_with("port: no such column; there are time, length, "), "{message}");
    let message = refused(&[COUNT], 2);
    assert_eq!(message, "packets: no such table: give capture files, or a directory of tables");
}

#[test]
fn wrong_sql_is_one_line() {
    let scene = Scene::new();
    for sql in ["selekt 1", "select from where", "select (", "", "select 1; select 2", "select nofunction(1)"]
    {
        refused(&[sql, &scene.capture()], 2);
    }
    // Deep expressions do not overflow the stack, whatever the planner makes of them.
    for term in ["1+", "-", "not ", "(", "length("] {
        let sql = format!("select {}1", term.repeat(1000));
        let output = run(&[&sql]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some() && !message.contains("panicked"), "{term}: {message}");
    }
    let long = format!("select {}1", "1 + ".repeat(20_000));
    let message = refused(&[&long, &scene.capture()], 2);
    assert!(message.starts_with("the SQL is too long"), "{message}");
}

#[test]
fn only_queries_are_permitted() {
    let scene = Scene::new();
    let secret = scene.path("secret.csv");
    fs::write(&secret, "a\n1\n").unwrap();
    let (path, target) = (text(&secret), text(&scene.path("new.csv")));
    for sql in [
        format!("create external table t stored as csv location '{path}'"),
        format!("copy (select 1) to '{target}' stored as csv"),
        format!("explain analyze copy (select 1) to '{target}' stored as csv"),
        "insert into packets values (1)".to_owned(),
        "create table t as select 1".to_owned(),
        "create view v as select 1".to_owned(),
        "drop table packets".to_owned(),
        "set datafusion.execution.target_partitions = 1".to_owned(),
        "prepare p as select 1".to_owned(),
    ] {
        let message = refused(&[&sql, &scene.capture()], 2);
        assert!(message.starts_with("only queries are permitted"), "{sql}: {message}");
    }
    let message = refused(&[&format!("select * from '{path}'"), &scene.capture()], 2);
    assert!(message.contains("no such table"), "{message}");
    assert!(!scene.path("new.csv").exists());
}

#[test]
fn files_that_are_no_captures_are_refused() {
    let scene = Scene::new();
    let other = scene.path("other.txt");
    fs::write(&other, "no capture at all, but a text of some length").unwrap();
    let message = refused(&[COUNT, &text(&other)], 1);
    assert!(message.starts_with(&text(&other)), "{message}");
    let missing = text(&scene.path("missing.pcap"));
    assert!(refused(&[COUNT, &missing], 1).starts_with(&format!("open {missing}: ")));
    let message = refused(&[COUNT, &text(scene.directory.path())], 1);
    assert!(message.contains("no table is in this directory"), "{message}");
    assert!(refused(&[COUNT, "-"], 2).contains("pipe"));
    assert!(refused(&[COUNT, "/dev/null"], 2).contains("/dev/null: give a file"));
}

#[test]
fn a_cut_file_is_reported_after_the_rows_before_the_cut() {
    let scene = Scene::new();
    let whole = fs::read(scene.capture()).unwrap();
    let cut = scene.path("cut.pcap");
    fs::write(&cut, &whole[..24 + 2 * 70 + 20]).unwrap();
    let output = run(&["--csv", "select count(*) as n from packets", &text(&cut)]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "n\n2\n");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.ends_with("; the result has the packets before it\n") && errors.contains("is cut"),
        "{errors}"
    );
}

#[test]
fn a_query_that_needs_more_memory_is_refused() {
    let scene = Scene::new();
    // Every row of a join of all packets with all packets is a group.
    let sql = "select a.time, b.time, c.time, count(*) from packets a, packets b, packets c group by 1, 2, 3";
    let message = refused(&["--memory", "16MiB", "--spill", "0", sql, &scene.capture()], 1);
    assert!(message.starts_with("the query needs more memory: give a larger --memory"), "{message}");
}

#[test]
fn wrong_options_are_refused() {
    let scene = Scene::new();
    for arguments in [
        &["--csv", "--json", "select 1"][..],
        &["--memory", "1MiB", "select 1"],
        &["--run", "no-such-query", "a.pcap"],
        &["--run", "top-talkers"],
        &["--list", "select 1"],
        &[],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let missing = text(&scene.path("none/result.parquet"));
    assert!(refused(&["-o", &missing, "select 1 as n"], 1).starts_with(&format!("create {missing}: ")));
}
