//! Tests of files: hours, sizes, ages, row groups, and files that end anywhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::*;
use crate::flows::FlowLimits;
use crate::headers::Headers;
use crate::options::{FileNumbers, Selected};
use crate::packets::{Columns, PacketRows};
use crate::recovery::recover;
use crate::schema::PACKETS;
use crate::spool::Spool;

const CAPTURE: &str = "000000000000000c";
const HOUR_NS: u64 = 3_600_000_000_000;

fn options(directory: &Path) -> Arc<Options> {
    Arc::new(Options {
        directory: directory.to_owned(),
        sensor: "s".into(),
        capture: CAPTURE.into(),
        numbers: FileNumbers::default(),
        selected: Selected { packets: true, flows: false, ..Selected::default() },
        flows: FlowLimits::default(),
        columns: Columns::default(),
        frame_bytes: 0,
        rotate_bytes: 1 << 30,
        rotate_every: Duration::from_mins(1),
        spool: None,
        waits: false,
    })
}

fn writer(options: &Arc<Options>) -> TableWriter<PacketRows> {
    let columns = options.columns.clone();
    let rows = move || PacketRows::new(&columns, Arc::new(|_| None), 16, 0);
    TableWriter::new(&PACKETS, Arc::clone(options), Box::new(rows))
}

/// Returns packets of an hour, with other sequence numbers each, so that they cannot be compressed.
fn packets(hour: u64, count: u64) -> Vec<Headers> {
    let packet = |i: u64| Headers {
        time_ns: hour * HOUR_NS + i,
        length: 60,
        captured_length: 60,
        interface: 0,
        lane: (i % 2) as u32,
        direction: None,
        frame_at: 0,
        owner: None,
        macs: None,
        ether_type: None,
        vlan: None,
        inner_vlan: None,
        internet: None,
        ports: None,
        tcp: Some(crate::Tcp {
            sequence: (i as u32).wrapping_mul(2_654_435_769),
            acknowledgment: 0,
            flags: 0,
            window: 0,
            header_length: 20,
        }),
        icmp: None,
    };
    (0..count).map(packet).collect()
}

/// Returns all files below a directory, with the rows of complete ones.
fn files(directory: &Path) -> Vec<(PathBuf, Option<i64>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            let reader = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
            found.push((path, Some(reader.metadata().file_metadata().num_rows())));
        } else {
            found.push((path, None));
        }
    }
    found.sort();
    found
}

fn rows(directory: &Path) -> Vec<Option<i64>> {
    files(directory).into_iter().map(|(_, rows)| rows).collect()
}

#[test]
fn each_hour_has_a_file_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = writer(&options(directory.path()));
    let now = Instant::now();
    for hour in [1, 0, 1, 3] {
        writer.write(&packets(hour, 10), &Extras::default(), now).unwrap();
    }
    writer.complete_all().unwrap();
    let found = files(directory.path());
    let names: Vec<_> = found
        .iter()
        .map(|(path, rows)| (path.strip_prefix(&directory).unwrap().to_str().unwrap(), *rows))
        .collect();
    assert_eq!(
        names,
        [
            ("packets/date=1970-01-01/hour=00/sensor=s/packets-000000000000000c-000001.parquet", Some(10)),
            ("packets/date=1970-01-01/hour=01/sensor=s/packets-000000000000000c-000002.parquet", Some(20)),
            ("packets/date=1970-01-01/hour=03/sensor=s/packets-000000000000000c-000003.parquet", Some(10)),
        ]
    );
    assert_eq!((writer.written().rows, writer.written().files, writer.lost().total()), (40, 3, 0));
}

#[test]
fn packets_of_many_hours_leave_few_files_open() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = writer(&options(directory.path()));
    for hour in 0..20 {
        writer.write(&packets(hour, 3), &Extras::default(), Instant::now()).unwrap();
        assert!(writer.hours.len() <= HOURS_MAX);
    }
    writer.complete_all().unwrap();
    assert_eq!(rows(directory.path()), vec![Some(3); 20]);
}

#[test]
fn times_that_jump_make_a_limited_number_of_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = writer(&options(directory.path()));
    writer.small_files_left = 5;
    for hour in 0..100 {
        writer.write(&packets(hour, 3), &Extras::default(), Instant::now()).unwrap();
        assert!(writer.hours.len() <= HOURS_MAX + 1);
    }
    // A file with a complete batch makes room for another hour.
    writer.complete_all().unwrap();
    for hour in 200..205 {
        writer.write(&packets(hour, BATCH_ROWS as u64), &Extras::default(), Instant::now()).unwrap();
    }
    writer.complete_all().unwrap();
    let none = format!("{}/packets/date=__HIVE_DEFAULT_PARTITION__", directory.path().display());
    let (without, with): (Vec<_>, Vec<_>) =
        files(directory.path()).into_iter().partition(|(path, _)| path.starts_with(&none));
    let batch = Some(BATCH_ROWS as i64);
    assert_eq!(
        with.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(),
        [[Some(3); 9].as_slice(), &[batch; 5]].concat()
    );
    assert_eq!(without.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), [Some(3 * 91)]);
    assert_eq!((writer.written().without_hour, writer.lost().total()), (3 * 91, 0));
}

