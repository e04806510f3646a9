//! Rotation by size and by time, and the ring of files.

use std::fs;
use std::time::Duration;

use super::{START_NS, directory, listing, numbers, options, write};
use crate::sink::{FileSink, FrameRef, SinkError, SinkOptions, Statistics, Target};

#[test]
fn files_stay_below_the_limit_and_hold_every_packet_in_order() {
    let directory = directory();
    let rotate_bytes = Some(20_000);
    let options = SinkOptions { rotate_bytes, ..options(&directory.path().join("out.pcapng")) };
    let mut sink = FileSink::create(options).expect("a sink");
    for number in 0..500 {
        write(&mut sink, number, number as usize % 700).expect("room");
        sink.note_statistics(&[Statistics { received: Some(number), ..Statistics::default() }]);
    }
    let summary = sink.close(&[]).expect("complete files");
    let names = listing(directory.path());
    assert_eq!(summary.files, names.len() as u64);
    assert!(names.len() >= 8, "{names:?}");
    let mut found = Vec::new();
    for (number, name) in names.iter().enumerate() {
        assert!(name.starts_with(&format!("out_{:05}_20231114221320", number + 1)), "{name}");
        let path = directory.path().join(name);
        let bytes = fs::metadata(&path).expect("a file").len();
        assert!(bytes <= 20_000, "{name} has {bytes} bytes");
        found.extend(numbers(&path));
    }
    assert_eq!(found, (0..500).collect::<Vec<_>>());
}

#[test]
fn packet_longer_than_the_limit_has_its_own_file() {
    let directory = directory();
    let rotate_bytes = Some(5000);
    let options = SinkOptions { rotate_bytes, ..options(&directory.path().join("out")) };
    let mut sink = FileSink::create(options).expect("a sink");
    for number in 0..3 {
        write(&mut sink, number, 9000).expect("room");
    }
    assert_eq!(sink.close(&[]).expect("complete files").files, 3);
    assert_eq!(listing(directory.path()).len(), 3);
}

#[test]
fn periods_count_from_the_start_and_leave_no_empty_file() {
    let directory = directory();
    let rotate_every = Some(Duration::from_mins(1));
    let options = SinkOptions { rotate_every, ..options(&directory.path().join("out.pcapng")) };
    let mut sink = FileSink::create(options).expect("a sink");
    for second in [0, 59, 60, 61, 100, 400, 419, 420] {
        let timestamp_ns = START_NS + second * 1_000_000_000;
        sink.write(&FrameRef { timestamp_ns, ..FrameRef::default() }).expect("room");
    }
    sink.close(&[]).expect("complete files");
    let expected = [
        "out_00001_20231114221320.pcapng",
        "out_00002_20231114221420.pcapng",
        "out_00003_20231114222000.pcapng",
        "out_00004_20231114222020.pcapng",
    ];
    assert_eq!(listing(directory.path()), expected);
}

#[test]
fn late_first_packet_stays_in_the_first_file() {
    let directory = directory();
    let rotate_every = Some(Duration::from_secs(1));
    let options = SinkOptions { rotate_every, ..options(&directory.path().join("out.pcapng")) };
    let mut sink = FileSink::create(options).expect("a sink");
    for ns in [5_000_000_000, 5_900_000_000, 6_000_000_000] {
        sink.write(&FrameRef { timestamp_ns: START_NS + ns, ..FrameRef::default() }).expect("room");
    }
    assert_eq!(sink.close(&[]).expect("complete files").files, 2);
}

