//! Tables in an object store: moto's objects are the rows of the ledger, also after a kill, while
//! the store is down, and with a full spool.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use lab::{Launch, Moto, Process, Wire, wait_until};
use rustix::process::Signal;

use crate::metrics::{address, scrape};
use crate::refusals::RECORDING;
use crate::rig::{LIMIT, STRAIT, await_open, count, ledger, strait};
use crate::table_inputs::day;
use crate::tables::{Lake, files};

const URL: &str = "s3://lake/raw";

/// Returns the program that Cargo builds with the workspace.
pub(crate) fn upload_program() -> PathBuf {
    let program = Path::new(STRAIT).with_file_name("strait-upload");
    assert!(program.exists(), "{} is missing: cargo build --package strait-upload", program.display());
    program
}

/// Stores the objects of the bucket as files of `lake`.
fn download(moto: &Moto, lake: &Lake) {
    for key in moto.keys() {
        let path = lake.path().join(key.strip_prefix("raw/").expect("the prefix"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, moto.object(&key)).unwrap();
    }
}

/// Returns `strait capture` with a spool and the store's environment.
fn capture<'a>(launch: Launch<'a>, moto: &Moto, spool: &Path, arguments: &[&str]) -> Launch<'a> {
    let _ = upload_program();
    let spool = ["--to", URL, "--sensor", "s1", "--spool", spool.to_str().unwrap()];
    moto.env(launch).args(["capture"]).args(spool).args(arguments)
}

#[test]
fn objects_of_ten_files_have_the_rows_of_the_ledger() {
    let Some(moto) = Moto::up_or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let inputs = day(spool.path());
    let mut arguments = vec!["--json"];
    for file in inputs.iter().map(|file| file.to_str().unwrap()).chain([RECORDING; 3]) {
        arguments.extend(["-r", file]);
    }
    let spool = spool.path().join("spool");
    let finished = capture(Launch::new(STRAIT), &moto, &spool, &arguments).run(LIMIT).unwrap().success();
    let ledger = ledger(&finished);
    assert_eq!(finished.stderr, "");
    assert!(files(&spool, ".parquet").is_empty() && files(&spool, ".part").is_empty());
    download(&moto, &lake);
    let delivered = count(&ledger, "delivered") as i64;
    assert_eq!(
        lake.numbers("select count(*), sum(length) from packets"),
        [delivered, count(&ledger, "wire_bytes") as i64]
    );
    assert_eq!(lake.numbers("select sum(delivered), count(distinct lane) from ledger"), [delivered, 10]);
    let flows = "select sum(packetDeltaCount + reversePacketDeltaCount) - \
                 (select count(*) from packets where protocol is not null) from flows";
    assert_eq!(lake.numbers(flows), [0]);
}

/// Starts a live capture of the right end, where the store is.
fn live(wire: &Wire, moto: &Moto, spool: &Path, arguments: &[&str]) -> Process {
    let launch = wire.right().command(STRAIT);
    let process = capture(launch, moto, spool, &[&["-i", "right", "--rotate-s", "1"], arguments].concat());
    let process = process.spawn().unwrap();
    assert!(await_open(process.id()), "{}", process.stderr());
    process
}

/// Sends numbered TCP segments from the left end.
fn generate(wire: &Wire, limit: &[&str]) -> Process {
    let generate = ["generate", "-o", "left", "--kind", "tcp4", "--size", "64", "--rate", "20000"];
    strait(wire.left(), &[&generate[..], limit].concat()).spawn().unwrap()
}

#[test]
fn spool_of_a_killed_capture_is_sent_by_the_next_one() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let killed = live(&wire, &moto, spool.path(), &["--tables", "packets"]);
    let generator = generate(&wire, &["--duration", "600"]);
    killed.wait_for_stderr("note: the upload to s3://lake/raw fails: ", LIMIT).unwrap();
    assert!(wait_until(LIMIT, || files(spool.path(), ".parquet").len() > 2));
    killed.signal(Signal::KILL);
    let _ = killed.wait(LIMIT).unwrap();
    drop(generator);
    let complete = files(spool.path(), ".parquet");
    let names = |paths: &[PathBuf]| {
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        paths.iter().map(name).collect::<Vec<_>>()
    };
    wire.right().run(|| moto.start());
    let next = live(&wire, &moto, spool.path(), &[]);
    next.signal(Signal::INT);
    let finished = next.wait(LIMIT).unwrap().success();
    assert!(finished.stderr.contains(" in s3://lake/raw"), "{}", finished.stderr);
    assert!(files(spool.path(), ".parquet").is_empty() && files(spool.path(), ".part").is_empty());
    let keys = wire.right().run(|| moto.keys());
    for name in names(&complete) {
        assert_eq!(keys.iter().filter(|key| key.ends_with(&name)).count(), 1, "{name} in {keys:?}");
    }
    wire.right().run(|| download(&moto, &lake));
    let [rows, distinct] =
        lake.numbers("select count(*), count(distinct (time, tcp_sequence)) from packets")[..]
    else {
        panic!("two numbers")
    };
    assert!(rows > 0 && rows == distinct, "{rows} {distinct}");
}

