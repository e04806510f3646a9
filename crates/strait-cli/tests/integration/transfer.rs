//! `strait send` and `strait receive`: files by every mechanism, streams, resumed transfers, and
//! failures.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Finished, Launch, Process, root_or_skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::doctor::{WITHOUT_IO_URING, io_uring_turn};
use crate::refusals::{AS_NOBODY, copy_for_all_users};
use crate::rig::{LIMIT, STRAIT, failure, run};

const LISTENING: &str = "listening on ";

/// A listening receiver, and its address.
pub(crate) struct Receiver {
    process: Process,
    pub(crate) address: String,
}

impl Receiver {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::launch(Launch::new(STRAIT), options)
    }

    pub(crate) fn launch(launch: Launch<'static>, options: &[&str]) -> Self {
        let process = launch.args(["receive", "--json"]).args(options).spawn().unwrap();
        process.wait_for_stderr("\n", LIMIT).unwrap();
        let stderr = process.stderr();
        let address = stderr.trim().strip_prefix(LISTENING).unwrap_or_else(|| panic!("{stderr}")).to_owned();
        Self { process, address }
    }

    pub(crate) fn into(path: &Path) -> Self {
        Self::start(&["-o", &path.display().to_string()])
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub(crate) fn wait_for_stderr(&self, words: &str) {
        self.process.wait_for_stderr(words, LIMIT).unwrap();
    }

    pub(crate) fn end(self) -> Finished {
        self.process.wait(LIMIT).unwrap()
    }
}

pub(crate) struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    /// Creates a directory with the file `source` of `len` bytes.
    pub(crate) fn with_source(len: usize) -> Self {
        let files = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(files.path("source"), content(len)).unwrap();
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn send(&self, to: &Receiver, options: &[&str]) -> Finished {
        let source = self.path("source").display().to_string();
        run(&[&["send", "--json"], options, &[source.as_str(), &to.address]].concat())
    }
}

pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 10)) as u8).collect()
}

pub(crate) fn account(finished: Finished) -> Value {
    serde_json::from_str(&finished.success().text()).unwrap()
}

const LEN: usize = 10_000_001;

#[test]
fn file_arrives_complete_by_every_mechanism() {
    let _turn = io_uring_turn();
    let files = Files::with_source(LEN);
    for (options, mechanism) in [
        (&[][..], "sendfile"),
        (&["--mode", "sendfile"], "sendfile"),
        (&["--mode", "copy"], "sent"),
        (&["--mode", "zc", "--threshold", "1"], "zero_copy_copied"),
    ] {
        let out = files.path("out");
        let receiver = Receiver::into(&out);
        let sent = account(files.send(&receiver, options));
        assert_eq!(sent[mechanism], LEN, "{options:?}: {sent}");
        assert_eq!(account(receiver.end())["spliced"], LEN);
        assert!(fs::read(&out).unwrap() == content(LEN));
        assert!(!files.path("out.part").exists());
        fs::remove_file(out).unwrap();
    }
    // The sender detects that the loopback copies.
    let receiver = Receiver::into(&files.path("out"));
    let sent = account(files.send(&receiver, &["--mode", "zc"]));
    assert!(sent["sent"].as_u64().unwrap() > LEN as u64 / 2, "{sent}");
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
}

/// Sends by zero-copy from the program of `launch`. Returns the account and standard error.
fn send_by(launch: Launch<'static>) -> (Value, String) {
    let files = Files::with_source(LEN);
    let receiver = Receiver::into(&files.path("out"));
    let source = files.path("source").display().to_string();
    let arguments =
        [STRAIT, "send", "--json", "--mode", "zc", "--threshold", "1", &source, &receiver.address];
    let sent = launch.args(arguments).run(LIMIT).unwrap().success();
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
    let stderr = sent.stderr.clone();
    (account(sent), stderr)
}

#[test]
fn without_io_uring_all_bytes_are_copied_and_the_reason_is_reported() {
    let _turn = io_uring_turn();
    let (sent, stderr) = send_by(Launch::new("python3").args(["-c", WITHOUT_IO_URING]));
    assert_eq!(sent["sent"], LEN, "{sent}");
    assert!(stderr.contains("set up io_uring") && stderr.contains("seccomp"), "{stderr}");
}

