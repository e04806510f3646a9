//! Tunnels between two sockets, for CONNECT (RFC 9110, section 9.3.6) and after Upgrade. Long runs
//! of bytes stay in the kernel. Short messages are copied, and so are all bytes if a socket is
//! encrypted or no pipe is free.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{SendFlags, Shutdown, send};
use strait_transfer::pipe::{Pipe, Pipes};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::carrier::Carrier;
use crate::io::socket::{Socket, SocketError};
use crate::io::splice::Splicing;
use crate::io::tcp::poll_fill;

/// Moves bytes until both ends have finished, one end has failed, or no byte has moved for
/// `idle_timeout`. Bytes that were read from either end before are sent first.
pub(crate) async fn run(
    splicing: Splicing<'_>,
    idle_timeout: Duration,
    client: (&mut Socket, &mut Buffer),
    origin: (&mut Socket, &mut Buffer),
) -> Result<(), SocketError> {
    let ((client, from_client), (origin, from_origin)) = (client, origin);
    origin.write_all(from_client.filled(), &[]).await?;
    from_client.clear();
    client.write_all(from_origin.filled(), &[]).await?;
    from_origin.clear();
    let (up, down) = (Moved::default(), Moved::default());
    let (client_end, origin_end) = (client.stream(), origin.stream());
    let moved = if let (Some(client), Some(origin)) = (client_end.plain_tcp(), origin_end.plain_tcp()) {
        let (upward, downward) = (pass(splicing, client, origin, &up), pass(splicing, origin, client, &down));
        let both = async { tokio::try_join!(upward, downward).map(drop) };
        while_it_moves(idle_timeout, both, (&up, &down)).await
    } else {
        let (client, origin) = (client_end, origin_end);
        let (mut upward, mut downward) = (Way::new(&up), Way::new(&down));
        let both = poll_fn(|context| {
            let up = upward.poll(client, origin, context)?;
            let down = downward.poll(origin, client, context)?;
            if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        while_it_moves(idle_timeout, both, (&up, &down)).await
    };
    for (socket, moved) in [(origin, up), (client, down)] {
        socket.moved.spliced += moved.spliced.get();
        socket.count_copied(moved.copied.get());
    }
    moved
}

/// Bytes moved in one direction.
#[derive(Debug, Default)]
struct Moved {
    spliced: Cell<u64>,
    copied: Cell<u64>,
}

impl Moved {
    fn bytes(&self) -> u64 {
        self.spliced.get() + self.copied.get()
    }
}

/// Returns the result of `both`, or a timeout once no byte has moved in either direction for
/// `idle_timeout`.
async fn while_it_moves<T>(
    idle_timeout: Duration,
    both: impl Future<Output = io::Result<T>>,
    moved: (&Moved, &Moved),
) -> Result<T, SocketError> {
    let mut both = std::pin::pin!(both);
    loop {
        let before = (moved.0.bytes(), moved.1.bytes());
        match tokio::time::timeout(idle_timeout, &mut both).await {
            Ok(ended) => return ended.map_err(SocketError::from),
            Err(_) if (moved.0.bytes(), moved.1.bytes()) == before => return Err(SocketError::TimedOut),
            Err(_) => {}
        }
    }
}

/// Forwards bytes in one direction. Short messages are copied: a splice in, one out, and one that
/// finds the socket empty cost more. Long runs go through a pipe if one is free.
async fn pass(splicing: Splicing<'_>, from: &TcpStream, to: &TcpStream, moved: &Moved) -> io::Result<()> {
    let mut held = Held { pipes: splicing.pipes, pipe: None };
    let mut run = Run::default();
    loop {
        from.readable().await?;
        let pipe = if splicing.pays(run.expected()) { held.pipe() } else { None };
        let passed = match pipe {
            Some(pipe) => splice(pipe, from, to, &moved.spliced).await?,
            None => copy(from, to, &moved.copied).await?,
        };
        held.give_back();
        match passed {
            Passed::Some(len) => run.now += len as u64,
            Passed::Last(len) => run = Run { last: run.now + len as u64, now: 0 },
            Passed::End => {
                // The other direction may continue.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(());
            }
        }
    }
}

/// Bytes that were moved without waiting for the sender.
#[derive(Debug, Default)]
struct Run {
    /// Length of the last run.
    last: u64,
    /// Bytes of the current run so far.
    now: u64,
}

impl Run {
    /// Returns the expected length of the current run.
    fn expected(&self) -> u64 {
        self.last.max(self.now)
    }
}

/// Result of moving available bytes.
enum Passed {
    /// More bytes may be available.
    Some(usize),
    /// No more bytes are available now.
    Last(usize),
    /// The sender has finished.
    End,
}

/// Pipe that the worker gets back when it is dropped. A tunnel is idle most of the time, so it
/// holds a pipe only while there are bytes in it.
struct Held<'a> {
    pipes: &'a RefCell<Pipes>,
    pipe: Option<Pipe>,
}

impl Held<'_> {
    /// Takes a pipe; `None` if all are in use.
    fn pipe(&mut self) -> Option<&mut Pipe> {
        self.pipe = self.pipes.borrow_mut().try_take();
        self.pipe.as_mut()
    }

    fn give_back(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.pipes.borrow_mut().give_back(pipe);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Splices available bytes.
async fn splice(pipe: &mut Pipe, from: &TcpStream, to: &TcpStream, moved: &Cell<u64>) -> io::Result<Passed> {
    let read = match from.try_io(Interest::READABLE, || Ok(pipe.fill(from, u64::MAX)?)) {
        Ok(0) => return Ok(Passed::End),
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Passed::Last(0)),
        Err(error) => return Err(error),
    };
    while pipe.held() > 0 {
        let sent = to.async_io(Interest::WRITABLE, || Ok(pipe.empty(to, None)?)).await?;
        moved.set(moved.get() + sent as u64);
    }
    Ok(Passed::Some(read))
}

/// Copies some available bytes.
async fn copy(from: &TcpStream, to: &TcpStream, moved: &Cell<u64>) -> io::Result<Passed> {
    let mut buffer = Buffer::default();
    let read = poll_fn(|context| poll_fill(from, context, &mut buffer, BUFFER_BYTES)).await?;
    let mut left = buffer.filled();
    while !left.is_empty() {
        let sent = to.async_io(Interest::WRITABLE, || Ok(send(to, left, SendFlags::NOSIGNAL)?)).await?;
        left = &left[sent..];
        moved.set(moved.get() + sent as u64);
    }
    // A short read has emptied the socket.
    Ok(match read {
        0 => Passed::End,
        BUFFER_BYTES => Passed::Some(read),
        _ => Passed::Last(read),
    })
}

/// One direction of a copied tunnel.
struct Way<'a> {
    buffer: Buffer,
    moved: &'a Moved,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Moving,
    /// The sender has finished; end the receiver's direction.
    Ending,
    Over,
}

