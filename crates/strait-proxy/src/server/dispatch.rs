//! One request: from its head to the end of its response.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use strait_http::Malformed;
use strait_http::framing::BodyFraming;
use strait_http::head::{Request, Version};

use crate::cache::fill::Refusal;
use crate::cache::worker::Worker;
use crate::config::sites::Manner;
use crate::io::buffer::Buffer;
use crate::io::socket::SocketError;
use crate::observe::access::ClientSocket;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::lookup;
use crate::serve::response::ResponseOptions;
use crate::serve::route::{Applied, Route, too_long};
use crate::upstream::upload::{BodyLimits, Upload};

/// Request with its body's framing and its route.
#[derive(Debug)]
pub(crate) struct RoutedRequest<'a, 'b> {
    pub(crate) request: &'a Request<'b>,
    /// Result of the rules of the route.
    pub(crate) applied: Applied,
    pub(crate) body: Result<BodyFraming, Malformed>,
    pub(crate) route: Result<Route<'b>, Refusal>,
}

/// Answers a request; `read` is its head, and the bytes after it.
pub(crate) async fn run(
    worker: &Rc<Worker>,
    client: &mut ClientSocket,
    peer: SocketAddr,
    routed: RoutedRequest<'_, '_>,
    read: (&[u8], &[u8]),
) -> Result<ConnectionAfter, SocketError> {
    let (RoutedRequest { request, body, route, .. }, (raw, rest)) = (routed, read);
    let options = ResponseOptions::of(request);
    // With invalid framing the end of the body is unknown: close after responding.
    let keeps_alive = options.keeps_alive && body.is_ok();
    let manner = route.as_ref().map_or_else(|_| Manner::default(), Route::manner);
    let (has_hsts, rules) = (manner.is_https_only, manner.response().map(|rules| &**rules));
    let options = ResponseOptions { keeps_alive, has_hsts, rules, ..options };
    let body = body.unwrap_or(BodyFraming::None);
    // RFC 9110 s10.1.1: an expectation without content has no effect.
    let is_expected = body != BodyFraming::None
        && request.fields.elements("expect").any(|it| it.eq_ignore_ascii_case("100-continue"));
    let takes_interim = request.version >= Version::Http11;
    let (settings, limits) = (worker.settings(), manner.limits());
    let body_limits = BodyLimits {
        bytes: limits.request_body.unwrap_or(settings.request_body_max),
        time: limits.body.unwrap_or(settings.timeouts.body),
    };
    let upload = Upload::new(body, rest, is_expected && takes_interim, takes_interim, body_limits);
    let mut exchange = Exchange {
        worker,
        client,
        peer,
        request,
        raw,
        upload,
        options,
        client_permit: None,
        body,
        limits,
        chosen: RefCell::default(),
    };
    let done = match route {
        Ok(route) if exchange.is_too_long_for(&route) => Err(too_long(body_limits.bytes).into()),
        Ok(Route::Cache(resource)) => lookup::answer(&mut exchange, &resource).await,
        Ok(Route::Bypass(bypass)) => Box::pin(exchange.bypass(bypass)).await,
        Err(refusal) => Err(refusal.into()),
    };
    let keeps_alive = match done {
        Ok(stays) => stays && options.keeps_alive && !exchange.upload.has_body(),
        Err(ExchangeError::Socket(error)) => return Err(error),
        Err(ExchangeError::Refuse(status, why)) => exchange.refuse(status, &why).await?,
    };
    let mut buffer = exchange.upload.buffer;
    // The remaining bytes belong to the next request, which holds no permit.
    buffer.set_permits(Vec::new());
    Ok(ConnectionAfter { buffer, keeps_alive })
}

/// State of a connection after a response.
#[derive(Debug)]
pub(crate) struct ConnectionAfter {
    /// Bytes after the request.
    pub(crate) buffer: Buffer,
    /// True if the connection can carry another request.
    pub(crate) keeps_alive: bool,
}
