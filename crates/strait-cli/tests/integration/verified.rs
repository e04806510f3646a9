//! Attacks and failures that `strait send` and `strait receive` handle: planted files, changed
//! bytes, silent connections, slow readers.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::mpsc::{Receiver as Gate, channel};
use std::time::{Duration, SystemTime};

use lab::{Finished, Launch};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::rig::{LIMIT, STRAIT, failure, run};
use crate::transfer::{Files, Receiver, account, content};

const LEN: usize = 3_000_000;

/// Forwards bytes between a sender and `to`. `change` gets the sender's bytes and can modify them.
fn middlebox(to: &str, mut change: impl FnMut(u64, &mut [u8]) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, to) = (listener.local_addr().unwrap().to_string(), to.to_owned());
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            // A closed connection ends the copy.
            let _ = std::io::copy(&mut answers, &mut back);
            let _ = back.shutdown(Shutdown::Write);
        });
        let (mut from, mut to, mut chunk, mut at) = (client, server, vec![0; 16 << 10], 0);
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            change(at, &mut chunk[..read]);
            at += read as u64;
            if to.write_all(&chunk[..read]).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    address
}

fn both_failed(sent: &Finished, received: &Finished, words: &str) {
    for (code, line) in [failure(sent), failure(received)] {
        assert!(code == 1 && line.contains(words), "{line}");
    }
}

#[test]
fn flipped_bit_fails_both_ends_and_leaves_no_part() {
    for mode in ["auto", "copy", "zc"] {
        let files = Files::with_source(LEN);
        let receiver = Receiver::into(&files.path("out"));
        let address = middlebox(&receiver.address, |at, bytes| {
            let place = 1_000_000_u64.checked_sub(at).and_then(|place| bytes.get_mut(place as usize));
            if let Some(byte) = place {
                *byte ^= 1;
            }
        });
        let source = files.path("source").display().to_string();
        let sent = run(&["send", "--mode", mode, &source, &address]);
        both_failed(&sent, &receiver.end(), "differs from the sent file");
        assert!(!files.path("out").exists() && !files.path("out.part").exists());
    }
}

/// Blocks the bytes at offset `place` until the gate opens.
fn stopped_at(
    place: u64,
    reached: std::sync::mpsc::Sender<()>,
    gate: Gate<()>,
) -> impl FnMut(u64, &mut [u8]) {
    let mut is_open = false;
    move |at, bytes| {
        if !is_open && at + bytes.len() as u64 > place {
            reached.send(()).unwrap();
            gate.recv().unwrap();
            is_open = true;
        }
    }
}

#[test]
fn source_overwritten_during_the_transfer_fails_both_ends() {
    const LONG: usize = 64 << 20;
    let files = Files::with_source(LONG);
    let receiver = Receiver::into(&files.path("out"));
    let ((reached, is_reached), (open, gate)) = (channel(), channel());
    let address = middlebox(&receiver.address, stopped_at(100_000, reached, gate));
    let source = files.path("source");
    let sender = Launch::new(STRAIT).args(["send", &source.display().to_string(), &address]).spawn().unwrap();
    is_reached.recv_timeout(LIMIT).unwrap();
    let mut file = fs::File::options().write(true).open(&source).unwrap();
    file.write_all(b"overwritten").unwrap();
    drop(file);
    open.send(()).unwrap();
    both_failed(&sender.wait(LIMIT).unwrap(), &receiver.end(), "changed while it was sent");
    assert!(!files.path("out").exists() && !files.path("out.part").exists());
}

