//! Body forwarding from one socket to another.
//!
//! The framing is read; data that is long enough stays in the kernel (splice(2)). Data that was
//! read together with the framing is sent from memory. A pipe is emptied before the next read, so
//! that no bytes are left in it when the sender closes.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use strait_http::Malformed;
use strait_http::trailer::Trailers;
use strait_transfer::pipe::Pipe;

use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::framing::{Framed, LAST_CHUNK, Piece};
use crate::io::socket::{Socket, SocketError};
use crate::io::splice::Splicing;

/// Form in which a body is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Data alone.
    Data,
    /// Data in chunks of the proxy's own. Chunk extensions are for the next hop alone (RFC 9112,
    /// section 7.1.1).
    Chunks,
}

/// Line end after the data of a chunk.
pub(crate) const CHUNK_END: &[u8] = b"\r\n";

/// Source of a body.
#[derive(Debug)]
pub(crate) struct BodySource<'a> {
    pub(crate) socket: &'a mut Socket,
    /// Bytes of the body that were read already.
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) framed: &'a mut Framed,
    /// Trailers to forward if the body is forwarded in chunks; `None`: none (RFC 9110, section
    /// 6.5.1).
    pub(crate) trailers: Option<Trailers>,
    /// Copy of the bytes that were forwarded, if they may have to be sent again.
    pub(crate) sent: Option<&'a mut SentBytes>,
}

/// First bytes of a body that were forwarded, as they were received.
#[derive(Debug, Default)]
pub(crate) struct SentBytes {
    bytes: Vec<u8>,
    /// True if more bytes were forwarded than are kept.
    is_cut: bool,
}

impl SentBytes {
    /// Adds bytes.
    fn add(&mut self, bytes: &[u8]) {
        self.is_cut |= self.bytes.len() + bytes.len() > BUFFER_BYTES;
        if self.is_cut {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Takes all bytes; `None` if some were not kept.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        (!self.is_cut).then(|| std::mem::take(&mut self.bytes))
    }
}

/// Error that ended the forwarding of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForwardError {
    /// Reading from the sender failed, or it closed before the end of the body.
    Sender(SocketError),
    /// Sending to the receiver failed, or it responded first.
    Receiver(SocketError),
    /// The sender's framing is invalid.
    Malformed(Malformed),
}

/// Sends `head`, then forwards a body; returns the memory of the head for reuse.
pub(crate) async fn body(
    splicing: Splicing<'_>,
    from: BodySource<'_>,
    to: &mut Socket,
    head: Vec<u8>,
    form: Form,
) -> Result<Vec<u8>, ForwardError> {
    run(Some(splicing), from, to, head, form).await
}

/// Forwards a body by copying it; for sockets that cannot splice.
pub(crate) async fn copied_body(
    from: BodySource<'_>,
    to: &mut Socket,
    form: Form,
) -> Result<Vec<u8>, ForwardError> {
    run(None, from, to, Vec::new(), form).await
}

async fn run(
    splicing: Option<Splicing<'_>>,
    from: BodySource<'_>,
    to: &mut Socket,
    head: Vec<u8>,
    form: Form,
) -> Result<Vec<u8>, ForwardError> {
    let BodySource { socket, buffer, framed, trailers, mut sent } = from;
    let overhead = head.len();
    let mut outgoing = Outgoing { form, bytes: head, overhead, trailers, has_trailers: false };
    loop {
        let (used, is_over) = outgoing.take(framed, buffer.filled(), to).await?;
        if let Some(sent) = &mut sent {
            sent.add(&buffer.filled()[..used]);
        }
        buffer.consume(used);
        if is_over {
            return Ok(outgoing.bytes);
        }
        if used > 0 {
            continue;
        }
        let splicing = splicing.filter(|_| buffer.is_empty() && socket.can_splice() && to.can_splice());
        if let Some(splicing) = splicing.filter(|splicing| splicing.pays(framed.data_ahead())) {
            splice(splicing, socket, framed, to, form).await?;
        } else if unless_answered(to, socket.read(buffer)).await? == 0 {
            check_end(framed)?;
        }
    }
}

/// Bytes of a forwarded body that are to be sent.
struct Outgoing {
    form: Form,
    /// Bytes to send first.
    bytes: Vec<u8>,
    /// Number of those bytes that are not data.
    overhead: usize,
    /// Trailers to forward.
    trailers: Option<Trailers>,
    has_trailers: bool,
}