#[test]
fn metrics_of_a_spool_count_its_files_and_what_was_sent() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let lake = tempfile::tempdir().unwrap();
    let url = format!("file:{}", lake.path().display());
    let options = ["--tables", "packets", "--to", &url, "--metrics", "0", "--json", "tcp"];
    let capture = live(&wire, &moto, spool.path(), &options);
    let text = RefCell::new(String::new());
    let value = |name: &str, target: &str| {
        let label = format!("target=\"{target}\"");
        let text = text.borrow();
        let mut lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let line = lines.find(|line| line.contains(&label));
        line.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
    };
    assert!(wait_until(LIMIT, || address(&capture.stderr()).is_some()), "{}", capture.stderr());
    let metrics = address(&capture.stderr()).expect("an address");
    let scrape = || *text.borrow_mut() = wire.right().run(|| scrape(metrics));
    let _ = generate(&wire, &["--count", "20000"]).wait(LIMIT).unwrap().success();
    let waits = || {
        scrape();
        value("strait_spool_files", URL) > Some(0.0) && value("strait_spool_retried_total", URL) > Some(0.0)
    };
    assert!(wait_until(LIMIT, waits), "{}", text.borrow());
    assert!(
        value("strait_spool_bytes", URL) > Some(0.0) && value("strait_spool_oldest_seconds", URL) > Some(0.0)
    );
    assert_eq!(value("strait_spool_bytes_max", URL), Some((1_u64 << 30) as f64));
    assert_eq!(value("strait_spool_sent_files_total", URL), Some(0.0));
    assert_eq!(value("strait_spool_files", &url), None, "a directory is no spool");
    wire.right().run(|| moto.start());
    let rows = || value("strait_target_rows_total", URL);
    let is_sent = || {
        scrape();
        rows() > Some(0.0)
            && value("strait_spool_sent_files_total", URL) == value("strait_target_files_total", URL)
    };
    assert!(wait_until(LIMIT, is_sent), "{}", text.borrow());
    assert_eq!(rows(), value("strait_target_rows_total", &url));
    assert_eq!(value("strait_spool_sent_bytes_total", URL), value("strait_target_bytes_total", URL));
    for target in [URL, &url] {
        assert_eq!(value("strait_target_lost_total", target), Some(0.0));
        assert_eq!(value("strait_target_failing", target), Some(0.0));
    }
    capture.signal(Signal::INT);
    let _ = capture.wait(LIMIT).unwrap().success();
}

#[test]
fn full_spool_loses_packets_and_the_ledger_has_them() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let options = ["--tables", "packets", "--frames", "64", "--spool-mib", "1", "--json", "tcp"];
    let capture = live(&wire, &moto, spool.path(), &options);
    let generator = generate(&wire, &["--duration", "600"]);
    let bytes = || {
        let files = [files(spool.path(), ".parquet"), files(spool.path(), ".part")].concat();
        files.iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).sum::<u64>()
    };
    assert!(wait_until(LIMIT, || bytes() >= 1 << 20), "{} bytes", bytes());
    drop(generator);
    // More than the interval at which the spool is measured.
    let _ = generate(&wire, &["--count", "20000"]).wait(LIMIT).unwrap().success();
    capture.signal(Signal::INT);
    let finished = capture.wait(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("files remain in "), "{}", finished.stderr);
    let ledger = ledger(&finished);
    let (delivered, lost) = (count(&ledger, "delivered") as i64, count(&ledger["lost"], "sink"));
    assert!(delivered > 0 && lost > 0, "{ledger}");

    // The rest is sent by hand.
    wire.right().run(|| moto.start());
    let directory = spool.path().join("lake/raw");
    let arguments = ["upload", directory.to_str().unwrap(), URL];
    let _ = moto.env(wire.right().command(STRAIT)).args(arguments).run(LIMIT).unwrap().success();
    wire.right().run(|| download(&moto, &lake));
    assert_eq!(lake.numbers("select count(*) from packets"), [delivered]);
    assert_eq!(lake.numbers("select sum(delivered), sum(lost_sink) from ledger"), [delivered, lost as i64]);
}

