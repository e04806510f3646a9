//! A request that is not answered from memory at once: from the request as it was read to the
//! response that was sent.

use std::net::SocketAddr;
use std::rc::Rc;

use strait_http::Malformed;
use strait_http::fields::Fields;
use strait_http::forward::{Hops, keeps_alive, write_trace};
use strait_http::framing::Body;
use strait_http::head::{Request, Version};
use strait_http::invalidation::invalidated;
use strait_http::method::is_safe;
use strait_http::target::{Authority, Scheme, Uri};
use strait_http::trailer::Trailers;
use tokio::time::Instant;

use crate::cache::fill::Refusal;
use crate::cache::worker::Worker;
use crate::config::settings::Server;
use crate::io::buffer::Buffer;
use crate::io::forward::{self, Broken, From as Source, What};
use crate::io::gate::{self, Key, Place};
use crate::io::head::{push_date, push_field, push_status_line};
use crate::io::socket::{Gone, Socket, after_others_have_read};
use crate::io::tunnel;
use crate::observe::access::{ClientSocket, Outcome};
use crate::serve::lookup;
use crate::serve::response::{Framing, Wish, write_end, write_own, write_passed, write_switching};
use crate::serve::route::{Beside, Route, WEBSOCKET, malformed, too_long, upgrades};
use crate::upstream::error::{Failure, Trouble};
use crate::upstream::fetch::{self, fetch};
use crate::upstream::incoming::Incoming;
use crate::upstream::order::{self, Order, Purpose};
use crate::upstream::pool::{Connection, enter_part};
use crate::upstream::upload::Upload;
use strait_http::cache_status::{Answer, CacheStatus, Why};

/// Why a request is refused of which the body trickles.
const SLOW_BODY: &str = "the body came too slowly (limits.request_body_rate, timeouts.body, timeouts.client)";
/// Why a request is refused whose body cannot be read ahead.
const NO_MEMORY: &str = "the memory for request bodies is used up (limits.request_ahead_memory, limits.request_ahead_memory_per_client)";
/// Head of the response to a CONNECT that has succeeded.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// What clients of a reverse proxy are told of an origin that has failed.
const BAD_GATEWAY: &str = "the origin cannot be reached, or its answer cannot be used";

/// A request and who has sent it.
#[derive(Debug)]
pub(crate) struct Exchange<'a, 'b> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) client: &'a mut ClientSocket,
    /// Who has sent it.
    pub(crate) peer: SocketAddr,
    pub(crate) request: &'a Request<'b>,
    /// Its head as it was read.
    pub(crate) raw: &'a [u8],
    pub(crate) upload: Upload,
    pub(crate) wish: Wish,
    /// One of the connections to the origin that the client may have, if it was awaited already.
    pub(crate) part: Option<Place>,
    body: Body,
}

/// What is left of a connection behind a response.
#[derive(Debug)]
pub(crate) struct Left {
    /// What was read behind the request.
    pub(crate) buffer: Buffer,
    /// Another request may follow.
    pub(crate) keeps_alive: bool,
}

/// Why there was no response, or not all of it.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The connection is of no use any more.
    Gone(Gone),
    /// The client is to be told this by the proxy itself, and nothing was sent yet.
    Refuse(u16, String),
}

impl From<Gone> for Stop {
    fn from(gone: Gone) -> Self {
        Self::Gone(gone)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Refuse(failure.status(), failure.to_string())
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Client(gone) => Self::Gone(gone),
            Trouble::Origin(failure) => failure.into(),
            Trouble::Request(error) => malformed(error).into(),
            Trouble::Slow => Self::Refuse(408, SLOW_BODY.to_owned()),
            Trouble::NoMemory => Self::Refuse(503, NO_MEMORY.to_owned()),
            Trouble::TooLong(most) => too_long(most).into(),
        }
    }
}

impl From<Refusal> for Stop {
    fn from((status, why): Refusal) -> Self {
        Self::Refuse(status, why)
    }
}

/// What a request asks of its connection.
pub(crate) fn wish(request: &Request<'_>) -> Wish {
    Wish {
        is_head: request.method == "HEAD",
        version: request.version,
        keeps_alive: keeps_alive(request.version, &request.fields),
    }
}

