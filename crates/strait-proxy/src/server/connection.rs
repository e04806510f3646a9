//! Connection of a client: one request after the other.
//!
//! Hits in the memory cache are answered here, without allocation and under one short lock; all
//! other requests go through [`crate::server::dispatch`]. Those of HTTP/2 that can be sent at once
//! are answered in [`crate::server::at_once`].

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_http::Malformed;
use strait_http::cache_status::{Answer, CacheStatus};
use strait_http::framing;
use strait_http::head::{self, Request, Version};
use strait_http::reuse::{Reuse, reuse};
use strait_http2::PREFACE;
use strait_transfer::relay::proxy_protocol::{self, Source};
use tokio::net::TcpStream;

use crate::cache::disk::Query;
use crate::cache::object::{Object, Pinned};
use crate::cache::select::{Selected, select};
use crate::cache::worker::Worker;
use crate::config::rules::ResponseRules;
use crate::config::settings::Port;
use crate::config::sites::Resource;
use crate::config::trace::Trace;
use crate::io::buffer::Buffer;
use crate::io::http2::stream::Http2Stream;
use crate::io::pace::Uptake;
use crate::io::socket::{Socket, SocketError};
use crate::io::tls::{self, Failure};
use crate::observe::access::{Begun, ClientSocket};
use crate::observe::refusals::Refusal;
use crate::serve::coded;
use crate::serve::deliver;
use crate::serve::response::{ResponseOptions, write_own};
use crate::serve::route::{Applied, Route, malformed, read_request, route};
use crate::server::client_limits::Share;
use crate::server::current::Current;
use crate::server::dispatch::{self, ConnectionAfter, RoutedRequest};
use crate::server::http2;

/// Wait for a request on a new connection during the shutdown.
pub(super) const DRAIN_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Phase of a connection, by which a shutdown ends it. One of HTTP/2 ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Phase {
    /// Begins, or has a request that is received or answered.
    #[default]
    Busy,
    /// Waits for the first byte of the first request, which the client may be sending.
    New,
    /// Waits for the first byte of a further request. The client knows that such a connection can
    /// end at any time (RFC 9112, section 9.5).
    Idle,
}

/// Client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: ClientSocket,
    buffer: Buffer,
    peer: SocketAddr,
    /// Arrival of the first byte of an incomplete head.
    begun: Option<Instant>,
    /// Result of a lookup for the request that is read next.
    found: Option<Found>,
}

/// Outcome of parsing the buffered bytes, and of answering the request if the memory cache cannot.
enum Next {
    /// Incomplete head.
    More,
    /// Request that the memory cache answers.
    Hit(Hit),
    /// Any other request, which was answered.
    Answered(Result<ConnectionAfter, SocketError>),
    /// Bytes that are not a valid request head: refuse and close.
    Malformed(Malformed),
}

/// Result of a lookup in the memory cache.
#[derive(Debug)]
pub(super) enum Found {
    Hit(Box<Hit>),
    /// It cannot answer the request.
    NoHit,
}

/// Response in the memory cache that may be sent without validation.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) object: Arc<Object>,
    pub(super) pinned: Pinned,
    pub(super) selected: Selected,
    pub(super) options: ResponseOptions<'static>,
    pub(super) rules: Option<Arc<ResponseRules>>,
    pub(super) head_len: usize,
    pub(super) trace: Option<Trace>,
    /// True if the request has the right password of its route.
    pub(super) is_authenticated: bool,
}

impl Client {
    pub(crate) fn new(worker: &Worker, tcp: TcpStream, peer: SocketAddr) -> Self {
        Self::over(worker, Socket::new(tcp, worker.settings().timeouts.client), peer)
    }

    /// Client of one stream of an HTTP/2 connection. `found` is the result of the lookup, if there
    /// was one.
    pub(super) fn of_http2(
        worker: &Worker,
        stream: Http2Stream,
        peer: SocketAddr,
        found: Option<Found>,
    ) -> Self {
        let socket = Socket::of_http2(stream, worker.settings().timeouts.client);
        Self { found, ..Self::over(worker, socket, peer) }
    }

    fn over(worker: &Worker, mut socket: Socket, peer: SocketAddr) -> Self {
        let settings = worker.settings();
        socket.uptake = Some(Uptake::new(settings.timeouts.response_grace, settings.response_rate));
        Self { socket: ClientSocket::new(socket), buffer: Buffer::default(), peer, begun: None, found: None }
    }