#[test]
fn file_that_a_killed_capture_did_not_lock_is_removed_after_a_minute() {
    let directory = tempfile::tempdir().unwrap();
    let hour = directory.path().join("packets/date=1970-01-01/hour=00/sensor=s");
    fs::create_dir_all(&hour).unwrap();
    let new = hour.join(format!(".packets-{CAPTURE}-000001.parquet.new"));
    let file = fs::File::create_new(&new).unwrap();
    let nothing = crate::sink::Recovered::default();
    assert_eq!(recover(directory.path(), "s"), nothing, "a capture may be about to lock it");
    file.set_modified(std::time::SystemTime::now() - Duration::from_mins(2)).unwrap();
    file.lock().unwrap();
    assert_eq!(recover(directory.path(), "s"), nothing, "a capture has locked it");
    assert!(new.exists());
    drop(file);
    assert_eq!(recover(directory.path(), "s").removed, 1);
    assert!(!new.exists());
}

#[test]
fn file_is_completed_at_its_age_and_at_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path());
    let start = Instant::now();
    let mut aged = writer(&options);
    aged.write(&packets(0, 5), &Extras::default(), start).unwrap();
    aged.complete_due(start + Duration::from_secs(59)).unwrap();
    assert_eq!(rows(directory.path()), []);
    aged.complete_due(start + Duration::from_mins(1)).unwrap();
    assert_eq!(rows(directory.path()), [Some(5)]);

    Arc::make_mut(&mut options).capture = "000000000000000d".into();
    Arc::make_mut(&mut options).rotate_bytes = 500_000;
    let mut sized = writer(&options);
    let batch = BATCH_ROWS as u64;
    sized.write(&packets(0, 5 * batch), &Extras::default(), start).unwrap();
    sized.complete_all().unwrap();
    // A batch has more than 4 bytes a row, so that two are over the limit.
    let batches = |count: u64| Some((count * batch) as i64);
    assert_eq!(rows(directory.path()), [Some(5), batches(2), batches(2), batches(1)]);
}

/// Writes two row groups and a half, and abandons the writer like a killed process.
fn abandon(directory: &Path) -> PathBuf {
    let mut writer = writer(&options(directory));
    let rows = packets(0, 2 * GROUP_ROWS as u64 + 100);
    writer.write(&rows, &Extras::default(), Instant::now()).unwrap();
    drop(writer);
    let found = files(directory);
    assert_eq!(found.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), [None], "{found:?}");
    assert!(found[0].0.file_name().unwrap().to_str().unwrap().starts_with(".packets-000000000000000c-"));
    found[0].0.clone()
}

#[test]
fn file_of_a_killed_capture_keeps_all_row_groups_wherever_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let part = abandon(directory.path());
    let whole = fs::read(&part).unwrap();
    let complete = part.with_file_name("packets-000000000000000c-000001.parquet");
    let group = GROUP_ROWS as i64;
    // Cut within the second group, within the last footer, not at all, and before the first footer.
    let half = whole.len() / 2;
    for (end, rows) in [
        (half + half / 2, Some(group)),
        (whole.len() - 1, Some(group)),
        (whole.len(), Some(2 * group)),
        (half / 2, None),
        (0, None),
    ] {
        fs::write(&part, &whole[..end]).unwrap();
        let recovered = recover(directory.path(), "s");
        assert_eq!(recovered.completed.len() as u64 + recovered.removed, 1, "{end}");
        assert_eq!(recovered.completed.is_empty(), rows.is_none(), "{end}");
        assert!(!part.exists());
        let kept = files(directory.path());
        assert_eq!(kept.first().map(|(_, rows)| *rows), rows.map(Some), "{end}");
        let _ = fs::remove_file(&complete);
    }
}

#[test]
fn file_of_a_running_capture_and_of_another_sensor_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let part = abandon(directory.path());
    assert_eq!(recover(directory.path(), "t"), crate::sink::Recovered::default());
    let held = fs::File::open(&part).unwrap();
    held.lock().unwrap();
    assert_eq!(recover(directory.path(), "s"), crate::sink::Recovered::default());
    assert!(part.exists());
    drop(held);
    assert_eq!(recover(directory.path(), "s").completed.len(), 1);
}

