//! `strait relay`: bytes in both directions, ends of streams, many connections, and cleanup after a
//! dead end.

mod limits;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lab::{Finished, Launch, Process, root_or_skip, wait_until};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;

use crate::rig::{LIMIT, STRAIT, run};

/// A running relay, and its address.
struct Relay {
    process: Process,
    address: SocketAddr,
}

impl Relay {
    fn start(server: &TcpListener, options: &[&str]) -> Self {
        Self::to(&server.local_addr().unwrap().to_string(), options)
    }

    fn to(server: &str, options: &[&str]) -> Self {
        Self::launch(Launch::new("env"), server, options)
    }

    /// Starts a relay by a program that executes its arguments.
    fn launch(by: Launch<'static>, server: &str, options: &[&str]) -> Self {
        let launch = by.args([STRAIT, "relay", "--json", "--listen", "127.0.0.1:0", "--to", server]);
        let process = launch.args(options).spawn().unwrap();
        process.wait_for_stderr(" to ", LIMIT).unwrap();
        let stderr = process.stderr();
        let address = stderr.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Self { process, address: address.unwrap_or_else(|| panic!("{stderr}")) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Returns the number of its open descriptors.
    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    fn rss_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    fn end(self) -> Finished {
        self.process.signal(Signal::TERM);
        self.process.wait(LIMIT).unwrap()
    }
}

fn account(finished: Finished) -> Value {
    serde_json::from_str(finished.success().text().lines().next_back().unwrap()).unwrap()
}

fn server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Accepts one connection.
fn accept(server: &TcpListener) -> TcpStream {
    let (stream, _) = server.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + (at >> 9) + seed) as u8).collect()
}

fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    got
}

#[test]
fn bytes_pass_in_both_directions_also_after_one_stream_ended() {
    const LEN: usize = 5_000_000;
    let server = server();
    let relay = Relay::start(&server, &["--workers", "2"]);
    let clients: Vec<_> = (0..8)
        .map(|seed| {
            let client = relay.connect();
            thread::spawn(move || {
                let mut writer = &client;
                writer.write_all(&content(LEN, seed)).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                // The answer arrives after the end of the client's stream.
                assert!(read_all(&client) == content(LEN, seed + 1));
            })
        })
        .collect();
    let servers: Vec<_> = (0..8)
        .map(|_| {
            let stream = accept(&server);
            thread::spawn(move || {
                let got = read_all(&stream);
                let seed = (0..8).find(|seed| got == content(LEN, *seed)).expect("the bytes of a client");
                (&stream).write_all(&content(LEN, seed + 1)).unwrap();
            })
        })
        .collect();
    clients.into_iter().chain(servers).for_each(|thread| thread.join().unwrap());
    let account = account(relay.end());
    assert_eq!((&account["connections"], &account["failed"]), (&8.into(), &0.into()), "{account}");
    assert_eq!(account["spliced"], 16 * LEN);
}

#[test]
fn slow_reader_slows_its_writer_down() {
    let server = server();
    let relay = Relay::start(&server, &[]);
    let client = relay.connect();
    let stream = accept(&server);
    client.set_nonblocking(true).unwrap();
    let (chunk, mut sent) = (vec![7; 1 << 16], 0_usize);
    // Buffers fill up, and then no more bytes are accepted.
    assert!(wait_until(LIMIT, || {
        let before = sent;
        while let Ok(written) = (&client).write(&chunk) {
            sent += written;
        }
        sent == before && sent > 0
    }));
    assert!(sent < 64 << 20, "{sent}");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&stream).len(), sent);
}

