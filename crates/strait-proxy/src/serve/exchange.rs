//! Exchange: one request, its client, and the means to respond.

use std::cell::RefCell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use strait_http::cache_status::{Answer, CacheStatus, Why};
use strait_http::framing::BodyFraming;
use strait_http::head::{Request, Version};
use strait_http::trailer::Trailers;

use crate::cache::fill::Refusal;
use crate::cache::worker::Worker;
use crate::config::member::Member;
use crate::config::route_limits::RouteLimits;
use crate::config::sites::Resource;
use crate::io::buffer::Buffer;
use crate::io::forward::{self, BodySource, Form, ForwardError};
use crate::io::gate::{self, Key, Permit};
use crate::io::http2::stream::StreamEnd;
use crate::io::socket::{Socket, SocketError, after_others_have_read};
use crate::io::tunnel;
use crate::observe::access::{ClientSocket, Outcome};
use crate::serve::response::{Framing, ResponseOptions, write_own, write_passed, write_switching};
use crate::serve::route::{malformed, too_long, upgrades};
use crate::upstream::error::{FetchError, NO_SERVER, OriginError};
use crate::upstream::fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::origin::Origin;
use crate::upstream::origin_request::{ClientRequest, OriginRequest, Purpose};
use crate::upstream::pool::{Connection, enter_as_client};
use crate::upstream::upload::Upload;
use crate::upstream::uploading::Uploading;

/// Reason in the response to a slow request body.
const SLOW_BODY: &str =
    "the request body was too slow (limits.request_body_rate, timeouts.body, timeouts.client)";
/// Reason in the response to a request body that cannot be read ahead.
const NO_MEMORY: &str = "the memory for request bodies is used up (limits.request_ahead_memory, limits.request_ahead_memory_per_client)";
/// Reason that clients of a reverse proxy get for a failed origin.
const BAD_GATEWAY: &str = "the origin cannot be reached, or its answer cannot be used";

/// Request and its client.
#[derive(Debug)]
pub(crate) struct Exchange<'a, 'b> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) client: &'a mut ClientSocket,
    /// Address of the client.
    pub(crate) peer: SocketAddr,
    pub(crate) request: &'a Request<'b>,
    /// Head of the request as it was read.
    pub(crate) raw: &'a [u8],
    pub(crate) upload: Upload,
    pub(crate) options: ResponseOptions<'b>,
    /// Permit of the client's gate to the origin, if it was taken already.
    pub(crate) client_permit: Option<Permit>,
    pub(crate) body: BodyFraming,
    /// Limits of its route.
    pub(crate) limits: RouteLimits,
    /// Chosen server of its pool: all requests of the exchange go to one server.
    pub(crate) chosen: RefCell<Option<Arc<Member>>>,
}

/// Error that ends an exchange.
#[derive(Debug)]
pub(crate) enum ExchangeError {
    /// The connection is unusable.
    Socket(SocketError),
    /// The proxy responds with this status and reason; nothing was sent yet.
    Refuse(u16, String),
}

impl From<SocketError> for ExchangeError {
    fn from(error: SocketError) -> Self {
        Self::Socket(error)
    }
}

impl From<OriginError> for ExchangeError {
    fn from(failure: OriginError) -> Self {
        Self::Refuse(failure.status(), failure.to_string())
    }
}

impl From<FetchError> for ExchangeError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Client(error) => Self::Socket(error),
            FetchError::Origin(failure) => failure.into(),
            FetchError::Request(error) => malformed(error).into(),
            FetchError::Slow => Self::Refuse(408, SLOW_BODY.to_owned()),
            FetchError::NoMemory => Self::Refuse(503, NO_MEMORY.to_owned()),
            FetchError::TooLong(most) => too_long(most).into(),
        }
    }
}

impl From<Refusal> for ExchangeError {
    fn from((status, why): Refusal) -> Self {
        Self::Refuse(status, why)
    }
}

impl Exchange<'_, '_> {
    /// Returns the client to which limits apply.
    pub(crate) fn counted(&self) -> gate::Client {
        gate::Client::of(self.peer.ip())
    }

    /// Takes a permit of the client's gate to the origin, unless the exchange has one. Returns
    /// false if all are in use.
    pub(crate) fn has_client_permit(&mut self, origin_request: &OriginRequest) -> bool {
        // The server can have gone down while the exchange waited for its permit.
        let server = &origin_request.origin.server;
        self.client_permit = self.client_permit.take().filter(|permit| permit.is_for(server));
        if self.client_permit.is_none() {
            let key = Key::OriginOf(server.clone(), origin_request.client);
            self.client_permit = self.worker.shared.gates.try_enter(key);
        }
        self.client_permit.is_some()
    }

