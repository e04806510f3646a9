//! The relay with a low limit of open files: it uses pipes while descriptors are free, and copies
//! otherwise.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use lab::{Launch, root_or_skip, wait_until};

use super::{Relay, accept, account, allow_many_files, content, open_of_kind, read_all, server};
use crate::rig::LIMIT;

/// Starts a relay with a limit of `files` open files, also as root.
fn with_open_files(files: usize, server: &TcpListener, options: &[&str]) -> Relay {
    // Without CAP_SYS_RESOURCE, with which root could raise the limit again.
    let limit = format!(
        "ulimit -n {files}
        [ $(id -u) != 0 ] || exec setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource \"$@\"
        exec \"$@\""
    );
    let launch = Launch::new("sh").args(["-c".to_owned(), limit, "sh".to_owned()]);
    Relay::launch(launch, &server.local_addr().unwrap().to_string(), options)
}

/// A connection with backpressure: its client, which does not read, the server's end, and the
/// number of sent bytes.
type Blocked = (TcpStream, TcpStream, u64);

/// Connects `clients` clients that do not read, and sends to each until `pipes_min` pipes hold
/// bytes.
fn block(relay: &Relay, server: &TcpListener, clients: usize, pipes_min: usize) -> Vec<Blocked> {
    let connect = |_| {
        let (client, stream) = (relay.connect(), accept(server));
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 1 << 16).unwrap();
        stream.set_nonblocking(true).unwrap();
        (client, stream, 0)
    };
    let mut streams: Vec<Blocked> = (0..clients).map(connect).collect();
    // Small writes, as the relay's receive buffers grow with large ones.
    let chunk = vec![0; 1 << 16];
    let are_blocked = wait_until(LIMIT, || {
        for (_, stream, sent) in &mut streams {
            *sent += stream.write(&chunk).unwrap_or(0) as u64;
        }
        pipes(relay) >= pipes_min
    });
    assert!(are_blocked, "{} of {pipes_min} pipes", pipes(relay));
    streams
}

/// Many slow readers: each has a pipe while descriptors are free.
#[test]
fn no_bytes_are_copied_while_descriptors_are_free() {
    // Each has some 3 MB of socket buffers: more would exceed net.ipv4.tcp_mem on a small machine.
    const SLOW: usize = 160;
    let _files = allow_many_files();
    let server = server();
    let relay = with_open_files(1400, &server, &[]);
    let mut bytes = 0;
    for (client, stream, sent) in block(&relay, &server, SLOW, SLOW) {
        stream.shutdown(Shutdown::Write).unwrap();
        let got = std::io::copy(&mut (&client), &mut std::io::sink()).unwrap();
        assert_eq!(got, sent);
        bytes += sent;
    }
    let account = account(relay.end());
    assert_eq!((&account["copied"], &account["spliced"]), (&0.into(), &bytes.into()), "{account}");
}

/// Returns the number of open pipes of a relay, without its standard streams.
fn pipes(relay: &Relay) -> usize {
    open_of_kind(relay, "pipe:").saturating_sub(3) / 2
}

/// Blocked clients take pipes until an eighth of the descriptors is left for connections. Further
/// connections are copied.
#[test]
fn without_a_pipe_bytes_are_copied() {
    const BLOCKED: usize = 160;
    // 681 descriptors, of which 85 stay free, minus two for each connection.
    const PIPES: usize = (681 - 85) / 2 - BLOCKED;
    // As root: the pipes of other users are smaller beyond fs.pipe-user-pages-soft, and can empty
    // into the sockets meanwhile.
    if !root_or_skip() {
        return;
    }
    let _files = allow_many_files();
    let server = server();
    let relay = with_open_files(700, &server, &["--max-connections", "210"]);
    let blocked = block(&relay, &server, BLOCKED, PIPES);
    let (client, stream) = (relay.connect(), accept(&server));
    let bytes = content(3_000_000, 1);
    let sent = bytes.clone();
    let writer = thread::spawn(move || (&stream).write_all(&sent).unwrap());
    assert!(read_all(&client) == bytes);
    writer.join().unwrap();
    drop((client, blocked));
    let account = account(relay.end());
    assert!(account["copied"].as_u64().unwrap() >= bytes.len() as u64, "{account}");
}
