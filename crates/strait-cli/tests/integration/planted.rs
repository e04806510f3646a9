//! Output files planted by another user: links, named pipes, and files in a shared directory.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use lab::{Launch, root_or_skip};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;

use crate::refusals::RECORDING;
use crate::rig::{LIMIT, STRAIT, failure, run};
use crate::transfer::{Files, Receiver, content};

const NOBODY: u32 = 65534;
const LEN: usize = 100_000;

/// Arguments of each program that writes to a named file, up to the name.
const WRITERS: [&[&str]; 3] = [
    &["receive", "-o"],
    &["capture", "-r", RECORDING, "-w"],
    &["proxy", "--listen", "127.0.0.1:0", "--workers", "1", "--log"],
];

/// Creates a directory with the mode of /tmp.
fn shared() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    directory
}

fn make_pipe(path: &Path, owner: u32) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    chown(path, Some(owner), None).unwrap();
}

/// Opens a named pipe for reading, without waiting for a writer.
fn reader(path: &Path) -> fs::File {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap().into()
}

fn refused(writer: &[&str], path: &Path, words: &str) {
    let (code, line) = failure(&run(&[writer, &[&*path.to_string_lossy()]].concat()));
    // The proxy reports its log as an error in its configuration.
    let expected = if writer[0] == "proxy" { 2 } else { 1 };
    assert!(code == expected && line.contains(words) && line.contains(&*path.to_string_lossy()), "{line}");
}

#[test]
fn named_pipe_of_another_user_is_refused() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = directory.path().join("out");
    make_pipe(&path, NOBODY);
    let mut read = reader(&path);
    for writer in WRITERS {
        refused(writer, &path, "a named pipe of another user");
        assert_eq!(read.read(&mut [0; 1]).unwrap(), 0, "{writer:?}");
    }
}

#[test]
fn link_of_another_user_is_refused_even_behind_a_link_of_the_user() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("victim"), "untouched").unwrap();
    symlink(path("victim"), path("planted")).unwrap();
    lchown(path("planted"), Some(NOBODY), None).unwrap();
    symlink("planted", path("own")).unwrap();
    let before = fs::metadata(path("victim")).unwrap().ino();
    for (writer, name) in WRITERS.iter().flat_map(|writer| [(writer, "planted"), (writer, "own")]) {
        refused(writer, &path(name), "a symbolic link of another user");
        assert_eq!(fs::read(path("victim")).unwrap(), b"untouched");
        assert_eq!(fs::metadata(path("victim")).unwrap().ino(), before);
        assert!(!path("victim.part").exists());
    }
}

#[test]
fn planted_link_in_the_path_is_refused() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("victim")).unwrap();
    symlink("victim", path("planted")).unwrap();
    let relay: &[&str] = &["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--tee"];
    let man: &[&str] = &["man"];
    let writers = WRITERS.iter().chain([&relay]);
    let is_empty = || fs::read_dir(path("victim")).unwrap().next().is_none();
    lchown(path("planted"), Some(NOBODY), None).unwrap();
    for writer in writers {
        refused(writer, &path("planted/out"), "a symbolic link of another user");
        assert!(is_empty(), "{writer:?}");
    }
    let report = format!("--report={}", path("planted/out").display());
    let (planted, below) = (path("planted").display().to_string(), path("planted/new").display().to_string());
    for command in
        [&["run", &report, "--", "true"][..], &[man, &[&planted]].concat(), &[man, &[&below]].concat()]
    {
        let (code, line) = failure(&run(command));
        assert!(code == 1 && line.contains("a symbolic link of another user"), "{line}");
        assert!(is_empty(), "{command:?}");
    }
    // A link of this user is followed.
    lchown(path("planted"), Some(0), None).unwrap();
    let _ = run(&[WRITERS[1], &[&path("planted/out").display().to_string()]].concat()).success();
    assert!(path("victim/out").is_file());
}

#[test]
fn file_of_another_user_in_a_shared_directory_is_refused() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = directory.path().join("out");
    fs::write(&path, "theirs").unwrap();
    chown(&path, Some(NOBODY), None).unwrap();
    for writer in WRITERS {
        refused(writer, &path, "a file of another user");
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        assert!(!directory.path().join("out.part").exists());
    }
}

#[test]
fn log_with_a_second_name_in_a_shared_directory_is_refused() {
    let directory = shared();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("victim"), "untouched").unwrap();
    fs::hard_link(path("victim"), path("log")).unwrap();
    refused(WRITERS[2], &path("log"), "a second name");
    assert_eq!(fs::read(path("victim")).unwrap(), b"untouched");
}

