//! Tests of the checks on output paths: links, pipes, devices, descriptors and hard links.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use rustix::fs::{FileType, mknodat};

use super::*;

fn text(error: &io::Error) -> String {
    error.to_string()
}

#[test]
fn unused_name_and_file_are_found_through_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    symlink("there", path("link")).unwrap();
    symlink("link", path("chain")).unwrap();
    let entry = |name: &str| match find(&path(name)).unwrap() {
        Place::File(entry) => entry,
        Place::Stream(_) => panic!("{name} is a stream"),
    };
    assert!(entry("chain").found.is_none() && entry("chain").path == path("there"));
    std::fs::write(path("there"), "12345").unwrap();
    assert_eq!(entry("chain").found.unwrap().len(), 5);
    symlink("round", path("round")).unwrap();
    assert_eq!(find(&path("round")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    assert_eq!(find(directory.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    assert_eq!(find(&path("no/file")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(find(Path::new("")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn devices_pipes_of_this_user_and_descriptors_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    let write = |path: &Path| match find(path).unwrap() {
        Place::Stream(mut file) => file.write_all(b"bytes").unwrap(),
        Place::File(_) => panic!("{} is a file", path.display()),
    };
    write(&pipe);
    assert_eq!(reader.join().unwrap(), b"bytes");
    write(Path::new("/dev/null"));
    let (mut reader, writer) = io::pipe().unwrap();
    write(Path::new(&format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer))));
    drop(writer);
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "bytes");
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
    assert!(text(&find(&directory.path().join("socket")).unwrap_err()).contains("a socket"));
}

#[test]
fn descriptor_of_an_unlinked_file_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("named");
    let file = File::create(&path).unwrap();
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    match find(Path::new(&descriptor)).unwrap() {
        Place::File(entry) => assert_eq!(entry.path, path.canonicalize().unwrap()),
        Place::Stream(_) => panic!("it has a name"),
    }
    append(Path::new(&descriptor)).unwrap().write_all(b"1").unwrap();
    std::fs::remove_file(&path).unwrap();
    append(Path::new(&descriptor)).unwrap().write_all(b"2").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn appending_creates_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    for line in ["one\n", "two\n"] {
        append(&path).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
}

#[test]
fn hard_link_is_refused_in_a_directory_of_other_writers() {
    let directory = tempfile::tempdir().unwrap();
    let (log, other) = (directory.path().join("log"), directory.path().join("other"));
    std::fs::write(&other, "").unwrap();
    std::fs::hard_link(&other, &log).unwrap();
    assert!(append(&log).is_ok());
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(text(&append(&log).unwrap_err()).contains("a second name"));
}
