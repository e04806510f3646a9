//! A request that is not answered from memory at once: from the request as it was read to the response that was sent.

use std::net::SocketAddr;
use std::rc::Rc;

use strait_http::Malformed;
use strait_http::fields::Fields;
use strait_http::forward::{Hops, hops, keeps_alive, write_trace};
use strait_http::framing::{self, Body};
use strait_http::head::{Request, Version};
use strait_http::invalidation::invalidated;
use strait_http::method::{is_answered_from_store, is_safe};
use strait_http::target::{Authority, Host, Scheme, Target, Uri};
use strait_http::trailer::Trailers;

use crate::account::Outcome;
use crate::buffer::Buffer;
use crate::cached;
use crate::fetch::{Incoming, Order, Purpose, Trouble, fetch};
use crate::object::{push_date, push_field, push_status_line};
use crate::origin::{Connection, Failure};
use crate::passage::{self, Broken, From as Source, What};
use crate::reply::{Framing, Wish, write_end, write_own, write_passed, write_switching};
use crate::settings::Server;
use crate::socket::{Gone, Socket, after_others_have_read};
use crate::tunnel;
use crate::upload::Upload;
use crate::worker::Worker;
use strait_http::cache_status::{Answer, CacheStatus, Why};

/// The protocol that a connection may change to.
const WEBSOCKET: &str = "websocket";

/// What clients of a reverse proxy are told of an origin that has failed.
const BAD_GATEWAY: &str = "the origin cannot be reached, or its answer cannot be used";

/// A request and who has sent it.
#[derive(Debug)]
pub(crate) struct Exchange<'a, 'b> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) client: &'a mut Socket,
    /// Who has sent it.
    pub(crate) peer: SocketAddr,
    pub(crate) request: &'a Request<'b>,
    /// Its head as it was read.
    pub(crate) raw: &'a [u8],
    pub(crate) upload: Upload,
    pub(crate) wish: Wish,
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

impl From<Malformed> for Stop {
    fn from(error: Malformed) -> Self {
        Self::Refuse(error.status(), error.to_string())
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
            Trouble::Request(error) => error.into(),
            Trouble::TooLong(most) => too_long(most),
        }
    }
}

fn too_long(most: u64) -> Stop {
    Stop::Refuse(413, format!("the body is longer than the {most} bytes that are taken"))
}

/// What a request asks of its connection.
pub(crate) fn wish(request: &Request<'_>) -> Wish {
    Wish {
        is_head: request.method == "HEAD",
        version: request.version,
        keeps_alive: keeps_alive(request.version, &request.fields),
    }
}

/// Answers a request, of which `read` is all that was read: its head, and what came behind. Where its URI is known, the cache may answer.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    client: &mut Socket,
    peer: SocketAddr,
    (request, uri): (&Request<'_>, Option<Uri<'_>>),
    read: (&[u8], &[u8]),
) -> Result<Left, Gone> {
    let (raw, rest) = read;
    let wish = wish(request);
    let is_expected = request.fields.elements("expect").any(|it| it.eq_ignore_ascii_case("100-continue"));
    let takes_interim = request.version == Version::Http11;
    let (body, framing) = match framing::of_request(request) {
        Ok(body) => (body, Ok(())),
        Err(error) => (Body::None, Err(error)),
    };
    // Where a body ends that is not understood nobody knows.
    let wish = Wish { keeps_alive: wish.keeps_alive && framing.is_ok(), ..wish };
    let most = worker.settings().request_body_max;
    let upload = Upload::new(body, rest, is_expected && takes_interim, takes_interim, most);
    let mut exchange = Exchange { worker, client, peer, request, raw, upload, wish, body };
    let done = match (framing, uri) {
        (Ok(()), Some(uri)) => cached::answer(&mut exchange, &uri).await,
        (Ok(()), None) => Box::pin(exchange.answer()).await,
        (Err(error), _) => Err(error.into()),
    };
    let keeps_alive = match done {
        Ok(stays) => stays && wish.keeps_alive && !exchange.upload.has_body(),
        Err(Stop::Gone(gone)) => return Err(gone),
        Err(Stop::Refuse(status, why)) => exchange.refuse(status, &why).await?,
    };
    Ok(Left { buffer: exchange.upload.buffer, keeps_alive })
}