#[test]
fn ring_keeps_the_newest_files() {
    for ring_files in [1, 3] {
        let directory = directory();
        let base = options(&directory.path().join("out.pcapng"));
        let options = SinkOptions { rotate_bytes: Some(4096), ring_files: Some(ring_files), ..base };
        let mut sink = FileSink::create(options).expect("a sink");
        for number in 0..100 {
            write(&mut sink, number, 1000).expect("room");
            assert!(listing(directory.path()).len() <= ring_files);
        }
        let summary = sink.close(&[]).expect("complete files");
        let names = listing(directory.path());
        assert_eq!((summary.packets, summary.deleted), (100, summary.files - ring_files as u64));
        assert_eq!(names.len(), ring_files);
        let newest = numbers(&directory.path().join(names.last().expect("a file")));
        assert_eq!(newest.last(), Some(&99));
    }
}

#[test]
fn contradictory_options_are_refused() {
    let directory = directory();
    let base = options(&directory.path().join("out.pcapng"));
    let second = Some(Duration::from_secs(1));
    let refused = [
        SinkOptions { rotate_bytes: Some(100), ..base.clone() },
        SinkOptions { rotate_every: Some(Duration::ZERO), ..base.clone() },
        SinkOptions { ring_files: Some(2), ..base.clone() },
        SinkOptions { ring_files: Some(0), rotate_every: second, ..base.clone() },
        SinkOptions { target: Target::Stdout, rotate_every: second, ..base.clone() },
        SinkOptions { target: Target::Path("/dev/null".into()), rotate_every: second, ..base.clone() },
        SinkOptions { interfaces: Vec::new(), ..base },
    ];
    for options in refused {
        let error = FileSink::create(options.clone()).expect_err("refused");
        assert!(matches!(error, SinkError::Usage(_)), "{options:?}: {error}");
    }
    assert!(listing(directory.path()).is_empty());
}

#[test]
fn planted_name_of_a_later_file_does_not_end_the_capture() {
    for planted in ["out_00002_20231114221420.pcapng", "out_00002_20231114221420.pcapng.part"] {
        let directory = directory();
        fs::create_dir(directory.path().join(planted)).unwrap();
        let rotate_every = Some(Duration::from_mins(1));
        let options = SinkOptions { rotate_every, ..options(&directory.path().join("out.pcapng")) };
        let mut sink = FileSink::create(options).expect("a sink");
        for second in [0, 60] {
            let timestamp_ns = START_NS + second * 1_000_000_000;
            sink.write(&FrameRef { timestamp_ns, ..FrameRef::default() }).expect("another name");
        }
        assert_eq!(sink.close(&[]).expect("complete files").files, 2);
        assert_eq!(listing(directory.path()).len(), 3);
    }
}

#[test]
fn planted_part_of_a_format_is_skipped() {
    let directory = directory();
    std::os::unix::fs::symlink("/dev/full", directory.path().join("out%_00002.pcapng.part")).unwrap();
    let rotate_every = Some(Duration::from_mins(1));
    let options = SinkOptions { rotate_every, ..options(&directory.path().join("out%%.pcapng")) };
    let mut sink = FileSink::create(options).expect("a sink");
    for second in [0, 60] {
        let timestamp_ns = START_NS + second * 1_000_000_000;
        sink.write(&FrameRef { timestamp_ns, ..FrameRef::default() }).expect("another name");
    }
    assert_eq!(sink.close(&[]).expect("complete files").files, 2);
    assert!(listing(directory.path()).contains(&"out%_00003.pcapng".into()));
}

/// A directory planted at the name of a file that is being written.
#[test]
fn a_directory_at_the_final_name_does_not_end_the_capture() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let rotate_every = Some(Duration::from_mins(1));
    let options = SinkOptions { rotate_every, ..options(&path("out.pcapng")) };
    let mut sink = FileSink::create(options).expect("a sink");
    let mut write = |second: u64| {
        let timestamp_ns = START_NS + second * 1_000_000_000;
        sink.write(&FrameRef { timestamp_ns, wire_len: 4, ..FrameRef::default() }).expect("another name");
        sink.take_renamed()
    };
    let first = path("out_00001_20231114221320.pcapng");
    assert_eq!(write(0), None);
    fs::create_dir(&first).unwrap();
    let renamed = write(60).expect("another name");
    assert_eq!(renamed.taken, first);
    assert_eq!(numbers(&renamed.name), [0]);
    fs::create_dir(path("out_00002_20231114221420.pcapng")).unwrap();
    let summary = sink.close(&[]).expect("complete files");
    assert_eq!((summary.packets, summary.files, summary.renamed), (2, 2, 2));
    assert_eq!(summary.first_file, renamed.name.display().to_string());
    assert_eq!(numbers(summary.last_file.as_ref()), [60_000_000]);
    assert_eq!(listing(directory.path()).len(), 4);
}