#[test]
fn exceeded_memlock_limit_falls_back_to_counted_copies() {
    if !root_or_skip() {
        return;
    }
    let _turn = io_uring_turn();
    let limited = ["--memlock=65536", "setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"];
    let (sent, stderr) = send_by(Launch::new("prlimit").args(limited));
    let fallbacks = sent["fallbacks"].as_object().unwrap();
    assert!(fallbacks.keys().any(|reason| reason.contains("locked-memory limit")), "{sent}");
    assert!(stderr.contains("raise ulimit -l"), "{stderr}");
}

#[test]
fn empty_file_arrives() {
    let files = Files::with_source(0);
    let receiver = Receiver::into(&files.path("out"));
    let _ = files.send(&receiver, &[]).success();
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap().is_empty());
}

#[test]
fn stream_goes_from_pipe_to_pipe_in_the_kernel() {
    let files = Files::with_source(LEN);
    let receiver = Receiver::start(&[]);
    let cat = std::process::Command::new("cat")
        .arg(files.path("source"))
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut cat = cat.unwrap();
    let input = cat.stdout.take().unwrap();
    let launch = Launch::new(STRAIT).args(["send", "--json", "-", &receiver.address]).stdin(input);
    let sent = account(launch.run(LIMIT).unwrap());
    cat.wait().unwrap();
    assert_eq!(sent["spliced"], LEN);
    let received = receiver.end().success();
    assert!(received.stdout == content(LEN));
    assert!(received.stderr.contains(&format!("\"spliced\":{LEN}")), "{}", received.stderr);
}

#[test]
fn interrupted_transfer_resumes_if_the_part_is_equal() {
    let files = Files::with_source(LEN);
    let mut changed = content(4_000_000);
    changed[0] ^= 1;
    for (part, left) in [
        (content(4_000_000), LEN - 4_000_000),
        // Equal at its end, but not at its beginning.
        (changed, LEN),
        (vec![1; 4_000_000], LEN),
        (content(LEN + 5), LEN),
        (content(LEN), 0),
    ] {
        fs::write(files.path("out.part"), part).unwrap();
        let receiver = Receiver::into(&files.path("out"));
        assert_eq!(account(files.send(&receiver, &[]))["sendfile"], left);
        let _ = receiver.end().success();
        assert!(fs::read(files.path("out")).unwrap() == content(LEN));
    }
}

#[test]
fn pipes_and_links_are_written_and_not_replaced() {
    let files = Files::with_source(100_000);
    let (pipe, target) = (files.path("pipe"), files.path("target"));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut cat =
        std::process::Command::new("cat").arg(&pipe).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let receiver = Receiver::into(&pipe);
    let _ = files.send(&receiver, &[]).success();
    let _ = receiver.end().success();
    let mut read = Vec::new();
    cat.stdout.take().unwrap().read_to_end(&mut read).unwrap();
    cat.wait().unwrap();
    assert!(read == content(100_000));
    assert!(!fs::metadata(&pipe).unwrap().is_file());
    // The link remains, and its target keeps its mode.
    fs::write(&target, "before").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&target, files.path("link")).unwrap();
    let receiver = Receiver::into(&files.path("link"));
    let _ = files.send(&receiver, &[]).success();
    let _ = receiver.end().success();
    assert!(fs::symlink_metadata(files.path("link")).unwrap().is_symlink());
    assert!(fs::read(&target).unwrap() == content(100_000));
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn file_with_reported_length_0_is_read_to_its_end() {
    let files = Files::with_source(0);
    let receiver = Receiver::into(&files.path("out"));
    let _ = run(&["send", "/proc/version", &receiver.address]).success();
    let _ = receiver.end().success();
    assert_eq!(fs::read(files.path("out")).unwrap(), fs::read("/proc/version").unwrap());
}