    /// Answers requests until the connection ends.
    pub(crate) async fn serve(
        mut self,
        current: &Current,
        port: Port,
        phase: &Cell<Phase>,
        share: &mut Share,
    ) {
        if port.has_proxy_header && Box::pin(self.learn_client(&current.worker(), share)).await.is_none() {
            return;
        }
        let mut has_chosen_http2 = None;
        if port.is_tls {
            has_chosen_http2 = Box::pin(self.shake_hands(&current.worker())).await;
            if has_chosen_http2.is_none() {
                return;
            }
        }
        if has_chosen_http2 == Some(true) || current.worker().settings().http2.is_on(port.is_tls) {
            match self.begins_http2(current, phase, has_chosen_http2).await {
                Ok(true) => {
                    let Self { socket: ClientSocket { socket, .. }, buffer, peer, .. } = self;
                    let Some(stream) = socket.into_connection() else { return };
                    let connection = http2::Http2Connection { current, peer, share };
                    return Box::pin(connection.serve(stream, buffer)).await;
                }
                Ok(false) => {}
                Err(_) => return,
            }
        }
        // Errors end the connection; there is no peer left to inform.
        let _ = self.requests(current, phase).await;
    }

    /// Answers the request of one stream.
    pub(crate) async fn serve_stream(mut self, worker: Rc<Worker>) {
        // Errors end the stream, which is reset.
        let _ = self.requests(&Current::new(worker), &Cell::default()).await;
    }

    /// Reads until the first bytes show the protocol. Returns true for the preface of HTTP/2, which
    /// is no request of HTTP/1.1 (RFC 9113, section 3.4). With other bytes, returns
    /// `has_chosen_http2`, the choice by ALPN: a client of HTTP/2 with a wrong preface understands
    /// no response of HTTP/1.1. It is `None` without TLS: then a first line of neither protocol
    /// counts as such a preface.
    async fn begins_http2(
        &mut self,
        current: &Current,
        phase: &Cell<Phase>,
        has_chosen_http2: Option<bool>,
    ) -> Result<bool, SocketError> {
        while self.buffer.filled().len() < PREFACE.len() && PREFACE.starts_with(self.buffer.filled()) {
            phase.set(if self.buffer.is_empty() { Phase::New } else { Phase::Busy });
            let read = self.read(&current.worker()).await;
            phase.set(Phase::Busy);
            if read? == 0 {
                return Ok(false);
            }
        }
        let bytes = self.buffer.filled();
        let begins =
            bytes.starts_with(PREFACE) || has_chosen_http2.unwrap_or_else(|| !is_request_line(bytes));
        if begins {
            self.begun = None;
        }
        Ok(begins)
    }

    /// Returns true if the client has chosen HTTP/2 in the handshake; `None` if that has failed.
    async fn shake_hands(&mut self, worker: &Worker) -> Option<bool> {
        let settings = worker.settings();
        let count = |failure: Failure| worker.counters().handshakes[failure as usize].add(1);
        let (limit, begun) = (settings.timeouts.head, Instant::now());
        match self.socket.begins_http(limit).await {
            Ok(false) => {}
            Ok(true) => {
                count(Failure::NotTls);
                // A browser or a probe that was given the wrong scheme shows this.
                let _ = self.refuse(worker, 400, "this port expects TLS: use https").await;
                let _ = self.socket.close(&mut self.buffer).await;
                return None;
            }
            Err(error) => {
                count(Failure::of(&error));
                return None;
            }
        }
        let left = limit.saturating_sub(begun.elapsed());
        let shaken = self.socket.secure(tls::accept(&settings.tls)?, left).await;
        shaken.map_err(|error| count(Failure::of(&error))).ok()
    }

    /// Reads the client's address from a PROXY header, and counts the connection for that client;
    /// `None` without a valid header, or if access or limits refuse the client.
    async fn learn_client(&mut self, worker: &Worker, share: &mut Share) -> Option<()> {
        let settings = worker.settings();
        let source = loop {
            if let Some((source, len)) = proxy_protocol::read(self.buffer.filled()).ok()? {
                self.buffer.consume(len);
                break source;
            }
            let begun = self.begun.get_or_insert_with(Instant::now);
            let limit = settings.timeouts.head.saturating_sub(begun.elapsed());
            if self.socket.read_within(limit, &mut self.buffer).await.ok()? == 0 {
                return None;
            }
        };
        self.begun = None;
        if let Source::Client(client) = source {
            self.peer = client;
        }
        let client = self.peer.ip();
        let refusal = match settings.access.allows(client) {
            false => Refusal::Access,
            true if share.name_client(settings, client) => return Some(()),
            true => Refusal::PerClient,
        };
        worker.note_refusal(refusal, client, false);
        None
    }

