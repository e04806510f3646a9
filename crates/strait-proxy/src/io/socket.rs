//! Connection with all ways to move bytes in and out.
//!
//! Every call tries first and waits only if the kernel is not ready; every wait has a limit. Sent
//! bytes are counted by mechanism. With TLS in user space no bytes stay in the kernel:
//! [`Socket::can_splice`] returns false, and files are read and sent.

mod streams;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use strait_transfer::pipe::Pipe;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::carrier::Carrier;
use crate::io::copy_buffer::CopyBuffer;
use crate::io::deadline::{Deadline, TimedOut};
use crate::io::http2::origin_stream::OriginStream;
use crate::io::http2::stream::Http2Stream;
use crate::io::http2::translate::EncodedLines;
use crate::io::low_water::LowWater;
pub(crate) use crate::io::moved::Moved;
use crate::io::pace::{Pace, Uptake};
use crate::io::piece::Piece;
use crate::io::stream::Stream;
use crate::io::tcp::poll_io;
use crate::io::tls::session::Session;
use crate::io::turn;

/// Maximum of bytes per sendfile(2), so that other connections of the thread are not delayed.
const SENDFILE_MAX: u64 = 1 << 20;

/// Minimum time between two checks of the bytes that a slow client has acknowledged.
const UPTAKE_CHECK_MIN: Duration = Duration::from_millis(100);

/// Time and number of reads that discard bytes on a closing connection.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_READS: usize = 64;

/// Error that makes a connection unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketError {
    /// The peer has closed or reset it.
    Closed,
    /// The peer was idle for too long.
    TimedOut,
    /// The peer sent bytes while a request body was being sent to it
    /// ([`Socket::stops_on_response`]).
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

/// Lets other tasks read first. Responses sent in a row cost less: only the first one wakes a
/// sleeping receiver.
pub(crate) async fn after_others_have_read() {
    tokio::task::yield_now().await;
}

/// Awaits `reading` for at most `limit` and the time that the body's pace allows.
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

/// Returns the result of a read. Removes the low-water mark while the read waits for too long: then
/// the kernel reports the bytes that are there.
fn or_late<T>(
    read: Poll<T>,
    low_water: &mut LowWater,
    stream: &Carrier,
    context: &mut Context<'_>,
) -> Poll<T> {
    if read.is_pending() && low_water.poll_late(context) {
        let _ = stream.set_low_water(1);
    }
    read
}