#[test]
fn killed_sender_leaves_a_part_and_no_complete_file() {
    let files = Files::with_source(0);
    for kill in [Signal::KILL, Signal::TERM] {
        let receiver = Receiver::into(&files.path("out"));
        // Its input never ends.
        let (input, mut feed) = std::io::pipe().unwrap();
        let launch = Launch::new(STRAIT).args(["send", "-", &receiver.address]).stdin(input);
        let sender = launch.spawn().unwrap();
        feed.write_all(b"begun").unwrap();
        let part = files.path("out.part");
        assert!(lab::wait_until(LIMIT, || fs::metadata(&part).is_ok_and(|found| found.len() == 5)));
        sender.signal(kill);
        drop(feed);
        let _ = sender.wait(LIMIT).unwrap();
        let (code, line) = failure(&receiver.end());
        assert!(code == 1 && line.contains("has closed the connection"), "{line}");
        assert!(!files.path("out").exists());
        fs::remove_file(part).unwrap();
    }
}

#[test]
fn raw_transfers_work_with_programs_without_the_protocol() {
    let files = Files::with_source(100_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let reader = std::thread::spawn(move || {
        let (mut got, (mut stream, _)) = (Vec::new(), listener.accept().unwrap());
        stream.read_to_end(&mut got).unwrap();
        got
    });
    let source = files.path("source").display().to_string();
    let _ = run(&["send", "--raw", &source, &address]).success();
    assert!(reader.join().unwrap() == content(100_000));
    let receiver = Receiver::start(&["--raw", "-o", &files.path("out").display().to_string()]);
    TcpStream::connect(&receiver.address).unwrap().write_all(b"plain").unwrap();
    let _ = receiver.end().success();
    assert_eq!(fs::read(files.path("out")).unwrap(), b"plain");
}

#[test]
fn more_bytes_than_the_maximum_are_refused() {
    let files = Files::with_source(1000);
    let out = files.path("out").display().to_string();
    let receiver = Receiver::start(&["--size-max", "999", "-o", &out]);
    assert_ne!(files.send(&receiver, &[]).status.code(), Some(0));
    let (code, line) = failure(&receiver.end());
    assert!(code == 1 && line.contains("--size-max 999 refuses"), "{line}");
    // The length of a stream is not offered: the receiver refuses after the first bytes.
    let receiver = Receiver::start(&["--size-max", "999", "-o", &out]);
    let (input, mut bytes) = std::io::pipe().unwrap();
    bytes.write_all(&content(1000)).unwrap();
    drop(bytes);
    let refused = Launch::new(STRAIT).args(["send", "-", &receiver.address]).stdin(input).run(LIMIT).unwrap();
    let (code, line) = failure(&refused);
    assert!(code == 1 && line.contains("refuses: more than 999 bytes arrived"), "{line}");
    assert_eq!(refused.text(), "", "no account that looks like a success");
    receiver.end();
    let receiver = Receiver::start(&["--raw", "--size-max", "999", "-o", &out]);
    let _ = files.send(&receiver, &["--raw"]);
    let (code, line) = failure(&receiver.end());
    assert!(code == 1 && line.contains("more than 999 bytes arrived"), "{line}");
}

#[test]
fn peers_with_another_protocol_are_reported() {
    let files = Files::with_source(10);
    let receiver = Receiver::into(&files.path("out"));
    TcpStream::connect(&receiver.address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(TcpStream::connect(&receiver.address).unwrap());
    // The receiver continues to listen for a sender.
    let _ = files.send(&receiver, &[]).success();
    let received = receiver.end().success();
    assert!(
        received.stderr.contains("'GET / HTTP/1.1' instead of strait send's offer"),
        "{}",
        received.stderr
    );
    assert!(received.stderr.contains("has closed the connection; listening on"), "{}", received.stderr);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let source = files.path("source").display().to_string();
    let silent = run(&["send", "--timeout", "0.2", &source, &address]);
    let (code, line) = failure(&silent);
    assert!(code == 1 && line.contains("no answer in time") && line.contains("--raw"), "{line}");
}

/// Connects and offers bytes from offset 0.
fn begin(receiver: &Receiver, offer: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&receiver.address).unwrap();
    stream.write_all(format!("strait-send 4 {offer}\n").as_bytes()).unwrap();
    let mut first = [0; 7];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"from=0\n");
    stream
}

#[test]
fn line_that_resembles_a_refusal_removes_no_part() {
    let files = Files::with_source(10);
    let receiver = Receiver::into(&files.path("out"));
    let mut stream = begin(&receiver, "length=10");
    stream.write_all(b"data=5\nhellox refuses: x\n").unwrap();
    let (code, line) = failure(&receiver.end());
    assert!(code == 1 && line.contains("instead of the sender's next bytes"), "{line}");
    assert_eq!(fs::read(files.path("out.part")).unwrap(), b"hello");
}