#[test]
fn planted_part_is_neither_followed_nor_written() {
    let files = Files::with_source(10);
    let (out, part, evil) = (files.path("out"), files.path("out.part"), files.path("evil"));
    let refused = |words: &str| {
        let (code, line) = failure(&run(&["receive", "-o", &out.display().to_string()]));
        assert!(code == 1 && line.contains(words) && line.contains("out.part"), "{line}");
        assert_eq!(fs::read(&evil).unwrap(), b"untouched");
        fs::remove_file(&part).unwrap();
    };
    fs::write(&evil, "untouched").unwrap();
    symlink(&evil, &part).unwrap();
    refused("a symbolic link");
    fs::hard_link(&evil, &part).unwrap();
    refused("a second name");
    rustix::fs::mknodat(rustix::fs::CWD, &part, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    refused("a named pipe");
    if rustix::process::geteuid().is_root() {
        fs::write(&part, "theirs").unwrap();
        std::os::unix::fs::chown(&part, Some(65534), None).unwrap();
        refused("a file of another user");
    }
    // A dangling link does not create its target.
    symlink(files.path("new"), &part).unwrap();
    refused("a symbolic link");
    assert!(!files.path("new").exists());
}

#[test]
fn output_link_of_another_user_is_refused() {
    if !lab::root_or_skip() {
        return;
    }
    let files = Files::with_source(10);
    let (link, evil) = (files.path("link"), files.path("evil"));
    fs::write(&evil, "untouched").unwrap();
    symlink(&evil, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
    let (code, line) = failure(&run(&["receive", "-o", &link.display().to_string()]));
    assert!(code == 1 && line.contains("a symbolic link of another user"), "{line}");
    assert_eq!(fs::read(&evil).unwrap(), b"untouched");
}

/// Returns the umask that the receiver inherits.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(umask.trim(), 8).unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn mode_within_the_umask_and_time_arrive_and_the_part_is_private() {
    let umask = umask();
    for mode in [0o600, 0o4755, 0o640, 0o777] {
        // Without special bits, and limited by the umask of the receiver.
        let arrived = mode & 0o777 & !umask;
        let files = Files::with_source(LEN);
        let (source, out) = (files.path("source"), files.path("out"));
        let modified = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
        fs::File::open(&source).unwrap().set_modified(modified).unwrap();
        set_mode(&source, mode);
        let receiver = Receiver::into(&out);
        // The part is created after the line with the address.
        let part = files.path("out.part");
        assert!(lab::wait_until(LIMIT, || part.exists()));
        assert_eq!(fs::metadata(&part).unwrap().mode() & 0o777, 0o600);
        let _ = files.send(&receiver, &[]).success();
        let _ = receiver.end().success();
        let metadata = fs::metadata(&out).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (arrived, modified));
    }
}

#[test]
fn complete_file_is_not_sent_again_and_both_ends_report_it() {
    let files = Files::with_source(LEN);
    for (name, received) in
        [("out", "out is already complete"), ("out.part", "are present: receiving nothing")]
    {
        fs::write(files.path(name), content(LEN)).unwrap();
        let before = fs::metadata(files.path(name)).unwrap().ino();
        let receiver = Receiver::into(&files.path("out"));
        let sent = files.send(&receiver, &[]);
        assert!(sent.stderr.contains("has all 3000000 bytes: sending nothing"), "{}", sent.stderr);
        assert_eq!(account(sent)["sendfile"], 0);
        let finished = receiver.end().success();
        assert!(finished.stderr.contains(received), "{}", finished.stderr);
        assert!(fs::read(files.path("out")).unwrap() == content(LEN) && !files.path("out.part").exists());
        assert_eq!(fs::metadata(files.path("out")).unwrap().ino(), before);
        fs::remove_file(files.path("out")).unwrap();
    }
    // Equal length, but other content.
    fs::write(files.path("out"), vec![7; LEN]).unwrap();
    let receiver = Receiver::into(&files.path("out"));
    assert_eq!(account(files.send(&receiver, &[]))["sendfile"], LEN);
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
}

#[test]
fn sender_gets_the_reason_of_a_refusal() {
    let files = Files::with_source(1000);
    let out = files.path("out").display().to_string();
    let receiver = Receiver::start(&["--size-max", "999", "-o", &out]);
    let sent = files.send(&receiver, &[]);
    both_failed(&sent, &receiver.end(), "--size-max 999 refuses");
    // The length of a stream is unknown at its start.
    let receiver = Receiver::start(&["--size-max", "999", "-o", &out]);
    let (input, mut feed) = std::io::pipe().unwrap();
    feed.write_all(&[1; 1000]).unwrap();
    drop(feed);
    let sent = Launch::new(STRAIT).args(["send", "-", &receiver.address]).stdin(input).run(LIMIT).unwrap();
    both_failed(&sent, &receiver.end(), "more than 999 bytes arrived");
}

