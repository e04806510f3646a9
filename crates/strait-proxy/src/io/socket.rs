//! A connection, and every way in which bytes get in and out of it.
//!
//! All of them try first and wait only if there is nothing to do; all that wait give up in time.
//! Bytes that go out are counted by the way they went. Where TLS is encrypted in user space nothing
//! can stay in the kernel: [`Socket::can_splice`] says so beforehand, and files are read and sent.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use strait_transfer::pipe::Pipe;
use strait_transfer::tcp::acknowledged;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::deadline::{Deadline, TimedOut};
use crate::io::pace::{Pace, Uptake};
use crate::io::stream::Stream;
use crate::io::tcp::poll_io;
use crate::io::tls::session::Session;

/// Bytes that one sendfile(2) is asked for: it ends where the socket is full anyway, and others
/// want their turn.
const SENDFILE_MAX: u64 = 1 << 20;
/// Where sendfile is not wanted: bytes that are read and sent at a time.
const COPY_BYTES: usize = 64 << 10;

/// Least time between two looks at what a slow client has taken.
const LOOK: Duration = Duration::from_millis(100);

/// How long, and how often, what comes on a connection that ends is read and thrown away.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_READS: usize = 64;

/// The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketError {
    /// The peer has closed or reset it.
    Closed,
    /// The peer has done nothing for too long.
    TimedOut,
    /// The peer has said something in place of taking more, and that was listened for.
    Answered,
}

impl From<io::Error> for SocketError {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

impl From<TimedOut> for SocketError {
    fn from(TimedOut: TimedOut) -> Self {
        Self::TimedOut
    }
}

/// Gives whoever else has something to read their turn. What is sent one behind the other then
/// costs less than each by itself: a receiver that sleeps is woken by the first.
pub(crate) async fn after_others_have_read() {
    tokio::task::yield_now().await;
}

/// Bytes that went into a socket, by the way they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Copied from memory.
    pub(crate) sent: u64,
    /// Of those, what was copied to be encrypted: TLS without the kernel's help.
    pub(crate) encrypted: u64,
    /// From a file's pages.
    pub(crate) sendfile: u64,
    /// From another socket, through a pipe.
    pub(crate) spliced: u64,
    /// Of all bytes, those beside bodies: heads of responses, chunk framing, trailers.
    pub(crate) overhead: u64,
}

impl Moved {
    fn copied(&mut self, bytes: u64, is_encrypted_here: bool) {
        self.sent += bytes;
        if is_encrypted_here {
            self.encrypted += bytes;
        }
    }

    /// What has moved since it was so much.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            encrypted: self.encrypted - before.encrypted,
            sendfile: self.sendfile - before.sendfile,
            spliced: self.spliced - before.spliced,
            overhead: self.overhead - before.overhead,
        }
    }
}

/// Awaits `reading`, for `limit` at most and no longer than the pace of the body allows.
async fn paced(
    deadline: &mut Deadline,
    pace: &mut Option<(Pace, Instant)>,
    limit: Duration,
    reading: impl Future<Output = io::Result<usize>>,
) -> Result<usize, SocketError> {
    let Some((pace, begun)) = pace else { return Ok(deadline.within(limit, reading).await??) };
    let before = Instant::now();
    let limit = limit.min(pace.left(before - *begun));
    let read = deadline.within(limit, reading).await??;
    pace.note(read as u64, before.elapsed());
    Ok(read)
}