#[test]
fn refusal_by_the_sender_removes_the_part() {
    let files = Files::with_source(10);
    let receiver = Receiver::into(&files.path("out"));
    let mut stream = begin(&receiver, "length=10");
    stream.write_all(b"data=5\nhellorefused=it changed\n").unwrap();
    let (code, line) = failure(&receiver.end());
    assert!(code == 1 && line.contains(" refuses: it changed"), "{line}");
    assert!(!files.path("out.part").exists());
}

#[test]
fn flood_of_waits_ends_the_sender() {
    let files = Files::with_source(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let flood = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(&b"wait\n".repeat(1000)).is_ok() {}
    });
    let source = files.path("source").display().to_string();
    let output = run(&["send", &source, &address]);
    flood.join().unwrap();
    assert!(output.status.code() == Some(1) && output.stderr.contains("too many lines"), "{}", output.stderr);
}

fn is_reset(result: &std::io::Result<usize>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[test]
fn peer_that_only_waits_is_replaced_by_a_sender() {
    for has_part in [true, false] {
        let files = Files::with_source(10);
        let path = files.path("out").display().to_string();
        if has_part {
            fs::write(files.path("out.part"), content(5)).unwrap();
        }
        let receiver = Receiver::start(&["-o", &path, "--timeout", "1"]);
        let mut peer = TcpStream::connect(&receiver.address).unwrap();
        peer.write_all(b"strait-send 4 length=10\n").unwrap();
        let mut answer = [0; 7];
        if has_part {
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"have=5\n");
            peer.write_all(b"begins=5 hash=0000000000000000\n").unwrap();
        }
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"from=0\n");
        // The peer sends `wait` until the receiver closes the connection.
        peer.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let is_open = |result: std::io::Result<usize>| !matches!(result, Ok(0)) && !is_reset(&result);
        let waits = std::thread::spawn(move || {
            while peer.write_all(b"wait\n").is_ok() && is_open(peer.read(&mut [0; 256])) {}
        });
        let _ = files.send(&receiver, &[]).success();
        waits.join().unwrap();
        let received = receiver.end().success();
        assert!(received.stderr.contains("another sender waits; listening on"), "{}", received.stderr);
        assert_eq!(fs::read(&path).unwrap(), content(10));
    }
}

#[test]
fn bytes_of_another_protocol_are_shown_escaped_and_the_receiver_continues() {
    let files = Files::with_source(0);
    fs::write(files.path("source"), b"\x16\x03\x01\x1b[31mred\xff and a long rest without an end\n").unwrap();
    let receiver = Receiver::into(&files.path("out"));
    let _ = files.send(&receiver, &["--raw"]);
    receiver.process.wait_for_stderr("listening on\n", LIMIT).unwrap();
    let stderr = receiver.process.stderr();
    assert!(
        stderr.contains(r"'\x16\x03\x01\x1b[31mred\xff and...' instead of strait send's offer"),
        "{stderr}"
    );
    assert!(stderr.contains("--raw moves the bytes alone"), "{stderr}");
    receiver.process.signal(Signal::INT);
    assert_eq!(receiver.end().status.code(), Some(1));
}

#[test]
fn interrupted_wait_for_a_transfer_is_reported() {
    let files = Files::with_source(0);
    let receiver = Receiver::into(&files.path("out"));
    receiver.process.signal(Signal::INT);
    let (code, line) = failure(&receiver.end());
    assert!(code == 1 && line.contains("interrupted before a transfer arrived"), "{code} {line}");
}

#[test]
fn privileged_port_is_refused_with_a_remedy() {
    if !root_or_skip() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let strait = copy_for_all_users(directory.path());
    for arguments in [
        &["receive", "-l", "127.0.0.1:80"][..],
        &["relay", "--listen", "127.0.0.1:80", "--to", "127.0.0.1:1"],
    ] {
        let launch = Launch::new("setpriv").args(AS_NOBODY).arg(&strait).args(arguments);
        let (code, line) = failure(&launch.run(LIMIT).unwrap());
        assert!(code == 3 && line.contains("setcap cap_net_bind_service=+ep"), "{code} {line}");
    }
}

