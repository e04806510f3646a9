//! Tables of several capture files: the packets that capinfos counts, and one ledger.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lab::{Launch, program_or_skip};
use strait_capture::sink::{FileSink, Format, FrameRef, SinkOptions, Target};

use crate::refusals::RECORDING;
use crate::rig::{LIMIT, STRAIT, count, ledger, numbered, run, tagged};
use crate::tables::{Lake, files};
use crate::tools::{self, capinfos};

const HOUR_NS: u64 = 3_600_000_000_000;

/// Writes a capture file of `frames`, one each `step_ns`.
fn write(path: &Path, format: Format, frames: &[Vec<u8>], step_ns: u64) {
    let options = SinkOptions { format, ..SinkOptions::new(Target::Path(path.to_owned()), 0) };
    let mut sink = FileSink::create(options).unwrap();
    for (bytes, i) in frames.iter().zip(0..) {
        let timestamp_ns = 1_764_000_000_000_000_000 + i * step_ns;
        sink.write(&FrameRef { timestamp_ns, bytes, wire_len: bytes.len() as u32, ..FrameRef::default() })
            .unwrap();
    }
    sink.close(&[]).unwrap();
}

/// Writes a day of capture files, and returns their paths.
pub(crate) fn day(directory: &Path) -> Vec<PathBuf> {
    fs::create_dir(directory.join("day")).unwrap();
    let write = |number: u64| {
        let path = directory.join(format!("day/{number}.pcapng"));
        let frames = [numbered(40 + number), tagged(10)].concat();
        write(&path, Format::Pcapng, &frames, 1_000_000 + number);
        path
    };
    (0..7).map(write).collect()
}

#[test]
fn several_files_have_the_packets_that_capinfos_counts_and_one_ledger() {
    let Some(lake) = Lake::or_skip() else { return };
    if !tools::present() {
        return;
    }
    let day = day(lake.path());
    let (url, pattern) = (lake.url(), lake.path().join("day/*.pcapng"));
    let arguments = [
        "capture",
        "-r",
        pattern.to_str().unwrap(),
        "-r",
        RECORDING,
        "--to",
        &url,
        "--sensor",
        "s",
        "--json",
    ];
    let ledger = ledger(&run(&arguments).success());

    let inputs: Vec<PathBuf> = day.into_iter().chain([PathBuf::from(RECORDING)]).collect();
    let packets: Vec<usize> = inputs.iter().map(|file| capinfos(file).0).collect();
    let all = packets.iter().sum::<usize>() as i64;
    assert_eq!((count(&ledger, "received") as i64, count(&ledger, "delivered") as i64), (all, all));
    let wire_bytes = count(&ledger, "wire_bytes") as i64;
    assert_eq!(lake.numbers("select count(*), sum(length) from packets"), [all, wire_bytes]);
    assert_eq!(lake.numbers("select sum(delivered), sum(wire_bytes) from ledger"), [all, wire_bytes]);
    let rows =
        lake.ask(lake.path(), &["sql", "select interface, lane, delivered, path from ledger order by lane"]);
    let expected: Vec<Vec<String>> = (0..inputs.len())
        .map(|i| {
            let name = inputs[i].to_str().unwrap().to_owned();
            vec![name, i.to_string(), packets[i].to_string(), "file".into()]
        })
        .collect();
    assert_eq!(rows, expected);
    let octets = "select sum(packetDeltaCount + reversePacketDeltaCount) = \
                  (select count(*) from packets where protocol is not null) from flows";
    assert_eq!(lake.ask(lake.path(), &["sql", octets]), [["True"]]);
}

#[test]
fn count_and_filter_apply_to_all_files_together() {
    let Some(lake) = Lake::or_skip() else { return };
    let _ = day(lake.path());
    let (url, pattern) = (lake.url(), lake.path().join("day/*.pcapng"));
    let arguments = ["capture", "-r", pattern.to_str().unwrap(), "--to", &url, "-c", "60", "--json", "udp"];
    let ledger = ledger(&run(&arguments).success());
    assert_eq!((count(&ledger, "delivered"), &ledger["balanced"]), (60, &ledger["balanced"]), "{ledger}");
    assert_eq!(
        count(&ledger, "received"),
        count(&ledger, "delivered") + count(&ledger, "filtered"),
        "{ledger}"
    );
    let query = "select count(*), count(*) filter (protocol = 17) from packets";
    assert_eq!(lake.numbers(query), [60, 60]);
}

#[test]
fn damaged_files_are_named_and_all_other_packets_are_in_the_tables() {
    let Some(lake) = Lake::or_skip() else { return };
    let day = day(lake.path());
    let whole = fs::read(&day[1]).unwrap();
    fs::write(&day[1], &whole[..whole.len() / 2]).unwrap();
    fs::write(&day[3], "no capture file").unwrap();
    fs::remove_file(&day[5]).unwrap();
    let url = lake.url();
    let mut arguments = vec!["capture", "--to", &url];
    for file in &day {
        arguments.extend(["-r", file.to_str().unwrap()]);
    }
    let finished = run(&arguments);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("3 of 7 files could not be read to their end"), "{}", finished.stderr);
    for file in [&day[1], &day[3], &day[5]] {
        assert!(finished.stderr.contains(file.to_str().unwrap()), "{}", finished.stderr);
    }
    let query = "select count(*), (select sum(delivered) from ledger) from packets";
    let [rows, delivered] = lake.numbers(query)[..] else { panic!("two numbers") };
    assert_eq!(rows, delivered);
    let complete = [0, 2, 4, 6].map(|number| 50 + number).iter().sum::<i64>();
    assert!(rows > complete && rows < complete + 51, "{rows}");
}

