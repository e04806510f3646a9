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
        SafeOutput::File(entry) => entry,
        SafeOutput::Stream(_) => panic!("{name} is a stream"),
    };
    assert!(entry("chain").found.is_none() && entry("chain").path == path("there"));
    std::fs::write(path("there"), "12345").unwrap();
    assert_eq!(entry("chain").found.unwrap().len(), 5);
    symlink("round", path("round")).unwrap();
    assert_eq!(find(&path("round")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    assert_eq!(find(directory.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    for name in ["there/", "new/", "new/.", "link//", "/"] {
        assert_eq!(find(&path(name)).unwrap_err().kind(), io::ErrorKind::IsADirectory, "{name}");
    }
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
        SafeOutput::Stream(mut file) => file.write_all(b"bytes").unwrap(),
        SafeOutput::File(_) => panic!("{} is a file", path.display()),
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
        SafeOutput::File(entry) => assert_eq!(entry.path, path.canonicalize().unwrap()),
        SafeOutput::Stream(_) => panic!("it has a name"),
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

const NOBODY: u32 = 65534;

/// Returns true if this process can give files to other users.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIP output: needs root");
    }
    is_root
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn link_in_the_path_is_followed_unless_another_user_planted_it() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("there")).unwrap();
    symlink("there", path("link")).unwrap();
    // Mode of the directory, its owner, the owner of the link.
    for (mode, owner, of_link, is_followed) in [
        (0o1777, 0, NOBODY, false),
        (0o777, 0, NOBODY, false),
        (0o775, 0, NOBODY, false),
        (0o1777, NOBODY, NOBODY - 1, false),
        (0o755, 0, NOBODY, true),
        (0o755, NOBODY, NOBODY, true),
        (0o1777, NOBODY, NOBODY, true),
        (0o1777, NOBODY, 0, true),
    ] {
        set_mode(directory.path(), mode);
        std::os::unix::fs::chown(directory.path(), Some(owner), None).unwrap();
        std::os::unix::fs::lchown(path("link"), Some(of_link), None).unwrap();
        for name in ["link/new", "there/../link/new"] {
            let (found, appended) = (find(&path(name)), append(&path(name)));
            assert_eq!(found.is_ok(), is_followed, "{mode:o} {owner} {of_link} {found:?}");
            assert_eq!(appended.is_ok(), is_followed, "{mode:o} {owner} {of_link} {appended:?}");
            assert_eq!(path("there/new").exists(), is_followed);
            if let Err(error) = found {
                assert!(text(&error).contains("a symbolic link of another user"), "{error}");
            }
            assert_eq!(super::directory(&path("link")).is_ok(), is_followed);
        }
        let _ = std::fs::remove_file(path("there/new"));
    }
}

#[test]
fn planted_link_in_the_path_of_a_link_is_not_followed() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    set_mode(directory.path(), 0o1777);
    std::fs::create_dir(path("there")).unwrap();
    symlink("there", path("planted")).unwrap();
    std::os::unix::fs::lchown(path("planted"), Some(NOBODY), None).unwrap();
    symlink("planted/new", path("own")).unwrap();
    symlink(path("planted"), path("own_directory")).unwrap();
    for name in ["own", "own_directory/new"] {
        let error = find(&path(name)).unwrap_err();
        assert!(text(&error).contains("a symbolic link of another user"), "{name}: {error}");
    }
}

#[test]
fn path_through_links_leads_to_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("a/b")).unwrap();
    symlink("a", path("relative")).unwrap();
    symlink(path("a/b"), path("absolute")).unwrap();
    symlink("../relative/b", path("a/chain")).unwrap();
    symlink("round", path("round")).unwrap();
    std::fs::write(path("file"), "").unwrap();
    let here = File::open(path("a/b")).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}/out", std::os::fd::AsRawFd::as_raw_fd(&here));
    let of = |path: &Path| match find(path).unwrap() {
        SafeOutput::File(entry) => (entry.path, metadata(&entry.directory).unwrap().ino()),
        SafeOutput::Stream(_) => panic!("{} is a stream", path.display()),
    };
    let inode = here.metadata().unwrap().ino();
    for name in ["a/b/out", "relative/b/out", "absolute/out", "absolute/../chain/out", "./a//b/./out"] {
        assert_eq!(of(&path(name)), (path(name), inode), "{name}");
    }
    assert_eq!(of(Path::new(&by_descriptor)).1, inode);
    for (name, error) in [
        ("round/out", Errno::LOOP),
        ("file/out", Errno::NOTDIR),
        ("none/out", Errno::NOENT),
        ("a/none/../b/out", Errno::NOENT),
    ] {
        assert_eq!(find(&path(name)).unwrap_err().raw_os_error(), Some(error.raw_os_error()), "{name}");
    }
}