/// A TCP connection, with TLS or without.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    deadline: Deadline,
    /// How long the peer may do nothing.
    pub(crate) patience: Duration,
    /// Whether nothing more is sent once the peer says something: it has answered before it had
    /// all.
    pub(crate) listens: bool,
    /// Least pace of the body that is being read, and when that began.
    pub(crate) pace: Option<(Pace, Instant)>,
    /// Of a client: least pace at which it takes responses.
    pub(crate) uptake: Option<Uptake>,
    pub(crate) moved: Moved,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream, patience: Duration) -> Self {
        // A socket that is not TCP has nothing to delay.
        let _ = tcp.set_nodelay(true);
        Self {
            stream: Stream::new(tcp),
            deadline: Deadline::default(),
            patience,
            listens: false,
            pace: None,
            uptake: None,
            moved: Moved::default(),
        }
    }

    /// Begins with TLS, and shakes hands.
    pub(crate) async fn secure(&mut self, session: Session, limit: Duration) -> io::Result<()> {
        self.stream.secure(session);
        let Self { stream, deadline, .. } = self;
        let shaken = deadline.within(limit, poll_fn(|context| stream.poll_handshake(context))).await;
        shaken.unwrap_or_else(|TimedOut| Err(io::ErrorKind::TimedOut.into()))?;
        stream.hand_over()
    }

    /// Whether there is TLS on it.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Whether bytes can get in and out of it without being copied (splice(2), sendfile(2)).
    pub(crate) fn can_splice(&self) -> bool {
        !self.stream.is_encrypted_here()
    }

    /// Reads what there is, `most` bytes at most, into an empty buffer; 0 at the end.
    pub(crate) async fn read_some(&mut self, buffer: &mut Buffer, most: u64) -> Result<usize, SocketError> {
        let Self { stream, deadline, patience, pace, .. } = self;
        let most = most.min(BUFFER_BYTES as u64) as usize;
        let read = poll_fn(|context| stream.poll_read(context, buffer, most));
        paced(deadline, pace, *patience, read).await
    }

    /// Reads what there is into the buffer, which has room; 0 at the end. Memory is taken when
    /// there is something to read.
    pub(crate) async fn read(&mut self, buffer: &mut Buffer) -> Result<usize, SocketError> {
        self.read_within(self.patience, buffer).await
    }

    /// The same with a patience of its own.
    pub(crate) async fn read_within(
        &mut self,
        limit: Duration,
        buffer: &mut Buffer,
    ) -> Result<usize, SocketError> {
        let Self { stream, deadline, pace, .. } = self;
        let read = poll_fn(|context| stream.poll_read(context, buffer, BUFFER_BYTES));
        paced(deadline, pace, limit, read).await
    }

    /// Sends one after the other.
    pub(crate) async fn write_all(&mut self, first: &[u8], second: &[u8]) -> Result<(), SocketError> {
        self.write(first, second).await?;
        if !self.stream.is_encrypted_here() {
            return Ok(());
        }
        let listens = self.listens;
        loop {
            let send = |stream: &mut Stream, context: &mut Context<'_>| match stream.poll_send(context) {
                Poll::Pending if listens => stream.poll_readable(context).map(|_| Err(SocketError::Answered)),
                sent => sent.map_err(SocketError::from),
            };
            if !self.taken(send).await? {
                return Ok(());
            }
        }
    }

    /// Sends `bytes` only if the socket takes them at once; returns false if it took none. After a
    /// part of them nothing else may follow: the connection is shut.
    pub(crate) async fn write_at_once(&mut self, bytes: &[u8]) -> Result<bool, SocketError> {
        let stream = &mut self.stream;
        let parts = [IoSlice::new(bytes), IoSlice::new(&[])];
        let taken = poll_fn(|context| {
            let taken = stream.poll_write(context, &parts);
            // Bytes that TLS holds back go out before what follows.
            while let Poll::Ready(Ok(true)) = stream.poll_send(context) {}
            Poll::Ready(taken)
        });
        let Poll::Ready(written) = taken.await else { return Ok(false) };
        let written = written?;
        self.count_copied(written as u64);
        if written < bytes.len() {
            let _ = rustix::net::shutdown(&self.stream.tcp, rustix::net::Shutdown::Both);
            return Err(SocketError::Closed);
        }
        Ok(true)
    }

    async fn write(&mut self, first: &[u8], second: &[u8]) -> Result<(), SocketError> {
        let listens = self.listens;
        let (mut first, mut second) = (first, second);
        while !(first.is_empty() && second.is_empty()) {
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            let write = |stream: &mut Stream, context: &mut Context<'_>| {
                if listens && stream.poll_readable(context).is_ready() {
                    return Poll::Ready(Err(SocketError::Answered));
                }
                stream.poll_write(context, &parts).map_err(SocketError::from)
            };
            let written = self.taken(write).await?;
            if written == 0 {
                return Err(SocketError::Closed);
            }
            self.count_copied(written as u64);
            let of_first = written.min(first.len());
            first = &first[of_first..];
            second = &second[written - of_first..];
        }
        Ok(())
    }

    /// Sends bytes that are not worth a packet of their own, for more follow at once (MSG_MORE,
    /// send(2)).
    pub(crate) async fn write_all_and_more(&mut self, mut bytes: &[u8]) -> Result<(), SocketError> {
        if self.stream.is_encrypted_here() {
            return self.write(bytes, &[]).await;
        }
        while !bytes.is_empty() {
            let flags = SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let written = self.sending(|tcp| rustix::net::send(tcp, bytes, flags)).await?;
            self.moved.sent += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Sends `len` bytes of a file at `offset`.
    pub(crate) async fn send_file(
        &mut self,
        file: impl AsFd,
        offset: u64,
        len: u64,
    ) -> Result<(), SocketError> {
        if !self.can_splice() {
            return self.copy_file(file, offset, len).await;
        }
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let asked = (end - at).min(SENDFILE_MAX) as usize;
            let sent = self.sending(|tcp| rustix::fs::sendfile(tcp, &file, Some(&mut at), asked)).await?;
            if sent == 0 {
                // The file is shorter than it was.
                return Err(SocketError::Closed);
            }
            self.moved.sendfile += sent as u64;
        }
        Ok(())
    }

    /// The same by reading and sending.
    pub(crate) async fn copy_file(
        &mut self,
        file: impl AsFd,
        offset: u64,
        len: u64,
    ) -> Result<(), SocketError> {
        let (mut at, end) = (offset, offset + len);
        let mut bytes = vec![0; COPY_BYTES.min(len as usize)];
        while at < end {
            let room = (end - at).min(bytes.len() as u64) as usize;
            let read = rustix::io::pread(&file, &mut bytes[..room], at).map_err(io::Error::from)?;
            if read == 0 {
                // The file is shorter than it was.
                return Err(SocketError::Closed);
            }
            self.write_all(&bytes[..read], &[]).await?;
            at += read as u64;
        }
        Ok(())
    }

    /// Moves up to `most` bytes of what was received into an empty pipe; 0 at the end. For those
    /// that can.
    pub(crate) async fn splice_to(&mut self, pipe: &mut Pipe, most: u64) -> Result<usize, SocketError> {
        let Self { stream, deadline, patience, pace, .. } = self;
        let moved = poll_fn(|context| stream.poll_splice(context, pipe, most));
        paced(deadline, pace, *patience, moved).await
    }

    /// Moves up to `most` bytes more behind what a pipe holds, if they are here.
    pub(crate) fn splice_more(&self, pipe: &mut Pipe, most: u64) -> Result<usize, SocketError> {
        Ok(self.stream.splice_more(pipe, most)?)
    }

    /// Sends what a pipe holds. For those that can.
    pub(crate) async fn splice_from(&mut self, pipe: &mut Pipe) -> Result<(), SocketError> {
        debug_assert!(self.can_splice());
        while pipe.held() > 0 {
            let sent = self.sending(|tcp| pipe.empty(tcp, None)).await?;
            self.moved.spliced += sent as u64;
        }
        Ok(())
    }

    /// Waits until there is something to read.
    pub(crate) async fn readable(&mut self, limit: Duration) -> Result<(), SocketError> {
        let Self { stream, deadline, .. } = self;
        Ok(deadline.within(limit, poll_fn(|context| stream.poll_readable(context))).await??)
    }

    /// Whether there is something to read, be it the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_readable(context).map(drop)
    }

    /// Whether the peer, which has nothing to say, is still there.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }

    /// Ends the connection so that the peer gets what was sent to it: bytes that nobody reads would
    /// make the kernel reset it (RFC 9112, section 9.6).
    pub(crate) async fn close(&mut self, buffer: &mut Buffer) -> Result<(), SocketError> {
        let Self { stream, deadline, patience, .. } = self;
        deadline.within(*patience, poll_fn(|context| stream.poll_finish(context))).await??;
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
        let _ = self.stream.tcp.set_zero_linger();
    }

    /// Counts bytes about to be sent that belong to no body.
    pub(crate) fn add_overhead(&mut self, bytes: usize) {
        self.moved.overhead += bytes as u64;
    }

    /// Counts bytes that were sent past it.
    pub(crate) fn count_copied(&mut self, bytes: u64) {
        self.moved.copied(bytes, self.stream.is_encrypted_here());
    }

    /// The connection as it is.
    pub(crate) fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// What `call`, which sends, returns once the socket lets it.
    async fn sending(
        &mut self,
        mut call: impl FnMut(&TcpStream) -> Result<usize, Errno>,
    ) -> Result<usize, SocketError> {
        let listens = self.listens;
        let send = |stream: &mut Stream, context: &mut Context<'_>| {
            if listens && stream.poll_readable(context).is_ready() {
                return Poll::Ready(Err(SocketError::Answered));
            }
            let tcp = &stream.tcp;
            poll_io(tcp, context, Interest::WRITABLE, || Ok(call(tcp)?)).map_err(SocketError::from)
        };
        self.taken(send).await
    }

    /// Polls `send` until the peer lets it, for its patience at most and, of a client, no longer
    /// than its pace allows. A client that is too slow is reset: bytes that wait for it would
    /// hold the kernel's memory long after the connection is closed.
    async fn taken<T>(
        &mut self,
        mut send: impl FnMut(&mut Stream, &mut Context<'_>) -> Poll<Result<T, SocketError>>,
    ) -> Result<T, SocketError> {
        let Self { stream, deadline, patience, uptake, .. } = self;
        let Some(uptake) = uptake else {
            return deadline.within(*patience, poll_fn(|context| send(stream, context))).await?;
        };
        let mut patience = *patience;
        loop {
            let limit = uptake.left().max(LOOK).min(patience);
            let (done, waited) = deadline.timed(limit, poll_fn(|context| send(stream, context))).await;
            uptake.wait(waited);
            if let Ok(done) = done {
                return done;
            }
            patience = patience.saturating_sub(waited);
            let keeps_pace = acknowledged(&stream.tcp).is_some_and(|bytes| uptake.keeps_pace(bytes));
            if patience.is_zero() || !keeps_pace {
                self.reset();
                return Err(SocketError::TimedOut);
            }
        }
    }
}