/// More connections than the receiver keeps.
const SILENT: usize = 200;

#[test]
fn silent_connections_do_not_delay_a_sender() {
    let files = Files::with_source(LEN);
    let receiver = Receiver::into(&files.path("out"));
    let silent: Vec<_> = (0..SILENT).map(|_| TcpStream::connect(&receiver.address).unwrap()).collect();
    // Served one after the other, they would exceed the sender's timeout.
    let _ = files.send(&receiver, &["--timeout", "20"]).success();
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
    // The remaining connections get the reason.
    let reasons = silent.iter().filter(|stream| line_of(stream).contains("another sender was first"));
    assert!(reasons.count() > 0);
}

/// Connects from the address `from`.
fn connect_from(from: [u8; 4], to: &str) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(from.into(), 0)).unwrap();
    connect(&socket, &to.parse::<SocketAddrV4>().unwrap()).unwrap();
    socket.into()
}

/// Reads the next line, or nothing at the end of the stream.
fn line_of(stream: &TcpStream) -> String {
    let mut line = String::new();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // A reset connection has no line.
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

#[test]
fn silent_connections_of_one_address_do_not_evict_a_slow_sender_of_another() {
    let files = Files::with_source(LEN);
    let receiver = Receiver::into(&files.path("out"));
    let ((reached, is_reached), (open, gate)) = (channel(), channel());
    // The middlebox delays the sender's offer.
    let address = middlebox(&receiver.address, stopped_at(0, reached, gate));
    let source = files.path("source").display().to_string();
    let sender = Launch::new(STRAIT).args(["send", &source, &address]).spawn().unwrap();
    is_reached.recv_timeout(LIMIT).unwrap();
    let silent: Vec<_> = (0..SILENT).map(|_| connect_from([127, 0, 0, 2], &receiver.address)).collect();
    // The excess connections are closed; the sender is not among them.
    for stream in &silent[..SILENT - 64] {
        let _ = line_of(stream);
    }
    open.send(()).unwrap();
    let _ = sender.wait(LIMIT).unwrap().success();
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = strait_transfer::hash::Hasher::default();
    hasher.write(bytes);
    hasher.value()
}

#[test]
fn receiver_sends_no_hash_and_answers_only_for_the_offered_one() {
    let files = Files::with_source(0);
    let hash = hash_of(&content(LEN));
    for name in ["out", "out.part"] {
        fs::write(files.path(name), content(LEN)).unwrap();
        let receiver = Receiver::into(&files.path("out"));
        for (offered, from) in [(!hash, 0), (hash, LEN)] {
            let stream = TcpStream::connect(&receiver.address).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            (&stream).write_all(format!("strait-send 4 length={LEN}\n").as_bytes()).unwrap();
            let mut answers =
                BufReader::new(&stream).lines().map(Result::unwrap).filter(|line| line != "wait");
            assert_eq!(answers.next().unwrap(), format!("have={LEN}"));
            (&stream).write_all(format!("begins={LEN} hash={offered:016x}\n").as_bytes()).unwrap();
            assert_eq!(answers.next().unwrap(), format!("from={from}"));
        }
        receiver.signal(rustix::process::Signal::INT);
        assert_eq!(receiver.end().status.code(), Some(1));
        assert!(fs::read(files.path(name)).unwrap() == content(LEN));
        fs::remove_file(files.path(name)).unwrap();
    }
    // A file of another length is not compared.
    fs::write(files.path("out"), content(LEN)).unwrap();
    let receiver = Receiver::into(&files.path("out"));
    let stream = TcpStream::connect(&receiver.address).unwrap();
    (&stream).write_all(b"strait-send 4 length=7\n").unwrap();
    assert_eq!(line_of(&stream), "from=0\n");
}

#[test]
fn peer_that_offers_and_closes_does_not_end_the_receiver() {
    const OFFER: &str = "strait-send 4 length=3000000\n";
    const PRESENT: usize = 1_000_000;
    let files = Files::with_source(LEN);
    // The existing part is kept.
    fs::write(files.path("out.part"), content(PRESENT)).unwrap();
    let receiver = Receiver::into(&files.path("out"));
    let hash = |byte: char| format!("hash={}\n", byte.to_string().repeat(16));
    let begins = |bytes: usize| format!("begins={bytes} {}", hash('1'));
    for behind in [
        String::new(),
        begins(PRESENT),
        begins(PRESENT) + "data=5\n",
        begins(0),
        begins(7),
        "nonsense\n".into(),
        "refused=no\n".into(),
    ] {
        let stream = TcpStream::connect(&receiver.address).unwrap();
        (&stream).write_all(OFFER.as_bytes()).unwrap();
        assert_eq!(line_of(&stream), "have=1000000\n", "{behind}");
        (&stream).write_all(behind.as_bytes()).unwrap();
    }
    let end = format!("begins=1000000 hash={:016x}\nend=1000000 {}", hash_of(&content(PRESENT)), hash('2'));
    let stream = TcpStream::connect(&receiver.address).unwrap();
    (&stream).write_all(OFFER.replace("3000000", "1000000").as_bytes()).unwrap();
    let mut answers = BufReader::new(&stream).lines();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "have=1000000");
    (&stream).write_all(end.as_bytes()).unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), "from=1000000");
    assert!(answers.next().unwrap().unwrap().contains("differs from the sent file"));
    // A sender waits while a peer is silent after its offer.
    let first = TcpStream::connect(&receiver.address).unwrap();
    (&first).write_all(OFFER.as_bytes()).unwrap();
    assert!(line_of(&first).starts_with("have="));
    let ((reached, is_reached), (open, gate)) = (channel(), channel());
    let address = middlebox(&receiver.address, stopped_at(0, reached, gate));
    let source = files.path("source").display().to_string();
    let sender = Launch::new(STRAIT).args(["send", "--json", &source, &address]).spawn().unwrap();
    is_reached.recv_timeout(LIMIT).unwrap();
    open.send(()).unwrap();
    drop(first);
    assert_eq!(account(sender.wait(LIMIT).unwrap())["sendfile"], LEN - PRESENT);
    let received = receiver.end().success();
    assert!(received.stderr.contains("has closed the connection; listening on"), "{}", received.stderr);
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
}

