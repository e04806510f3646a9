//! The relay under a low limit of open files: pipes as long as descriptors are free, copies beyond.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use lab::{Launch, wait_until};

use super::{Relay, accept, account, allow_many_files, content, open_of_kind, read_all, server};
use crate::rig::LIMIT;

/// Starts a relay that may have so many open files, as root too.
fn with_open_files(files: usize, server: &TcpListener, options: &[&str]) -> Relay {
    // Root could raise the limit again.
    let limit = format!(
        "ulimit -n {files}
        [ $(id -u) != 0 ] || exec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource \"$@\"
        exec \"$@\""
    );
    let launch = Launch::new("sh").args(["-c".to_owned(), limit, "sh".to_owned()]);
    Relay::launch(launch, &server.local_addr().unwrap().to_string(), options)
}

/// A connection with a client that does not read: the client, the server's end, and the bytes sent
/// on it.
type HeldUp = (TcpStream, TcpStream, u64);

/// Connects so many clients that do not read, and sends to each until as many pipes hold bytes.
fn hold_up(relay: &Relay, server: &TcpListener, clients: usize, pipes_min: usize) -> Vec<HeldUp> {
    let connect = |_| {
        let (client, stream) = (relay.connect(), accept(server));
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 1 << 16).unwrap();
        stream.set_nonblocking(true).unwrap();
        (client, stream, 0)
    };
    let mut streams: Vec<HeldUp> = (0..clients).map(connect).collect();
    // Little at a time: the relay's receive buffers grow while much comes.
    let chunk = vec![0; 1 << 16];
    let is_held_up = wait_until(LIMIT, || {
        for (_, stream, sent) in &mut streams {
            *sent += stream.write(&chunk).unwrap_or(0) as u64;
        }
        pipes(relay) >= pipes_min
    });
    assert!(is_held_up, "{} of {pipes_min} pipes", pipes(relay));
    streams
}

/// Many readers that are slow at a time: each has a pipe as long as descriptors are free.
#[test]
fn nothing_is_copied_while_descriptors_are_free() {
    // Some 3 MB of socket buffers each: more would run into net.ipv4.tcp_mem on a small machine.
    const SLOW: usize = 160;
    let _files = allow_many_files();
    let server = server();
    let relay = with_open_files(1400, &server, &[]);
    let mut bytes = 0;
    for (client, stream, sent) in hold_up(&relay, &server, SLOW, SLOW) {
        stream.shutdown(Shutdown::Write).unwrap();
        let got = std::io::copy(&mut (&client), &mut std::io::sink()).unwrap();
        assert_eq!(got, sent);
        bytes += sent;
    }
    let account = account(relay.end());
    assert_eq!((&account["copied"], &account["spliced"]), (&0.into(), &bytes.into()), "{account}");
}

/// Pipes of a relay that are open, beside its standard output and error.
fn pipes(relay: &Relay) -> usize {
    open_of_kind(relay, "pipe:").saturating_sub(3) / 2
}

/// Held-up clients take pipes until an eighth of the descriptors is left for connections: others
/// are copied and go on.
#[test]
fn without_a_pipe_bytes_are_copied() {
    const HELD_UP: usize = 160;
    // 681 descriptors, of which 85 stay free, less two for each connection.
    const PIPES: usize = (681 - 85) / 2 - HELD_UP;
    let _files = allow_many_files();
    let server = server();
    let relay = with_open_files(700, &server, &["--max-connections", "210"]);
    let held_up = hold_up(&relay, &server, HELD_UP, PIPES);
    let (client, stream) = (relay.connect(), accept(&server));
    let bytes = content(3_000_000, 1);
    let sent = bytes.clone();
    let writer = thread::spawn(move || (&stream).write_all(&sent).unwrap());
    assert!(read_all(&client) == bytes);
    writer.join().unwrap();
    drop((client, held_up));
    let account = account(relay.end());
    assert!(account["copied"].as_u64().unwrap() >= bytes.len() as u64, "{account}");
}
