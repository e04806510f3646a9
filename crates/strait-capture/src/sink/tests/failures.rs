//! Full disks, limits, killed captures, closed pipes, targets that cannot be written.
//!
//! A test that needs another process runs this test binary for the same test with [`CHILD`] set.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use strait_sys::Kind;

use super::{START_NS, directory, listing, numbers, options, part_of, write};
use crate::file::FileReader;
use crate::sink::{FileSink, FrameRef, SinkError, SinkOptions, Statistics, Target};

/// Variable with the file that a child writes.
const CHILD: &str = "STRAIT_SINK_TEST_FILE";

/// Returns a command that runs this binary for `test` only, with `file` to write. `shell` runs it
/// as `"$@"`.
fn child(test: &str, file: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    let executable = env::current_exe().expect("a path to this test");
    command.args(["-c", shell, "sh"]).arg(executable).args(["--exact", "--nocapture", "--test-threads=1"]);
    command.arg(format!("sink::tests::failures::{test}")).env(CHILD, file).stdin(Stdio::null());
    command
}

fn child_target() -> Option<PathBuf> {
    env::var_os(CHILD).map(PathBuf::from)
}

/// Writes until a write fails, checks the account, completes the file and prints the result.
fn write_until_full(path: &Path) {
    let mut sink = FileSink::create(options(path)).expect("a sink");
    let mut given = 0;
    let error = loop {
        given += 1;
        if let Err(error) = write(&mut sink, given - 1, 1000) {
            break error;
        }
    };
    assert_eq!(write(&mut sink, given, 1000).expect_err("it failed before").to_string(), error.to_string());
    let SinkError::Write { packets, bytes, .. } = error else { panic!("{error}") };
    assert_eq!(sink.lost(), given + 1 - packets);
    let part = fs::metadata(part_of(path)).expect("an unfinished file");
    assert_eq!(part.len(), bytes, "cut back to whole blocks");
    let summary = sink.close(&[]).expect("a complete file all the same");
    assert_eq!((summary.packets, summary.lost, summary.files), (packets, given + 1 - packets, 1));
    assert_eq!(numbers(path), (0..packets).collect::<Vec<_>>());
    assert_eq!(summary.bytes, fs::metadata(path).expect("a file").len());
    println!("\n{error}");
}

#[test]
fn full_disk_leaves_whole_blocks_and_reports_their_number() {
    if let Some(path) = child_target() {
        return write_until_full(&path);
    }
    let directory = directory();
    let mount = format!("mount -t tmpfs -o size=3m tmpfs {} && exec \"$@\"", directory.path().display());
    let shell = format!("exec unshare -m sh -c '{mount}' sh \"$@\"");
    let path = directory.path().join("out.pcapng");
    let test = "full_disk_leaves_whole_blocks_and_reports_their_number";
    let output = child(test, &path, &shell).output().expect("a shell");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if stderr.contains("unshare:") || stderr.contains("mount:") {
        eprintln!("SKIP a small disk needs a mount namespace: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("No space left on device"), "{stdout}");
    assert!(stdout.contains(&format!("write {}: No space left", path.display())), "{stdout}");
}

#[test]
fn file_size_limit_leaves_whole_blocks() {
    if let Some(path) = child_target() {
        return write_until_full(&path);
    }
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    // An odd number of 512-byte units, so that the limit cuts a block.
    let shell = "trap '' XFSZ; ulimit -f 3333; exec \"$@\"";
    let output = child("file_size_limit_leaves_whole_blocks", &path, shell).output().expect("a shell");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("File too large"), "{stdout}");
    assert_eq!(listing(directory.path()), ["out.pcapng"]);
    let packets = numbers(&path).len();
    assert!(packets > 1500, "{packets}");
}

#[test]
fn full_compressed_file_keeps_the_packets_of_the_writes_before() {
    if let Some(path) = child_target() {
        for is_threaded in [false, true] {
            fill_compressed(&path, is_threaded);
        }
        return;
    }
    let directory = directory();
    let path = directory.path().join("out.pcapng.zst");
    let shell = "trap '' XFSZ; ulimit -f 3333; exec \"$@\"";
    let test = "full_compressed_file_keeps_the_packets_of_the_writes_before";
    let output = child(test, &path, shell).output().expect("a shell");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.matches("the packets written before are in the file").count(), 2, "{stdout}");
    assert_eq!(listing(directory.path()), ["out.pcapng.zst"]);
}

