//! A request to an origin, and the head of its response.

use std::time::Duration;

use strait_http::Malformed;
use strait_http::fields::{Field, Fields};
use strait_http::forward::{keeps_alive, passed_on};
use strait_http::forwarded::Hop;
use strait_http::framing::{self, Body};
use strait_http::head::{self, Kept, Response};
use strait_http::method::is_idempotent;
use strait_http::target::Uri;

use crate::cache::object::{push_field, push_number};
use crate::cache::worker::Worker;
use crate::config::settings::Server;
use crate::io::framing::Framed;
use crate::io::gate::{self, Place};
use crate::io::socket::{Gone, Socket};
use crate::serve::exchange::Exchange;
use crate::serve::response::{push_via, write_interim};
use crate::upstream::pool::{Connection, Failure};
use crate::upstream::upload::{Upload, send_continue};

/// Interim responses that are passed on at most (RFC 9110, section 15.2).
const INTERIM_MAX: usize = 16;
/// How long an origin is given to say whether it wants a body (RFC 9110, section 10.1.1).
const EXPECT_PATIENCE: Duration = Duration::from_secs(1);

/// A request as it is sent.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) server: Server,
    /// Its head; ends with the empty line.
    pub(crate) head: Vec<u8>,
    /// A 304 may answer it.
    is_conditional: bool,
    /// Other clients wait for the response.
    pub(crate) is_shared: bool,
    /// The client that it is sent for.
    pub(crate) client: gate::Client,
    /// One of the connections to the server that the client may have, if it was awaited before.
    pub(crate) part: Option<Place>,
}

/// What of a client's request goes on to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The cache has no part in it: the client's whole request.
    Pass,
    /// A miss, and the response is for the client alone: all it asks for, but no new response
    /// unless it may (access.refresh).
    PassMiss,
    /// The response is to be kept: without what is about what the client has.
    Store,
    /// The same of a part.
    StorePart,
}

/// A response of which the head is there.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) connection: Box<Connection>,
    head: Kept,
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) framed: Framed,
    /// When it was asked for and when it came.
    pub(crate) requested: u64,
    pub(crate) received: u64,
    /// The connection may carry another request behind it.
    pub(crate) keeps_alive: bool,
}

/// What went wrong, and on which side.
#[derive(Debug)]
pub(crate) enum Trouble {
    Client(Gone),
    Origin(Failure),
    /// The client's body came too slowly.
    Slow,
    /// There is no memory for the client's body.
    NoMemory,
    /// The client's body is longer than it may be.
    TooLong(u64),
    /// The client's body is none.
    Request(Malformed),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Origin(failure)
    }
}

impl Order {
    /// A client's request to the server of `uri`.
    pub(crate) fn new(exchange: &Exchange<'_, '_>, uri: &Uri<'_>, body: Body, purpose: Purpose) -> Self {
        let (settings, request) = (exchange.worker.settings(), exchange.request);
        let (slash, path) = uri.origin_form(request.method);
        let mut head = Vec::with_capacity(512);
        for part in [request.method, " ", slash, path, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        let mut host = String::new();
        uri.authority.write(uri.scheme, &mut host);
        push_field(&mut head, "Host", host.as_bytes());
        let counts_hops = matches!(request.method, "OPTIONS" | "TRACE");
        // What this cache does not obey must not load a cache in front of the origin either.
        let is_ignored = purpose != Purpose::Pass && !settings.access.allows_refresh(exchange.peer.ip());
        let is_thinned = is_ignored && purpose == Purpose::PassMiss;
        let is_meant = |field: &&Field<'_>| {
            let is_dropped = settings.forwarded.rewrites(field.name)
                || (is_ignored && is_directive(field.name))
                || (exchange.upload.was_continued && is_continue(field));
            !is_dropped && is_meant(field.name, purpose, counts_hops)
        };
        let mut is_conditional = false;
        for field in passed_on(&request.fields).filter(is_meant) {
            is_conditional |= is_condition(field.name);
            push_field(&mut head, field.name, field.value);
        }
        if is_thinned && passed_on(&request.fields).any(|field| is_directive(field.name)) {
            push_without_refresh(&mut head, &request.fields);
        }
        let hop = Hop { client: exchange.peer.ip(), scheme: uri.scheme, host: Some(&host) };
        hop.write(settings.forwarded, &request.fields, &mut head);
        push_via(&mut head, settings, &request.fields, request.version);
        match body {
            Body::Length(length) => push_number(&mut head, "Content-Length", length),
            Body::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            // RFC 9110 s8.6: a method that expects content tells that there is none.
            Body::None if matches!(request.method, "POST" | "PUT" | "PATCH") => {
                push_number(&mut head, "Content-Length", 0);
            }
            _ => {}
        }
        let server = settings.behind.clone().unwrap_or_else(|| Server::of(uri));
        head.extend_from_slice(b"\r\n");
        Self { server, head, is_conditional, is_shared: false, client: exchange.counted(), part: None }
    }

