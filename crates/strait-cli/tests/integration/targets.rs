//! Several `--to`: a target that is full or down loses its own packets, and no other target does.
//! Each target has a ledger that balances and that its rows equal.

use std::cell::RefCell;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;

use lab::{Finished, Launch, Moto, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::disk::SmallDisk;
use crate::metrics::{address, scrape};
use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, STRAIT, balances, count, ledger, lost, numbered, run, send, strait};
use crate::tables::{Lake, files};
use crate::upload::upload_program;

/// Returns the ledgers of the targets, which balance and differ from the session only in the sink.
fn targets(ledger: &Value) -> Vec<Value> {
    let targets = ledger["targets"].as_array().expect("targets").clone();
    for target in &targets {
        assert!(balances(target), "{target}");
        for name in ["received", "filtered"] {
            assert_eq!(count(target, name), count(ledger, name), "{name} of {target}");
        }
    }
    let most = targets.iter().map(lost).max();
    assert_eq!(most, Some(lost(ledger)), "the session has the losses of the worst target: {ledger}");
    targets
}

/// Asserts that the rows of a lake and its table `ledger` are those of the target's ledger.
fn assert_rows(rows: &[i64], target: &Value) {
    let (delivered, sink) = (count(target, "delivered"), count(&target["lost"], "sink"));
    assert_eq!(rows, [delivered as i64, delivered as i64, sink as i64], "{target}");
}

/// Query for the rows of packets, and for the packets and losses of the table `ledger`.
const ROWS: &str = "select (select count(*) from packets), sum(delivered), sum(lost_sink) from ledger";

#[test]
fn full_target_loses_packets_and_the_other_one_none() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let disk = SmallDisk::mount("128k");
    let url = lake.url();
    let options =
        ["--to", "file:/mnt/lake", "--to", &url, "--sensor", "s1", "--queues", "0-1", "--rotate-s", "1"];
    let capture = disk.capture(&wire, &options);
    let generate = ["generate", "-o", "left", "--size", "64", "--rate", "20000", "--duration", "600"];
    let generator = strait(wire.left(), &generate).spawn().unwrap();
    let note = "note: the target file:/mnt/lake has failed: ";
    assert!(wait_until(LIMIT, || capture.stderr().contains(note)), "{}", capture.stderr());
    drop(generator);
    // Packets after the failure.
    send(&wire, &numbered(500));
    let finished = capture.end(Signal::INT);
    let end = last_line(&finished);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(end.starts_with("strait: 1 of 2 targets failed: ") && end.contains("No space left"), "{end}");
    let ledger = ledger(&finished);
    let targets = targets(&ledger);
    let [full, whole] = &targets[..] else { panic!("two targets: {ledger}") };
    assert_eq!((full["target"].as_str(), whole["target"].as_str()), (Some("file:/mnt/lake"), Some(&*url)));
    let lost_of = |target: &Value| count(&target["lost"], "sink");
    assert!(lost_of(full) >= 500 && lost_of(whole) == 0, "{ledger}");
    assert!(count(whole, "delivered") > count(full, "delivered"), "{ledger}");
    assert_rows(&lake.numbers(ROWS), whole);
    assert_eq!(lake.rows(&["time"]).len() as u64, count(whole, "delivered"), "rows that pyarrow reads");
    let below = disk.directory().join("lake");
    assert!(files(&below, ".part").is_empty());
    if count(full, "delivered") > 0 {
        let rows = lake.numbers_below(&below, "select count(*) from packets");
        assert_eq!(rows, [count(full, "delivered") as i64], "{full}");
    }
}