    /// Returns true if the client has used up its share of the connections to the origin, while
    /// requests of others need not wait. Otherwise the exchange has a permit of the client's gate,
    /// or waits as all clients do.
    pub(crate) fn waits_for_its_share(&mut self, origin_request: &OriginRequest) -> bool {
        let OriginRequest { origin, client, .. } = origin_request;
        !self.has_client_permit(origin_request)
            && self.worker.shared.gates.limits_client(&origin.server, *client)
    }

    /// Makes the request to a server of `resource`.
    pub(crate) fn origin_request(
        &self,
        resource: &Resource<'_>,
        body: BodyFraming,
        purpose: Purpose,
    ) -> OriginRequest {
        let (request, was_continued) = (self.request, self.upload.was_continued);
        let (client, trace) = (self.peer.ip(), self.client.record.trace.as_ref());
        let rules = resource.manner.rules.and_then(|rules| rules.request.as_ref());
        let host = rules.and_then(|rules| rules.host.as_deref());
        let passes_trailers = trace.is_none() && rules.is_none_or(|rules| rules.dropped.is_empty());
        let client_request = ClientRequest { request, client, was_continued, host, trace, passes_trailers };
        let (settings, head) = (self.worker.settings(), self.worker.heads.take());
        let chosen = self.chosen.borrow().clone();
        let origin = Origin::of_request(resource, request, chosen, self.worker.now());
        self.chosen.replace(origin.member().cloned());
        OriginRequest::new(settings, head, &client_request, &resource.uri, (origin, body), purpose)
    }

    /// Returns the client's side of a fetch.
    pub(crate) fn sender(&mut self) -> fetch::Client<'_> {
        let ClientSocket { socket, record } = &mut *self.client;
        fetch::Client { socket, upload: &mut self.upload, origin: &mut record.origin }
    }

    /// Moves bytes between the client and an origin until both have finished.
    pub(crate) async fn tunnel(&mut self, origin: (&mut Socket, &mut Buffer)) -> Result<(), SocketError> {
        let client = (&mut self.client.socket, &mut self.upload.buffer);
        let idle_timeout = self.limits.tunnel.unwrap_or(self.worker.settings().timeouts.tunnel);
        tunnel::run(self.worker.splicing(), idle_timeout, client, origin).await
    }

    /// Waits for a permit of the client's gate to the origin.
    pub(crate) async fn await_client_permit(
        &mut self,
        origin_request: &OriginRequest,
    ) -> Result<(), OriginError> {
        let (server, client) = (&origin_request.origin.server, origin_request.client);
        let _load = origin_request.origin.waiting();
        let upstream = self.worker.upstream().with_limits(self.limits);
        let permit = enter_as_client(&upstream, server, client).await;
        self.client_permit = Some(permit.inspect_err(|_| origin_request.origin.note_refused())?);
        Ok(())
    }

    /// Forwards a response that is not stored.
    pub(crate) async fn pass_response(
        &mut self,
        mut incoming: Box<Incoming>,
        why: Why,
    ) -> Result<bool, ExchangeError> {
        if incoming.body == BodyFraming::Tunnel {
            if !upgrades(self.request) {
                return Err(ExchangeError::Refuse(
                    502,
                    "the origin changed the protocol without a request for it".to_owned(),
                ));
            }
            return Box::pin(self.upgrade(incoming)).await;
        }
        let answer = Answer::Forwarded { why, status: None, stored: false, collapsed: false };
        let status = CacheStatus { by: &self.worker.settings().name, answer, ttl: None, detail: None };
        let (framing, form) = outgoing(&incoming, self.options);
        let set_cookie = self.set_cookie(&mut incoming);
        self.client.record.other(incoming.status, Outcome::Pass);
        let mut head = self.worker.heads.take();
        let trailers = {
            let (response, settings) = (incoming.response(), self.worker.settings());
            let now = self.worker.now();
            let options = ResponseOptions { set_cookie: set_cookie.as_deref(), ..self.options };
            write_passed(&mut head, settings, &response, now, framing, Some(&status), options);
            let has_trailers = form == Form::Chunks && incoming.body == BodyFraming::Chunked;
            if has_trailers { Trailers::of(&response.fields) } else { None }
        };
        let is_http1 = incoming.connection.is_http1();
        let Connection { socket, buffer, .. } = &mut *incoming.connection;
        let from = BodySource { socket, buffer, framed: &mut incoming.framed, trailers, sent: None };
        after_others_have_read().await;
        let end = if is_http1 { None } else { self.client.socket.stream_end() };
        let passing = forward::body(self.worker.splicing(), from, &mut self.client.socket, head, form);
        let passed = match end {
            None => passing.await,
            Some(end) => Box::pin(unless_given_up(passing, &end, &mut incoming.uploading)).await,
        };
        match passed {
            Ok(head) => {
                self.worker.heads.give_back(head);
                incoming.finish(&self.worker.upstream());
            }
            Err(broken) => {
                if framing == Framing::ToClose {
                    self.client.reset();
                }
                if let Some(code) = incoming.connection.reset_code() {
                    self.client.socket.reset_stream(code);
                }
                return Err(ExchangeError::Socket(match broken {
                    ForwardError::Receiver(error) | ForwardError::Sender(error) => error,
                    ForwardError::Malformed(_) => SocketError::Closed,
                }));
            }
        }
        Ok(framing.keeps_alive())
    }

    /// Takes the value of Set-Cookie for a response that is sent to this client alone. Another
    /// cache would add the field to a stored response by a 304, or by the response to HEAD (RFC
    /// 9111, section 3.2), and caches with a field of their own disregard Cache-Control.
    fn set_cookie(&self, incoming: &mut Incoming) -> Option<String> {
        let cookie = incoming.set_cookie.take()?;
        let fields = &incoming.response().fields;
        let is_unfit = self.options.is_head
            || incoming.status == 304
            || fields.has("cdn-cache-control")
            || fields.has("surrogate-control");
        let is_secure = self.client.is_encrypted() || self.options.has_hsts;
        (!is_unfit).then(|| if is_secure { cookie + "; Secure" } else { cookie })
    }

    /// Forwards a change of protocol (RFC 9110, section 7.8) and opens the tunnel.
    async fn upgrade(&mut self, mut incoming: Box<Incoming>) -> Result<bool, ExchangeError> {
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

    /// Sends the proxy's own response with a status and a reason. Returns true if the connection
    /// can carry another request.
    pub(crate) async fn refuse(&mut self, status: u16, why: &str) -> Result<bool, SocketError> {
        self.refuse_with(status, why, &[]).await
    }

    /// Like [`Self::refuse`], with further lines of fields.
    pub(crate) async fn refuse_with(
        &mut self,
        status: u16,
        why: &str,
        field_lines: &[u8],
    ) -> Result<bool, SocketError> {
        // After a malformed request the start of the next one is unknown. Bytes after CONNECT are
        // meant for the tunnel, which the client may believe to be open (RFC 9110, section 9.3.6):
        // they may come from someone else and must not be read as requests.
        let is_readable = status != 400 && status != 431 && self.request.method != "CONNECT";
        let stays = self.options.keeps_alive && !self.upload.has_body() && is_readable;
        let options = ResponseOptions { keeps_alive: stays, ..self.options };
        let settings = self.worker.settings();
        let mut head = self.worker.heads.take();
        // Details about the origin of a reverse proxy are for its operator alone; the log has them.
        let shown = match status {
            502 if settings.is_reverse() => BAD_GATEWAY,
            503 if why.starts_with(NO_SERVER) => NO_SERVER,
            _ => why,
        };
        let head_len = write_own(&mut head, self.worker, (status, shown, field_lines), options);
        self.client.record.refused(status, why, self.worker.logs_reasons());
        self.client.add_overhead(head_len);
        let sent = self.client.write_all(&head, &[]).await;
        self.worker.heads.give_back(head);
        sent.map(|()| stays)
    }
}

