//! SIGHUP during `strait capture --to-file FILE`: the targets change between two batches, each
//! packet goes to the targets of its time, and the ledgers of all targets add up.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use lab::{Finished, Launch, Moto, Process, Wire, program_or_skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strait_packet::traffic::{Kind, Traffic};

use crate::metrics::{address, scrape};
use crate::rig::{
    LIMIT, STRAIT, await_open, balances, count, frames_of, ledger, lost, numbered, run, send, send_until,
    sizes, strait,
};
use crate::tables::{Lake, files};
use crate::upload::upload_program;

/// Note after a change.
const CHANGED: &str = "strait: note: the targets are those of ";
/// Note after a refused one.
const KEPT: &str = "strait: note: the targets stay as they were: ";
/// Note at the end of a capture that has not changed its targets.
const UNCHANGED: &str = "strait: note: the capture ended before the targets were changed\n";
/// Note after the end of a removed target.
const COMPLETE: &str = "strait: note: the former target ";
/// A user without files.
const NOBODY: u32 = 65534;

/// Running capture with a file of targets.
struct Retargeted<'a> {
    process: Process,
    lake: &'a Lake,
}

impl<'a> Retargeted<'a> {
    /// Starts a capture at the right end of the wire, with targets of [`Retargeted::text`].
    fn start(wire: &Wire, lake: &'a Lake, targets: &[&str], options: &[&str]) -> Self {
        Self::watch(strait(wire.right(), &["capture", "-i", "right"]), lake, targets, options)
    }

    fn watch(launch: Launch<'_>, lake: &'a Lake, targets: &[&str], options: &[&str]) -> Self {
        let capture = Self::launch(launch, lake, targets, options);
        let process = &capture.process;
        assert!(await_open(process.id()), "{}{}", process.stdout(), process.stderr());
        capture
    }

    fn launch(launch: Launch<'_>, lake: &'a Lake, targets: &[&str], options: &[&str]) -> Self {
        let file = lake.path().join("targets");
        fs::write(&file, text(lake, targets)).unwrap();
        let launch = launch.args(["--to-file", file.to_str().unwrap(), "--json", "--sensor", "s1"]);
        Self { process: launch.args(options).spawn().unwrap(), lake }
    }

    /// Writes other targets, and waits until the capture has printed one more `note`.
    fn change(&self, targets: &[&str], note: &str) {
        self.write(&text(self.lake, targets), note);
    }

    fn write(&self, text: &str, note: &str) {
        fs::write(self.lake.path().join("targets"), text).unwrap();
        let before = self.notes(note);
        self.process.signal(Signal::HUP);
        self.await_notes(note, before + 1);
    }

    fn notes(&self, note: &str) -> usize {
        self.process.stderr().matches(note).count()
    }

    fn await_notes(&self, note: &str, number: usize) {
        assert!(wait_until(LIMIT, || self.notes(note) >= number), "{note}: {}", self.process.stderr());
    }

    fn end(self) -> Finished {
        self.process.signal(Signal::INT);
        self.process.wait(LIMIT).unwrap()
    }
}

/// Returns the lines of a file: a name is a directory of the lake.
fn text(lake: &Lake, targets: &[&str]) -> String {
    let url = |target: &&str| {
        if target.contains(':') {
            format!("{target}\n")
        } else {
            format!("file:{}/{target}\n", lake.path().display())
        }
    };
    let lines: String = targets.iter().map(url).collect();
    format!("# targets\n\n{lines}")
}

/// Returns how often each sequence number is in the table `packets` of a directory.
fn sequence(lake: &Lake, name: &str) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    let rows = lake.ask(&lake.path().join(name), &["sql", "select hex(frame) from packets"]);
    for hexadecimal in rows.iter().map(|row| &row[0]) {
        let byte = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
        let frame: Vec<u8> = (0..hexadecimal.len()).step_by(2).map(byte).collect();
        let probe = strait_packet::probe::read(&frame).expect("a numbered frame");
        *found.entry(probe.sequence).or_default() += 1;
    }
    found
}