#[test]
fn peer_that_hashes_does_not_delay_a_sender() {
    const PRESENT: usize = 1_000_000;
    let files = Files::with_source(LEN);
    fs::write(files.path("out.part"), content(PRESENT)).unwrap();
    let receiver = Receiver::into(&files.path("out"));
    // These peers have seconds for their hash, and never send it.
    let peers: Vec<_> = (0..3)
        .map(|_| {
            let stream = TcpStream::connect(&receiver.address).unwrap();
            (&stream).write_all(format!("strait-send 4 length={LEN}\nwait\n").as_bytes()).unwrap();
            assert_eq!(line_of(&stream), format!("have={PRESENT}\n"));
            stream
        })
        .collect();
    // One at a time, they would exceed the sender's timeout.
    assert_eq!(account(files.send(&receiver, &["--timeout", "20"]))["sendfile"], LEN - PRESENT);
    let _ = receiver.end().success();
    assert!(fs::read(files.path("out")).unwrap() == content(LEN));
    for peer in &peers {
        assert!(line_of(peer).contains("another sender was first"));
    }
}

#[test]
fn sender_that_is_refused_while_it_hashes_gets_the_reason() {
    /// Length of a sparse file that takes longer to hash than a test may take.
    const ENDLESS: u64 = 4 << 40;
    let files = Files::with_source(0);
    fs::File::options().write(true).open(files.path("source")).unwrap().set_len(ENDLESS).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let source = files.path("source").display().to_string();
    let sender = Launch::new(STRAIT).args(["send", &source, &address]).spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    assert!(line_of(&stream).contains(&format!("length={ENDLESS} ")));
    (&stream).write_all(format!("have={ENDLESS}\nrefused=another sender was first\n").as_bytes()).unwrap();
    drop(stream);
    let (code, line) = failure(&sender.wait(LIMIT).unwrap());
    assert!(code == 1 && line.contains("another sender was first"), "{line}");
}