#[test]
fn proxy_protocol_header_precedes_the_bytes() {
    let server = server();
    for (version, begins) in
        [("v1", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c")]
    {
        let relay = Relay::start(&server, &["--proxy-protocol", version]);
        let client = relay.connect();
        (&client).write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let got = read_all(&accept(&server));
        // The client's address and port precede the relay's.
        let (from, to) = (client.local_addr().unwrap().port(), relay.address.port());
        let ports = match version {
            "v1" => format!("{from} {to}\r\n").into_bytes(),
            _ => [&[127, 0, 0, 1, 127, 0, 0, 1][..], &from.to_be_bytes(), &to.to_be_bytes()].concat(),
        };
        assert_eq!(got, [begins, &ports, b"hello"].concat());
    }
}

#[test]
fn tee_copies_to_files_and_a_full_disk_does_not_stop_the_relay() {
    if !root_or_skip() {
        return;
    }
    let server = server();
    // A /mnt with room for the bytes of the first connection but not for all of the second.
    let mount = "mount -t tmpfs -o size=4m tmpfs /mnt && exec \"$@\"";
    let to = server.local_addr().unwrap().to_string();
    let launch = Launch::new("unshare").args(["--mount", "sh", "-c", mount, "sh"]);
    let relay = Relay::launch(launch, &to, &["--tee", "/mnt/copy", "--json-log"]);
    let mount = format!("/proc/{}/root/mnt", relay.process.id());
    for number in [1, 2] {
        let client = relay.connect();
        let stream = accept(&server);
        let upward = thread::spawn(move || {
            (&client).write_all(&content(3_000_000, 1)).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            read_all(&client)
        });
        assert!(read_all(&stream) == content(3_000_000, 1));
        (&stream).write_all(&content(100_000, number)).unwrap();
        drop(stream);
        assert!(upward.join().unwrap() == content(100_000, number));
    }
    assert!(fs::read(format!("{mount}/copy.1.up")).unwrap() == content(3_000_000, 1));
    assert!(fs::read(format!("{mount}/copy.1.down")).unwrap() == content(100_000, 1));
    let log = relay.end().success().text();
    let ended: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&ended[0]["teed"], &ended[0]["tee_failure"]), (&3_100_000.into(), &Value::Null), "{log}");
    assert!(ended[1]["tee_failure"].as_str().unwrap().contains("No space left"), "{log}");
}

/// Sends a few bytes to the server, and ends the connection.
fn say_hello(relay: &Relay, server: &TcpListener) {
    let client = relay.connect();
    let stream = accept(server);
    (&client).write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&stream), b"hello");
    drop(stream);
    assert_eq!(read_all(&client), b"");
}

#[test]
fn numbers_of_copies_continue_after_existing_files_but_not_after_planted_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["copy.7.up", "copy.18446744073709551615.up", "copy.18446744073709551614.down"] {
        fs::write(path(name), "").unwrap();
    }
    let server = server();
    let relay = Relay::start(&server, &["--tee", &path("copy").display().to_string()]);
    say_hello(&relay, &server);
    let _ = relay.end().success();
    assert_eq!(fs::read(path("copy.8.up")).unwrap(), b"hello");
}

#[test]
fn planted_copies_lose_no_copy() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let server = server();
    let relay = Relay::start(&server, &["--tee", &path("copy").display().to_string(), "--json-log"]);
    for name in ["copy.1.up", "copy.2.down"] {
        std::os::unix::fs::symlink("/dev/full", path(name)).unwrap();
    }
    say_hello(&relay, &server);
    let log = relay.end().success().text();
    let ended: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!((&ended["number"], &ended["tee_failure"]), (&3.into(), &Value::Null), "{log}");
    assert_eq!(fs::read(path("copy.3.up")).unwrap(), b"hello");
    assert!(path("copy.3.down").exists() && !path("copy.2.up").exists() && !path("copy.1.down").exists());
}

#[test]
fn dead_connections_leave_no_descriptors() {
    let server = server();
    let relay = Relay::start(&server, &[]);
    let before = relay.descriptors();
    for turn in 0..40 {
        let (client, stream) = (relay.connect(), accept(&server));
        (&client).write_all(&content(300_000, 0)).unwrap();
        (&stream).write_all(&content(300_000, 0)).unwrap();
        let (dies, other) = if turn % 2 == 0 { (client, stream) } else { (stream, client) };
        // A reset, like after a killed process with unread bytes.
        rustix::net::sockopt::set_socket_linger(&dies, Some(Duration::ZERO)).unwrap();
        drop(dies);
        // The stream of the other end ends with an error.
        let mut rest = Vec::new();
        let _ = (&other).read_to_end(&mut rest);
    }
    // Pipes are cached for later connections.
    assert!(
        wait_until(LIMIT, || relay.descriptors() <= before + 2 * 64),
        "{} descriptors",
        relay.descriptors()
    );
    // Only the listener remains.
    assert!(wait_until(LIMIT, || sockets(&relay) == 1), "{} sockets", sockets(&relay));
    let _ = relay.end().success();
}

