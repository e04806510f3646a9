//! Delivery of a stored response to a client: from memory, from a file, or from a fill under way.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use strait_http::cache_status::CacheStatus;
use strait_http::coding::Coding;
use strait_http::head::Version;
use strait_http::multipart::{Boundary, Multipart};
use strait_store::{Error, Extent, Record};

use crate::cache::fill::{Follower, Phase, Source, View};
use crate::cache::object::{Body, Object, Pinned};
use crate::cache::remainder::{Held, Remainder};
use crate::cache::select::Selected;
use crate::cache::worker::Worker;
use crate::io::forward::{self, CHUNK_END, Form, chunk_head};
use crate::io::framing::LAST_CHUNK;
use crate::io::http2::translate::EncodedLines;
use crate::io::socket::SocketError;
use crate::observe::access::{self, ClientSocket};
use crate::serve::check;
use crate::serve::response::{Answer, Framing, ResponseOptions, encode_stored, write_stored};
use crate::upstream::pool::Connection;

/// Limit in bytes of a piece of a body of unknown length: a fill that is too long to be stored
/// waits for followers piece by piece.
const FOLLOWED_BYTES_MAX: u64 = 1 << 20;

/// Sends the selected bytes of a pinned object.
pub(crate) async fn send_pinned(
    worker: &Worker,
    socket: &mut ClientSocket,
    (object, pinned): (&Arc<Object>, &Pinned),
    selected: &Selected,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Result<(), SocketError> {
    if let Selected::Parts(parts) = selected {
        return Box::pin(send_parts(worker, socket, (object, pinned), parts, status, options)).await;
    }
    let mut head = worker.heads.take();
    let range = write_head(&mut head, worker, socket, object, selected, status, options);
    let range = if options.is_head { 0..0 } else { range };
    let lines = known_lines(object, selected, options);
    let sent = send_with_head(worker, socket, (&head, lines), object, pinned, range).await;
    worker.heads.give_back(head);
    sent
}

/// Pins the selected bytes before the head is sent; `None` if the object was evicted since it was
/// found.
pub(crate) fn pinned(object: &Object, selected: &Selected, options: ResponseOptions<'_>) -> Option<Pinned> {
    let length = object.length.unwrap_or(0);
    let range = match selected {
        _ if options.is_head => 0..0,
        Selected::Whole | Selected::Parts(_) => 0..length,
        Selected::Part(range) => range.clone(),
        Selected::NotModified | Selected::Unsatisfiable => 0..0,
    };
    object.pin(&range)
}

/// Sends the selected bytes of an object from `bytes`; not for several parts.
pub(crate) async fn send_from(
    worker: &Worker,
    socket: &mut ClientSocket,
    (object, bytes): (&Arc<Object>, &[u8]),
    selected: &Selected,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Result<(), SocketError> {
    let mut head = worker.heads.take();
    let range = write_head(&mut head, worker, socket, object, selected, status, options);
    let part = bytes.get(range.start as usize..range.end as usize).ok_or(SocketError::Closed)?;
    let lines = known_lines(object, selected, options);
    let sent = socket.respond(&head, lines, if options.is_head { &[] } else { part }).await;
    worker.heads.give_back(head);
    sent
}

/// Sends the head for the whole object or one part.
pub(crate) async fn send_head(
    worker: &Worker,
    socket: &mut ClientSocket,
    object: &Object,
    selected: &Selected,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Result<(), SocketError> {
    let mut head = worker.heads.take();
    write_head(&mut head, worker, socket, object, selected, status, options);
    let sent = socket.write_all(&head, &[]).await;
    worker.heads.give_back(head);
    sent
}

/// Writes the head for a selection other than several parts; returns the range of the body.
fn write_head(
    head: &mut Vec<u8>,
    worker: &Worker,
    socket: &mut ClientSocket,
    object: &Object,
    selected: &Selected,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Range<u64> {
    let length = object.length.unwrap_or(0);
    let (answer, range) = match selected {
        Selected::Whole | Selected::Parts(_) => {
            (Answer::Whole(whole(object, length).map_or(Framing::None, Framing::Length)), 0..length)
        }
        Selected::Part(range) => (Answer::Part(range, length), range.clone()),
        Selected::NotModified => (Answer::NotModified, 0..0),
        Selected::Unsatisfiable => (Answer::Unsatisfiable(length), 0..0),
    };
    let age = Some(object.times.age_at(worker.now()));
    let code = write_stored(head, worker.settings(), object, &answer, age, status, options);
    socket.record.stored(code, status.answer);
    socket.record.coding = object.coding.map(Coding::name);
    socket.add_overhead(head.len());
    range
}

/// Returns the lines for HTTP/2 that the head of [`write_head`] begins with, if they are kept.
fn known_lines<'o>(
    object: &'o Object,
    selected: &Selected,
    options: ResponseOptions<'_>,
) -> Option<&'o EncodedLines> {
    // Rules change lines.
    let is_known = options.version == Version::Http2 && options.rules.is_none();
    if is_known && matches!(selected, Selected::Whole) { object.encoded_lines() } else { None }
}

/// Returns the encoded lines and the body of a response with a whole object in memory; `None` for
/// any other response.
pub(crate) fn whole_in_memory<'o>(
    object: &'o Object,
    selected: &Selected,
    options: ResponseOptions<'_>,
) -> Option<(&'o EncodedLines, &'o [u8])> {
    let body = object.bytes(&(0..object.length?))?;
    let lines = known_lines(object, selected, options)?;
    Some((lines, if options.is_head { &[] } else { body }))
}

/// Appends the head of a response of [`whole_in_memory`] to `block`, encoded for HTTP/2, and notes
/// it in `record`.
pub(crate) fn encode_whole(
    block: &mut Vec<u8>,
    worker: &Worker,
    record: &mut access::Record,
    (object, lines): (&Object, &EncodedLines),
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) {
    block.extend_from_slice(lines.block());
    let (age, length) = (Some(object.times.age_at(worker.now())), object.length.unwrap_or(0));
    encode_stored(block, worker.settings(), object, whole(object, length), age, status, options);
    record.stored(object.status, status.answer);
    record.coding = object.coding.map(Coding::name);
}

/// Returns the length of a whole body. RFC 9110 s8.6: a 204 has no Content-Length.
fn whole(object: &Object, length: u64) -> Option<u64> {
    (object.status != 204).then_some(length)
}

async fn send_with_head(
    worker: &Worker,
    socket: &mut ClientSocket,
    (head, lines): (&[u8], Option<&EncodedLines>),
    object: &Object,
    pinned: &Pinned,
    range: Range<u64>,
) -> Result<(), SocketError> {
    match &object.body {
        Body::Memory(..) => {
            let part = object.bytes(&range).ok_or(SocketError::Closed)?;
            socket.respond(head, lines, part).await
        }
        _ if range.is_empty() => socket.write_all(head, &[]).await,
        _ => {
            socket.write_all_and_more(head).await?;
            match check::due_while_sent(object, &range, worker.settings().check_hits) {
                Some(record) => send_checked(worker, socket, object, pinned, record).await,
                None => send_range(worker, socket, object, pinned, range).await,
            }
        }
    }
}

/// Sends a whole body, and checks each piece before it is sent. A damaged body is cut off before
/// its last piece, so that the client does not take it as complete. If the record is removed or
/// evicted meanwhile, the check goes on in the pinned bytes: damage may be the reason.
async fn send_checked(
    worker: &Worker,
    socket: &mut ClientSocket,
    object: &Object,
    pinned: &Pinned,
    record: &Arc<Record>,
) -> Result<(), SocketError> {
    let store = worker.shared.store.as_ref().ok_or(SocketError::Closed)?;
    let mut check = store.check(record);
    let mut sent = 0;
    loop {
        let next = match (store.check_next(&mut check), pinned.at(0)) {
            (Err(Error::Removed { .. }), Some((body, _))) => check.next_in(&body),
            (next, _) => next,
        };
        let is_over = next.map_err(|_| SocketError::Closed)?;
        let upto = if is_over { record.body_len() } else { check.body_bytes() };
        send_range(worker, socket, object, pinned, sent..upto).await?;
        if is_over {
            return Ok(());
        }
        sent = upto;
    }
}

/// Sends bytes from memory, or pinned ones from the store.
pub(crate) async fn send_range(
    worker: &Worker,
    socket: &mut ClientSocket,
    object: &Object,
    pinned: &Pinned,
    range: Range<u64>,
) -> Result<(), SocketError> {
    if let Body::Memory(..) = &object.body {
        let part = object.bytes(&range).ok_or(SocketError::Closed)?;
        return socket.write_all(part, &[]).await;
    }
    let mut at = range.start;
    while at < range.end {
        let (extent, len) = pinned.at(at).ok_or(SocketError::Closed)?;
        let len = len.min(range.end - at);
        send_extent(worker, socket, &extent, len).await?;
        at += len;
    }
    Ok(())
}

async fn send_extent(
    worker: &Worker,
    socket: &mut ClientSocket,
    extent: &Extent,
    len: u64,
) -> Result<(), SocketError> {
    if worker.settings().transfer.sendfile {
        socket.send_file(&*extent.file, extent.offset, len).await
    } else {
        socket.copy_file(&*extent.file, extent.offset, len).await
    }
}

/// Sends several parts in one response (RFC 9110, section 14.6).
async fn send_parts(
    worker: &Worker,
    socket: &mut ClientSocket,
    (object, pinned): (&Object, &Pinned),
    parts: &[Range<u64>],
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Result<(), SocketError> {
    let length = object.length.unwrap_or(0);
    let content_type = object.fields().one("content-type").map(str::as_bytes);
    let multipart = Multipart { boundary: Boundary::of(worker.random()), content_type, length };
    let total = multipart.content_length(parts).unwrap_or(u64::MAX);
    let mut head = worker.heads.take();
    let age = Some(object.times.age_at(worker.now()));
    let answer = Answer::Parts(&multipart, total);
    let code = write_stored(&mut head, worker.settings(), object, &answer, age, status, options);
    socket.record.stored(code, status.answer);
    socket.add_overhead(head.len());
    if !options.is_head {
        for part in parts {
            multipart.write_head(part, &mut head);
            socket.write_all_and_more(&head).await?;
            head.clear();
            send_range(worker, socket, object, pinned, part.clone()).await?;
        }
        multipart.write_end(&mut head);
    }
    socket.write_all(&head, &[]).await?;
    worker.heads.give_back(head);
    Ok(())
}

/// Sends a response from a fill: the head, then the bytes of `range`, or all bytes, as they arrive.
/// Returns the bytes that the fill has not received.
pub(crate) async fn follow(
    worker: &Worker,
    socket: &mut ClientSocket,
    follower: &Follower,
    object: &Object,
    range: Option<Range<u64>>,
    status: &CacheStatus<'_>,
    options: ResponseOptions<'_>,
) -> Result<Range<u64>, SocketError> {
    let framing = object.length.map_or(Framing::unknown(options.version), Framing::Length);
    let answer = match (&range, object.length) {
        (Some(range), Some(length)) => Answer::Part(range, length),
        _ => Answer::Whole(framing),
    };
    let mut head = worker.heads.take();
    let age = age_of(worker, object);
    let code = write_stored(&mut head, worker.settings(), object, &answer, age, status, options);
    socket.record.stored(code, status.answer);
    socket.add_overhead(head.len());
    let range = range.unwrap_or(0..object.length.unwrap_or(u64::MAX));
    let at = range.start;
    // MSG_MORE only if body bytes follow at once: otherwise the head would be delayed.
    if follower.fill().view().stored > at {
        socket.write_all_and_more(&head).await?;
    } else {
        socket.write_all(&head, &[]).await?;
    }
    worker.heads.give_back(head);
    let Some(length) = object.length else {
        return Box::pin(follow_unknown(worker, socket, follower, framing)).await.map(|()| 0..0);
    };
    let end = range.end.min(length);
    let reached = Box::pin(follow_range(worker, socket, follower, at..end)).await?;
    Ok(reached..end)
}

/// Sends bytes of a known range as they arrive. Returns the reached offset: the end of the range,
/// unless the origin has failed, or the fill has ended before bytes that another one receives.
pub(crate) async fn follow_range(
    worker: &Worker,
    socket: &mut ClientSocket,
    follower: &Follower,
    range: Range<u64>,
) -> Result<u64, SocketError> {
    let fill = follower.fill();
    let mut at = range.start;
    while at < range.end {
        let view = fill.wait_beyond(at).await;
        let upto = view.stored.min(range.end);
        if upto > at {
            send_piece(worker, socket, view.source.as_ref(), at..upto).await?;
            at = upto;
            continue;
        }
        let end = fill.range().end;
        let Some(rest) = (range.end >= end).then(|| fill.take_over(at)).flatten() else { break };
        send_rest(worker, socket, *rest, Form::Data, Some(end - at)).await?;
        return Ok(end);
    }
    Ok(at)
}

/// Sends a body of unknown length as it arrives.
async fn follow_unknown(
    worker: &Worker,
    socket: &mut ClientSocket,
    follower: &Follower,
    framing: Framing,
) -> Result<(), SocketError> {
    let is_chunked = framing == Framing::Chunked;
    let mut at = 0;
    // Does not hold the stored bytes while a remainder is forwarded.
    let phase = loop {
        let View { phase, stored, source } = follower.wait_beyond(at).await;
        if stored <= at {
            break phase;
        }
        let upto = stored.min(at + FOLLOWED_BYTES_MAX);
        if is_chunked {
            let line = chunk_head((upto - at) as usize);
            socket.add_overhead(line.len() + CHUNK_END.len());
            socket.write_all_and_more(&line).await?;
        }
        send_piece(worker, socket, source.as_ref(), at..upto).await?;
        at = upto;
        socket.write_all(if is_chunked { CHUNK_END } else { b"" }, &[]).await?;
    };
    if phase == Phase::Done {
        let end = if is_chunked { LAST_CHUNK } else { b"" };
        socket.add_overhead(end.len());
        return socket.write_all(end, &[]).await;
    }
    let form = if is_chunked { Form::Chunks } else { Form::Data };
    let sent = match follower.fill().take_over(at) {
        Some(rest) => send_rest(worker, socket, *rest, form, None).await,
        None => Err(SocketError::Closed),
    };
    if sent.is_err() && framing == Framing::ToClose {
        socket.reset();
    }
    sent
}

/// Forwards the remainder that the store has refused: `len` bytes, which the head has announced, or
/// the rest of a body of unknown length.
async fn send_rest(
    worker: &Worker,
    socket: &mut ClientSocket,
    rest: Remainder,
    form: Form,
    len: Option<u64>,
) -> Result<(), SocketError> {
    let Remainder { mut incoming, held, .. } = rest;
    if let Some(len) = len {
        // A chunked part may have another length than its Content-Range.
        incoming.framed = incoming.framed.exactly(len).ok_or(SocketError::Closed)?;
    }
    if let Some(held) = held {
        let len = held.len();
        if len > incoming.framed.data_ahead() {
            return Err(SocketError::Closed);
        }
        match held {
            Held::Pipe(mut pipe) => forward::send_pipe(&mut pipe, socket, form).await?,
            Held::Piece(piece) => forward::send_bytes(piece.bytes(), socket, form).await?,
        }
        incoming.framed.advance(len);
    }
    let Connection { socket: origin, buffer, .. } = &mut *incoming.connection;
    // Clients that get the stored response get no trailers either.
    let from = forward::BodySource {
        socket: origin,
        buffer,
        framed: &mut incoming.framed,
        trailers: None,
        sent: None,
    };
    let passed = forward::body(worker.splicing(), from, socket, Vec::new(), form).await;
    passed.map_err(|_| SocketError::Closed)?;
    if len.is_some() && incoming.framed.is_short() {
        return Err(SocketError::Closed);
    }
    incoming.finish(&worker.upstream());
    Ok(())
}

/// Returns the Age of a response from a fill, if it is not 0.
fn age_of(worker: &Worker, object: &Object) -> Option<u64> {
    // No Age for a response fetched now: its presence would mean that it was not generated for this
    // request (RFC 9111 s5.1).
    Some(object.times.age_at(worker.now())).filter(|age| *age > 0)
}

async fn send_piece(
    worker: &Worker,
    socket: &mut ClientSocket,
    source: Option<&Source>,
    range: Range<u64>,
) -> Result<(), SocketError> {
    match source {
        Some(Source::Memory(bytes, first)) => {
            let (start, end) = ((range.start - first) as usize, (range.end - first) as usize);
            let part = {
                let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.get(start..end).ok_or(SocketError::Closed)?.to_vec()
            };
            socket.write_all(&part, &[]).await
        }
        Some(Source::Stored(extent, first)) => {
            let extent = extent.after(range.start - first);
            send_extent(worker, socket, &extent, range.end - range.start).await
        }
        None => Err(SocketError::Closed),
    }
}