/// Forwards a response, unless its client cancels the request, or the body of the request fails.
async fn unless_given_up<T>(
    passing: impl Future<Output = Result<T, ForwardError>>,
    end: &StreamEnd,
    uploading: &mut Option<Box<Uploading>>,
) -> Result<T, ForwardError> {
    let failed = async {
        match uploading {
            Some(uploading) => drop(uploading.failed().await),
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        passed = passing => passed,
        () = end.cancelled() => Err(ForwardError::Receiver(SocketError::Closed)),
        () = failed => Err(ForwardError::Receiver(SocketError::Closed)),
    }
}

/// Returns the framing of a forwarded response, and the form of its body.
fn outgoing(incoming: &Incoming, options: ResponseOptions<'_>) -> (Framing, Form) {
    match incoming.body {
        BodyFraming::Length(length) => (Framing::Length(length), Form::Data),
        BodyFraming::Chunked | BodyFraming::ToClose | BodyFraming::Tunnel
            if options.version >= Version::Http11 =>
        {
            (Framing::Chunked, Form::Chunks)
        }
        BodyFraming::Chunked | BodyFraming::ToClose | BodyFraming::Tunnel => (Framing::ToClose, Form::Data),
        // The length that a GET would have, if known.
        BodyFraming::None => {
            let response = incoming.response();
            let length = response.fields.one("content-length").and_then(|length| length.parse().ok());
            let may_have_length = response.status >= 200 && response.status != 204;
            (length.filter(|_| may_have_length).map_or(Framing::None, Framing::Length), Form::Data)
        }
    }
}