fn sockets(relay: &Relay) -> usize {
    open_of_kind(relay, "socket:")
}

fn open_of_kind(relay: &Relay, kind: &str) -> usize {
    let links = fs::read_dir(format!("/proc/{}/fd", relay.process.id())).unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with(kind)).count()
}

#[test]
fn draining_relay_refuses_new_connections_and_finishes_the_others() {
    let server = server();
    let relay = Relay::start(&server, &["--drain", "2"]);
    let (client, stream) = (relay.connect(), accept(&server));
    relay.process.signal(Signal::TERM);
    assert!(wait_until(LIMIT, || TcpStream::connect(relay.address).is_err()));
    (&client).write_all(b"still").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&stream), b"still");
    drop(stream);
    let account = account(relay.process.wait(LIMIT).unwrap());
    // Connections accepted just before the listener closed were closed at once.
    assert_eq!(account["spliced"], 5, "{account}");
}

#[test]
fn connections_are_reset_after_the_drain_time() {
    let server = server();
    for drain in ["0.1", "0"] {
        let relay = Relay::start(&server, &["--drain", drain]);
        let (client, stream) = (relay.connect(), accept(&server));
        assert_eq!(account(relay.end())["failed"], 1);
        // Neither end takes its data for complete.
        assert!([client, stream].iter().all(|mut end| end.read(&mut [0]).is_err()));
    }
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    let server = server();
    let relay = Relay::start(&server, &["--idle", "0.7", "--json-log"]);
    let (idle, _far) = (relay.connect(), accept(&server));
    let (busy, stream) = (relay.connect(), accept(&server));
    let talking = thread::spawn(move || {
        // Until the idle connection has been closed.
        for _ in 0..40 {
            (&busy).write_all(b".").unwrap();
            (&stream).read_exact(&mut [0]).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
    });
    let mut byte = [0];
    assert!(matches!((&idle).read(&mut byte), Ok(0) | Err(_)));
    talking.join().unwrap();
    let log = relay.end().success().text();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!((&first["number"], &first["end"]), (&1.into(), &"idle".into()), "{log}");
}

#[test]
fn connection_above_the_maximum_waits() {
    let server = server();
    let relay = Relay::start(&server, &["--max-connections", "2"]);
    let first = relay.connect();
    let (second, third) = (relay.connect(), relay.connect());
    let streams = [accept(&server), accept(&server)];
    (&third).write_all(b"third").unwrap();
    server.set_nonblocking(true).unwrap();
    assert!(server.accept().is_err());
    drop((first, streams));
    let mut stream = None;
    assert!(wait_until(LIMIT, || {
        stream = server.accept().ok();
        stream.is_some()
    }));
    let (stream, _) = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    let mut got = [0; 5];
    (&stream).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"third");
    drop((second, third, stream));
    assert!(account(relay.end())["full"].as_u64().unwrap() > 0);
}

/// A killed relay must not end streams in order, which would make partial data look complete.
#[test]
fn connections_of_a_killed_relay_are_reset() {
    let server = server();
    let relay = Relay::start(&server, &[]);
    let (client, stream) = (relay.connect(), accept(&server));
    (&client).write_all(b"begun").unwrap();
    (&stream).read_exact(&mut [0; 5]).unwrap();
    relay.process.signal(Signal::KILL);
    let _ = relay.process.wait(LIMIT).unwrap();
    assert!([client, stream].iter().all(|mut end| end.read(&mut [0]).is_err()));
}

/// Raises the limit of open files of these tests. A lock keeps tests that need many files apart.
fn allow_many_files() -> (MutexGuard<'static, ()>, Option<u64>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    (guard, maximum)
}