/// Writes until a write fails, with a thread that compresses on request. Checks the account and the
/// file, and prints the error.
fn fill_compressed(path: &Path, is_threaded: bool) {
    let mut sink = FileSink::create(options(path)).expect("a sink");
    if is_threaded {
        sink.start().expect("a thread");
    }
    let (mut noise, mut given) = (1_u64, 0);
    let error = loop {
        let mut bytes = [0; 1000];
        for byte in &mut bytes {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (noise >> 56) as u8;
        }
        let timestamp_ns = START_NS + given * 1000;
        given += 1;
        let frame = FrameRef { timestamp_ns, bytes: &bytes, wire_len: 1000, ..FrameRef::default() };
        if let Err(error) = sink.write(&frame) {
            break error;
        }
    };
    assert_eq!(write(&mut sink, given, 1000).expect_err("it failed before").to_string(), error.to_string());
    let SinkError::Write { packets, bytes, .. } = error else { panic!("{error}") };
    assert_eq!(sink.lost(), given + 1 - packets);
    assert_eq!(fs::metadata(part_of(path)).expect("an unfinished file").len(), bytes);
    let summary = sink.close(&[]).expect("a complete file all the same");
    assert_eq!((summary.packets, summary.bytes, summary.files), (packets, bytes, 1));
    assert_eq!(summary.lost, given + 1 - packets);
    let mut reader = FileReader::open(path.to_str().expect("a path")).expect("a capture file");
    let mut found = 0;
    let end = loop {
        match reader.next() {
            Ok(Some(_)) => found += 1,
            end => break end.expect_err("a frame without an end").to_string(),
        }
    };
    assert!(found == packets && found > 1000, "{found} of {packets}");
    assert!(end.ends_with("its zstd data is incomplete"), "{end}");
    println!("\n{error}");
}

#[test]
fn killed_capture_is_readable_up_to_the_last_flush() {
    if let Some(path) = child_target() {
        let mut sink = FileSink::create(options(&path)).expect("a sink");
        (0..1000).for_each(|number| write(&mut sink, number, 300).expect("room"));
        sink.flush().expect("room");
        (1000..1100).for_each(|number| write(&mut sink, number, 300).expect("room"));
        println!("\nflushed");
        loop {
            std::thread::park();
        }
    }
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut command = child("killed_capture_is_readable_up_to_the_last_flush", &path, "exec \"$@\"");
    let mut capture = command.stdout(Stdio::piped()).spawn().expect("a shell");
    let stdout = BufReader::new(capture.stdout.take().expect("a pipe"));
    let flushed = stdout.lines().any(|line| line.expect("a line") == "flushed");
    capture.kill().expect("it runs");
    capture.wait().expect("it ran");
    assert!(flushed);
    assert_eq!(listing(directory.path()), ["out.pcapng.part"]);
    assert_eq!(numbers(&part_of(&path)), (0..1000).collect::<Vec<_>>());
    // The next two captures to the same name keep the file of the killed one under another name.
    FileSink::create(options(&path)).expect("no lock is left").close(&[]).expect("a complete file");
    assert_eq!(listing(directory.path()), ["out.pcapng", "out.pcapng.part.1"]);
    assert_eq!(numbers(&directory.path().join("out.pcapng.part.1")), (0..1000).collect::<Vec<_>>());
    std::fs::write(part_of(&path), "torn").expect("room");
    FileSink::create(options(&path)).expect("no lock is left").close(&[]).expect("a complete file");
    assert_eq!(listing(directory.path()), ["out.pcapng", "out.pcapng.part.1", "out.pcapng.part.2"]);
}

#[test]
fn standard_output_gets_the_file_unchanged() {
    if child_target().is_some() {
        let mut sink = FileSink::create(SinkOptions::new(Target::parse("-"), START_NS)).expect("a sink");
        (0..1000).for_each(|number| write(&mut sink, number, 700).expect("a reader"));
        sink.close(&[]).expect("a reader");
        std::process::exit(0);
    }
    let directory = directory();
    let path = directory.path().join("copy.pcapng");
    let test = "standard_output_gets_the_file_unchanged";
    let output = child(test, &path, "exec \"$@\"").output().expect("a shell");
    // The test runner prints a line first.
    let header = output.stdout.windows(4).position(|bytes| bytes == b"\x0a\x0d\x0d\x0a").expect("a header");
    fs::write(&path, &output.stdout[header..]).expect("room");
    assert_eq!(numbers(&path), (0..1000).collect::<Vec<_>>());
}

#[test]
fn closed_pipe_is_distinguished_from_a_failure() {
    let directory = directory();
    let path = directory.path().join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut start = [0; 4];
            File::open(path).expect("a FIFO").read_exact(&mut start).expect("a header");
            start
        }
    });
    let mut sink = FileSink::create(options(&path)).expect("a reader");
    assert_eq!(reader.join().expect("the reader ends well"), *b"\x0a\x0d\x0d\x0a");
    wait_until_unread(&path);
    write(&mut sink, 0, 60).expect("it is only buffered");
    let error = sink.flush().expect_err("no reader");
    assert!(matches!(error, SinkError::ReaderClosed { packets: 0, .. }), "{error}");
    assert_eq!(sink.lost(), 1);
    sink.close(&[Statistics::default()]).expect("the error was returned before");
    assert_eq!(listing(directory.path()), ["fifo"], "written in place");
}