#[test]
fn a_file_that_was_replaced_is_not_reported_as_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let place = super::directory(directory.path()).unwrap();
    let path = |name: &str| directory.path().join(name);
    let names = (OsStr::new("part"), OsStr::new("whole"));
    let file = File::create(path("part")).unwrap();
    std::fs::write(path("whole"), "older").unwrap();
    std::fs::rename(path("part"), path("moved")).unwrap();
    std::fs::write(path("part"), "forged").unwrap();
    assert!(matches!(rename(&place, names, &file), Err(RenameError::Replaced)));
    assert_eq!(std::fs::read(path("whole")).unwrap(), b"older");
    // Replaced between the check and the rename.
    assert!(matches!(rename_and_check(&place, names, &file), Err(RenameError::Replaced)));
    // A link to the file is not the file.
    symlink("moved", path("part")).unwrap();
    assert!(matches!(rename(&place, names, &file), Err(RenameError::Replaced)));
    std::fs::rename(path("moved"), path("part")).unwrap();
    rename(&place, names, &file).unwrap();
    assert!(is_entry(&place, names.1, &file) && !path("part").exists());
    std::fs::create_dir(path("directory")).unwrap();
    let refused = rename(&place, (names.1, OsStr::new("directory")), &file);
    assert!(matches!(refused, Err(RenameError::Os(error)) if error.kind() == io::ErrorKind::IsADirectory));
}

#[test]
fn new_name_replaces_no_file_with_or_without_the_flag() {
    for has_flag in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let place = super::directory(directory.path()).unwrap();
        let path = |name: &str| directory.path().join(name);
        let names = (OsStr::new("part"), OsStr::new("whole"));
        let file = File::create(path("part")).unwrap();
        let rename = || {
            if has_flag { rename_new(&place, names, &file) } else { rename_by_link(&place, names, &file) }
        };
        std::fs::write(path("whole"), "theirs").unwrap();
        let refused = rename();
        assert!(
            matches!(&refused, Err(RenameError::Os(error)) if error.kind() == io::ErrorKind::AlreadyExists),
            "{refused:?}"
        );
        assert_eq!(std::fs::read(path("whole")).unwrap(), b"theirs");
        assert!(is_entry(&place, names.0, &file));
        std::fs::remove_file(path("whole")).unwrap();
        rename().unwrap();
        assert!(is_entry(&place, names.1, &file) && !path("part").exists());
        // Another file in place of the part.
        std::fs::write(path("part"), "forged").unwrap();
        std::fs::remove_file(path("whole")).unwrap();
        assert!(matches!(rename(), Err(RenameError::Replaced)));
    }
}

#[test]
fn missing_directories_are_created_but_none_behind_a_planted_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let made = create_directory(&path("a/b/../c")).unwrap();
    assert!(is_entry(directory_of(&path("a")), OsStr::new("c"), made) && path("a/b").is_dir());
    create_directory(&path("a/c")).unwrap();
    std::fs::write(path("file"), "").unwrap();
    assert!(create_directory(&path("file/below")).is_err());
    if !is_root() {
        return;
    }
    let shared = path("shared");
    for name in ["shared", "victim"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    set_mode(&shared, 0o1777);
    symlink(path("victim"), shared.join("planted")).unwrap();
    std::os::unix::fs::lchown(shared.join("planted"), Some(NOBODY), None).unwrap();
    let error = create_directory(&shared.join("planted/below")).unwrap_err();
    assert!(text(&error).contains("symbolic link of another user"), "{error}");
    assert_eq!(std::fs::read_dir(path("victim")).unwrap().count(), 0);
}

fn directory_of(path: &Path) -> OwnedFd {
    super::directory(path).unwrap()
}