#[test]
fn reset_after_the_end_of_a_stream_closes_the_connection() {
    let server = server();
    let relay = Relay::start(&server, &["--json-log"]);
    let client = relay.connect();
    let stream = accept(&server);
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&stream).is_empty());
    // Closing with an unread byte sends a reset. The server sends no more bytes.
    (&stream).write_all(b"x").unwrap();
    client.peek(&mut [0]).unwrap();
    drop(client);
    assert!(wait_until(LIMIT, || sockets(&relay) == 1), "{} sockets", sockets(&relay));
    let log = relay.end().success().text();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["end"], "reset", "{log}");
}

#[test]
fn answer_before_a_reset_reaches_the_client() {
    let server = server();
    let relay = Relay::start(&server, &[]);
    let client = relay.connect();
    let stream = accept(&server);
    let answer = content(1_000_000, 2);
    // The server closes with unread bytes: a reset follows the answer.
    (&client).write_all(&vec![0; 300_000]).unwrap();
    stream.peek(&mut [0]).unwrap();
    (&stream).write_all(&answer).unwrap();
    // Wait until the relay has the answer: a reset discards bytes that have not arrived.
    assert!(wait_until(LIMIT, || strait_os::tcp::unacknowledged(&stream).unwrap() == 0));
    drop(stream);
    let mut got = Vec::new();
    // The client gets a reset, so that it does not take the answer for complete.
    let end = (&client).read_to_end(&mut got);
    assert!(end.is_err(), "{} bytes", got.len());
    assert!(got == answer, "{} bytes", got.len());
    let _ = relay.end();
}

#[test]
fn next_address_of_the_name_is_tried() {
    if !root_or_skip() {
        return;
    }
    // In a mount namespace the name has two addresses. The first has no listener.
    let server = server();
    let port = server.local_addr().unwrap().port();
    let names = "hosts=$(mktemp) && printf '127.0.0.2 two\\n127.0.0.1 two\\n' > $hosts && mount --bind $hosts /etc/hosts \
        && rm $hosts && exec \"$@\"";
    let launch = Launch::new("unshare").args(["--mount", "sh", "-c", names, "sh"]);
    let relay = Relay::launch(launch, &format!("two:{port}"), &[]);
    let client = relay.connect();
    let stream = accept(&server);
    (&client).write_all(b"through").unwrap();
    drop(client);
    assert_eq!(read_all(&stream), b"through");
    drop(stream);
    let _ = relay.end().success();
}

#[test]
fn unreachable_server_is_reported_and_the_client_is_disconnected() {
    let gone = server().local_addr().unwrap().to_string();
    let relay = Relay::to(&gone, &["--json-log"]);
    let client = relay.connect();
    assert!(matches!((&client).read(&mut [0]), Ok(0) | Err(_)));
    let log = relay.end().success().text();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["end"], "unreached", "{log}");
    assert!(first["failure"].as_str().unwrap().contains("Connection refused"), "{log}");
}

/// Ten thousand connections, or as many as the limit of open files allows with two files each, here
/// and in the relay.
#[test]
fn thousands_of_concurrent_connections() {
    const CONNECTIONS_MAX: u64 = 10_000;
    const BESIDE: u64 = 600;
    const IDLE_KIB_MAX: f64 = 4.0;
    let (_files, maximum) = allow_many_files();
    let fitting = maximum.map_or(CONNECTIONS_MAX, |files| files.saturating_sub(BESIDE) / 2);
    let connections = fitting.min(CONNECTIONS_MAX) as usize;
    let server = server();
    let relay = Relay::start(&server, &[]);
    let before = relay.rss_kib();
    let pairs: Vec<_> = (0..connections).map(|_| (relay.connect(), accept(&server))).collect();
    let each_kib = (relay.rss_kib() - before) as f64 / connections as f64;
    println!("{connections} connections, {each_kib:.2} KiB each");
    assert!(each_kib < IDLE_KIB_MAX, "{each_kib} KiB a connection");
    for (client, _) in &pairs {
        let mut client = client;
        client.write_all(b"ping").unwrap();
    }
    // Connections are accepted in order, so that each stream belongs to its client.
    for (_, stream) in &pairs {
        let (mut stream, mut got) = (stream, [0; 4]);
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
    }
    drop(pairs);
    assert!(wait_until(LIMIT, || sockets(&relay) == 1), "{} sockets", sockets(&relay));
    assert_eq!(account(relay.end())["connections_max"], connections);
}

