//! Sends a request to an origin and reads the head of its response.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strait_http::Malformed;
use strait_http::forward::keeps_alive;
use strait_http::framing::{self, BodyFraming};
use strait_http::head::{self, OwnedResponse, Version};
use strait_http::method::is_idempotent;

use crate::config::edge::OriginHttp2;
use crate::io::buffer::BUFFER_BYTES;
use crate::io::framing::Framed;
use crate::io::head::{Heads, write_interim};
use crate::io::socket::{Socket, SocketError};
use crate::upstream::error::{Failure, FetchError, OriginError, of_connection};
use crate::upstream::hedge::fetch_hedged;
use crate::upstream::incoming::Incoming;
use crate::upstream::origin_request::OriginRequest;
use crate::upstream::pool::{Connection, Upstream, enter};
use crate::upstream::upload::{Upload, send_continue};
use crate::upstream::uploading::Uploading;

/// Maximum of forwarded interim responses (RFC 9110, section 15.2).
const INTERIM_MAX: usize = 16;
/// Time that an origin has to respond to an expectation (RFC 9110, section 10.1.1).
const EXPECT_PATIENCE: Duration = Duration::from_secs(1);

/// Time without a response while a body is sent; the limits of the body end it before.
const UPLOAD_MAX: Duration = Duration::from_hours(24);
/// Times that a request is sent again by HTTP/2 after the origin has not processed it.
const REPETITIONS_MAX: usize = 3;

/// Maximum of bytes that the first read of a response takes. The beginning of a long body is copied
/// with its head; the rest need not be.
const FIRST_READ_BYTES: usize = 16 << 10;

/// Client that a request is sent for.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    pub(crate) socket: &'a mut Socket,
    /// Body of its request.
    pub(crate) upload: &'a mut Upload,
    /// Address of the origin, set once there is a connection.
    pub(crate) origin: &'a mut Option<SocketAddr>,
}

impl Client<'_> {
    fn reborrow(&mut self) -> Client<'_> {
        Client { socket: self.socket, upload: self.upload, origin: self.origin }
    }
}

