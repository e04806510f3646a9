//! Origin with or without TLS; the path of a request chooses the response.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use crate::tls::rig::{Bytes, LIMIT, body, field, read_head};

/// Counters of an origin.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) resumed: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    /// Complete bodies of `/kept` and `/passed` that were sent.
    pub(crate) sent: AtomicUsize,
}

pub(crate) struct Origin {
    pub(crate) url: String,
    pub(crate) port: u16,
    pub(crate) seen: Arc<Seen>,
    /// Lets `/halves` send the second half, and ends `/refuse`.
    pub(crate) go_on: Sender<()>,
}

type Gate = Arc<Mutex<Receiver<()>>>;

impl Origin {
    pub(crate) fn plain() -> Self {
        Self::start(None)
    }

    pub(crate) fn tls(config: Arc<ServerConfig>) -> Self {
        Self::start(Some(config))
    }

    fn start(config: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("{}://127.0.0.1:{port}", if config.is_some() { "https" } else { "http" });
        let (seen, (go_on, gate)) = (Arc::new(Seen::default()), channel());
        let (counters, gate) = (seen.clone(), Arc::new(Mutex::new(gate)));
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let (mut tcp, seen, gate) = (tcp.unwrap(), counters.clone(), gate.clone());
                let session = config.clone().map(|config| ServerConnection::new(config).unwrap());
                seen.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    let Some(mut session) = session else {
                        serve(&mut tcp, &seen, &gate);
                        return;
                    };
                    // A failed handshake is the business of the test.
                    let Ok(_) = session.complete_io(&mut tcp) else { return };
                    if session.handshake_kind() == Some(HandshakeKind::Resumed) {
                        seen.resumed.fetch_add(1, Ordering::SeqCst);
                    }
                    let mut stream = StreamOwned::new(session, tcp);
                    if serve(&mut stream, &seen, &gate) == Then::End {
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                });
            }
        });
        Self { url, port, seen, go_on }
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }
}

/// Next step of a connection.
#[derive(PartialEq, Eq)]
enum Then {
    More,
    End,
    /// Ends without close_notify.
    Cut,
}

fn serve(stream: &mut dyn Bytes, seen: &Seen, gate: &Gate) -> Then {
    loop {
        let Ok(head) = read_head(&mut &mut *stream) else { return Then::Cut };
        seen.requests.fetch_add(1, Ordering::SeqCst);
        match answer(stream, &head, seen, gate) {
            Ok(Then::More) => {}
            Ok(then) => return then,
            Err(_) => return Then::Cut,
        }
    }
}

fn answer(stream: &mut dyn Bytes, head: &str, seen: &Seen, gate: &Gate) -> std::io::Result<Then> {
    let target = head.split(' ').nth(1).unwrap();
    let (path, len) = target.split_once('?').unwrap_or((target, "11"));
    let whole = body(len.parse().unwrap());
    let (length, kept) = (format!("Content-Length: {len}\r\n"), "Cache-Control: max-age=60\r\n");
    let mut begin = |fields: &str| write!(stream, "HTTP/1.1 200 OK\r\n{fields}\r\n");
    match path {
        "/kept" => begin(&format!("{length}{kept}"))?,
        "/passed" => begin(&format!("{length}Cache-Control: no-store\r\n"))?,
        "/halves" => {
            begin(&format!("{length}{kept}"))?;
            stream.write_all(&whole[..whole.len() / 2])?;
            stream.flush()?;
            let _ = gate.lock().unwrap().recv_timeout(LIMIT);
            stream.write_all(&whole[whole.len() / 2..])?;
            stream.flush()?;
            return Ok(Then::More);
        }
        "/chunked" => {
            begin(&format!("Transfer-Encoding: chunked\r\n{kept}"))?;
            for piece in whole.chunks(100_000) {
                write!(stream, "{:x}\r\n", piece.len())?;
                stream.write_all(piece)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
            stream.flush()?;
            return Ok(Then::More);
        }
        "/to-close" | "/cut" => {
            begin(&format!("Connection: close\r\n{kept}"))?;
            stream.write_all(&whole)?;
            stream.flush()?;
            return Ok(if path == "/cut" { Then::Cut } else { Then::End });
        }
        "/upload" => {
            let mut bytes = vec![0; field(head, "Content-Length").unwrap().parse().unwrap()];
            stream.read_exact(&mut bytes)?;
            let is_right = bytes == body(bytes.len());
            begin_with(stream, &format!("{is_right}"))?;
            return Ok(Then::More);
        }
        "/refuse" => {
            write!(stream, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
            stream.flush()?;
            // Nothing is read until the test opens the gate.
            let _ = gate.lock().unwrap().recv_timeout(LIMIT);
            return Ok(Then::Cut);
        }
        "/upgrade" => {
            write!(stream, "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")?;
            stream.flush()?;
            return echo(stream);
        }
        _ => begin("Content-Length: 0\r\n")?,
    }
    if !matches!(path, "/kept" | "/passed") {
        return Ok(Then::More);
    }
    stream.write_all(&whole)?;
    stream.flush()?;
    seen.sent.fetch_add(1, Ordering::SeqCst);
    Ok(Then::More)
}

fn begin_with(stream: &mut dyn Bytes, text: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())?;
    stream.flush()
}

/// Sends received bytes back.
fn echo(stream: &mut dyn Bytes) -> std::io::Result<Then> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(Then::End),
            read => {
                stream.write_all(&bytes[..read])?;
                stream.flush()?;
            }
        }
    }
}