/// Names of counts in the ledger, and in its table.
const COUNTS: [&str; 5] = ["received", "delivered", "filtered", "bytes", "wire_bytes"];
const SUMS: &str = "select sum(received), sum(delivered), sum(filtered), sum(bytes), sum(wire_bytes), \
    sum(lost_nic_missed + lost_ring_full + lost_fill_empty + lost_sink + lost_unread + lost_other) from ledger";

/// Returns the sums over the table `ledger` of a directory.
fn sums(lake: &Lake, name: &str) -> Vec<i64> {
    lake.numbers_below(&lake.path().join(name), SUMS)
}

/// Returns the same counts of a ledger.
fn counts(ledger: &Value) -> Vec<i64> {
    COUNTS.iter().map(|name| count(ledger, name)).chain([lost(ledger)]).map(|count| count as i64).collect()
}

fn added(all: impl IntoIterator<Item = Vec<i64>>) -> Vec<i64> {
    let add =
        |one: Vec<i64>, other: Vec<i64>| one.iter().zip(&other).map(|(one, other)| one + other).collect();
    all.into_iter().reduce(add).unwrap()
}

/// Returns the sum of the ledgers of a directory's target, each of which balances.
fn of_target(lake: &Lake, ledger: &Value, name: &str) -> Vec<i64> {
    let url = format!("file:{}/{name}", lake.path().display());
    let targets = ledger["targets"].as_array().expect("targets").iter();
    let own: Vec<&Value> = targets.filter(|target| target["target"] == *url).collect();
    assert!(own.iter().all(|target| balances(target)), "{ledger}");
    added(own.into_iter().map(counts))
}

#[test]
fn changed_targets_have_every_packet_once_and_their_ledgers_add_up() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let traffic = Traffic::builder().kinds(&[Kind::Udp4]).sizes(sizes("100")).flows(16).build().unwrap();
    let frames = frames_of(&traffic, 400_000);
    let both = ["-i", "lo"];
    let cases: [(&str, &str, &[&str]); 7] = [
        ("v3", "0", &[]),
        ("v3", "0-1", &[]),
        ("v3", "0", &both),
        ("v2", "0", &[]),
        ("recv", "0", &[]),
        ("tap", "0", &[]),
        ("xdp", "0", &[]),
    ];
    for (path, queues, interfaces) in cases {
        let Some(lake) = Lake::or_skip() else { return };
        let options = [
            "--path",
            path,
            "--queues",
            queues,
            "--ring-mib",
            "64",
            "--tables",
            "packets",
            "--frames",
            "100",
        ];
        let capture =
            Retargeted::start(&wire, &lake, &["all", "a"], &[&options[..], interfaces, &["udp"]].concat());
        let ended = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sending = scope.spawn(|| send_until(&wire, &frames, &ended));
            // `all` stays, and one of the others follows each time, also one that was there before.
            for (at, next) in ["b", "c", "a", "c", "b", "a"].iter().enumerate() {
                capture.change(&["all", next], CHANGED);
                capture.await_notes(COMPLETE, at + 1);
            }
            capture.change(&["./a", "all"], CHANGED);
            ended.store(true, Ordering::Release);
            sending.join().unwrap()
        });
        // The kernel rejects them.
        send(&wire, &frames_of(&Traffic::builder().kinds(&[Kind::Tcp4]).build().unwrap(), 70));
        let finished = capture.end().success();
        let ledger = ledger(&finished);
        assert!(balances(&ledger) && lost(&ledger) == 0, "{ledger}");
        assert_eq!((count(&ledger, "delivered"), count(&ledger, "filtered")), (sent, 70), "{ledger}");
        let once: BTreeMap<u64, usize> = (0..sent).map(|number| (number, 1)).collect();
        assert_eq!(sequence(&lake, "all"), once, "{path} {queues}");
        let mut union = BTreeMap::new();
        for (number, times) in ["a", "b", "c"].iter().flat_map(|name| sequence(&lake, name)) {
            *union.entry(number).or_default() += times;
        }
        assert_eq!(union, once, "{path} {queues}");
        for name in ["all", "a", "b", "c"] {
            assert_eq!(sums(&lake, name), of_target(&lake, &ledger, name), "{name} {path}: {ledger}");
        }
        assert_eq!(sums(&lake, "all"), counts(&ledger), "{path} {queues}");
        assert_eq!(added(["a", "b", "c"].map(|name| sums(&lake, name))), counts(&ledger), "{path} {queues}");
        assert!(files(lake.path(), ".part").is_empty());
    }
}