impl<'b> Exchange<'_, 'b> {
    /// Whether another request may follow.
    async fn answer(&mut self) -> Result<bool, Stop> {
        let request = self.request;
        if let Body::Length(length) = self.body
            && length > self.worker.settings().request_body_max
        {
            return Err(too_long(self.worker.settings().request_body_max));
        }
        let target = Target::parse(request.method, request.target)?;
        // It is looked at whichever form the target has.
        strait_http::target::host(request)?;
        let hops = hops(request.method, &request.fields)?;
        let uri = match target {
            Target::Authority(authority) => return Box::pin(self.connect(&authority)).await,
            _ if hops == Hops::None => return Box::pin(self.answer_here()).await,
            Target::Absolute(_) | Target::Origin(_) | Target::Asterisk => self.uri()?,
        };
        if strait_http::forward::has_passed(&request.fields, &self.worker.settings().pseudonym.text) {
            return Err(Stop::Refuse(508, "the request has come through here before: a loop".to_owned()));
        }
        if !self.worker.settings().answers_for(&uri.authority.host) {
            return Err(Stop::Refuse(421, "another server answers for that host".to_owned()));
        }
        if request.method == "PURGE" {
            return self.purge(&uri);
        }
        let is_conditional = request.fields.has("if-match") || request.fields.has("if-unmodified-since");
        if is_answered_from_store(request.method)
            && self.body == Body::None
            && !is_conditional
            && !self.upgrades()
        {
            return cached::answer(self, &uri).await;
        }
        let why = if is_answered_from_store(request.method) { Why::Bypass } else { Why::Method };
        self.pass(&uri, hops, why).await
    }

    /// OPTIONS and TRACE that go no further (RFC 9110, sections 7.6.2 and 9.3.8).
    async fn answer_here(&mut self) -> Result<bool, Stop> {
        let wish = Wish { keeps_alive: self.wish.keeps_alive && !self.upload.has_body(), ..self.wish };
        let mut head = self.worker.head();
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
        self.client.told.other(200, Outcome::Own);
        self.client.write_all(&head, &body).await?;
        self.worker.give_back(head);
        Ok(wish.keeps_alive)
    }

    /// What the request is for. Without a Host that is the server behind a reverse proxy.
    fn uri(&self) -> Result<Uri<'b>, Stop> {
        if self.request.target == "*"
            && let Some(authority) = strait_http::target::host(self.request)?
        {
            return Ok(Uri { scheme: self.scheme(), authority, path: "" });
        }
        if let Some(uri) = strait_http::target::uri(self.request, self.scheme())? {
            let is_forward = self.worker.settings().behind.is_none();
            let is_for_origin = self.request.target.starts_with('/');
            return match uri.scheme {
                _ if is_forward && is_for_origin => Err(Stop::Refuse(
                    400,
                    "a forward proxy is asked for whole URIs: GET http://host/path".to_owned(),
                )),
                Scheme::Https if !is_for_origin => {
                    Err(Stop::Refuse(501, "https is asked for by CONNECT".to_owned()))
                }
                _ => Ok(uri),
            };
        }
        // HTTP/1.0 without Host.
        match &self.worker.settings().behind {
            Some(_) => {
                let authority = Authority { host: Host::Name("localhost"), port: None };
                Ok(Uri { scheme: self.scheme(), authority, path: self.request.target })
            }
            None => Err(Stop::Refuse(400, "nothing says which host is asked".to_owned())),
        }
    }

    fn scheme(&self) -> Scheme {
        self.worker.settings().scheme(self.client.is_encrypted())
    }

    /// Whether the connection is to become a WebSocket (RFC 6455). What else it might become would go past all that is looked at here.
    fn upgrades(&self) -> bool {
        self.request.fields.elements("upgrade").any(|it| it.eq_ignore_ascii_case(WEBSOCKET))
            && self.request.fields.elements("connection").any(|it| it.eq_ignore_ascii_case("upgrade"))
    }

    /// Passes request and response on, without the cache.
    async fn pass(&mut self, uri: &Uri<'_>, hops: Hops, why: Why) -> Result<bool, Stop> {
        let mut order = Order::new(self, uri, self.body, Purpose::Pass);
        if let Hops::Left(hops) = hops {
            order.add("Max-Forwards", hops.to_string().as_bytes());
        }
        if self.upgrades() {
            order.add("Connection", b"Upgrade");
            order.add("Upgrade", WEBSOCKET.as_bytes());
        }
        let incoming = fetch(self.worker, &order, Some((&mut *self.client, &mut self.upload))).await?;
        if !is_safe(self.request.method) {
            self.invalidate(uri, incoming.status, &incoming.response().fields);
        }
        self.pass_response(incoming, why).await
    }

    /// Forgets what is stored for a URI, for those who may.
    fn purge(&self, uri: &Uri<'_>) -> Result<bool, Stop> {
        if !self.worker.settings().access.allows_purge(self.peer.ip()) {
            return Err(Stop::Refuse(403, "PURGE is not allowed from here".to_owned()));
        }
        let forgotten = self.worker.with_key(uri, |hash, key| self.worker.forget(hash, key));
        match forgotten {
            0 if self.worker.shared.store.is_some() => {
                Err(Stop::Refuse(404, "nothing is stored for it".to_owned()))
            }
            // What other workers have in memory nobody has counted.
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
            if !self.upgrades() {
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
        self.client.told.other(incoming.status, Outcome::Pass);
        let mut head = self.worker.head();
        write_passed(
            &mut head,
            self.worker.settings(),
            &incoming.response(),
            self.worker.now(),
            framing,
            Some(&status),
            self.wish,
        );
        let trailers = Trailers::of(&incoming.response().fields);
        let Connection { socket, buffer, .. } = &mut *incoming.connection;
        let from = Source { socket, buffer, framed: &mut incoming.framed, trailers };
        after_others_have_read().await;
        let passed = passage::pass(self.worker, from, self.client, head, what).await;
        match passed {
            Ok(()) => incoming.finish(self.worker),
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
        let mut head = self.worker.head();
        write_switching(&mut head, self.worker.settings(), &incoming.response());
        self.client.told.other(incoming.status, Outcome::Tunnel);
        self.client.write_all(&head, &[]).await?;
        self.worker.give_back(head);
        let Connection { socket, buffer, .. } = &mut *incoming.connection;
        tunnel::run(self.worker, (self.client, &mut self.upload.buffer), (socket, buffer)).await?;
        Ok(false)
    }

    /// RFC 9110 s9.3.6.
    async fn connect(&mut self, authority: &Authority<'_>) -> Result<bool, Stop> {
        let port = authority.port_or_default(Scheme::Https);
        let settings = self.worker.settings();
        if settings.behind.is_some() {
            return Err(Stop::Refuse(405, "a reverse proxy opens no tunnels".to_owned()));
        }
        if !settings.access.connect_ports.contains(&port) {
            return Err(Stop::Refuse(403, format!("tunnels to port {port} are not allowed")));
        }
        let host = authority.host.to_string().trim_matches(['[', ']']).into();
        // What is inside is theirs.
        let server = Server { host, port, is_tls: false };
        let mut connection = Connection::open(self.worker, &server).await?;
        self.client.told.other(200, Outcome::Tunnel);
        self.client.told.origin = connection.address;
        self.client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n", &[]).await?;
        let Connection { socket, buffer, .. } = &mut *connection;
        tunnel::run(self.worker, (self.client, &mut self.upload.buffer), (socket, buffer)).await?;
        Ok(false)
    }

    /// Tells the client why there is no response; whether another request may follow.
    async fn refuse(&mut self, status: u16, why: &str) -> Result<bool, Gone> {
        // What cannot be told apart is not read on.
        let stays = self.wish.keeps_alive && !self.upload.has_body() && status != 400 && status != 431;
        let wish = Wish { keeps_alive: stays, ..self.wish };
        let settings = self.worker.settings();
        let mut head = self.worker.head();
        // What is behind a reverse proxy is for who runs it alone.
        let said = if settings.behind.is_some() && status == 502 { BAD_GATEWAY } else { why };
        write_own(&mut head, settings, status, said, wish);
        self.client.told.refused(settings, status, why);
        let sent = self.client.write_all(&head, &[]).await;
        self.worker.give_back(head);
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