#[test]
fn failure_of_the_tables_ends_all_files_and_every_packet_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let _ = day(directory.path());
    fs::write(directory.path().join("packets"), "").unwrap();
    let (url, pattern) = (format!("file:{}", directory.path().display()), directory.path().join("day/*"));
    let finished = run(&["capture", "-r", pattern.to_str().unwrap(), "--to", &url, "--json"]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("strait: create "), "{}", finished.stderr);
    let ledger = ledger(&finished);
    assert_eq!(count(&ledger, "delivered"), 0, "{ledger}");
    assert_eq!(ledger["lost"]["sink"].as_u64().unwrap(), count(&ledger, "received"), "{ledger}");
}

#[test]
fn several_files_need_tables() {
    for (options, words) in [
        (&["-r", RECORDING][..], "-r names 2 files: give one, or --to to write tables of all"),
        (&["-r", "-", "--to", "file:x"], "-r - cannot be combined with other files"),
    ] {
        let finished = run(&[&["capture", "-r", RECORDING], options].concat());
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
    }
}

#[test]
fn times_that_jump_leave_each_packet_in_its_hour() {
    let Some(lake) = Lake::or_skip() else { return };
    let file = lake.path().join("jumps.pcap");
    write(&file, Format::Pcap, &numbered(50), HOUR_NS);
    let url = lake.url();
    let _ = run(&["capture", "-r", file.to_str().unwrap(), "--to", &url, "--tables", "packets"]).success();
    let query = "select count(*), count(distinct date || hour), \
                 count(*) filter (strftime(time, '%Y-%m-%d %H') != strftime(date, '%Y-%m-%d ') || hour) from packets";
    assert_eq!(lake.numbers(&format!("set timezone = 'UTC'; {query}")), [50, 50, 0]);
    // Engines read the rows of a file without an hour, too.
    let date = files(lake.path(), ".parquet")[0].ancestors().nth(3).unwrap().to_owned();
    fs::rename(&date, date.with_file_name("date=__HIVE_DEFAULT_PARTITION__")).unwrap();
    assert_eq!(lake.numbers("select count(*), (count(date) < 50)::int from packets"), [50, 1]);
}

/// Kills a capture as soon as it has created a file, and before it has locked it.
#[test]
fn file_of_a_capture_killed_before_its_lock_is_removed_by_a_later_one() {
    if !program_or_skip("strace") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file:{}", directory.path().display());
    let capture = ["capture", "-r", RECORDING, "--to", &url, "--sensor", "s"];
    let kill = ["-f", "-o", "/dev/null", "-e", "trace=flock", "-e", "inject=flock:signal=KILL"];
    let killed = Launch::new("strace").args(kill).arg(STRAIT).args(capture).run(LIMIT).unwrap();
    assert!(!killed.status.success(), "{}", killed.stderr);
    let left = files(directory.path(), ".new");
    assert_eq!(left.len(), 1, "{}", killed.stderr);

    let _ = run(&capture).success();
    assert!(left[0].exists(), "another capture may be about to lock it");
    let file = fs::File::options().write(true).open(&left[0]).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_mins(2)).unwrap();
    drop(file);
    let finished = run(&capture).success();
    assert!(finished.stderr.contains("removed 1 file without rows"), "{}", finished.stderr);
    assert!(!left[0].exists() && files(directory.path(), ".part").is_empty());
}

/// Injects an error into the first lock of a capture: a signal, and a lock of another process.
#[test]
fn file_whose_lock_fails_is_locked_or_created_again() {
    if !program_or_skip("strace") {
        return;
    }
    for (error, created) in [("EINTR", 2), ("EAGAIN", 3)] {
        let directory = tempfile::tempdir().unwrap();
        let (url, trace) = (format!("file:{}", directory.path().display()), directory.path().join("trace"));
        let inject = format!("inject=flock:error={error}:when=1");
        let options = ["-f", "-o", trace.to_str().unwrap(), "-e", "trace=flock,openat", "-e", &inject];
        let capture = ["capture", "-r", RECORDING, "--to", &url, "--tables", "packets"];
        let finished = Launch::new("strace").args(options).arg(STRAIT).args(capture).run(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        // One file of packets and one of the ledger.
        assert_eq!(
            (files(directory.path(), ".parquet").len(), files(directory.path(), ".new").len()),
            (2, 0)
        );
        let trace = fs::read_to_string(&trace).unwrap();
        let count = |words: &str| trace.lines().filter(|line| line.contains(words)).count();
        assert_eq!((count("flock("), count(".parquet.new\"")), (3, created), "{trace}");
    }
}