impl<'a> Way<'a> {
    fn new(moved: &'a Moved) -> Self {
        Self { buffer: Buffer::default(), moved, stage: Stage::Moving }
    }

    fn poll(
        &mut self,
        from: &mut Carrier,
        to: &mut Carrier,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.stage {
                Stage::Moving if !self.buffer.is_empty() => {
                    let parts = [IoSlice::new(self.buffer.filled())];
                    let sent = ready!(to.poll_write(context, &parts))?;
                    self.buffer.consume(sent);
                    self.moved.copied.set(self.moved.copied.get() + sent as u64);
                }
                Stage::Moving => {
                    while ready!(to.poll_send(context))? {}
                    if ready!(from.poll_read(context, &mut self.buffer, BUFFER_BYTES))? == 0 {
                        self.stage = Stage::Ending;
                    }
                }
                Stage::Ending => {
                    // The other direction may continue.
                    let _ = ready!(to.poll_finish(context));
                    self.stage = Stage::Over;
                }
                Stage::Over => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use lab::wait_until;

    use crate::{Clock, Config, Proxy};

    /// Time limit of each wait.
    const PATIENCE: Duration = Duration::from_secs(20);
    /// Concurrent tunnels.
    const TUNNELS: u64 = 6;
    /// Descriptors of a tunnel, and of a pipe.
    const EACH: u64 = 2;

    fn start(origin: SocketAddr, more: &str) -> Proxy {
        let toml = format!("workers = 2\naccess.reach = [\"127.0.0.0/8\"]\n{more}");
        let mut config = Config::from_toml(&toml).unwrap();
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        config.access.connect_ports = vec![origin.port()];
        Proxy::start(&config, Clock::system()).unwrap()
    }

    /// Opens a tunnel; its client's socket does not block.
    fn open(proxy: &Proxy, origin: SocketAddr) -> TcpStream {
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        write!(client, "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").unwrap();
        let mut head = [0; crate::serve::bypass::ESTABLISHED.len()];
        client.read_exact(&mut head).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    #[test]
    fn short_messages_are_copied_and_bytes_after_a_long_run_are_spliced() {
        for (more, spliced) in [("", 0), ("transfer.splice_from = 100", 200)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let origin = listener.local_addr().unwrap();
            let proxy = start(origin, more);
            let mut client = open(&proxy, origin);
            client.set_nonblocking(false).unwrap();
            let (mut held, _) = listener.accept().unwrap();
            for len in [100, 200] {
                held.write_all(&vec![7; len]).unwrap();
                client.read_exact(&mut vec![0; len]).unwrap();
            }
            drop((client, held));
            assert!(wait_until(PATIENCE, || proxy.report().open == 0));
            assert_eq!(proxy.report().spliced, spliced, "{more}");
        }
    }

    #[test]
    fn tunnels_and_their_pipes_share_the_descriptors_of_all_workers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = listener.local_addr().unwrap();
        // Else a tunnel whose last bytes came slowly copies them, without a pipe.
        let proxy = start(origin, "transfer.splice_from = 1");
        let budget = proxy.shared.descriptors.clone();
        let used = || budget.used();
        let clients: Vec<_> = (0..TUNNELS).map(|_| open(&proxy, origin)).collect();
        let held: Vec<_> = clients.iter().map(|_| listener.accept().unwrap()).collect();
        assert_eq!(used(), TUNNELS * EACH);
        // The other end does not read, so that each tunnel holds a pipe in the end.
        let bytes = vec![0; 65_536];
        let fill = || clients.iter().for_each(|mut client| while client.write(&bytes).is_ok() {});
        let is_full = || {
            fill();
            used() == TUNNELS * 2 * EACH
        };
        assert!(wait_until(PATIENCE, is_full), "{}", used());
        drop((clients, held));
        assert!(wait_until(PATIENCE, || proxy.report().open == 0));
        // Idle pipes end with their workers.
        drop(proxy);
        assert_eq!(used(), 0);
    }
}