/// A request, and what is to be done for it.
#[derive(Debug)]
pub(crate) struct Asked<'a, 'b> {
    pub(crate) request: &'a Request<'b>,
    pub(crate) body: Result<Body, Malformed>,
    pub(crate) route: Result<Route<'b>, Refusal>,
}

/// Answers a request, of which `read` is all that was read: its head, and what came behind.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    client: &mut ClientSocket,
    peer: SocketAddr,
    asked: Asked<'_, '_>,
    read: (&[u8], &[u8]),
) -> Result<Left, Gone> {
    let (Asked { request, body, route }, (raw, rest)) = (asked, read);
    let wish = wish(request);
    // Where a body ends that is not understood nobody knows.
    let wish = Wish { keeps_alive: wish.keeps_alive && body.is_ok(), ..wish };
    let body = body.unwrap_or(Body::None);
    // RFC 9110 s10.1.1: without content there is nothing to continue with.
    let is_expected = body != Body::None
        && request.fields.elements("expect").any(|it| it.eq_ignore_ascii_case("100-continue"));
    let takes_interim = request.version == Version::Http11;
    let most = worker.settings().request_body_max;
    let upload = Upload::new(body, rest, is_expected && takes_interim, takes_interim, most);
    let mut exchange = Exchange { worker, client, peer, request, raw, upload, wish, part: None, body };
    let done = match route {
        Ok(Route::Cache(uri)) => lookup::answer(&mut exchange, &uri).await,
        Ok(Route::Beside(beside)) => Box::pin(exchange.answer(beside)).await,
        Err(refusal) => Err(refusal.into()),
    };
    let keeps_alive = match done {
        Ok(stays) => stays && wish.keeps_alive && !exchange.upload.has_body(),
        Err(Stop::Gone(gone)) => return Err(gone),
        Err(Stop::Refuse(status, why)) => exchange.refuse(status, &why).await?,
    };
    let mut buffer = exchange.upload.buffer;
    // The rest is the beginning of the next request.
    buffer.set_place(None);
    Ok(Left { buffer, keeps_alive })
}

impl Exchange<'_, '_> {
    /// The client as limits count it.
    pub(crate) fn counted(&self) -> gate::Client {
        gate::Client::of(self.peer.ip())
    }

    /// Takes one of the connections to the origin that the client may have, unless the exchange has
    /// one. Returns false if all are in use.
    pub(crate) fn has_part(&mut self, order: &Order) -> bool {
        if self.part.is_none() {
            let key = Key::OriginOf(order.server.clone(), order.client);
            self.part = self.worker.shared.gates.try_enter(key);
        }
        self.part.is_some()
    }

    /// Makes the request to the server of `uri`.
    pub(crate) fn order(&self, uri: &Uri<'_>, body: Body, purpose: Purpose) -> Order {
        let (request, was_continued) = (self.request, self.upload.was_continued);
        let asked = order::Asked { request, client: self.peer.ip(), was_continued };
        Order::new(self.worker.settings(), &asked, uri, body, purpose)
    }