    async fn requests(&mut self, current: &Current, phase: &Cell<Phase>) -> Result<(), SocketError> {
        let mut waiting = Phase::New;
        loop {
            // Each request sees the settings that are in force when it comes.
            let worker = &current.worker();
            let closing = &worker.settings().closing;
            let is_last = closing.is_handed_over();
            let stays = match self.next(worker).await {
                Next::More => {
                    phase.set(if self.buffer.is_empty() { waiting } else { Phase::Busy });
                    let read = self.read(worker).await;
                    phase.set(Phase::Busy);
                    match read? {
                        0 => return Ok(()),
                        _ => continue,
                    }
                }
                Next::Hit(hit) => self.hit(worker, hit).await?,
                Next::Answered(after) => {
                    let ConnectionAfter { buffer, keeps_alive } = after?;
                    self.buffer = buffer;
                    keeps_alive
                }
                Next::Malformed(error) => {
                    Box::pin(self.refuse(worker, error.status(), &error.to_string())).await?
                }
            };
            // What follows a stream's request is data of its tunnel, never another request.
            let is_stream = self.socket.http2_id().is_some();
            // If the hand-over began during this response, that may have announced that the
            // connection stays, and the client may have sent the next request.
            if !stays || is_stream || is_last || closing.ends_idle() {
                return self.socket.close(&mut self.buffer).await;
            }
            waiting = Phase::Idle;
        }
    }

    /// Parses the buffered bytes; dispatches a request that the memory cache cannot answer.
    async fn next(&mut self, worker: &Rc<Worker>) -> Next {
        let Self { socket, buffer, peer, begun, found } = self;
        let (path, filled) = (OnceCell::new(), OnceCell::new());
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Next::More;
        }
        let (mut request, len) = match read_request(worker.settings(), bytes) {
            Ok(None) => return Next::More,
            Ok(Some(read)) => read,
            Err(error) => return Next::Malformed(error),
        };
        *begun = None;
        let is_looked_up = match found.take() {
            Some(Found::Hit(hit)) => return Next::Hit(Hit { head_len: len, ..*hit }),
            found => found.is_some(),
        };
        set_version(socket, &mut request);
        let body = framing::of_request(&request);
        let route_of = |body| route(worker.settings(), &request, body, socket.is_encrypted(), &path);
        let mut route = body.map_err(malformed).and_then(route_of);
        let mut applied = Applied::default();
        if let Ok(route) = &mut route
            && let Some(rules) = route.rules()
        {
            applied = route.apply(rules, &mut request, peer.ip(), &filled);
        }
        if !is_looked_up
            && let Ok(Route::Cache(resource)) = &route
            && let Some(hit) = memory_hit(worker, peer.ip(), &request, resource, len)
        {
            return Next::Hit(Hit { is_authenticated: applied.is_authenticated, ..hit });
        }
        let worker = &worker.of_route(route.as_ref().map(Route::manner).unwrap_or_default());
        let routed = RoutedRequest { request: &request, applied, body, route };
        let (peer, read) = (*peer, bytes.split_at(len));
        // Boxed once, so that idle connections do not hold the memory of an exchange.
        let exchange = async move { exchange(worker, socket, peer, routed, read).await };
        Next::Answered(Box::pin(exchange).await)
    }

    async fn read(&mut self, worker: &Worker) -> Result<usize, SocketError> {
        let timeouts = &worker.settings().timeouts;
        let limit = if self.buffer.is_empty() {
            if worker.settings().closing.ends_idle() { DRAIN_READ_TIMEOUT } else { timeouts.idle }
        } else {
            let begun = self.begun.get_or_insert_with(Instant::now);
            timeouts.head.saturating_sub(begun.elapsed())
        };
        self.socket.read_within(limit, &mut self.buffer).await
    }

    async fn hit(&mut self, worker: &Worker, hit: Hit) -> Result<bool, SocketError> {
        let Hit { object, pinned, selected, options, rules, head_len, trace, is_authenticated } = hit;
        let options = ResponseOptions { rules: rules.as_deref(), ..options };
        let settings = worker.settings();
        // Log and span need the request. Without them it is consumed now, so that a slow client
        // holds no buffer.
        let request_len = if worker.outputs_request(trace.as_ref()) { head_len } else { 0 };
        self.buffer.consume(head_len - request_len);
        let ttl = Some(object.times.ttl(worker.now()));
        let status = CacheStatus { by: &settings.name, answer: Answer::Hit, ttl, detail: None };
        let begun = Begun::now(&mut self.socket, trace);
        self.socket.record.is_authenticated = is_authenticated;
        let found = (&object, &pinned);
        let sent = deliver::send_pinned(worker, &mut self.socket, found, &selected, &status, options).await;
        self.account(worker, begun, request_len, sent.is_ok());
        self.buffer.consume(request_len);
        sent.map(|()| options.keeps_alive)
    }

    /// Counts and logs a finished exchange; its request is the first `request_len` bytes of the
    /// buffer.
    fn account(&self, worker: &Worker, begun: Begun, request_len: usize, is_whole: bool) {
        let read = &self.buffer.filled()[..request_len];
        let request = if request_len > 0 { received(&self.socket, read) } else { None };
        worker.account(&begun.end(&self.socket, self.peer, request.as_ref(), is_whole));
    }

    /// Refuses bytes that are no request of this port, and ends the connection: the start of the
    /// next request is unknown.
    async fn refuse(&mut self, worker: &Worker, status: u16, why: &str) -> Result<bool, SocketError> {
        let options = ResponseOptions {
            is_head: false,
            version: Version::Http11,
            keeps_alive: false,
            has_hsts: false,
            rules: None,
            set_cookie: None,
        };
        let mut head = worker.heads.take();
        let head_len = write_own(&mut head, worker, (status, why, &[]), options);
        let begun = Begun::now(&mut self.socket, None);
        self.socket.record.refused(status, why, worker.logs_reasons());
        self.socket.add_overhead(head_len);
        let sent = self.socket.write_all(&head, &[]).await;
        worker.heads.give_back(head);
        self.account(worker, begun, 0, sent.is_ok());
        sent.map(|()| false)
    }
}

