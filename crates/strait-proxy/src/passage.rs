//! A body on its way from one socket to another.
//!
//! Framing is read; data that is long enough stays in the kernel (splice(2)). What was read with the framing is sent from memory, and a
//! pipe is emptied before anything else is done, so that nothing is left in it when the sender closes.

use std::future::poll_fn;
use std::task::Poll;

use strait_http::Malformed;

use crate::buffer::Buffer;
use crate::incoming::{Framed, Piece};
use crate::socket::{Gone, Socket};
use crate::worker::Worker;

/// What of a body is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Framing and data, as they come.
    AsItIs,
    /// Data alone.
    Data,
}

/// Where a body comes from.
#[derive(Debug)]
pub(crate) struct From<'a> {
    pub(crate) socket: &'a mut Socket,
    /// What was read of it already.
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) framed: &'a mut Framed,
}

/// Where it broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The sender is gone, or has closed before the end.
    From(Gone),
    /// The receiver is gone.
    To(Gone),
    /// The sender's framing is none.
    Malformed(Malformed),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All of it was passed on.
    Whole,
    /// The receiver said something before it had all, and that was to be looked for.
    Answered,
}

/// What stands at the beginning of a buffer.
struct Shown {
    /// Bytes to pass on, after those to skip.
    skip: usize,
    take: usize,
    is_over: bool,
}

/// Passes a body on, behind `head`. With `listens` it ends when the receiver says something while there is nothing to send.
pub(crate) async fn pass(
    worker: &Worker,
    from: From<'_>,
    to: &mut Socket,
    head: &[u8],
    what: What,
    listens: bool,
) -> Result<Ended, Broken> {
    let From { socket, buffer, framed } = from;
    let mut head = head;
    loop {
        let shown = look(framed, buffer.filled(), what).map_err(Broken::Malformed)?;
        let bytes = &buffer.filled()[shown.skip..shown.skip + shown.take];
        to.write_all(std::mem::take(&mut head), bytes).await.map_err(Broken::To)?;
        buffer.consume(shown.skip + shown.take);
        if shown.is_over {
            return Ok(Ended::Whole);
        }
        if shown.skip + shown.take > 0 {
            continue;
        }
        if listens && says_something(socket, to).await {
            return Ok(Ended::Answered);
        }
        if buffer.is_empty() && socket.can_splice() && to.can_splice() && splices(worker, framed) {
            splice(worker, socket, framed, to).await?;
        } else if socket.read(buffer).await.map_err(Broken::From)? == 0 {
            return end(framed);
        }
    }
}

/// What the buffered bytes begin with, and are to be passed on or skipped in one go.
fn look(framed: &mut Framed, bytes: &[u8], what: What) -> Result<Shown, Malformed> {
    let mut shown = Shown { skip: 0, take: 0, is_over: false };
    loop {
        let at = shown.skip + shown.take;
        let before = *framed;
        let (framing, data) = match framed.next(&bytes[at..])? {
            Piece::More => return Ok(shown),
            Piece::Data(len) => (0, len),
            Piece::Framing(len) => (len, 0),
            Piece::End(len) => {
                shown.is_over = true;
                (len, 0)
            }
        };
        match what {
            What::AsItIs => shown.take += framing + data,
            What::Data if framing > 0 && shown.take > 0 => {
                // It is told once, and is looked at again.
                *framed = before;
                shown.is_over = false;
                return Ok(shown);
            }
            What::Data => {
                shown.skip += framing;
                shown.take += data;
            }
        }
        framed.advance(data as u64);
        if shown.is_over {
            return Ok(shown);
        }
    }
}

fn splices(worker: &Worker, framed: &mut Framed) -> bool {
    let transfer = &worker.settings().transfer;
    transfer.splice && framed.data_ahead() >= transfer.splice_from.as_u64().max(1)
}

async fn splice(
    worker: &Worker,
    from: &mut Socket,
    framed: &mut Framed,
    to: &mut Socket,
) -> Result<(), Broken> {
    // Without a pipe there is memory.
    let Some(mut pipe) = worker.pipes.borrow_mut().try_take() else {
        return copy(from, framed, to).await;
    };
    let done = splice_through(&mut pipe, from, framed, to).await;
    worker.pipes.borrow_mut().give_back(pipe);
    done
}

async fn splice_through(
    pipe: &mut strait_transfer::pipe::Pipe,
    from: &mut Socket,
    framed: &mut Framed,
    to: &mut Socket,
) -> Result<(), Broken> {
    loop {
        let ahead = framed.data_ahead();
        if ahead == 0 {
            return Ok(());
        }
        let moved = from.splice_to(pipe, ahead).await.map_err(Broken::From)?;
        if moved == 0 {
            return end(framed).map(drop);
        }
        to.splice_from(pipe).await.map_err(Broken::To)?;
        framed.advance(moved as u64);
    }
}

/// The connection has ended: that is the end of the body, or there is more to it.
fn end(framed: &mut Framed) -> Result<Ended, Broken> {
    if framed.ends_with_connection() {
        *framed = Framed::Length(0);
        return Ok(Ended::Whole);
    }
    Err(Broken::From(Gone::Closed))
}

async fn copy(from: &mut Socket, framed: &mut Framed, to: &mut Socket) -> Result<(), Broken> {
    let mut buffer = Buffer::default();
    let most = framed.data_ahead();
    let read = from.read_some(&mut buffer, most).await.map_err(Broken::From)?;
    if read == 0 {
        return end(framed).map(drop);
    }
    to.write_all(buffer.filled(), &[]).await.map_err(Broken::To)?;
    framed.advance(read as u64);
    Ok(())
}

/// Waits until one of both has something to say; whether it is the receiver.
async fn says_something(from: &mut Socket, to: &mut Socket) -> bool {
    poll_fn(|context| {
        if to.poll_readable(context).is_ready() {
            return Poll::Ready(true);
        }
        from.poll_readable(context).map(|()| false)
    })
    .await
}

#[cfg(test)]
mod tests {
    use strait_http::framing::Body;

    use super::*;

    #[test]
    fn what_is_passed_on_is_told_in_one_piece_and_data_alone_without_its_framing() {
        let bytes = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET";
        let shown = look(&mut Framed::new(Body::Chunked), bytes, What::AsItIs).unwrap();
        assert_eq!((shown.skip, shown.take, shown.is_over), (0, 20, true));
        let (mut framed, mut rest, mut data) = (Framed::new(Body::Chunked), &bytes[..], Vec::new());
        loop {
            let shown = look(&mut framed, rest, What::Data).unwrap();
            data.extend_from_slice(&rest[shown.skip..shown.skip + shown.take]);
            rest = &rest[shown.skip + shown.take..];
            if shown.is_over {
                break;
            }
        }
        assert_eq!((data.as_slice(), rest), (&b"abcde"[..], &b"GET"[..]));
    }
}
