//! Permission by another server (`auth_request` of a route): a GET with the fields of the client
//! asks for each request, also for one that the cache could answer. 2xx allows it; 401 and 403 are
//! the response to the client. Anything else, and a failure, refuses it (502, 503 or 504).

use std::time::Duration;

use strait_http::cache_status::Why;
use strait_http::framing::BodyFraming;
use strait_http::head::Request;
use strait_http::target::Target;
use tokio::time::timeout;

use crate::config::rules::AuthRequest;
use crate::config::sites::{Manner, Resource};
use crate::io::framing::{Framed, Piece};
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::route::{Route, read_request};
use crate::upstream::fetch::fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::origin::Origin;
use crate::upstream::origin_request::{ClientRequest, OriginRequest, Purpose};
use crate::upstream::pool::Connection;

/// Fields with the client's method and path. Those of the client are dropped.
const METHOD: &str = "X-Original-Method";
const URI: &str = "X-Original-URI";
/// Further fields that are not sent: they are about the client's own response, or its body.
const DROPPED: [&str; 9] = [
    "accept-encoding",
    "expect",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "max-forwards",
    "range",
];

/// Longest body of a permission, in bytes with its framing, after which the connection is kept.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Time that the request waits for the end of that body.
const BODY_WAIT: Duration = Duration::from_millis(100);

/// Answer of the server.
#[derive(Debug)]
pub(super) enum Permission {
    Granted,
    /// The client was sent the refusal. True if the connection can carry another request.
    Refused(bool),
}

impl Exchange<'_, '_> {
    /// Asks if the request of a route is allowed.
    pub(super) async fn ask(
        &mut self,
        route: &Route<'_>,
        asked: &AuthRequest,
    ) -> Result<Permission, ExchangeError> {
        // The proxy's own answers need no permission.
        let Some(mut uri) = route.uri() else { return Ok(Permission::Granted) };
        uri.path = &asked.path;
        let resource = Resource { uri, pool: Some(&asked.pool), manner: Manner::default() };
        let worker = self.worker;
        // The client's fields, before the rules of the route have changed them.
        let read = read_request(worker.settings(), self.raw).ok().flatten();
        let Some((received, _)) = read else { return Err(unusable()) };
        let request = question(&received);
        let (client, trace) = (self.peer.ip(), self.client.record.trace.as_ref());
        let client_request = ClientRequest {
            request: &request,
            client,
            was_continued: false,
            host: None,
            trace,
            passes_trailers: false,
        };
        let origin = (Origin::of(&resource, &request, None, worker.now()), BodyFraming::None);
        let (settings, head) = (worker.settings(), worker.heads.take());
        let mut origin_request =
            OriginRequest::new(settings, head, &client_request, &uri, origin, Purpose::Bypass);
        // Added last: the client's Connection cannot remove them.
        let (slash, path) = path_of(&received);
        origin_request.add(METHOD, received.method.as_bytes());
        origin_request.add(URI, [slash, path].concat().as_bytes());
        let fetched = fetch(&worker.upstream(), &mut origin_request, None).await;
        worker.heads.give_back(origin_request.head);
        let incoming = fetched?;
        match incoming.status {
            200..=299 => {
                finish(incoming, self).await;
                Ok(Permission::Granted)
            }
            401 | 403 => self.pass_refusal(incoming).await.map(Permission::Refused),
            _ => Err(unusable()),
        }
    }

    async fn pass_refusal(&mut self, mut incoming: Box<Incoming>) -> Result<bool, ExchangeError> {
        // The body of the request was not read.
        self.options.keeps_alive &= !self.upload.has_body();
        if self.options.is_head {
            // The response to the GET has a body, which is not read.
            incoming.body = BodyFraming::None;
            incoming.framed = Framed::new(incoming.body);
            incoming.keeps_alive = false;
        }
        self.pass_response(incoming, Why::Bypass).await
    }
}

/// Keeps the connection after the rest of a short body, and closes it if that is late.
async fn finish(incoming: Box<Incoming>, exchange: &Exchange<'_, '_>) {
    if let Ok(Some(incoming)) = timeout(BODY_WAIT, Box::pin(without_body(incoming))).await {
        incoming.finish(&exchange.worker.upstream());
    }
}

/// Reads the body of a response; `None` if it is long, or does not end before its connection.
async fn without_body(mut incoming: Box<Incoming>) -> Option<Box<Incoming>> {
    let Incoming { connection, framed, .. } = &mut *incoming;
    let Connection { socket, buffer, .. } = &mut **connection;
    let mut left = BODY_BYTES_MAX;
    loop {
        let len = match framed.next(buffer.filled()).ok()? {
            Piece::Data(len) => {
                framed.advance(len as u64);
                len
            }
            Piece::Framing(len) | Piece::Trailer(len) => len,
            Piece::More if socket.read(buffer).await.ok()? > 0 => 0,
            Piece::More => return None,
            Piece::End(len) => {
                buffer.consume(len);
                return Some(incoming);
            }
        };
        buffer.consume(len);
        left = left.checked_sub(len)?;
    }
}

/// Returns the request that asks, with the fields of the client's request.
fn question<'b>(received: &Request<'b>) -> Request<'b> {
    let mut fields = received.fields.clone();
    let is = |name: &str, other: &str| strait_http::rules::is_same_for_programs(other, name);
    fields.remove(|name| {
        let is_of_body = name.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case("content-"));
        is_of_body || is(name, METHOD) || is(name, URI) || DROPPED.into_iter().any(|other| is(name, other))
    });
    Request { method: "GET", fields, ..*received }
}

/// Returns the path and query that the origin gets unless a rule changes them, as two strings to
/// concatenate.
fn path_of<'b>(received: &Request<'b>) -> (&'static str, &'b str) {
    match Target::parse(received.method, received.target) {
        Ok(Target::Absolute(uri)) => uri.origin_form(received.method),
        Ok(Target::Origin(path)) => ("", path),
        _ => ("", received.target),
    }
}

/// Returns the refusal if the server gives no usable answer.
fn unusable() -> ExchangeError {
    ExchangeError::Refuse(502, "the server that allows requests gave neither 2xx nor 401 nor 403".to_owned())
}