/// Sends a request, with the client's body if there is one, and reads the head of the response. If
/// a server of a pool fails, the request goes to another one, unless a server may have acted on it.
pub(crate) async fn fetch(
    upstream: &Upstream<'_>,
    request: &mut OriginRequest,
    mut client: Option<Client<'_>>,
) -> Result<Box<Incoming>, FetchError> {
    let upstream = &upstream.with_limits(request.origin.limits);
    let has_body = client.as_ref().is_some_and(|client| client.upload.has_body());
    let is_repeatable = is_idempotent(request.method()) && !has_body;
    loop {
        if request.origin.is_out() && !request.origin.leave(upstream.clock.now()) {
            return Err(request.origin.no_server(upstream.clock.now()).into());
        }
        request.origin.await_service(upstream.connect_timeout(), upstream.clock.now()).await;
        let load = request.origin.load();
        let permits = request.take_permits();
        let server = &request.origin.server;
        let connected = match enter(upstream, server, request.client, permits).await {
            // Its name has lost the address while the request was waiting.
            Ok(_) if request.origin.is_gone() => continue,
            Ok(slot) => Connection::to(upstream, server, slot, request.http2()).await,
            Err(error) => Err(error),
        };
        let failure = match connected {
            Err(error) if error.is_of_limit() && request.origin.is_out() => continue,
            Err(error) => {
                if error.is_of_limit() {
                    request.origin.note_refused();
                }
                Failure { error, was_sent: false, may_repeat: true }
            }
            Ok(connection) => {
                let own = client.as_mut().map(Client::reborrow);
                match fetch_from_one(upstream, connection, request, own, has_body).await {
                    Ok(mut incoming) => {
                        request.origin.note_success(upstream.clock.now());
                        // A hedged request has its own.
                        incoming.connection.load = incoming.connection.load.take().or(load);
                        incoming.set_cookie = request.origin.set_cookie();
                        return Ok(incoming);
                    }
                    Err(FetchError::Origin(error)) => {
                        let is_back = client.as_ref().is_none_or(|client| client.upload.is_back());
                        let is_unprocessed = matches!(error, OriginError::Refused) && is_back;
                        Failure {
                            error,
                            was_sent: !is_unprocessed,
                            may_repeat: is_repeatable || is_unprocessed,
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        drop(load);
        if !request.origin.fail_over(upstream.clock.now(), request.client, &failure) {
            return Err(request.origin.last_error(failure.error, upstream.clock.now()).into());
        }
    }
}

/// Sends a request on a connection to its server, maybe also to another one, and notes the time to
/// the head of the response.
async fn fetch_from_one(
    upstream: &Upstream<'_>,
    connection: Box<Connection>,
    request: &mut OriginRequest,
    client: Option<Client<'_>>,
    has_body: bool,
) -> Result<Box<Incoming>, FetchError> {
    if !has_body && request.origin.is_hedged() && request.may_be_hedged() {
        return Box::pin(fetch_hedged(upstream, connection, request, client)).await;
    }
    let is_repeatable = is_idempotent(request.method()) && !has_body;
    let incoming = fetch_on(upstream, connection, request, client, is_repeatable).await?;
    // With a body the client decides how long it takes.
    if !has_body {
        request.note_time(&incoming, upstream.clock.now());
    }
    Ok(incoming)
}

/// Sends a request on a connection. The origin may close an idle connection at the same moment, so
/// a repeatable request is repeated on a new one (RFC 9112, section 9.3.1).
pub(super) async fn fetch_on(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    mut client: Option<Client<'_>>,
    is_repeatable: bool,
) -> Result<Box<Incoming>, FetchError> {
    // Kept for the repetition, which would wait for its turn again.
    if !connection.is_http1() {
        return Box::pin(fetch_on_stream(upstream, connection, request, client, is_repeatable)).await;
    }
    let slot = if connection.is_used && is_repeatable { connection.slot.take() } else { None };
    let Some(slot) = slot else { return exchange(upstream, connection, request, client).await };
    let first = client.as_mut().map(Client::reborrow);
    match exchange(upstream, connection, request, first).await {
        Ok(mut incoming) => {
            incoming.connection.slot = Some(slot);
            Ok(incoming)
        }
        Err(FetchError::Origin(OriginError::Closed)) => {
            let server = &request.origin.server;
            let connection =
                Box::pin(Connection::open_with(upstream, server, slot, OriginHttp2::Off)).await?;
            exchange(upstream, connection, request, client).await
        }
        Err(error) => Err(error),
    }
}

/// Sends a request on a stream of HTTP/2. A request that the origin has not processed (RFC 9113,
/// section 8.7) is sent again, and so is a repeatable one after the end of a connection that was
/// used before.
async fn fetch_on_stream(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    mut client: Option<Client<'_>>,
    is_repeatable: bool,
) -> Result<Box<Incoming>, FetchError> {
    let mut repetitions = REPETITIONS_MAX;
    loop {
        let (slot, was_used) = (connection.slot.take(), connection.is_used);
        let error = match exchange(upstream, connection, request, client.as_mut().map(Client::reborrow)).await
        {
            Ok(mut incoming) => {
                incoming.connection.slot = slot;
                return Ok(incoming);
            }
            Err(error) => error,
        };
        let may_repeat = match &error {
            FetchError::Origin(OriginError::Refused) => {
                client.as_mut().is_none_or(|client| client.upload.rewind())
            }
            FetchError::Origin(OriginError::Closed) => was_used && is_repeatable,
            _ => false,
        };
        let Some(slot) = slot.filter(|_| may_repeat && repetitions > 0) else { return Err(error) };
        repetitions -= 1;
        let again = Connection::to(upstream, &request.origin.server, slot, request.http2()).await;
        let Ok(again) = again else { return Err(error) };
        connection = again;
    }
}

async fn exchange(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    client: Option<Client<'_>>,
) -> Result<Box<Incoming>, FetchError> {
    let requested = upstream.clock.now();
    // A repeated request is sent for the second time.
    let _ = request.sent.as_ref().map(|sent| sent.set(()));
    if let Some(stream) = connection.socket.origin_stream() {
        stream.takes_trailers = request.takes_trailers;
    }
    send_head(&mut connection, request, client.as_ref()).await?;
    // The waits before are not the server's.
    let asked = request.origin.notes_times().then(Instant::now);
    let mut incoming = match client {
        None => final_response(upstream, connection, request, requested, None).await?,
        Some(client) => {
            *client.origin = connection.address;
            if connection.is_http1() {
                exchange_with(upstream, connection, request, requested, client).await?
            } else {
                Box::pin(exchange_on_stream(upstream, connection, request, requested, client)).await?
            }
        }
    };
    incoming.asked = asked;
    Ok(incoming)
}

/// Sends the head of a request. On a connection of HTTP/2 it may wait for another stream's end; a
/// client that cancels its request meanwhile ends the wait.
async fn send_head(
    connection: &mut Connection,
    request: &OriginRequest,
    client: Option<&Client<'_>>,
) -> Result<(), FetchError> {
    let own = client.filter(|_| !request.is_shared && !connection.is_http1());
    let end = own.and_then(|client| client.socket.stream_end());
    let sending = connection.socket.write_all(&request.head, &[]);
    let sent = match end {
        None => sending.await,
        Some(end) => tokio::select! {
            biased;
            sent = sending => sent,
            () = end.cancelled() => return Err(FetchError::Client(SocketError::Closed)),
        },
    };
    sent.map_err(|error| connection.failure(error))
}

/// Sends the body of the client's request, and reads the head of the response.
async fn exchange_with(
    upstream: &Upstream<'_>,
    connection: Box<Connection>,
    request: &OriginRequest,
    requested: u64,
    Client { socket, upload, .. }: Client<'_>,
) -> Result<Box<Incoming>, FetchError> {
    let mut connection = match expect(upstream, connection, request, requested, (socket, upload)).await? {
        Expected::Body(connection) => connection,
        Expected::Response(incoming) => return Ok(incoming),
    };
    let is_sent =
        !upload.has_body() || Box::pin(upload.send(upstream, socket, &mut connection.socket)).await?;
    let interim = upload.takes_interim.then_some(socket);
    let mut incoming = final_response(upstream, connection, request, requested, interim).await?;
    incoming.keeps_alive &= is_sent;
    Ok(incoming)
}

/// Next step after a client's expectation.
enum Expected {
    /// The body of the request.
    Body(Box<Connection>),
    /// The response: the origin needs no body.
    Response(Box<Incoming>),
}

/// Waits for the response to the client's expectation, if there is one (RFC 9110, section 10.1.1).
async fn expect(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    requested: u64,
    (socket, upload): (&mut Socket, &mut Upload),
) -> Result<Expected, FetchError> {
    if upload.is_expected && connection.socket.readable(EXPECT_PATIENCE).await.is_ok() {
        let mut incoming = one_response(upstream, connection, request, requested).await?;
        if !incoming.is_interim() {
            incoming.keeps_alive = false;
            return Ok(Expected::Response(incoming));
        }
        connection = incoming.connection;
    }
    if std::mem::take(&mut upload.is_expected) {
        send_continue(socket).await?;
    }
    Ok(Expected::Body(connection))
}

/// Like [`exchange_with`], on a stream of HTTP/2: the body of a client on HTTP/2 is sent beside the
/// response, and a client that cancels its request ends the exchange.
async fn exchange_on_stream(
    upstream: &Upstream<'_>,
    connection: Box<Connection>,
    request: &OriginRequest,
    requested: u64,
    mut client: Client<'_>,
) -> Result<Box<Incoming>, FetchError> {
    // A request that several clients wait for does not end with one of them.
    let end = if request.is_shared { None } else { client.socket.stream_end() };
    let exchanged = async {
        let own = (&mut *client.socket, &mut *client.upload);
        let mut connection = match expect(upstream, connection, request, requested, own).await? {
            Expected::Body(connection) => connection,
            Expected::Response(incoming) => return Ok(incoming),
        };
        let origin = &mut connection.socket;
        let has_trailers = request.passes_trailers;
        let begun = Uploading::begin(upstream, client.socket, client.upload, origin, has_trailers);
        let Some(mut uploading) = begun else {
            return exchange_with(upstream, connection, request, requested, client.reborrow()).await;
        };
        let interim = client.upload.takes_interim.then_some(&mut *client.socket);
        // An origin may answer only after the whole body, which has time limits of its own.
        tokio::select! {
            biased;
            _ = connection.socket.readable(UPLOAD_MAX) => {
                // The rest of an early response may follow the body as well.
                let origin = &mut connection.socket;
                origin.idle_timeout = origin.idle_timeout.max(upstream.tunnel_timeout());
            }
            ended = uploading.ended() => ended?,
        }
        let response = tokio::select! {
            biased;
            response = final_response(upstream, connection, request, requested, interim) => response,
            error = uploading.failed() => return Err(error),
        };
        match response {
            Ok(mut incoming) => {
                incoming.uploading = Some(Box::new(uploading));
                Ok(incoming)
            }
            Err(error) => {
                if let Some(rest) = uploading.stop().await {
                    *client.upload = rest;
                }
                Err(error)
            }
        }
    };
    let Some(end) = end else { return exchanged.await };
    tokio::select! {
        biased;
        done = exchanged => done,
        () = end.cancelled() => Err(FetchError::Client(SocketError::Closed)),
    }
}

/// Reads the head of the final response. Interim responses are forwarded to a client that accepts
/// them, except 100, which the proxy sends itself.
async fn final_response(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    requested: u64,
    mut client: Option<&mut Socket>,
) -> Result<Box<Incoming>, FetchError> {
    const MANY: Malformed = Malformed::TooLarge("too many interim responses");
    for _ in 0..INTERIM_MAX {
        let incoming = one_response(upstream, connection, request, requested).await?;
        if !incoming.is_interim() {
            return Ok(incoming);
        }
        if let Some(socket) = client.as_mut().filter(|_| incoming.status != 100) {
            let mut head = upstream.heads.take();
            write_interim(&mut head, &upstream.settings.via, &incoming.response());
            let is_there = send_interim(socket, &head, request.is_shared).await?;
            upstream.heads.give_back(head);
            if !is_there {
                client = None;
            }
        }
        connection = incoming.connection;
    }
    Err(OriginError::Malformed(MANY).into())
}

/// Sends an interim response; returns false if the client accepts no more. If other clients wait
/// for the final response, the interim response is dropped unless the socket accepts it at once: a
/// client that does not read would delay the others.
async fn send_interim(socket: &mut Socket, head: &[u8], is_shared: bool) -> Result<bool, FetchError> {
    let is_sent = if is_shared {
        match socket.write_at_once(head).await {
            Ok(is_sent) => is_sent,
            Err(_) => return Ok(false),
        }
    } else {
        socket.write_all(head, &[]).await.map_err(FetchError::Client)?;
        true
    };
    if is_sent {
        socket.add_overhead(head.len());
    }
    Ok(true)
}

async fn one_response(
    upstream: &Upstream<'_>,
    mut connection: Box<Connection>,
    request: &OriginRequest,
    requested: u64,
) -> Result<Box<Incoming>, FetchError> {
    let malformed = |error| FetchError::Origin(OriginError::Malformed(error));
    loop {
        let is_http2 = !connection.is_http1();
        let read = read_head(upstream.heads, connection.buffer.filled(), request.method(), is_http2);
        if let Some((Read { head, body, keeps_alive }, len)) = read.map_err(malformed)? {
            read_rest(&mut connection, len, body).await.map_err(of_connection)?;
            connection.buffer.consume(len);
            let (status, framed, received) = (head.status(), Framed::new(body), upstream.clock.now());
            return Ok(Box::new(Incoming {
                connection,
                head,
                status,
                body,
                framed,
                requested,
                received,
                asked: None,
                keeps_alive,
                set_cookie: None,
                uploading: None,
            }));
        }
        let Connection { socket, buffer, .. } = &mut *connection;
        let read = if buffer.is_empty() {
            socket.read_some(buffer, FIRST_READ_BYTES as u64).await
        } else {
            socket.read(buffer).await
        };
        if read.map_err(|error| connection.failure(error))? == 0 {
            return Err(OriginError::Closed.into());
        }
    }
}

/// Reads the rest of a body that fits in the buffer, behind a head of `head_len` bytes, if the
/// first read may have left some of it.
async fn read_rest(
    connection: &mut Connection,
    head_len: usize,
    body: BodyFraming,
) -> Result<(), SocketError> {
    let BodyFraming::Length(length) = body else { return Ok(()) };
    let len = head_len as u64 + length;
    let is_cut = connection.buffer.filled().len() == FIRST_READ_BYTES && len > FIRST_READ_BYTES as u64;
    if is_cut && len <= BUFFER_BYTES as u64 {
        connection.socket.read_at_once(&mut connection.buffer).await?;
    }
    Ok(())
}

/// Head of a response with its framing.
struct Read {
    head: OwnedResponse,
    body: BodyFraming,
    keeps_alive: bool,
}

/// Parses the head of the response to a request with `method`; returns its length as well. `None`
/// while it is not complete.
fn read_head(
    heads: &Heads,
    bytes: &[u8],
    method: &str,
    is_http2: bool,
) -> Result<Option<(Read, usize)>, Malformed> {
    let Some((mut response, len)) = head::response(bytes)? else { return Ok(None) };
    if is_http2 {
        response.version = Version::Http2;
    }
    let body = framing::of_response(&response, method)?;
    let is_last = matches!(body, BodyFraming::ToClose | BodyFraming::Tunnel);
    let keeps_alive = !is_last && keeps_alive(response.version, &response.fields);
    let head = OwnedResponse::new(&response, &bytes[..len], heads.take());
    Ok(Some((Read { head, body, keeps_alive }, len)))
}