impl Outgoing {
    /// Sends the buffered bytes of the body. Returns their number, and true at the end of the body.
    async fn take(
        &mut self,
        framed: &mut Framed,
        bytes: &[u8],
        to: &mut Socket,
    ) -> Result<(usize, bool), ForwardError> {
        let (used, is_over) = if framed.is_chunked() || self.form == Form::Chunks {
            self.gather(framed, bytes)?
        } else {
            match framed.next(bytes).map_err(ForwardError::Malformed)? {
                Piece::Data(len) => {
                    framed.advance(len as u64);
                    to.add_overhead(std::mem::take(&mut self.overhead));
                    to.write_all(&self.bytes, &bytes[..len]).await.map_err(ForwardError::Receiver)?;
                    self.bytes.clear();
                    return Ok((len, framed.is_over()));
                }
                piece => (0, matches!(piece, Piece::End(_))),
            }
        };
        to.add_overhead(std::mem::take(&mut self.overhead));
        to.write_all(&self.bytes, &[]).await.map_err(ForwardError::Receiver)?;
        self.bytes.clear();
        Ok((used, is_over))
    }

    /// Gathers the data of many small chunks, so that one system call sends it.
    fn gather(&mut self, framed: &mut Framed, bytes: &[u8]) -> Result<(usize, bool), ForwardError> {
        let (mut at, mut data) = (0, Vec::new());
        let is_over = loop {
            let len = match framed.next(&bytes[at..]) {
                Ok(Piece::More) => break false,
                Ok(Piece::Framing(len)) => len,
                Ok(Piece::Data(len)) => {
                    framed.advance(len as u64);
                    data.extend_from_slice(&bytes[at..at + len]);
                    len
                }
                Ok(Piece::Trailer(len)) => {
                    self.push_chunk(&mut data);
                    self.push_trailer(&bytes[at..at + len]);
                    len
                }
                Ok(Piece::End(len)) => {
                    at += len;
                    break true;
                }
                // Bytes before the error are sent first; the next call returns the error.
                Err(_) if at > 0 => break false,
                Err(error) => return Err(ForwardError::Malformed(error)),
            };
            at += len;
        };
        self.push_chunk(&mut data);
        if is_over && self.form == Form::Chunks {
            self.push_framing(if self.has_trailers { b"\r\n" } else { LAST_CHUNK });
        }
        Ok((at, is_over))
    }

    fn push_chunk(&mut self, data: &mut Vec<u8>) {
        match self.form {
            _ if data.is_empty() => {}
            Form::Data => self.bytes.append(data),
            Form::Chunks => {
                self.push_framing(&chunk_head(data.len()));
                self.bytes.append(data);
                self.push_framing(CHUNK_END);
            }
        }
    }

    fn push_framing(&mut self, bytes: &[u8]) {
        self.overhead += bytes.len();
        self.bytes.extend_from_slice(bytes);
    }

    fn push_trailer(&mut self, line: &[u8]) {
        let is_forwarded = self.trailers.as_ref().is_some_and(|trailers| trailers.pass(line));
        if self.form == Form::Chunks && is_forwarded {
            self.push_framing(if self.has_trailers { b"" } else { b"0\r\n" });
            self.push_framing(line);
            self.has_trailers = true;
        }
    }
}

/// Returns the line before a chunk (RFC 9112, section 7.1).
pub(crate) fn chunk_head(len: usize) -> Vec<u8> {
    format!("{len:x}\r\n").into_bytes()
}

async fn splice(
    splicing: Splicing<'_>,
    from: &mut Socket,
    framed: &mut Framed,
    to: &mut Socket,
    form: Form,
) -> Result<(), ForwardError> {
    // Copy if no pipe is free.
    let Some(mut pipe) = splicing.pipes.borrow_mut().try_take() else {
        return copy(from, framed, to, form).await;
    };
    let done = splice_through(&mut pipe, from, framed, to, form).await;
    splicing.pipes.borrow_mut().give_back(pipe);
    done
}

async fn splice_through(
    pipe: &mut Pipe,
    from: &mut Socket,
    framed: &mut Framed,
    to: &mut Socket,
    form: Form,
) -> Result<(), ForwardError> {
    loop {
        let ahead = framed.data_ahead();
        if ahead == 0 {
            return Ok(());
        }
        let moved = unless_answered(to, from.splice_to(pipe, ahead)).await?;
        if moved == 0 {
            return check_end(framed);
        }
        send_pipe(pipe, to, form).await.map_err(ForwardError::Receiver)?;
        framed.advance(moved as u64);
    }
}

/// Sends the contents of a pipe, as a chunk if the form has chunks.
pub(crate) async fn send_pipe(pipe: &mut Pipe, to: &mut Socket, form: Form) -> Result<(), SocketError> {
    if form != Form::Chunks || pipe.held() == 0 {
        return to.splice_from(pipe).await;
    }
    let head = chunk_head(pipe.held());
    to.add_overhead(head.len() + CHUNK_END.len());
    to.write_all_and_more(&head).await?;
    to.splice_from(pipe).await?;
    to.write_all(CHUNK_END, &[]).await
}