    /// Its method.
    fn method(&self) -> &str {
        let method = self.head.split(|byte| *byte == b' ').next().unwrap_or_default();
        std::str::from_utf8(method).unwrap_or_default()
    }

    /// Adds a field.
    pub(crate) fn add(&mut self, name: &str, value: &[u8]) {
        self.head.truncate(self.head.len() - 2);
        push_field(&mut self.head, name, value);
        self.head.extend_from_slice(b"\r\n");
        self.is_conditional |= is_condition(name);
    }

    /// Returns true if a 304 answers the request although it has no condition: it is of no use to a
    /// client.
    pub(crate) fn is_misunderstood(&self, incoming: &Incoming) -> bool {
        incoming.status == 304 && !self.is_conditional && matches!(self.method(), "GET" | "HEAD")
    }
}

/// Returns true for a field that a 304 may answer (RFC 9110, section 15.4.5).
fn is_condition(name: &str) -> bool {
    name.eq_ignore_ascii_case("if-none-match") || name.eq_ignore_ascii_case("if-modified-since")
}

fn is_directive(name: &str) -> bool {
    name.eq_ignore_ascii_case("cache-control") || name.eq_ignore_ascii_case("pragma")
}

/// Writes Cache-Control without the directives that demand a new response, unless nothing is left
/// of it.
fn push_without_refresh(head: &mut Vec<u8>, fields: &Fields<'_>) {
    let is_refresh = |directive: &&str| {
        let name = directive.split('=').next().unwrap_or_default().trim();
        ["no-cache", "max-age", "min-fresh"].into_iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let others: Vec<_> = fields.elements("cache-control").filter(|it| !is_refresh(it)).collect();
    if !others.is_empty() {
        push_field(head, "Cache-Control", others.join(", ").as_bytes());
    }
}

/// Returns true if a field expects 100 (Continue), and nothing else.
fn is_continue(field: &Field<'_>) -> bool {
    field.name.eq_ignore_ascii_case("expect") && field.value.eq_ignore_ascii_case(b"100-continue")
}

/// Fields that make an origin answer one request otherwise than a plain GET. Vary names none of
/// them, so a request for a response that is stored goes without.
const OF_ONE_REQUEST: [&str; 6] =
    ["a-im", "expect", "if-match", "if-modified-since", "if-none-match", "if-unmodified-since"];

fn is_meant(name: &str, purpose: Purpose, counts_hops: bool) -> bool {
    let is = |names: &[&str]| names.iter().any(|other| name.eq_ignore_ascii_case(other));
    match purpose {
        _ if is(&["host", "via"]) => false,
        // It is written anew where it counts.
        Purpose::Pass | Purpose::PassMiss if is(&["max-forwards"]) => !counts_hops,
        Purpose::Pass | Purpose::PassMiss => true,
        Purpose::StorePart => !is(&OF_ONE_REQUEST),
        Purpose::Store => !is(&OF_ONE_REQUEST) && !is(&["if-range", "range"]),
    }
}

impl Incoming {
    /// Its head.
    pub(crate) fn response(&self) -> Response<'_> {
        self.head.response()
    }

    /// Whether another response follows. 101 is the last of its connection.
    fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Keeps the connection, all of the body being read.
    pub(crate) fn finish(self, worker: &Worker) {
        if self.keeps_alive {
            self.connection.keep(worker);
        }
    }
}

/// The client that a request is for: its socket, and the body that it sends.
pub(crate) type Client<'a> = (&'a mut Socket, &'a mut Upload);

/// Sends a request, with the client's body if there is one, and reads the head of the response. A
/// connection that was idle may have been closed just then: a request that may be sent twice is
/// sent again, on a new one (RFC 9112, section 9.3.1).
pub(crate) async fn fetch(
    worker: &Worker,
    order: &mut Order,
    mut client: Option<Client<'_>>,
) -> Result<Box<Incoming>, Trouble> {
    let part = order.part.take();
    let connection = Connection::to(worker, &order.server, order.client, part).await?;
    let has_body = client.as_ref().is_some_and(|(_, upload)| upload.has_body());
    let may_repeat = connection.is_used && is_idempotent(order.method()) && !has_body;
    let first = client.as_mut().map(|(socket, upload)| (&mut **socket, &mut **upload));
    match exchange(worker, connection, order, first).await {
        Err(Trouble::Origin(Failure::Closed)) if may_repeat => {
            let connection = Connection::open(worker, &order.server, order.client).await?;
            exchange(worker, connection, order, client).await
        }
        done => done,
    }
}