    /// Returns the client as a fetch needs it.
    pub(crate) fn sender(&mut self) -> fetch::Client<'_> {
        let ClientSocket { socket, record } = &mut *self.client;
        fetch::Client { socket, upload: &mut self.upload, origin: &mut record.origin }
    }

    /// Moves bytes between the client and an origin until both have finished.
    async fn tunnel(&mut self, origin: (&mut Socket, &mut Buffer)) -> Result<(), Gone> {
        let client = (&mut self.client.socket, &mut self.upload.buffer);
        let patience = self.worker.settings().timeouts.tunnel;
        tunnel::run(self.worker.splicing(), patience, client, origin).await
    }

    /// Waits for one of the connections to the origin that the client may have.
    pub(crate) async fn await_part(&mut self, order: &Order) -> Result<(), Failure> {
        let deadline = Instant::now() + self.worker.settings().timeouts.connect;
        self.part = Some(enter_part(&self.worker.upstream(), &order.server, order.client, deadline).await?);
        Ok(())
    }

    /// Whether another request may follow.
    async fn answer(&mut self, beside: Beside<'_>) -> Result<bool, Stop> {
        match beside {
            Beside::Origin(uri, hops, why) => self.pass(&uri, hops, why).await,
            Beside::Tunnel(authority) => Box::pin(self.connect(&authority)).await,
            Beside::Here => self.answer_here().await,
            Beside::Purge(uri) => self.purge(&uri),
        }
    }

    /// OPTIONS and TRACE that go no further (RFC 9110, sections 7.6.2 and 9.3.8).
    async fn answer_here(&mut self) -> Result<bool, Stop> {
        let wish = Wish { keeps_alive: self.wish.keeps_alive && !self.upload.has_body(), ..self.wish };
        let mut head = self.worker.heads.take();
        let mut body = Vec::new();
        push_status_line(&mut head, 200);
        if self.request.method == "TRACE" {
            write_trace(self.request, &mut body);
            push_field(&mut head, "Content-Type", b"message/http");
        } else {
            push_field(&mut head, "Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");
        }
        push_date(&mut head, self.worker.now());
        write_end(&mut head, Framing::Length(body.len() as u64), None, wish);
        self.client.record.other(200, Outcome::Own);
        self.client.add_overhead(head.len());
        self.client.write_all(&head, &body).await?;
        self.worker.heads.give_back(head);
        Ok(wish.keeps_alive)
    }

    /// Passes request and response on, without the cache.
    async fn pass(&mut self, uri: &Uri<'_>, hops: Hops, why: Why) -> Result<bool, Stop> {
        let counted = self.counted();
        self.upload.read_ahead(&self.worker.upstream(), &mut self.client.socket, counted).await?;
        let mut order = self.order(uri, self.body, Purpose::Pass);
        if let Hops::Left(hops) = hops {
            order.add("Max-Forwards", hops.to_string().as_bytes());
        }
        if upgrades(self.request) {
            order.add("Connection", b"Upgrade");
            order.add("Upgrade", WEBSOCKET.as_bytes());
        }
        let incoming = fetch(&self.worker.upstream(), &mut order, Some(self.sender())).await?;
        if order.is_misunderstood(&incoming) {
            return Err(Failure::NotModified.into());
        }
        if !is_safe(self.request.method) {
            self.invalidate(uri, incoming.status, &incoming.response().fields);
        }
        self.pass_response(incoming, why).await
    }

    /// Forgets what is stored for a URI, for those who may.
    fn purge(&self, uri: &Uri<'_>) -> Result<bool, Stop> {
        if !self.worker.settings().access.allows_purge(self.peer.ip()) {
            return Err(Stop::Refuse(403, "PURGE is not allowed from here (access.purge)".to_owned()));
        }
        let forgotten = self.worker.with_key(uri, |hash, key| self.worker.forget(hash, key));
        match forgotten {
            0 => Err(Stop::Refuse(404, "nothing is stored for it".to_owned())),
            _ => Err(Stop::Refuse(200, "forgotten".to_owned())),
        }
    }

    /// RFC 9111 s4.4.
    fn invalidate(&self, uri: &Uri<'_>, status: u16, fields: &Fields<'_>) {
        for key in invalidated(self.request.method, uri, status, fields) {
            self.worker.forget(strait_store::hash_of(key.as_bytes()), &key);
        }
    }

    /// Sends a response that is for this client alone.
    pub(crate) async fn pass_response(
        &mut self,
        mut incoming: Box<Incoming>,
        why: Why,
    ) -> Result<bool, Stop> {
        if incoming.body == Body::Tunnel {
            if !upgrades(self.request) {
                return Err(Stop::Refuse(
                    502,
                    "the origin has changed the protocol, which nobody asked for".to_owned(),
                ));
            }
            return Box::pin(self.upgrade(incoming)).await;
        }
        let answer = Answer::Forwarded { why, status: None, stored: false, collapsed: false };
        let status = CacheStatus { by: &self.worker.settings().name, answer, ttl: None, detail: None };
        let (framing, what) = outgoing(&incoming, self.wish);
        self.client.record.other(incoming.status, Outcome::Pass);
        let mut head = self.worker.heads.take();
        write_passed(
            &mut head,
            self.worker.settings(),
            &incoming.response(),
            self.worker.now(),
            framing,
            Some(&status),
            self.wish,
        );
        let has_trailers = what == What::Chunks && incoming.body == Body::Chunked;
        let trailers = if has_trailers { Trailers::of(&incoming.response().fields) } else { None };
        let Connection { socket, buffer, .. } = &mut *incoming.connection;
        let from = Source { socket, buffer, framed: &mut incoming.framed, trailers };
        after_others_have_read().await;
        let passed = forward::body(self.worker.splicing(), from, &mut self.client.socket, head, what).await;
        match passed {
            Ok(head) => {
                self.worker.heads.give_back(head);
                incoming.finish(&self.worker.upstream());
            }
            Err(broken) => {
                if framing == Framing::ToClose {
                    self.client.reset();
                }
                return Err(Stop::Gone(match broken {
                    Broken::To(gone) | Broken::From(gone) => gone,
                    Broken::Malformed(_) => Gone::Closed,
                }));
            }
        }
        Ok(framing.keeps_alive())
    }

    /// The connection speaks another protocol from here on (RFC 9110, section 7.8).
    async fn upgrade(&mut self, mut incoming: Box<Incoming>) -> Result<bool, Stop> {
        let mut head = self.worker.heads.take();
        write_switching(&mut head, self.worker.settings(), &incoming.response());
        self.client.record.other(incoming.status, Outcome::Tunnel);
        self.client.add_overhead(head.len());
        self.client.write_all(&head, &[]).await?;
        self.worker.heads.give_back(head);
        let Connection { socket, buffer, .. } = &mut *incoming.connection;
        self.tunnel((socket, buffer)).await?;
        Ok(false)
    }

    /// RFC 9110 s9.3.6.
    async fn connect(&mut self, authority: &Authority<'_>) -> Result<bool, Stop> {
        let port = authority.port_or_default(Scheme::Https);
        let host = authority.host.to_string().trim_matches(['[', ']']).into();
        // What is inside is theirs.
        let server = Server { host, port, is_tls: false };
        let mut connection = Connection::open(&self.worker.upstream(), &server, self.counted()).await?;
        self.client.record.other(200, Outcome::Tunnel);
        self.client.record.origin = connection.address;
        self.client.add_overhead(ESTABLISHED.len());
        self.client.write_all(ESTABLISHED, &[]).await?;
        let Connection { socket, buffer, .. } = &mut *connection;
        self.tunnel((socket, buffer)).await?;
        Ok(false)
    }

    /// Tells the client why there is no response; whether another request may follow.
    async fn refuse(&mut self, status: u16, why: &str) -> Result<bool, Gone> {
        // What cannot be told apart is not read on. Bytes behind CONNECT are for the other end of the
        // tunnel, which the client may have taken for open (RFC 9110, section 9.3.6): they may come
        // from someone else and must not be read as requests.
        let is_readable = status != 400 && status != 431 && self.request.method != "CONNECT";
        let stays = self.wish.keeps_alive && !self.upload.has_body() && is_readable;
        let wish = Wish { keeps_alive: stays, ..self.wish };
        let settings = self.worker.settings();
        let mut head = self.worker.heads.take();
        // What is behind a reverse proxy is for who runs it alone.
        let said = if settings.behind.is_some() && status == 502 { BAD_GATEWAY } else { why };
        let head_len = write_own(&mut head, self.worker, status, said, wish);
        self.client.record.refused(status, why, self.worker.logs_reasons());
        self.client.add_overhead(head_len);
        let sent = self.client.write_all(&head, &[]).await;
        self.worker.heads.give_back(head);
        sent.map(|()| stays)
    }
}

/// How a response that is passed on is framed, and what of its body goes on.
fn outgoing(incoming: &Incoming, wish: Wish) -> (Framing, What) {
    match incoming.body {
        Body::Length(length) => (Framing::Length(length), What::Data),
        Body::Chunked | Body::ToClose | Body::Tunnel if wish.version == Version::Http11 => {
            (Framing::Chunked, What::Chunks)
        }
        Body::Chunked | Body::ToClose | Body::Tunnel => (Framing::ToClose, What::Data),
        // The length that GET would have, or none.
        Body::None => {
            let response = incoming.response();
            let length = response.fields.one("content-length").and_then(|length| length.parse().ok());
            let tells = response.status >= 200 && response.status != 204;
            (length.filter(|_| tells).map_or(Framing::None, Framing::Length), What::Data)
        }
    }
}