/// Returns true unless the bytes begin with a whole line that names no version of HTTP.
fn is_request_line(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.len() == bytes.len() || line.windows(6).any(|part| part == b" HTTP/") || line == b"\r"
}

/// Sets the version of a request that came on a stream of HTTP/2.
fn set_version(socket: &ClientSocket, request: &mut Request<'_>) {
    if socket.http2_id().is_some() {
        request.version = Version::Http2;
    }
}

/// Parses the head of a request again, as it came.
fn received<'b>(socket: &ClientSocket, head: &'b [u8]) -> Option<Request<'b>> {
    let (mut request, _) = head::request(head).ok()??;
    set_version(socket, &mut request);
    Some(request)
}

/// Answers a request; `read` is its head, and the bytes after it.
async fn exchange<'b>(
    worker: &Rc<Worker>,
    socket: &mut ClientSocket,
    peer: SocketAddr,
    routed: RoutedRequest<'_, 'b>,
    read: (&'b [u8], &[u8]),
) -> Result<ConnectionAfter, SocketError> {
    let (request, Applied { is_changed, is_authenticated }) = (routed.request, routed.applied);
    let begun = Begun::now(socket, worker.trace(&request.fields));
    socket.record.is_authenticated = is_authenticated;
    let after = dispatch::run(worker, socket, peer, routed, read).await;
    // Log and span have the request as it came.
    let is_output = is_changed && worker.outputs_request(socket.record.trace.as_ref());
    let received = if is_output { received(socket, read.0) } else { None };
    let request = received.as_ref().unwrap_or(request);
    worker.account(&begun.end(socket, peer, Some(request), after.is_ok()));
    after
}

/// Returns the hit of a request in the memory cache, if it may be sent without validation.
pub(super) fn memory_hit(
    worker: &Worker,
    client: IpAddr,
    request: &Request<'_>,
    resource: &Resource<'_>,
    head_len: usize,
) -> Option<Hit> {
    let fields = &request.fields;
    let keys = resource.manner.key_fields.unwrap_or(worker.key_fields());
    let find =
        |hash, key: &str| (hash, worker.find_in_memory(&Query { keys, ..worker.query(hash, key, fields) }));
    let (hash, object) = worker.with_key(resource, find);
    let object = object?;
    let request_directives = worker.directives(client, fields);
    let decision = reuse(worker.now(), &object.times, &object.directives, &request_directives);
    if decision != Reuse::Serve || !object.is_whole() {
        return None;
    }
    // The body is only in the store but small enough for memory: the full lookup reads it into
    // memory.
    if object.is_worth_memory(worker.settings().memory_body_max) {
        return None;
    }
    // The full lookup checks it.
    if object.due_for_check(worker.settings().check_hits).next().is_some() {
        return None;
    }
    let manner = resource.manner;
    let rules = manner.response().map(|rules| &**rules);
    let object = coded::form_or_request(worker, hash, &object, rules, fields).unwrap_or(object);
    let options = ResponseOptions { has_hsts: manner.is_https_only, ..ResponseOptions::of(request) };
    let selected = select(&object, object.length?, fields, options.is_head);
    // If it was just evicted, the lookup finds a successor.
    let pinned = deliver::pinned(&object, &selected, options)?;
    worker.touch(&object);
    let rules = manner.response().cloned();
    let trace = if worker.outputs_traces() { worker.trace(fields) } else { None };
    let is_authenticated = false;
    Some(Hit { object, pinned, selected, options, rules, head_len, trace, is_authenticated })
}