async fn exchange(
    worker: &Worker,
    mut connection: Box<Connection>,
    order: &Order,
    client: Option<Client<'_>>,
) -> Result<Box<Incoming>, Trouble> {
    let requested = worker.now();
    connection.socket.write_all(&order.head, &[]).await.map_err(origin_gone)?;
    let Some((socket, upload)) = client else {
        return final_response(worker, connection, order, requested, None).await;
    };
    socket.told.origin = connection.address;
    if upload.is_expected && connection.socket.readable(EXPECT_PATIENCE).await.is_ok() {
        let mut incoming = one_response(worker, connection, order, requested).await?;
        if !incoming.is_interim() {
            incoming.keeps_alive = false;
            return Ok(incoming);
        }
        connection = incoming.connection;
    }
    if upload.is_expected {
        send_continue(socket).await?;
    }
    let is_sent = !upload.has_body() || upload.send(worker, socket, &mut connection.socket).await?;
    let interim = upload.takes_interim.then_some(socket);
    let mut incoming = final_response(worker, connection, order, requested, interim).await?;
    incoming.keeps_alive &= is_sent;
    Ok(incoming)
}

/// Reads the head of a response. Interim ones go to the client, if it takes them; but 100, which
/// this proxy sends itself.
async fn final_response(
    worker: &Worker,
    mut connection: Box<Connection>,
    order: &Order,
    requested: u64,
    mut client: Option<&mut Socket>,
) -> Result<Box<Incoming>, Trouble> {
    const MANY: Malformed = Malformed::TooLarge("more interim responses than a client would take");
    for _ in 0..INTERIM_MAX {
        let incoming = one_response(worker, connection, order, requested).await?;
        if !incoming.is_interim() {
            return Ok(incoming);
        }
        if let Some(socket) = client.as_mut().filter(|_| incoming.status != 100) {
            let mut head = worker.head();
            write_interim(&mut head, worker.settings(), &incoming.response());
            let is_there = send_interim(socket, &head, order.is_shared).await?;
            worker.give_back(head);
            if !is_there {
                client = None;
            }
        }
        connection = incoming.connection;
    }
    Err(Failure::Malformed(MANY).into())
}

/// Sends an interim response; returns false if the client takes no more. Where other clients wait
/// for the final response it is dropped unless the socket takes it at once: a client that does not
/// read would hold up the others.
async fn send_interim(socket: &mut Socket, head: &[u8], is_shared: bool) -> Result<bool, Trouble> {
    let is_sent = if is_shared {
        match socket.write_at_once(head).await {
            Ok(is_sent) => is_sent,
            Err(_) => return Ok(false),
        }
    } else {
        socket.write_all(head, &[]).await.map_err(Trouble::Client)?;
        true
    };
    if is_sent {
        socket.told.add_overhead(head.len());
    }
    Ok(true)
}

async fn one_response(
    worker: &Worker,
    mut connection: Box<Connection>,
    order: &Order,
    requested: u64,
) -> Result<Box<Incoming>, Trouble> {
    let malformed = |error| Trouble::Origin(Failure::Malformed(error));
    loop {
        let read = read_head(connection.buffer.filled(), order.method()).map_err(malformed)?;
        if let Some((Read { head, body, keeps_alive }, len)) = read {
            connection.buffer.consume(len);
            let (status, framed, received) = (head.status(), Framed::new(body), worker.now());
            let came = Incoming { connection, head, status, body, framed, requested, received, keeps_alive };
            return Ok(Box::new(came));
        }
        let Connection { socket, buffer, .. } = &mut *connection;
        if socket.read(buffer).await.map_err(origin_gone)? == 0 {
            return Err(Failure::Closed.into());
        }
    }
}

/// A head, and what it says of what follows.
struct Read {
    head: Kept,
    body: Body,
    keeps_alive: bool,
}

/// The head that was read in answer to a request of `method`, and its length; `None` while it is
/// not whole.
fn read_head(bytes: &[u8], method: &str) -> Result<Option<(Read, usize)>, Malformed> {
    let Some((response, len)) = head::response(bytes)? else { return Ok(None) };
    let body = framing::of_response(&response, method)?;
    let is_last = matches!(body, Body::ToClose | Body::Tunnel);
    let keeps_alive = !is_last && keeps_alive(response.version, &response.fields);
    Ok(Some((Read { head: Kept::new(&response, &bytes[..len]), body, keeps_alive }, len)))
}

pub(crate) fn origin_gone(gone: Gone) -> Trouble {
    Trouble::Origin(match gone {
        Gone::Closed | Gone::Answered => Failure::Closed,
        Gone::TimedOut => Failure::TimedOut,
    })
}