#[test]
fn wrong_file_changes_nothing_and_prints_one_line() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let capture = Retargeted::start(&wire, &lake, &["a"], &["--tables", "packets"]);
    let many: Vec<String> = (0..9).map(|number| format!("d{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut number = 0;
    let mut refuse = |text: &str, words: &str| {
        capture.write(text, KEPT);
        number += 1;
        let stderr = capture.process.stderr();
        let last = stderr.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with(KEPT) && last.contains(words), "{words}: {last}");
    };
    let file = lake.path().join("targets");
    refuse("", "targets: it has no target: give one URL a line");
    refuse(&text(&lake, &["a", "lake:/b"]), "targets: line 4: give a directory");
    refuse(&text(&lake, &["b", "b"]), "b is there twice");
    refuse(&text(&lake, &["a", "./a"]), "/./a is there twice");
    std::os::unix::fs::symlink(lake.path().join("a"), lake.path().join("link")).unwrap();
    refuse(&text(&lake, &["a", "link"]), "have one place");
    refuse(&text(&lake, &many), "9 targets are given: give at most 8");
    refuse(&text(&lake, &["b", "file:/proc/none"]), "create /proc/none");
    refuse(&text(&lake, &["ipfix://name.invalid"]), "name.invalid");
    refuse(&"#".repeat(1 << 20), "it has more than 65536 bytes");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    refuse(&text(&lake, &["b"]), "another user owns ");
    fs::remove_file(&file).unwrap();
    capture.process.signal(Signal::HUP);
    number += 1;
    capture.await_notes(KEPT, number);
    send(&wire, &numbered(100));
    let finished = capture.end().success();
    assert!(!finished.stderr.contains(CHANGED) && !finished.stderr.contains(COMPLETE), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches(KEPT).count(), number, "{}", finished.stderr);
    assert_eq!(ledger(&finished)["targets"].as_array().unwrap().len(), 1);
    assert_eq!(sums(&lake, "a")[1], 100);
    assert!(files(&lake.path().join("b"), ".parquet").is_empty());
}

#[test]
fn change_at_the_end_of_a_capture_is_made_or_reported() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for _ in 0..5 {
        let Some(lake) = Lake::or_skip() else { return };
        let capture = Retargeted::start(&wire, &lake, &["a"], &["--tables", "packets"]);
        fs::write(lake.path().join("targets"), text(&lake, &["b"])).unwrap();
        // Both signals are there when the capture goes on.
        for signal in [Signal::STOP, Signal::HUP, Signal::INT, Signal::CONT] {
            capture.process.signal(signal);
        }
        let finished = capture.process.wait(LIMIT).unwrap().success();
        let notes = [CHANGED, UNCHANGED].map(|note| finished.stderr.matches(note).count());
        assert!(notes == [1, 0] || notes == [0, 1], "{}", finished.stderr);
    }
}

#[test]
fn failure_and_losses_of_a_former_target_are_reported_at_the_end() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let down = "ipfix+tcp://127.0.0.1:9";
    let capture = Retargeted::start(&wire, &lake, &[down], &["--flow-idle", "1", "ip"]);
    send(&wire, &numbered(100));
    capture.change(&["a"], CHANGED);
    send(&wire, &numbered(300));
    capture.await_notes(&format!("{COMPLETE}{down} failed: "), 1);
    let finished = capture.end();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let last = finished.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("strait: 1 of 2 targets failed: export to 127.0.0.1:9"), "{last}");
    let ledger = ledger(&finished);
    let [file, former] = &ledger["targets"].as_array().unwrap()[..] else { panic!("two targets: {ledger}") };
    assert!(balances(&ledger) && balances(file) && balances(former), "{ledger}");
    let sink = |of: &Value| count(&of["lost"], "sink");
    assert!(sink(former) > 0 && sink(file) == 0 && sink(&ledger) == sink(former), "{ledger}");
    assert_eq!((former["target"].as_str(), count(former, "delivered")), (Some(down), 0), "{ledger}");
    assert_eq!(count(file, "delivered") + sink(former), count(&ledger, "delivered") + sink(&ledger));
    assert_eq!(sums(&lake, "a"), counts(file));
    assert_eq!(count(&ledger["exported"], "lost"), count(&former["exported"], "lost"));
}