#[test]
fn sender_that_waits_for_another_one_gets_wait_lines() {
    let files = Files::with_source(LEN);
    let receiver = Receiver::into(&files.path("out"));
    let offer = || {
        let stream = TcpStream::connect(&receiver.address).unwrap();
        (&stream).write_all(format!("strait-send 4 length={LEN}\n").as_bytes()).unwrap();
        stream
    };
    // It is served, and sends nothing.
    let first = offer();
    assert_eq!(line_of(&first), "from=0\n");
    let second = offer();
    let mut lines = BufReader::new(&second).lines().map(Result::unwrap);
    second.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(lines.next().unwrap(), "wait");
    drop(first);
    assert_eq!(lines.find(|line| line != "wait").unwrap(), "from=0");
}

#[test]
fn many_bogus_offers_become_few_lines_and_a_count() {
    const BOGUS: usize = 200;
    let files = Files::with_source(0);
    let receiver = Receiver::into(&files.path("out"));
    for _ in 0..BOGUS {
        let stream = TcpStream::connect(&receiver.address).unwrap();
        (&stream).write_all(b"nonsense\n").unwrap();
        assert!(line_of(&stream).starts_with("refused="));
    }
    receiver.signal(rustix::process::Signal::INT);
    let stderr = receiver.end().stderr;
    let shown = stderr.matches("'nonsense' instead of").count();
    let count = |line: &str| {
        line.strip_prefix("strait: ")?.strip_suffix(" more connections failed")?.parse::<usize>().ok()
    };
    let hidden: usize = stderr.lines().filter_map(count).sum();
    assert!(shown < BOGUS && shown + hidden == BOGUS, "{stderr}");
}

#[test]
fn offer_of_another_version_is_refused_with_one_line() {
    let files = Files::with_source(10);
    let receiver = Receiver::into(&files.path("out"));
    let stream = TcpStream::connect(&receiver.address).unwrap();
    (&stream).write_all(b"strait-send 2 length=10\n").unwrap();
    let mut line = String::new();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert!(
        line.starts_with("refused=") && line.contains("version 2") && line.contains("version 4"),
        "{line}"
    );
    let _ = files.send(&receiver, &[]).success();
    let _ = receiver.end().success();
}

/// A timeout of many times the interval of `wait` lines (0.5 s), so that a busy machine does not
/// end a transfer, and a pause longer than the timeout.
const TIMEOUT_SECONDS: &str = "5";
const PAUSE: Duration = Duration::from_secs(7);

#[test]
fn reader_slower_than_the_timeout_does_not_end_the_transfer() {
    let files = Files::with_source(LEN);
    let (mut reader, output) = std::io::pipe().unwrap();
    let mut receiver = std::process::Command::new(STRAIT)
        .args(["receive", "--timeout", TIMEOUT_SECONDS])
        .stdout(output)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(receiver.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    let source = files.path("source").display().to_string();
    let arguments = ["send", "--timeout", TIMEOUT_SECONDS, &source, &address];
    let sender = Launch::new(STRAIT).args(arguments).spawn().unwrap();
    std::thread::sleep(PAUSE);
    let mut got = Vec::new();
    reader.read_to_end(&mut got).unwrap();
    assert!(got == content(LEN));
    let _ = sender.wait(LIMIT).unwrap().success();
    assert!(receiver.wait().unwrap().success());
}

#[test]
fn input_slower_than_the_timeout_does_not_end_the_transfer() {
    let started = ["auto", "copy"].map(|mode| {
        let files = Files::with_source(0);
        let out = files.path("out").display().to_string();
        let receiver = Receiver::start(&["--timeout", TIMEOUT_SECONDS, "-o", &out]);
        let (input, mut feed) = std::io::pipe().unwrap();
        let arguments = ["send", "--timeout", TIMEOUT_SECONDS, "--mode", mode, "-", &receiver.address];
        let sender = Launch::new(STRAIT).args(arguments).stdin(input).spawn().unwrap();
        feed.write_all(b"first ").unwrap();
        (files, receiver, sender, feed)
    });
    std::thread::sleep(PAUSE);
    for (files, receiver, sender, mut feed) in started {
        feed.write_all(b"second").unwrap();
        drop(feed);
        let _ = sender.wait(LIMIT).unwrap().success();
        let _ = receiver.end().success();
        assert_eq!(fs::read(files.path("out")).unwrap(), b"first second");
    }
}