/// Returns the program that a capture has started, by any of its threads.
fn upload_of(capture: &Process) -> i32 {
    let tasks = fs::read_dir(format!("/proc/{}/task", capture.id())).unwrap();
    let children = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: String = tasks.map(|task| children(task.unwrap())).collect();
    all.trim().parse().unwrap()
}

fn kill_upload(capture: &Process) {
    let child = rustix::process::Pid::from_raw(upload_of(capture)).unwrap();
    rustix::process::kill_process(child, Signal::KILL).unwrap();
}

#[test]
fn killed_upload_is_started_again_while_packets_of_files_wait_for_the_spool() {
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let leaf = spool.path().join("lake/raw/packets/date=2026-11-25/hour=16/sensor=s0");
    fs::create_dir_all(&leaf).unwrap();
    fs::write(leaf.join("large.parquet"), vec![0; 2 << 20]).unwrap();
    let arguments = ["-r", RECORDING, "-r", RECORDING, "--spool-mib", "1"];
    let reading = capture(Launch::new(STRAIT), &moto, spool.path(), &arguments).spawn().unwrap();
    reading.wait_for_stderr("note: the upload to s3://lake/raw fails: ", LIMIT).unwrap();
    kill_upload(&reading);
    reading.wait_for_stderr("note: strait-upload has ended", LIMIT).unwrap();
    moto.start();
    let finished = reading.wait(LIMIT).unwrap().success();
    assert!(finished.stderr.contains("note: strait-upload was started again"), "{}", finished.stderr);
    let keys = moto.keys();
    let of = |part: &str| keys.iter().filter(|key| key.contains(part)).count();
    assert!(of("large.parquet") == 1 && of("sensor=s1/packets-") > 0, "{keys:?}");
    assert!(!finished.stderr.contains("rows are lost"), "{}", finished.stderr);
    assert_eq!(fs::read_dir(spool.path().join("lake/raw")).unwrap().count(), 0, "empty directories");
}

#[test]
fn killed_upload_is_reported_and_started_again_and_its_files_remain() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(moto) = Moto::down_or_skip() else { return };
    let spool = tempfile::tempdir().unwrap();
    let capture = live(&wire, &moto, spool.path(), &["--json"]);
    kill_upload(&capture);
    let note = "strait: note: strait-upload has ended: files for s3://lake/raw wait in ";
    capture.wait_for_stderr(note, LIMIT).unwrap();
    // It does not get the precise sleeps of a lane, nor its CPU.
    capture.wait_for_stderr("note: strait-upload was started again", LIMIT).unwrap();
    let slack = fs::read_to_string(format!("/proc/{}/timerslack_ns", upload_of(&capture))).unwrap();
    assert_eq!(slack.trim(), "50000");
    capture.signal(Signal::INT);
    let finished = capture.wait(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("files remain in "), "{}", finished.stderr);
    assert_eq!(files(spool.path(), ".parquet").len(), 1, "that of the ledger");
}

#[test]
fn wrong_uses_of_a_bucket_are_refused() {
    let moto_is_not_needed = ["capture", "-r", RECORDING, "--to"];
    for (options, words) in [
        (&["s3://Lake"][..], "a bucket has 3 to 63 small letters"),
        (&["s3://lake/../x"], "a prefix has letters"),
        (&["file:x", "--spool", "y"], "--spool and --spool-mib are for --to s3://BUCKET"),
        (&["s3://lake", "--spool-mib", "1k"], "give at least 1 MiB"),
    ] {
        let finished = Launch::new(STRAIT).args(moto_is_not_needed).args(options).run(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
    }
    let _ = upload_program();
    let arguments = [&moto_is_not_needed[..], &["s3://lake", "--spool", RECORDING]].concat();
    let finished = Launch::new(STRAIT).args(&arguments).run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("give a spool directory of yours by --spool"), "{}", finished.stderr);
}
