//! Reloads by SIGHUP: mistakes in the file are reported in one line each, and change nothing.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use lab::{Launch, wait_until};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::rig::{LIMIT, PROGRAM, run};
use crate::service::{Proxy, origin, write};

#[test]
fn sighup_reloads_the_configuration_and_errors_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let of =
        |name: &str| format!("listen = [\"127.0.0.1:0\"]\norigin = \"{}\"\nname = \"{name}\"\n", origin());
    let path = write(dir.path(), &of("one"));
    let proxy = Proxy::start(&["--config", &path, "--admin", "127.0.0.1:0"]);
    assert!(proxy.get("/a").contains("Via: 1.1 one"));
    write(dir.path(), "nothing = 1");
    proxy.process.signal(Signal::HUP);
    proxy.process.wait_for_stderr("strait.toml: line 1: nothing: unknown key", LIMIT).unwrap();
    assert!(proxy.process.stderr().contains("not reloaded: "));
    assert!(proxy.metrics().contains("strait_proxy_failed_reloads_total 1\n"));
    assert!(proxy.get("/a").contains("Via: 1.1 one"));
    write(dir.path(), &of("two"));
    proxy.process.signal(Signal::HUP);
    assert!(wait_until(LIMIT, || proxy.get("/a").contains("Via: 1.1 two")));
    let account = proxy.end();
    let (requests, statuses) = (account["requests"].as_u64().unwrap(), &account["statuses"]);
    assert!(requests >= 3 && account["cut"] == 0 && account["outcomes"]["hit"].is_u64(), "{account}");
    assert!(statuses["2xx"] == requests && statuses["5xx"] == 0, "{account}");
}

#[test]
fn a_file_that_is_empty_or_half_written_is_not_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(
        dir.path(),
        &format!("listen = [\"127.0.0.1:0\"]\nname = \"one\"\norigin = \"{}\"\n", origin()),
    );
    let proxy = Proxy::start(&["--config", &path]);
    let whole = format!("listen = [\"127.0.0.1:0\"]\nname = \"two\"\norigin = \"{}\"\n", origin());
    for (text, expected) in [
        (&whole[..whole.len() - 1], "its last line has no end; is it being written?"),
        (&whole[..whole.len() - 3], "line 3: this is not TOML"),
        ("", "the file is empty"),
        ("# name = \"two\"\n\n", "the file is empty"),
        ("listen = [\"127.0.0.1:0\"]\nname = \"two\"\n", "not reloaded: origin: missing; "),
    ] {
        let before = proxy.process.stderr().len();
        write(dir.path(), text);
        proxy.process.signal(Signal::HUP);
        let output = || proxy.process.stderr()[before..].to_owned();
        assert!(wait_until(LIMIT, || output().contains(expected)), "{text:?}: {}", output());
        assert!(output().lines().count() == 1 && !output().contains("reloaded\n"), "{}", output());
        assert!(proxy.get("/a").contains("Via: 1.1 one"));
    }
    // A file that cannot be read.
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let before = proxy.process.stderr().len();
        proxy.process.signal(Signal::HUP);
        let output = || proxy.process.stderr()[before..].to_owned();
        assert!(wait_until(LIMIT, || output().ends_with('\n')), "{}", output());
        assert!(output().contains(&format!("not reloaded: read {path}: ")), "{}", output());
        assert!(output().lines().count() == 1 && proxy.get("/a").contains("Via: 1.1 one"), "{}", output());
        // Next, a directory.
        let _ = fs::create_dir(&path);
    }
    fs::remove_dir(&path).unwrap();
    write(dir.path(), &whole);
    proxy.process.signal(Signal::HUP);
    assert!(wait_until(LIMIT, || proxy.get("/a").contains("Via: 1.1 two")));
    proxy.end();
}

#[test]
fn a_proxy_started_with_sighup_ignored_reloads_on_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let of =
        |name: &str| format!("listen = [\"127.0.0.1:0\"]\norigin = \"{}\"\nname = \"{name}\"\n", origin());
    let path = write(dir.path(), &of("one"));
    let launch = Launch::new("bash").args(["-c", "trap '' HUP; exec \"$@\"", "bash", PROGRAM]);
    let proxy = Proxy::launch(launch.args(["--json", "--workers", "1", "--config", &path]));
    assert!(proxy.get("/a").contains("Via: 1.1 one"));
    write(dir.path(), &of("two"));
    proxy.process.signal(Signal::HUP);
    proxy.process.wait_for_stderr("reloaded", LIMIT).unwrap();
    assert!(wait_until(LIMIT, || proxy.get("/a").contains("Via: 1.1 two")));
    proxy.end();
}

/// Counter of the times that a file is opened (inotify(7)).
struct Opens(OwnedFd);

impl Opens {
    fn of(path: &Path) -> Self {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        // The kernel merges equal events. With those of closing, two of opening are never adjacent.
        inotify::add_watch(&queue, path, WatchFlags::OPEN | WatchFlags::CLOSE).unwrap();
        Self(queue)
    }

    /// Returns the count since the last call.
    fn take(&self) -> usize {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut opens = 0;
        loop {
            match reader.next() {
                Ok(event) => opens += usize::from(event.events().contains(ReadFlags::OPEN)),
                Err(Errno::AGAIN) => return opens,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn keys_are_read_once_in_a_start_and_once_in_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["www.example".to_owned()]).unwrap();
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| dir.path().join(name));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let path = write(
        dir.path(),
        &format!(
            "origin = \"{}\"\nlisten = []\n[tls]\nlisten = [\"127.0.0.1:0\"]\ncertificate = \"{}\"\nkey = \"{}\"\n",
            origin(),
            certificate.display(),
            key.display()
        ),
    );
    let opens = Opens::of(&key);
    assert_eq!(
        run(&["--check-config", "--config", &path]).success().text(),
        "ok\nlisten 127.0.0.1:0 (TLS)\n"
    );
    assert_eq!(opens.take(), 1, "by --check-config");
    let proxy = Proxy::start(&["--config", &path]);
    assert_eq!(opens.take(), 1, "by a start");
    proxy.process.signal(Signal::HUP);
    proxy.process.wait_for_stderr("reloaded", LIMIT).unwrap();
    assert_eq!(opens.take(), 1, "by a reload");
    proxy.end();
    if rustix::process::geteuid().is_root() {
        // Reloads are done by the user, so the start tests if the user can read the files.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let proxy = Proxy::start(&["--config", &path, "--user", "nobody"]);
        assert_eq!(opens.take(), 2, "by a start as another user");
        proxy.end();
    }
}