/// Waits until nothing has a FIFO open for reading. A process that another test starts has it open
/// until it executes its program.
fn wait_until_unread(fifo: &Path) {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = || rustix::fs::open(fifo, flags, Mode::empty());
    while !matches!(opened(), Err(Errno::NXIO)) {
        strait_os::wait::sleep(Duration::from_millis(1));
    }
}

#[test]
fn devices_are_written_in_place() {
    let before = fs::metadata("/dev/null").expect("a device").ino();
    let mut sink = FileSink::create(options(Path::new("/dev/null"))).expect("a device");
    (0..1000).for_each(|number| write(&mut sink, number, 1000).expect("room"));
    assert_eq!(sink.close(&[]).expect("a device").packets, 1000);
    assert_eq!(fs::metadata("/dev/null").expect("a device").ino(), before);
    assert!(!Path::new("/dev/null.part").exists());
    let full = FileSink::create(options(Path::new("/dev/full"))).expect_err("no room for the header");
    assert!(full.to_string().starts_with("write /dev/full: No space left on device"), "{full}");
}

#[test]
fn two_captures_do_not_share_a_file() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut first = FileSink::create(options(&path)).expect("a sink");
    let refused = FileSink::create(options(&path)).expect_err("the first one has it");
    assert!(matches!(refused, SinkError::Busy { .. }), "{refused}");
    write(&mut first, 0, 60).expect("room");
    first.close(&[]).expect("a complete file");
    assert_eq!(numbers(&path), [0]);
    FileSink::create(options(&path)).expect("free again");
}

#[test]
fn targets_that_cannot_be_written_are_refused_at_once() {
    let directory = directory();
    let refused = FileSink::create(options(directory.path())).expect_err("a directory");
    assert_eq!((refused.kind(), listing(directory.path()).len()), (Kind::Failed, 0), "{refused}");
    let missing = FileSink::create(options(Path::new("/nowhere/out.pcapng"))).expect_err("no directory");
    assert_eq!(missing.kind(), Kind::Failed);
    assert!(missing.to_string().starts_with("create /nowhere/out.pcapng: No such file"), "{missing}");
}

#[test]
fn frame_that_no_file_can_hold_is_refused_alone() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let mut sink = FileSink::create(options(&path)).expect("a sink");
    write(&mut sink, 0, 60).expect("room");
    let stray = FrameRef { interface: 5, timestamp_ns: START_NS, ..FrameRef::default() };
    assert!(matches!(sink.write(&stray), Err(SinkError::Format(_))));
    write(&mut sink, 1, 60).expect("room");
    let summary = sink.close(&[]).expect("a complete file");
    assert_eq!((summary.packets, summary.lost), (2, 1));
    assert_eq!(numbers(&path), [0, 1]);
}

#[test]
fn planted_part_is_neither_followed_nor_waited_for() {
    let directory = directory();
    let path = directory.path().join("out.pcapng");
    let elsewhere = directory.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, part_of(&path)).unwrap();
    let refused = || FileSink::create(options(&path)).expect_err("a planted name").to_string();
    assert!(refused().contains("remove it"), "{}", refused());
    assert!(!elsewhere.exists());

    fs::remove_file(part_of(&path)).unwrap();
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mkfifoat(rustix::fs::CWD, part_of(&path), mode).unwrap();
    assert!(refused().contains("remove it"), "{}", refused());

    // An empty file with a second name, by which others could change it, is renamed.
    fs::remove_file(part_of(&path)).unwrap();
    fs::write(&elsewhere, "").unwrap();
    fs::hard_link(&elsewhere, part_of(&path)).unwrap();
    FileSink::create(options(&path)).expect("a sink").close(&[]).expect("a complete file");
    assert_eq!(fs::metadata(&elsewhere).unwrap().len(), 0);
    assert_eq!(listing(directory.path()), ["elsewhere", "out.pcapng", "out.pcapng.part.1"]);
}

#[test]
fn replaced_part_does_not_get_the_final_name() {
    for is_moved in [true, false] {
        let directory = directory();
        let path = directory.path().join("out.pcapng");
        let moved = directory.path().join("moved");
        let mut sink = FileSink::create(options(&path)).expect("a sink");
        write(&mut sink, 0, 60).expect("room");
        fs::rename(part_of(&path), &moved).unwrap();
        if !is_moved {
            fs::remove_file(&moved).unwrap();
        }
        fs::write(part_of(&path), "forged").unwrap();
        let refused = sink.close(&[]).expect_err("a forged part").to_string();
        assert!(!path.exists());
        assert_eq!(fs::read(part_of(&path)).unwrap(), b"forged");
        if is_moved {
            assert!(refused.contains(&format!("the capture is in {}", moved.display())), "{refused}");
            assert_eq!(numbers(&moved), [0]);
        } else {
            assert!(refused.contains("the capture is deleted"), "{refused}");
        }
    }
}
