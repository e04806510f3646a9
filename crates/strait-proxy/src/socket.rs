//! A connection, and every way in which bytes get in and out of it.
//!
//! All of them try first and wait only if there is nothing to do; all that wait give up in time. Bytes that go out are counted by the
//! way they went.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SendFlags;
use strait_transfer::pipe::Pipe;
use tokio::io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::account::Told;
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::deadline::{Deadline, TimedOut};

/// Bytes that one sendfile(2) is asked for: it ends where the socket is full anyway, and others want their turn.
const SENDFILE_MAX: u64 = 1 << 20;
/// Where sendfile is not wanted: bytes that are read and sent at a time.
const COPY_BYTES: usize = 64 << 10;

/// How long, and how often, what comes on a connection that ends is read and thrown away.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_READS: usize = 64;

/// The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The peer has closed or reset it.
    Closed,
    /// The peer has done nothing for too long.
    TimedOut,
}

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

impl From<TimedOut> for Gone {
    fn from(TimedOut: TimedOut) -> Self {
        Self::TimedOut
    }
}

/// Bytes that went into a socket, by the way they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Copied from memory.
    pub(crate) sent: u64,
    /// From a file's pages.
    pub(crate) sendfile: u64,
    /// From another socket, through a pipe.
    pub(crate) spliced: u64,
}