#[test]
fn packet_that_several_former_targets_have_lost_counts_once() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let traffic = Traffic::builder().kinds(&[Kind::Udp4]).sizes(sizes("100")).build().unwrap();
    let frames = frames_of(&traffic, 200);
    let down = ["ipfix+tcp://127.0.0.1:9", "ipfix+tcp://127.0.0.1:10"];
    let capture = Retargeted::start(&wire, &lake, &[down[0], down[1], "a"], &["udp"]);
    send(&wire, &frames[..50]);
    capture.change(&["a"], CHANGED);
    for url in down {
        capture.await_notes(&format!("{COMPLETE}{url} failed: "), 1);
    }
    send(&wire, &frames[50..]);
    let ledger = ledger(&capture.end());
    let delivered_and_lost = |of: &Value| (count(of, "delivered"), count(&of["lost"], "sink"));
    let targets = ledger["targets"].as_array().unwrap().iter().map(delivered_and_lost).collect::<Vec<_>>();
    assert_eq!(targets, [(200, 0), (0, 50), (0, 50)], "{ledger}");
    assert_eq!(delivered_and_lost(&ledger), (150, 50), "{ledger}");
    assert!(balances(&ledger), "{ledger}");
}

#[test]
fn failed_directory_is_replaced_by_another_one() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let capture = Retargeted::start(&wire, &lake, &["gone", "a"], &["--tables", "packets"]);
    let gone = lake.path().join("gone");
    fs::remove_dir_all(&gone).unwrap();
    fs::write(&gone, "").unwrap();
    send(&wire, &numbered(100));
    capture.change(&["a", "b"], CHANGED);
    capture.await_notes(&format!("{COMPLETE}file:{} failed: ", gone.display()), 1);
    send(&wire, &numbered(50));
    let finished = capture.end();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let ledger = ledger(&finished);
    assert_eq!((sums(&lake, "a")[1], sums(&lake, "b")[1]), (150, 50), "{ledger}");
    assert_eq!(count(&ledger["lost"], "sink"), 100, "the losses of the target that lost most: {ledger}");
    assert!(balances(&ledger), "{ledger}");
}

#[test]
fn metrics_have_the_present_targets() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let capture = Retargeted::start(&wire, &lake, &["a", "b"], &["--metrics", "0"]);
    assert!(wait_until(LIMIT, || address(&capture.process.stderr()).is_some()));
    let metrics = address(&capture.process.stderr()).expect("an address");
    capture.change(&["b", "c"], CHANGED);
    let text = wire.right().run(|| scrape(metrics));
    let has = |name: &str| text.contains(&format!("target=\"file:{}/{name}\"", lake.path().display()));
    assert_eq!(["a", "b", "c"].map(has), [false, true, true], "{text}");
    let _ = capture.end().success();
}

#[test]
fn spool_of_a_removed_bucket_is_sent() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let _ = upload_program();
    wire.right().run(|| moto.start());
    let spool = lake.path().join("spool");
    let launch = moto.env(wire.right().command(STRAIT)).args(["capture", "-i", "right"]);
    let options = ["--tables", "packets", "--spool", spool.to_str().unwrap()];
    let capture = Retargeted::watch(launch, &lake, &["a"], &options);
    capture.change(&["a", "s3://lake/raw"], CHANGED);
    send(&wire, &numbered(100));
    capture.change(&["a"], CHANGED);
    capture.await_notes(&format!("{COMPLETE}s3://lake/raw is complete: wrote 100 packets"), 1);
    assert!(files(&spool, ".parquet").is_empty() && files(&spool, ".part").is_empty());
    let keys = wire.right().run(|| moto.keys());
    assert_eq!(keys.len(), 2, "packets and ledger: {keys:?}");
    let finished = capture.end().success();
    let ledger = ledger(&finished);
    assert_eq!(ledger["targets"].as_array().unwrap().len(), 2, "{ledger}");
    assert_eq!(sums(&lake, "a"), counts(&ledger));
}