/// Receives a file into `path` by the program of `launch`.
fn receive(launch: Launch<'static>, path: &str) {
    let files = Files::with_source(LEN);
    let receiver = Receiver::launch(launch, &["-o", path]);
    let _ = files.send(&receiver, &[]).success();
    let _ = receiver.end().success();
}

#[test]
fn devices_and_standard_output_are_written_to() {
    receive(Launch::new(STRAIT), "/dev/null");
    let files = Files::with_source(LEN);
    let receiver = Receiver::start(&["-o", "/dev/stdout"]);
    let _ = files.send(&receiver, &[]).success();
    let received = receiver.end().success();
    assert!(received.stdout.starts_with(&content(LEN)));
    let captured = run(&["capture", "-r", RECORDING, "-w", "/dev/stdout"]).success();
    assert_eq!(captured.stdout[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    let _ = run(&["capture", "-r", RECORDING, "-w", "/dev/null"]).success();
}

#[test]
fn named_pipe_of_the_sudo_user_is_written_to() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = directory.path().join("out");
    make_pipe(&path, NOBODY);
    let bytes = std::thread::spawn({
        let path = path.clone();
        move || fs::read(path).unwrap()
    });
    let by_sudo = Launch::new(STRAIT).env("SUDO_UID", NOBODY.to_string());
    receive(by_sudo, &path.to_string_lossy());
    assert!(bytes.join().unwrap() == content(LEN));
}

#[test]
fn own_named_pipe_accepts_captures_and_logs() {
    let directory = shared();
    let path: PathBuf = directory.path().join("out");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let name = path.to_string_lossy().into_owned();
    let bytes = std::thread::spawn({
        let path = path.clone();
        move || fs::read(path).unwrap()
    });
    let _ = run(&["capture", "-r", RECORDING, "-w", &name]).success();
    assert_eq!(bytes.join().unwrap()[..4], 0x0a0d_0d0a_u32.to_le_bytes());

    let mut read = reader(&path);
    let proxy = Launch::new(STRAIT).args([WRITERS[2], &[&name]].concat()).spawn().unwrap();
    let mut stream = std::net::TcpStream::connect(proxy.address_after("listening on ", LIMIT)).unwrap();
    stream
        .write_all(b"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: close\r\n\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let mut line = Vec::new();
    assert!(lab::wait_until(LIMIT, || {
        // The non-blocking read fails while there are no bytes.
        let _ = read.read_to_end(&mut line);
        line.ends_with(b"\n")
    }));
    proxy.signal(Signal::TERM);
    let _ = proxy.wait(LIMIT).unwrap().success();
}

#[test]
fn planted_report_file_is_refused() {
    if !root_or_skip() {
        return;
    }
    let directory = shared();
    let path = |name: &str| directory.path().join(name);
    make_pipe(&path("pipe"), NOBODY);
    let _read = reader(&path("pipe"));
    fs::write(path("victim"), "untouched").unwrap();
    symlink(path("victim"), path("link")).unwrap();
    lchown(path("link"), Some(NOBODY), None).unwrap();
    for (name, words) in
        [("pipe", "a named pipe of another user"), ("link", "a symbolic link of another user")]
    {
        let report = format!("--report={}", path(name).display());
        let (code, line) = failure(&run(&["run", &report, "--", "true"]));
        assert!(code == 1 && line.contains(words) && line.contains(&report), "{line}");
    }
}

#[test]
fn planted_link_of_a_man_page_is_refused() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("victim"), "untouched").unwrap();
    fs::create_dir(path("man")).unwrap();
    symlink(path("victim"), path("man/strait.1")).unwrap();
    for planted in ["man", "man/strait.1"] {
        lchown(path(planted), Some(NOBODY), None).unwrap();
    }
    let (code, line) = failure(&run(&["man", path("man").to_str().unwrap()]));
    assert!(code == 1 && line.contains("strait.1: a symbolic link of another user"), "{code} {line}");
    assert_eq!(fs::read(path("victim")).unwrap(), b"untouched");
}

#[test]
fn root_completes_a_capture_in_a_directory_of_another_user() {
    if !root_or_skip() {
        return;
    }
    for mode in [0o755, 0o1755] {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        let path = directory.path().join("out.pcapng");
        fs::write(&path, "older").unwrap();
        for owned in [path.as_path(), directory.path()] {
            chown(owned, Some(NOBODY), None).unwrap();
        }
        let _ = run(&["capture", "-r", RECORDING, "-w", path.to_str().unwrap()]).success();
        assert_eq!(fs::read(&path).unwrap()[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    }
}