#[test]
fn peer_that_accepts_no_bytes_ends_the_transfer() {
    let files = Files::with_source(64 << 20);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let source = files.path("source").display().to_string();
    for mode in ["auto", "copy", "zc"] {
        let (code, line) =
            failure(&run(&["send", "--raw", "--mode", mode, "--timeout", "0.3", &source, &address]));
        assert!(code == 1 && line.contains("has accepted no bytes for 0.3 s"), "{line}");
    }
}

#[test]
fn full_disk_ends_the_transfer_on_both_ends() {
    if !root_or_skip() {
        return;
    }
    let files = Files::with_source(LEN);
    let mount = "mount -t tmpfs -o size=4m tmpfs /mnt && exec \"$@\"";
    let launch = Launch::new("unshare").args(["--mount", "sh", "-c", mount, "sh", STRAIT]);
    let receiver = Receiver::launch(launch, &["-o", "/mnt/out"]);
    let (code, line) = failure(&files.send(&receiver, &[]));
    assert!(code == 1 && line.contains("No space left"), "{line}");
    let received = receiver.end();
    let (code, line) = failure(&received);
    assert!(code == 1 && line.contains("/mnt/out") && line.contains("No space left"), "{line}");
    assert!(received.stderr.contains("free disk space, then "), "{}", received.stderr);
}

#[test]
fn shrinking_file_is_reported() {
    const SHRUNK: u64 = 20_000_000;
    for mode in ["auto", "copy", "zc"] {
        let files = Files::with_source(64 << 20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source = files.path("source").display().to_string();
        let address = listener.local_addr().unwrap().to_string();
        let arguments = ["send", "--raw", "--mode", mode, &source, &address];
        let sender = Launch::new(STRAIT).args(arguments).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        // The sender has started and is blocked: the peer has read only a small part of the file.
        stream.read_exact(&mut [0; 1000]).unwrap();
        fs::File::options().write(true).open(&source).unwrap().set_len(SHRUNK).unwrap();
        // The stream ends with an error.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let (code, line) = failure(&sender.wait(LIMIT).unwrap());
        assert!(code == 1 && line.contains("ended") && line.contains("bytes early"), "{mode}: {line}");
        assert!(content(64 << 20)[1000..SHRUNK as usize].starts_with(&rest), "{mode}");
    }
}

#[test]
fn usage_errors_are_reported() {
    let files = Files::with_source(1);
    let (source, directory) =
        (files.path("source").display().to_string(), files.directory.path().display().to_string());
    let new_directory = format!("{directory}/new/");
    // A port without a listener.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let start = format!("Connection refused (os error 111); start strait receive -l {closed} there first");
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = occupied.local_addr().unwrap().port();
    let used = format!("127.0.0.1:{port}");
    let finder = format!("ss -ltnp 'sport = :{port}' shows the program that uses it");
    let missing = files.path("missing").display().to_string();
    for (arguments, code, words) in [
        (vec!["send", &source, &closed], 1, &*start),
        (vec!["send", "--raw", &source, &closed], 1, "Connection refused (os error 111); no program listens"),
        (vec!["send", &source, "localhost"], 2, "HOST:PORT"),
        (vec!["send", &missing, &closed], 1, "No such file"),
        (vec!["send", &directory, &closed], 1, "is a directory"),
        (vec!["send", "--mode", "sendfile", "-", &closed], 2, "sendfile cannot send it"),
        (vec!["send", "--threshold", "0", &source, &closed], 2, "above 0, or auto"),
        (vec!["receive", "-l", &used], 1, &finder),
        (vec!["relay", "--listen", &used, "--to", &closed], 1, &finder),
        (vec!["receive", "-l", "here"], 2, "give ADDRESS:PORT"),
        (vec!["receive", "-l", "192.0.2.1:1"], 1, "listen on 192.0.2.1:1"),
        (vec!["receive", "-o", &directory], 1, "is a directory"),
        (vec!["receive", "-o", "/no/such/file"], 1, "No such file"),
        (vec!["receive", "-o", &new_directory], 1, "is a directory: give a file"),
    ] {
        let finished = run(&arguments);
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
        assert!(!finished.stderr.contains(LISTENING), "{arguments:?}: {}", finished.stderr);
    }
}