/// Sends bytes of a body, as a chunk if the form has chunks.
pub(crate) async fn send_bytes(bytes: &[u8], to: &mut Socket, form: Form) -> Result<(), SocketError> {
    if form != Form::Chunks || bytes.is_empty() {
        return to.write_all(bytes, &[]).await;
    }
    let head = chunk_head(bytes.len());
    to.add_overhead(head.len() + CHUNK_END.len());
    to.write_all(&head, bytes).await?;
    to.write_all(CHUNK_END, &[]).await
}

/// Checks that the body may end with the connection.
fn check_end(framed: &mut Framed) -> Result<(), ForwardError> {
    if framed.ends_with_connection() {
        *framed = Framed::Length(0);
        return Ok(());
    }
    Err(ForwardError::Sender(SocketError::Closed))
}

async fn copy(
    from: &mut Socket,
    framed: &mut Framed,
    to: &mut Socket,
    form: Form,
) -> Result<(), ForwardError> {
    let mut buffer = Buffer::default();
    let most = framed.data_ahead();
    let read = from.read_some(&mut buffer, most).await.map_err(ForwardError::Sender)?;
    if read == 0 {
        return check_end(framed);
    }
    send_bytes(buffer.filled(), to, form).await.map_err(ForwardError::Receiver)?;
    framed.advance(read as u64);
    Ok(())
}

/// Returns the result of `reading`, or an error if the receiver responds first and sending stops on
/// that.
async fn unless_answered<T>(
    to: &mut Socket,
    reading: impl Future<Output = Result<T, SocketError>>,
) -> Result<T, ForwardError> {
    let mut reading = pin!(reading);
    poll_fn(|context| match reading.as_mut().poll(context) {
        Poll::Pending if to.stops_on_response && to.poll_readable(context).is_ready() => {
            Poll::Ready(Err(ForwardError::Receiver(SocketError::Answered)))
        }
        done => done.map_err(ForwardError::Sender),
    })
    .await
}

#[cfg(test)]
mod tests {
    use strait_http::Fields;
    use strait_http::framing::BodyFraming;

    use super::*;

    fn outgoing(form: Form, bytes: &[u8], trailers: Option<Trailers>) -> Outgoing {
        Outgoing { form, bytes: bytes.to_vec(), overhead: bytes.len(), trailers, has_trailers: false }
    }

    #[test]
    fn chunks_are_joined_and_keep_their_trailers() {
        let bytes = b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nDate: x\r\nA: b\r\nAge: 3\r\n\r\nGET";
        for (form, expected) in
            [(Form::Data, "head abcde"), (Form::Chunks, "head 5\r\nabcde\r\n0\r\nA: b\r\n\r\n")]
        {
            for cut in 0..=bytes.len() {
                let mut outgoing = outgoing(form, b"head ", Trailers::of(&Fields::default()));
                let mut framed = Framed::new(BodyFraming::Chunked);
                let (used, is_over) = outgoing.gather(&mut framed, &bytes[..cut]).unwrap();
                let (more, is_over) =
                    if is_over { (0, true) } else { outgoing.gather(&mut framed, &bytes[used..]).unwrap() };
                assert_eq!((used + more, is_over), (bytes.len() - 3, true), "{cut}");
                assert_eq!(outgoing.overhead, outgoing.bytes.len() - b"abcde".len());
                let sent = String::from_utf8(outgoing.bytes).unwrap();
                if cut == bytes.len() {
                    assert_eq!(sent, expected);
                }
            }
        }
    }

    #[test]
    fn body_without_forwarded_trailers_ends() {
        let mut outgoing = outgoing(Form::Chunks, b"", None);
        let (bytes, mut framed) = (b"0\r\nA: b\r\n\r\n", Framed::new(BodyFraming::Chunked));
        assert_eq!(outgoing.gather(&mut framed, bytes).unwrap(), (bytes.len(), true));
        assert_eq!(outgoing.bytes, LAST_CHUNK);
    }

    #[test]
    fn bytes_before_malformed_framing_are_forwarded() {
        let mut outgoing = outgoing(Form::Chunks, b"", None);
        let (bytes, mut framed) = (b"1\r\na\r\nx\r\n", Framed::new(BodyFraming::Chunked));
        assert_eq!(outgoing.gather(&mut framed, bytes).unwrap(), (6, false));
        assert_eq!(outgoing.bytes, b"1\r\na\r\n");
        assert!(matches!(outgoing.gather(&mut framed, &bytes[6..]), Err(ForwardError::Malformed(_))));
    }
}