#[test]
fn usage_errors_are_reported() {
    for (arguments, code, words) in [
        (vec!["--listen", "127.0.0.1:0", "--to", "nowhere"], 2, "HOST:PORT"),
        (vec!["--listen", "here", "--to", "localhost:1"], 2, "give ADDRESS:PORT"),
        (vec!["--listen", "127.0.0.1:9", "--to", "127.0.0.1:9"], 2, "relay to itself"),
        (vec!["--listen", "192.0.2.1:0", "--to", "127.0.0.1:9"], 1, "listen on 192.0.2.1:0"),
        (
            vec!["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--proxy-protocol", "v3"],
            2,
            "give v1 or v2",
        ),
    ] {
        let finished = run(&[&["relay"], &arguments[..]].concat());
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
    }
}

/// Opens `connections` connections to the relay and resets them.
fn reset(relay: &Relay, server: &TcpListener, connections: usize) {
    for _ in 0..connections {
        let (client, far) = (relay.connect(), accept(server));
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        // Returns when the reset has arrived, with any result.
        let _ = (&far).read(&mut [0]);
    }
}

#[test]
fn log_without_a_reader_delays_no_connection_and_lost_lines_are_counted() {
    const CONNECTIONS: usize = 200;
    const QUEUE: usize = 16;
    let server = server();
    let (mut log, output) = std::io::pipe().unwrap();
    // The minimum size of a pipe: a few lines fill it.
    rustix::pipe::fcntl_setpipe_size(&output, 4096).unwrap();
    let mut relay = std::process::Command::new(STRAIT)
        .args([
            "relay",
            "--json",
            "--json-log",
            "--log-queue",
            &QUEUE.to_string(),
            "--listen",
            "127.0.0.1:0",
            "--to",
        ])
        .arg(server.local_addr().unwrap().to_string())
        .stdout(output)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = std::io::BufReader::new(relay.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
    let address: SocketAddr = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    for turn in 0..CONNECTIONS {
        let client = TcpStream::connect(address).unwrap();
        let stream = accept(&server);
        drop(client);
        assert_eq!(read_all(&stream), b"", "{turn}");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&relay), Signal::TERM).unwrap();
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert!(relay.wait().unwrap().success());
    assert!(
        rest.contains("reader of the log was too slow") && rest.contains("\"connections\":200"),
        "{rest}"
    );
    let account: Value =
        serde_json::from_str(rest.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let mut read = String::new();
    log.read_to_string(&mut read).unwrap();
    let (read, dropped) = (read.lines().count(), account["log_dropped"].as_u64().unwrap() as usize);
    assert_eq!(read + dropped, CONNECTIONS, "{rest}");
    // The pipe and the queue hold only a part of the lines.
    assert!(read > 0 && dropped > QUEUE, "{read} read, {dropped} dropped");
}

#[test]
fn many_failing_connections_become_few_lines() {
    let server = server();
    let relay = Relay::start(&server, &[]);
    reset(&relay, &server, 500);
    let finished = relay.end();
    let lines = finished.stderr.lines().filter(|line| line.starts_with("strait: ")).count();
    let hidden: u64 = finished
        .stderr
        .lines()
        .filter_map(|line| {
            line.strip_prefix("strait: ")?.strip_suffix(" more connections failed; --json-log names each")
        })
        .map(|number| number.parse::<u64>().unwrap())
        .sum();
    let summaries = finished.stderr.matches(" more connections failed").count();
    let shown = (lines - summaries) as u64;
    let failed = account(finished)["failed"].as_u64().unwrap();
    assert!(failed > 0 && shown + hidden == failed, "{shown} + {hidden} of {failed}");
    assert!(shown < failed || failed <= 10, "{shown} of {failed}");
}