#[test]
fn file_created_meanwhile_is_not_replaced() {
    for (name, first) in [("out.pcapng", "out_00001_20231114221320.pcapng"), ("out%%.pcapng", "out%.pcapng")]
    {
        let directory = directory();
        let path = |name: &str| directory.path().join(name);
        let rotate_every = Some(Duration::from_mins(1));
        let options = SinkOptions { rotate_every, ..options(&path(name)) };
        let mut sink = FileSink::create(options).expect("a sink");
        fs::write(path(first), "of another program").unwrap();
        write(&mut sink, 7, 100).expect("room");
        let summary = sink.close(&[]).expect("a complete file");
        assert_eq!(fs::read(path(first)).unwrap(), b"of another program");
        assert_eq!((summary.files, summary.renamed), (1, 1));
        assert_eq!(numbers(summary.last_file.as_ref()), [7]);
    }
    // Without rotation the user names the file to replace.
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    fs::write(&path, "older").unwrap();
    write(&mut sink, 7, 100).expect("room");
    assert_eq!(sink.close(&[]).expect("a complete file").renamed, 0);
    assert_eq!(numbers(&path), [7]);
}

#[test]
fn ring_keeps_a_file_with_the_inode_number_of_its_own() {
    let base = directory();
    let options = SinkOptions {
        rotate_bytes: Some(4096),
        ring_files: Some(2),
        ..options(&base.path().join("out.pcapng"))
    };
    let mut sink = FileSink::create(options).expect("a sink");
    let mut number = 0;
    while listing(base.path()).len() < 2 {
        write(&mut sink, number, 1000).expect("room");
        number += 1;
    }
    let first = base.path().join(&listing(base.path())[0]);
    fs::remove_file(&first).unwrap();
    // The file system commonly gives it the same number.
    fs::write(&first, "of another program").unwrap();
    while number < 20 {
        write(&mut sink, number, 1000).expect("room");
        number += 1;
    }
    sink.close(&[]).expect("complete files");
    assert_eq!(fs::read(&first).unwrap(), b"of another program");
}

#[test]
fn a_ring_deletes_its_own_files_where_they_are() {
    for is_directory_replaced in [true, false] {
        let base = directory();
        let (here, moved) = (base.path().join("here"), base.path().join("moved"));
        fs::create_dir(&here).unwrap();
        let base = options(&here.join("out.pcapng"));
        let options = SinkOptions { rotate_bytes: Some(4096), ring_files: Some(2), ..base };
        let mut sink = FileSink::create(options).expect("a sink");
        let mut number = 0;
        while listing(&here).len() < 2 {
            write(&mut sink, number, 1000).expect("room");
            number += 1;
        }
        let first = listing(&here)[0].clone();
        if is_directory_replaced {
            fs::rename(&here, &moved).unwrap();
            fs::create_dir(&here).unwrap();
        } else {
            fs::rename(here.join(&first), &moved).unwrap();
        }
        fs::write(here.join(&first), "of another program").unwrap();
        while number < 20 {
            // Its part is in the directory that was moved: only the name is of interest.
            write(&mut sink, number, 1000).expect("room");
            number += 1;
        }
        let summary = sink.close(&[]).expect("complete files");
        assert_eq!(fs::read(here.join(&first)).unwrap(), b"of another program");
        assert!(summary.deleted > 0 && !moved.join(&first).exists());
    }
}