impl Moved {
    /// What has moved since it was so much.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            sendfile: self.sendfile - before.sendfile,
            spliced: self.spliced - before.spliced,
        }
    }
}

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    deadline: Deadline,
    /// How long the peer may do nothing.
    pub(crate) patience: Duration,
    pub(crate) moved: Moved,
    /// Of a client: what it was told last.
    pub(crate) told: Told,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream, patience: Duration) -> Self {
        // A socket that is not TCP has nothing to delay.
        let _ = tcp.set_nodelay(true);
        Self { tcp, deadline: Deadline::default(), patience, moved: Moved::default(), told: Told::default() }
    }

    /// Reads what there is, `most` bytes at most, into an empty buffer; 0 at the end.
    pub(crate) async fn read_some(&mut self, buffer: &mut Buffer, most: u64) -> Result<usize, Gone> {
        let most = most.min(BUFFER_BYTES as u64) as usize;
        let read =
            self.when(Interest::READABLE, |tcp| rustix::io::read(tcp, &mut buffer.room()[..most])).await?;
        buffer.grew(read);
        Ok(read)
    }

    /// Reads what there is into the buffer, which has room; 0 at the end. Memory is taken when there is something to read.
    pub(crate) async fn read(&mut self, buffer: &mut Buffer) -> Result<usize, Gone> {
        self.read_within(self.patience, buffer).await
    }

    /// The same with a patience of its own.
    pub(crate) async fn read_within(&mut self, limit: Duration, buffer: &mut Buffer) -> Result<usize, Gone> {
        let Self { tcp, deadline, .. } = self;
        let read = poll_fn(|context| {
            std::task::ready!(tcp.poll_read_ready(context))?;
            let mut room = ReadBuf::new(buffer.room());
            let done = Pin::new(&mut *tcp).poll_read(context, &mut room);
            let read = room.filled().len();
            buffer.grew(read);
            done.map_ok(|()| read)
        });
        Ok(deadline.within(limit, read).await??)
    }

    /// Sends one after the other.
    pub(crate) async fn write_all(&mut self, first: &[u8], second: &[u8]) -> Result<(), Gone> {
        let Self { tcp, deadline, patience, moved, .. } = self;
        let (mut first, mut second) = (first, second);
        while !(first.is_empty() && second.is_empty()) {
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            let write = poll_fn(|context| Pin::new(&mut *tcp).poll_write_vectored(context, &parts));
            let written = deadline.within(*patience, write).await??;
            if written == 0 {
                return Err(Gone::Closed);
            }
            moved.sent += written as u64;
            let of_first = written.min(first.len());
            first = &first[of_first..];
            second = &second[written - of_first..];
        }
        Ok(())
    }

    /// Sends bytes that are not worth a packet of their own, for more follow at once (MSG_MORE, send(2)).
    pub(crate) async fn write_all_and_more(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        while !bytes.is_empty() {
            let flags = SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let written = self.when(Interest::WRITABLE, |tcp| rustix::net::send(tcp, bytes, flags)).await?;
            self.moved.sent += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Sends `len` bytes of a file at `offset`.
    pub(crate) async fn send_file(&mut self, file: impl AsFd, offset: u64, len: u64) -> Result<(), Gone> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let asked = (end - at).min(SENDFILE_MAX) as usize;
            let sent = self
                .when(Interest::WRITABLE, |tcp| rustix::fs::sendfile(tcp, &file, Some(&mut at), asked))
                .await?;
            if sent == 0 {
                // The file is shorter than it was.
                return Err(Gone::Closed);
            }
            self.moved.sendfile += sent as u64;
        }
        Ok(())
    }

    /// The same by reading and sending.
    pub(crate) async fn copy_file(&mut self, file: impl AsFd, offset: u64, len: u64) -> Result<(), Gone> {
        let (mut at, end) = (offset, offset + len);
        let mut bytes = vec![0; COPY_BYTES.min(len as usize)];
        while at < end {
            let room = (end - at).min(bytes.len() as u64) as usize;
            let read = rustix::io::pread(&file, &mut bytes[..room], at).map_err(io::Error::from)?;
            if read == 0 {
                // The file is shorter than it was.
                return Err(Gone::Closed);
            }
            self.write_all(&bytes[..read], &[]).await?;
            at += read as u64;
        }
        Ok(())
    }

    /// Moves up to `most` bytes of what was received into an empty pipe; 0 at the end.
    pub(crate) async fn splice_to(&mut self, pipe: &mut Pipe, most: u64) -> Result<usize, Gone> {
        self.when(Interest::READABLE, |tcp| pipe.fill(tcp, most)).await
    }

    /// Sends what a pipe holds.
    pub(crate) async fn splice_from(&mut self, pipe: &mut Pipe) -> Result<(), Gone> {
        while pipe.held() > 0 {
            let sent = self.when(Interest::WRITABLE, |tcp| pipe.empty(tcp, None)).await?;
            self.moved.spliced += sent as u64;
        }
        Ok(())
    }

    /// Waits until there is something to read.
    pub(crate) async fn readable(&mut self, limit: Duration) -> Result<(), Gone> {
        let Self { tcp, deadline, .. } = self;
        Ok(deadline.within(limit, poll_fn(|context| tcp.poll_read_ready(context))).await??)
    }

    /// Whether there is something to read, be it the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.tcp.poll_read_ready(context).map(drop)
    }

    /// Whether the peer, which has nothing to say, is still there.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.tcp.poll_read_ready(&mut context).is_pending()
    }

    /// Ends the connection so that the peer gets what was sent to it: bytes that nobody reads would make the kernel reset it (RFC 9112,
    /// section 9.6).
    pub(crate) async fn close(&mut self, buffer: &mut Buffer) -> Result<(), Gone> {
        self.finish();
        for _ in 0..LINGER_READS {
            buffer.clear();
            if self.read_within(LINGER, buffer).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Has the connection end so that the peer sees that something is missing (RST, tcp(7)).
    pub(crate) fn reset(&self) {
        // If it cannot be had, a missing end of the body tells it too.
        let _ = self.tcp.set_zero_linger();
    }

    /// Says that nothing more will be sent.
    pub(crate) fn finish(&self) {
        let _ = rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write);
    }

    /// The socket as it is.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// What `call` returns once the socket lets it.
    async fn when(
        &mut self,
        interest: Interest,
        mut call: impl FnMut(&TcpStream) -> Result<usize, Errno>,
    ) -> Result<usize, Gone> {
        let Self { tcp, deadline, patience, .. } = self;
        Ok(deadline.within(*patience, tcp.async_io(interest, || Ok(call(tcp)?))).await??)
    }
}