fn last_line(finished: &Finished) -> String {
    finished.stderr.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn collector_that_is_down_or_does_not_read_costs_the_files_no_row() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    // It accepts connections and never reads.
    let silent = wire.right().run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let silent_url = format!("ipfix+tcp://{}", silent.local_addr().unwrap());
    let (url, down) = (lake.url(), "ipfix+tcp://127.0.0.1:9");
    let options =
        ["--to", down, "--to", &silent_url, "--to", &url, "--flow-idle", "1", "--json", "--metrics", "0"];
    let capture = Capture::start(wire.right(), &[&options[..], &["ip"]].concat());
    assert!(wait_until(LIMIT, || address(&capture.stderr()).is_some()), "{}", capture.stderr());
    let metrics = address(&capture.stderr()).expect("an address");
    send(&wire, &numbered(2000));
    let text = RefCell::new(String::new());
    let has = |sample: &str| {
        *text.borrow_mut() = wire.right().run(|| scrape(metrics));
        text.borrow().lines().any(|line| line.contains(sample) && !line.ends_with(" 0"))
    };
    for sample in [
        format!("strait_target_failing{{interface=\"right\",path=\"v3\",target=\"{down}\"}} 1"),
        format!("strait_export_sent_flows_total{{interface=\"right\",path=\"v3\",target=\"{silent_url}\"}}"),
    ] {
        assert!(wait_until(LIMIT, || has(&sample)), "{sample} in {}", text.borrow());
    }
    let finished = capture.end(Signal::INT);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let end = last_line(&finished);
    assert!(end.starts_with("strait: 1 of 3 targets failed: export to 127.0.0.1:9"), "{end}");
    let ledger = ledger(&finished);
    let targets = targets(&ledger);
    let sink: Vec<u64> = targets.iter().map(|target| count(&target["lost"], "sink")).collect();
    assert_eq!((sink[1], sink[2]), (0, 0), "{ledger}");
    assert!(sink[0] > 0 && sink[0] == count(&targets[2], "delivered"), "{ledger}");
    assert_rows(&lake.numbers(ROWS), &targets[2]);
    // The sum over both exports, and each.
    let exported = |of: &Value| (count(&of["exported"], "flows"), count(&of["exported"], "lost"));
    let flows = lake.numbers("select count(*) from flows")[0] as u64;
    assert_eq!([exported(&targets[0]), exported(&targets[1])], [(0, flows), (flows, 0)], "{ledger}");
    assert_eq!(exported(&ledger), (flows, flows));
    assert!(targets[2].get("exported").is_none());
}

#[test]
fn two_targets_get_the_same_rows_of_files() {
    let Some(one) = Lake::or_skip() else { return };
    let Some(two) = Lake::or_skip() else { return };
    let urls = [one.url(), two.url()];
    let inputs = ["capture", "-r", RECORDING, "-r", RECORDING];
    let finished = run(&[&inputs[..], &["--to", &urls[0], "--to", &urls[1], "--json"]].concat()).success();
    let ledger = ledger(&finished);
    for (lake, target) in [&one, &two].into_iter().zip(targets(&ledger)) {
        assert!(count(&target, "delivered") > 0 && lost(&target) == 0, "{target}");
        assert_rows(&lake.numbers(ROWS), &target);
    }
    let text = run(&[&inputs[..], &["--to", &urls[0], "--to", &urls[1]]].concat()).success().stderr;
    assert_eq!(text.matches("wrote ").count(), 2, "a line for each target: {text}");
    assert_eq!(text.matches("\n  to file:").count(), 2, "{text}");
}

#[test]
fn targets_with_one_place_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("{}/{name}", directory.path().display());
    std::fs::create_dir(path("lake")).unwrap();
    symlink(path("lake"), path("link")).unwrap();
    let file = |name: &str| format!("file:{}", path(name));
    let many: Vec<String> = (0..9).map(|number| file(&number.to_string())).collect();
    let of = |urls: &[String]| -> Vec<String> {
        urls.iter().flat_map(|url| ["--to".to_owned(), url.clone()]).collect()
    };
    for (options, words) in [
        (of(&[file("lake"), file("lake")]), "have one place"),
        (of(&[file("lake"), file("new"), file("link/.")]), "have one place"),
        (of(&[file("new2"), file("lake/../new2")]), "have one place"),
        (of(&["ipfix://127.0.0.1".into(), "ipfix://127.0.0.1:4739".into()]), "have one place"),
        (of(&many), "9 targets are given: give at most 8"),
        (
            [of(&[file("lake"), "ipfix://127.0.0.1".into()]), vec!["--spool".into(), "x".into()]].concat(),
            "--spool",
        ),
    ] {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let finished = run(&[&["capture", "-r", RECORDING], &options[..]].concat());
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().filter(|line| line.starts_with("strait: ")).count(), 1);
    }
}

#[test]
fn refused_command_sends_and_removes_no_file_of_a_spool() {
    let _ = upload_program();
    let Some(moto) = Moto::up_or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let leaf = spool.path().join("lake/packets/date=2026-11-25/hour=01/sensor=s1");
    fs::create_dir_all(&leaf).unwrap();
    let file = leaf.join("packets-1-000001.parquet");
    fs::write(&file, "rows").unwrap();
    let lake = format!("file:{}/lake", spool.path().display());
    let to = ["--to", "s3://lake", "--to", &lake, "--spool", spool.path().to_str().unwrap()];
    let launch = moto.env(Launch::new(STRAIT)).args(["capture", "-r", RECORDING]).args(to);
    let finished = launch.run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains("have one place"), "{}", finished.stderr);
    assert_eq!((moto.keys(), file.exists()), (Vec::new(), true));
}