#[test]
fn failed_file_loses_its_rows_and_all_later_ones_by_lane() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = writer(&options(directory.path()));
    // A file where the table's directory should be.
    fs::write(directory.path().join("packets"), "").unwrap();
    writer.write(&packets(0, 10), &Extras::default(), Instant::now()).unwrap();
    let error = writer.complete_all().unwrap_err().to_string();
    assert!(error.starts_with("create ") && error.contains("packets/date=1970-01-01"), "{error}");
    writer.write(&packets(0, 5), &Extras::default(), Instant::now()).unwrap();
    writer.complete_all().unwrap();
    let lost = writer.lost();
    assert_eq!((lost.of(0), lost.of(1), writer.written().rows), (8, 7, 0));
}

#[test]
fn file_of_a_starting_capture_is_locked_before_a_recovery_can_find_it() {
    let directory = tempfile::tempdir().unwrap();
    let hour = directory.path().join("packets/date=1970-01-01/hour=00/sensor=s");
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(recover(directory.path(), "s"), crate::sink::Recovered::default());
            }
        });
        for number in 0..2000 {
            let part = Part::create(&hour, &format!("packets-{CAPTURE}-{number:06}.parquet")).unwrap();
            assert!(part.is_present(), "{number}");
            part.remove().unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn unfinished_file_is_private_and_a_complete_one_has_the_mode_of_the_umask() {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = tempfile::tempdir().unwrap();
    let permitted = 0o666 & !strait_os::process::umask();
    let part = abandon(directory.path());
    assert_eq!(mode(&part), 0o600 & permitted);
    let recovered = recover(directory.path(), "s").completed;
    assert_eq!(recovered.iter().map(|path| mode(path)).collect::<Vec<_>>(), [permitted]);
    let mut writer = writer(&options(&directory.path().join("other")));
    writer.write(&packets(0, 5), &Extras::default(), Instant::now()).unwrap();
    writer.complete_all().unwrap();
    assert_eq!(mode(&files(&directory.path().join("other"))[0].0), permitted);
}

#[test]
fn new_file_that_another_process_has_locked_is_not_waited_for() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = fs::File::open(file.path()).unwrap();
    other.lock().unwrap();
    assert!(!crate::file::lock(file.as_file()));
    drop(other);
    assert!(crate::file::lock(file.as_file()));
}

#[test]
fn entries_that_are_no_leftovers_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let part = abandon(directory.path());
    let hour = part.parent().unwrap();
    let name = |number: u32| hour.join(format!(".packets-{CAPTURE}-{number:06}.parquet.part"));
    std::os::unix::fs::symlink("nowhere", name(11)).unwrap();
    fs::create_dir(name(12)).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, name(13), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::write(directory.path().join("packets/date=zzz"), "").unwrap();
    fs::write(directory.path().join("flows"), "").unwrap();
    let others = [".x.part", ".packets-c-000001.parquet.part", ".flows-000000000000000c-000001.parquet.part"];
    for name in others {
        fs::write(hour.join(name), "").unwrap();
    }
    let recovered = recover(directory.path(), "s");
    assert_eq!((recovered.completed.len(), recovered.removed), (1, 0));
    let skipped: Vec<&Path> = recovered.skipped.iter().map(|(path, _)| path.as_path()).collect();
    for path in [name(11), name(12), name(13), directory.path().join("packets/date=zzz")] {
        assert!(skipped.contains(&path.as_path()) && path.symlink_metadata().is_ok(), "{skipped:?}");
    }
    assert_eq!(skipped.len(), 5, "{skipped:?}");
    assert!(others.iter().all(|name| hour.join(name).exists()));

    for number in 20..40 {
        fs::create_dir(name(number)).unwrap();
    }
    let again = recover(directory.path(), "s");
    assert_eq!((again.skipped.len() as u64, again.skipped_more), (10, 15));
}

#[test]
fn full_spool_loses_rows_counts_them_and_is_used_again_when_it_is_emptied() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other");
    let spool = Spool::new(directory.path(), 1000, Duration::ZERO);
    let options = Options { spool: Some(Arc::new(spool)), ..(*options(directory.path())).clone() };
    let mut writer = writer(&Arc::new(options));
    let now = Instant::now();
    let write = |writer: &mut TableWriter<PacketRows>| {
        writer.write(&packets(0, 10), &Extras::default(), now).unwrap();
        writer.lost().total()
    };
    assert_eq!(write(&mut writer), 0);
    fs::write(&other, [0; 1000]).unwrap();
    while write(&mut writer) == 0 {}
    assert_eq!((writer.written().files, writer.written().refused), (1, 10), "its file can be sent");
    // The files of the writer alone are above the limit too.
    fs::remove_file(&other).unwrap();
    fs::remove_dir_all(directory.path().join("packets")).unwrap();
    let mut lost = writer.lost().total();
    loop {
        let now_lost = write(&mut writer);
        if now_lost == lost {
            break;
        }
        lost = now_lost;
    }
    writer.complete_all().unwrap();
    assert_eq!((writer.written().files, writer.written().refused), (2, lost));
}