#[test]
fn end_of_a_capture_completes_its_files_before_the_spool_of_a_former_target_is_sent() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let _ = upload_program();
    // The kernel accepts connections, and no response comes.
    let store = wire.right().run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let spool = lake.path().join("spool");
    let launch = wire.right().command(STRAIT).env("AWS_ENDPOINT_URL", endpoint);
    let launch = launch.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    let launch = launch.env("AWS_REGION", "us-east-1").args(["capture", "-i", "right"]);
    let options = ["--tables", "packets", "--spool", spool.to_str().unwrap()];
    let capture = Retargeted::watch(launch, &lake, &["a", "s3://lake/raw"], &options);
    send(&wire, &numbered(100));
    capture.change(&["a"], CHANGED);
    assert!(wait_until(LIMIT, || files(&spool, ".parquet").len() == 2), "packets and ledger");
    // A change takes the ledger of the former target.
    capture.change(&["a", "b"], CHANGED);
    capture.process.signal(Signal::INT);
    let tables = lake.path().join("a");
    assert!(wait_until(LIMIT, || files(&tables, ".parquet").len() == 2), "{}", capture.process.stderr());
    assert_eq!(capture.notes(COMPLETE), 0, "{}", capture.process.stderr());
    drop(store);
    let finished = capture.process.wait(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert_eq!(sums(&lake, "a"), counts(&ledger(&finished)));
}

#[test]
fn capture_without_privileges_opens_new_directories_of_its_user() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    if !program_or_skip("setpriv") {
        return;
    }
    fs::set_permissions(lake.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = lake.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let identity = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"];
    let capabilities =
        ["--bounding-set", "-all,+net_raw", "--inh-caps", "-all,+net_raw", "--ambient-caps", "+net_raw"];
    let program = program(&lake);
    let launch = wire.right().command("setpriv").args(identity).args(capabilities).arg(&program);
    let launch = launch.args(["capture", "-i", "right"]);
    let capture = Retargeted::launch(launch, &lake, &["own/a"], &["--tables", "packets"]);
    // The sockets are open before the targets.
    assert!(wait_until(LIMIT, || own.join("a").exists()), "{}", capture.process.stderr());
    send(&wire, &numbered(100));
    capture.change(&["own/b"], CHANGED);
    send(&wire, &numbered(200));
    capture.change(
        &["root"],
        &format!("{KEPT}create {}: Permission denied", lake.path().join("root").display()),
    );
    send(&wire, &numbered(50));
    let finished = capture.end().success();
    assert_eq!((sums(&lake, "own/a")[1], sums(&lake, "own/b")[1]), (100, 250), "{}", finished.stderr);
}

/// Copies the program to a directory that every user can read.
fn program(lake: &Lake) -> PathBuf {
    let program = lake.path().join("strait");
    let _ = fs::copy(STRAIT, &program).unwrap();
    program
}

#[test]
fn file_is_read_once_without_an_interface_and_refused_if_it_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("targets");
    let lake = directory.path().join("lake");
    let options = |more: &[&str]| {
        let input = ["capture", "-r", crate::refusals::RECORDING, "--to-file", file.to_str().unwrap()];
        run(&[&input[..], more].concat())
    };
    fs::write(&file, format!("file:{}\n", lake.display())).unwrap();
    assert!(options(&[]).success().stderr.contains("wrote "));
    assert!(!files(&lake, ".parquet").is_empty());
    for (text, more, words) in [
        ("file:/a", &["--to", "file:/b"][..], "cannot be used with"),
        ("file:/a", &["-w", "x.pcapng"], "cannot be used with"),
        ("/srv/lake", &[], "line 1: give a directory"),
        ("", &[], "it has no target"),
    ] {
        fs::write(&file, text).unwrap();
        let finished = options(more);
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
    }
    assert!(!Path::new("x.pcapng").exists());
    fs::remove_file(&file).unwrap();
    let missing = options(&[]);
    assert_eq!((missing.status.code(), missing.stderr.lines().count()), (Some(1), 1), "{}", missing.stderr);
}