/// TCP connection, with or without TLS, or a stream of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Carrier,
    deadline: Deadline,
    /// Time that the peer may be idle.
    pub(crate) idle_timeout: Duration,
    /// True if sending stops once the peer sends bytes: an origin may respond before it has
    /// received the whole request.
    pub(crate) stops_on_response: bool,
    /// Minimum pace of the body that is being read, and the start of the body.
    pub(crate) pace: Option<(Pace, Instant)>,
    /// Minimum pace at which a client reads responses.
    pub(crate) uptake: Option<Uptake>,
    low_water: LowWater,
    pub(crate) moved: Moved,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream, idle_timeout: Duration) -> Self {
        // An error means that the socket is not TCP: nothing is delayed there.
        let _ = tcp.set_nodelay(true);
        Self::over(Carrier::Connection(Stream::new(tcp)), idle_timeout)
    }

    /// Socket for one stream of an HTTP/2 connection.
    pub(crate) fn of_http2(stream: Http2Stream, idle_timeout: Duration) -> Self {
        Self::over(Carrier::Http2(Box::new(stream)), idle_timeout)
    }

    /// Socket for a request to an origin by HTTP/2.
    pub(crate) fn of_origin(stream: OriginStream, idle_timeout: Duration) -> Self {
        Self::over(Carrier::Origin(Box::new(stream)), idle_timeout)
    }

    fn over(stream: Carrier, idle_timeout: Duration) -> Self {
        Self {
            stream,
            deadline: Deadline::default(),
            idle_timeout,
            stops_on_response: false,
            pace: None,
            uptake: None,
            low_water: LowWater::default(),
            moved: Moved::default(),
        }
    }

    /// Performs the TLS handshake. Returns true if the peer has chosen HTTP/2.
    pub(crate) async fn secure(&mut self, session: Session, limit: Duration) -> io::Result<bool> {
        let Self { stream, deadline, .. } = self;
        let Some(stream) = stream.connection() else { return Err(io::ErrorKind::Unsupported.into()) };
        stream.secure(session);
        let shaken = deadline.within(limit, poll_fn(|context| stream.poll_handshake(context))).await;
        shaken.unwrap_or_else(|TimedOut| Err(io::ErrorKind::TimedOut.into()))?;
        let is_http2 = stream.has_chosen_http2();
        stream.hand_over().map(|()| is_http2)
    }

    /// Waits for the first byte and leaves it unread. Returns true if a request of HTTP can begin
    /// with it; TLS begins with another one (RFC 8446, section 5.1).
    ///
    /// # Errors
    /// `TimedOut` after `limit`, and the error of the connection.
    pub(crate) async fn begins_http(&mut self, limit: Duration) -> io::Result<bool> {
        let Self { stream, deadline, .. } = self;
        let Some(tcp) = stream.tcp() else { return Ok(false) };
        let mut first = [0];
        let peeked = deadline.within(limit, tcp.peek(&mut first)).await;
        let read = peeked.unwrap_or_else(|TimedOut| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(read == 1 && first[0].is_ascii_uppercase())
    }

    /// Returns the connection, for another protocol.
    pub(crate) fn into_connection(self) -> Option<Stream> {
        match self.stream {
            Carrier::Connection(stream) => Some(stream),
            Carrier::Http2(_) | Carrier::Origin(_) => None,
        }
    }

    /// Returns true if the connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Returns the version of TLS, if the connection uses it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        self.stream.tls_version()
    }

    /// Returns true if bytes can move in and out without a copy (splice(2), sendfile(2)).
    pub(crate) fn can_splice(&self) -> bool {
        self.stream.can_splice()
    }

    /// Reads available bytes, at most `most`, into an empty buffer; 0 at the end.
    pub(crate) async fn read_some(&mut self, buffer: &mut Buffer, most: u64) -> Result<usize, SocketError> {
        self.remove_low_water();
        let Self { stream, deadline, idle_timeout, pace, .. } = self;
        let most = most.min(BUFFER_BYTES as u64) as usize;
        let read = poll_fn(|context| stream.poll_read(context, buffer, most));
        paced(deadline, pace, *idle_timeout, read).await
    }

    /// Reads available bytes into a buffer with free space; 0 at the end. The buffer takes memory
    /// only once there are bytes to read.
    pub(crate) async fn read(&mut self, buffer: &mut Buffer) -> Result<usize, SocketError> {
        self.read_within(self.idle_timeout, buffer).await
    }

    /// Like [`Socket::read`], but does not wait; 0 at the end, or if there are no bytes now.
    pub(crate) async fn read_at_once(&mut self, buffer: &mut Buffer) -> Result<usize, SocketError> {
        self.remove_low_water();
        let stream = &mut self.stream;
        let read = poll_fn(|context| Poll::Ready(stream.poll_read(context, buffer, BUFFER_BYTES)));
        match read.await {
            Poll::Ready(read) => Ok(read?),
            Poll::Pending => Ok(0),
        }
    }

    /// Like [`Socket::read`], with another time limit.
    pub(crate) async fn read_within(
        &mut self,
        limit: Duration,
        buffer: &mut Buffer,
    ) -> Result<usize, SocketError> {
        self.remove_low_water();
        let Self { stream, deadline, pace, .. } = self;
        let read = poll_fn(|context| stream.poll_read(context, buffer, BUFFER_BYTES));
        paced(deadline, pace, limit, read).await
    }

    /// Sends both slices, in one system call if possible.
    pub(crate) async fn write_all(&mut self, first: &[u8], second: &[u8]) -> Result<(), SocketError> {
        self.write(first, second).await?;
        if !self.stream.is_encrypted_here() {
            return Ok(());
        }
        let stops_on_response = self.stops_on_response;
        loop {
            let send = |stream: &mut Carrier, context: &mut Context<'_>| match stream.poll_send(context) {
                Poll::Pending if stops_on_response => {
                    stream.poll_readable(context).map(|_| Err(SocketError::Answered))
                }
                sent => sent.map_err(SocketError::from),
            };
            if !self.send_paced(send).await? {
                return Ok(());
            }
        }
    }

    /// Sends the head of a response and its body, in one system call if possible. The head begins
    /// with `lines`, if they are given.
    pub(crate) async fn respond(
        &mut self,
        head: &[u8],
        lines: Option<&EncodedLines>,
        body: &[u8],
    ) -> Result<(), SocketError> {
        if self.http2_id().is_none() {
            return self.write_all(head, body).await;
        }
        let respond = |stream: &mut Carrier, context: &mut Context<'_>| match stream {
            Carrier::Http2(stream) => {
                stream.poll_respond(context, head, lines, body).map_err(SocketError::from)
            }
            Carrier::Connection(_) | Carrier::Origin(_) => Poll::Ready(Ok(0)),
        };
        let sent = self.send_paced(respond).await?;
        self.count_copied(0);
        let of_head = sent.min(head.len());
        self.write(&head[of_head..], &body[sent - of_head..]).await
    }

    /// Sends `bytes` only if the socket takes them at once; returns false if it took none. If it
    /// took a part, the connection is shut down, as nothing else may follow.
    pub(crate) async fn write_at_once(&mut self, bytes: &[u8]) -> Result<bool, SocketError> {
        let stream = &mut self.stream;
        let parts = [IoSlice::new(bytes), IoSlice::new(&[])];
        let taken = poll_fn(|context| {
            let taken = stream.poll_write(context, &parts);
            // Bytes that TLS holds back are sent before later ones.
            while let Poll::Ready(Ok(true)) = stream.poll_send(context) {}
            Poll::Ready(taken)
        });
        let Poll::Ready(written) = taken.await else { return Ok(false) };
        let written = written?;
        self.count_copied(written as u64);
        if written < bytes.len() {
            self.stream.shutdown();
            return Err(SocketError::Closed);
        }
        Ok(true)
    }

    async fn write(&mut self, first: &[u8], second: &[u8]) -> Result<(), SocketError> {
        let stops_on_response = self.stops_on_response;
        let (mut first, mut second) = (first, second);
        while !(first.is_empty() && second.is_empty()) {
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            let write = |stream: &mut Carrier, context: &mut Context<'_>| {
                if stops_on_response && stream.poll_readable(context).is_ready() {
                    return Poll::Ready(Err(SocketError::Answered));
                }
                stream.poll_write(context, &parts).map_err(SocketError::from)
            };
            let written = self.send_paced(write).await?;
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

    /// Sends bytes with MSG_MORE (send(2)): more follow at once, so they need no packet of their
    /// own.
    pub(crate) async fn write_all_and_more(&mut self, mut bytes: &[u8]) -> Result<(), SocketError> {
        if !self.stream.can_splice() {
            return self.write(bytes, &[]).await;
        }
        while !bytes.is_empty() {
            let flags = SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let written = self.send_ready(|tcp| rustix::net::send(tcp, bytes, flags)).await?;
            self.moved.sent += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Sends `len` bytes of a file from `offset` on.
    pub(crate) async fn send_file(
        &mut self,
        file: impl AsFd,
        offset: u64,
        len: u64,
    ) -> Result<(), SocketError> {
        let (mut at, end) = (offset, offset + len);
        while at < end && self.stream.http2_for_files().is_some() {
            match self.send_frames(&file, at, end - at).await? {
                0 => break,
                sent => at += sent as u64,
            }
        }
        if at == end {
            return Ok(());
        }
        if !self.can_splice() {
            return self.copy_file(file, at, end - at).await;
        }
        while at < end {
            let len = (end - at).min(SENDFILE_MAX) as usize;
            let sent = self.send_ready(|tcp| rustix::fs::sendfile(tcp, &file, Some(&mut at), len)).await?;
            if sent == 0 {
                // The file was truncated.
                return Err(SocketError::Closed);
            }
            self.moved.sendfile += sent as u64;
            turn::count(sent as u64).await;
        }
        Ok(())
    }

    /// Sends up to `len` bytes of a file in frames of HTTP/2; 0 if that is not possible now.
    async fn send_frames(&mut self, file: &impl AsFd, offset: u64, len: u64) -> Result<usize, SocketError> {
        let send = |stream: &mut Carrier, context: &mut Context<'_>| match stream.http2_for_files() {
            Some(stream) => stream.poll_send_file(context, file, offset, len).map_err(SocketError::from),
            None => Poll::Ready(Ok(0)),
        };
        let sent = self.send_paced(send).await?;
        self.count_copied(0);
        turn::count(sent as u64).await;
        Ok(sent)
    }

    /// Sends `len` bytes of a file from `offset` on by reading them into memory.
    pub(crate) async fn copy_file(
        &mut self,
        file: impl AsFd,
        offset: u64,
        len: u64,
    ) -> Result<(), SocketError> {
        let (mut at, end) = (offset, offset + len);
        let mut bytes = CopyBuffer::take();
        while at < end {
            bytes.read_at(&file, at, end - at)?;
            self.write_all(&bytes, &[]).await?;
            at += bytes.len() as u64;
            turn::count(bytes.len() as u64).await;
        }
        Ok(())
    }

    /// Moves received bytes of the `due` ones of a body into an empty pipe; 0 at the end. Only if
    /// [`Socket::can_splice`].
    pub(crate) async fn splice_to(&mut self, pipe: &mut Pipe, due: u64) -> Result<usize, SocketError> {
        let Self { stream, deadline, idle_timeout, pace, low_water, .. } = self;
        let moved = poll_fn(|context| {
            let moved = stream.poll_splice(context, pipe, due);
            or_late(moved, low_water, stream, context)
        });
        let moved = paced(deadline, pace, *idle_timeout, moved).await?;
        self.note_received(moved, due);
        Ok(moved)
    }

    /// Reads available bytes, at most `most` of the `due` ones of a body, into a piece; an empty
    /// one at the end. Only without TLS.
    pub(crate) async fn receive(&mut self, most: usize, due: u64) -> Result<Piece, SocketError> {
        let Self { stream, deadline, idle_timeout, pace, low_water, .. } = self;
        let mut piece = None;
        let receive = poll_fn(|context| {
            let received = stream.poll_receive(context, most);
            let received = ready!(or_late(received, low_water, stream, context))?;
            Poll::Ready(Ok(piece.insert(received).bytes().len()))
        });
        let received = paced(deadline, pace, *idle_timeout, receive).await?;
        self.note_received(received, due);
        Ok(piece.unwrap_or_else(Piece::take))
    }

    /// Moves received bytes of the `due` ones of a body into a pipe, without waiting.
    pub(crate) fn splice_more(&mut self, pipe: &mut Pipe, due: u64) -> Result<usize, SocketError> {
        let moved = self.stream.splice_more(pipe, due)?;
        if moved > 0 {
            self.note_received(moved, due);
        }
        Ok(moved)
    }

    /// Changes the low-water mark after a read of some of the `due` bytes of a body.
    fn note_received(&mut self, received: usize, due: u64) {
        let left = due.saturating_sub(received as u64);
        if let Some(mark) = self.low_water.note(received as u64, left, tokio::time::Instant::now)
            && !self.stream.set_low_water(mark)
        {
            let _ = self.low_water.remove();
        }
    }

    /// Removes the low-water mark before bytes are read that may be few.
    fn remove_low_water(&mut self) {
        if let Some(mark) = self.low_water.remove() {
            let _ = self.stream.set_low_water(mark);
        }
    }

    /// Sends the contents of a pipe; through memory unless [`Socket::can_splice`].
    pub(crate) async fn splice_from(&mut self, pipe: &mut Pipe) -> Result<(), SocketError> {
        if !self.can_splice() {
            return self.copy_pipe(pipe).await;
        }
        while pipe.held() > 0 {
            let sent = self.send_ready(|tcp| pipe.empty(tcp, None)).await?;
            self.moved.spliced += sent as u64;
            turn::count(sent as u64).await;
        }
        Ok(())
    }

    async fn copy_pipe(&mut self, pipe: &mut Pipe) -> Result<(), SocketError> {
        let mut bytes = CopyBuffer::take();
        while pipe.held() > 0 {
            bytes.read_by(u64::MAX, |room| Ok(pipe.read(room)?))?;
            self.write_all(&bytes, &[]).await?;
        }
        Ok(())
    }

    /// Waits until there are bytes to read, or the end.
    pub(crate) async fn readable(&mut self, limit: Duration) -> Result<(), SocketError> {
        let Self { stream, deadline, .. } = self;
        Ok(deadline.within(limit, poll_fn(|context| stream.poll_readable(context))).await??)
    }

    /// Ready once there are bytes to read, or the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_readable(context).map(drop)
    }

    /// Returns true if the peer has sent nothing and is still connected.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }

    /// Closes the connection after the peer has received all bytes. Unread received bytes would
    /// make the kernel reset it (RFC 9112, section 9.6), so they are read and discarded.
    pub(crate) async fn close(&mut self, buffer: &mut Buffer) -> Result<(), SocketError> {
        let Self { stream, deadline, idle_timeout, .. } = self;
        deadline.within(*idle_timeout, poll_fn(|context| stream.poll_finish(context))).await??;
        for _ in 0..LINGER_READS {
            buffer.clear();
            if self.read_within(LINGER, buffer).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Makes the connection end with a reset (RST, tcp(7)), so that the peer notices a truncated
    /// response.
    pub(crate) fn reset(&self) {
        self.stream.reset();
    }

    /// Counts bytes about to be sent that belong to no body.
    pub(crate) fn add_overhead(&mut self, bytes: usize) {
        // The frames of a stream have other heads.
        if self.stream.http2_id().is_none() {
            self.moved.overhead += bytes as u64;
        }
    }

    /// Counts bytes that were sent on its stream directly.
    pub(crate) fn count_copied(&mut self, bytes: u64) {
        match self.stream.moved() {
            Some(moved) => self.moved = moved,
            None => self.moved.copied(bytes, self.stream.is_encrypted_here()),
        }
    }

    /// Returns the number of its HTTP/2 stream.
    pub(crate) fn http2_id(&self) -> Option<u32> {
        self.stream.http2_id()
    }

    /// Returns the carrier below.
    pub(crate) fn stream(&mut self) -> &mut Carrier {
        &mut self.stream
    }

    /// Returns the result of `call`, which sends, once the socket is ready.
    async fn send_ready(
        &mut self,
        mut call: impl FnMut(&TcpStream) -> Result<usize, Errno>,
    ) -> Result<usize, SocketError> {
        let stops_on_response = self.stops_on_response;
        let send = |stream: &mut Carrier, context: &mut Context<'_>| {
            if stops_on_response && stream.poll_readable(context).is_ready() {
                return Poll::Ready(Err(SocketError::Answered));
            }
            let Some(tcp) = stream.tcp() else { return Poll::Ready(Err(SocketError::Closed)) };
            poll_io(tcp, context, Interest::WRITABLE, || Ok(call(tcp)?)).map_err(SocketError::from)
        };
        self.send_paced(send).await
    }

    /// Polls `send` until it is ready, within the idle timeout and, for a client, its minimum pace.
    /// A client that is too slow is reset: unsent bytes would hold kernel memory long after a
    /// close.
    async fn send_paced<T>(
        &mut self,
        mut send: impl FnMut(&mut Carrier, &mut Context<'_>) -> Poll<Result<T, SocketError>>,
    ) -> Result<T, SocketError> {
        let Self { stream, deadline, idle_timeout, uptake, .. } = self;
        let Some(uptake) = uptake else {
            return deadline.within(*idle_timeout, poll_fn(|context| send(stream, context))).await?;
        };
        let (idle_timeout_max, mut idle_timeout) = (*idle_timeout, *idle_timeout);
        let mut taken_by_others = stream.taken_by_others();
        loop {
            let limit = uptake.left().max(UPTAKE_CHECK_MIN).min(idle_timeout);
            let (done, waited) = deadline.timed(limit, poll_fn(|context| send(stream, context))).await;
            uptake.wait(waited);
            if let Ok(done) = done {
                return done;
            }
            idle_timeout = idle_timeout.saturating_sub(waited);
            // A stream that waits for more urgent ones is not idle.
            let taken_before = std::mem::replace(&mut taken_by_others, stream.taken_by_others());
            if taken_by_others > taken_before {
                idle_timeout = idle_timeout_max;
            }
            let keeps_pace = stream.acknowledged().is_some_and(|bytes| uptake.keeps_pace(bytes));
            if idle_timeout.is_zero() || !keeps_pace {
                self.reset();
                return Err(SocketError::TimedOut);
            }
        }
    }
}

#[cfg(test)]
mod tests;
