//! Hedging: a request without a response head after a time is also sent to another server of its
//! pool. The first head wins, and the other request is given up with its connection.
//!
//! Only GET and HEAD without content are hedged. Interim responses of such requests are not
//! forwarded: a client could get a part of one when the other server wins.

use std::time::Instant;

use tokio::time::timeout;

use crate::io::socket::SocketError;
use crate::upstream::error::{Failure, FetchError, OriginError};
use crate::upstream::fetch::{Client, fetch_on};
use crate::upstream::incoming::Incoming;
use crate::upstream::origin::Origin;
use crate::upstream::origin_request::OriginRequest;
use crate::upstream::pool::{Connection, Upstream, enter};

/// Outcome of a request that may have been sent to another server as well.
enum Raced {
    First(Box<Incoming>),
    /// Response of the other server, and the error of the first one if that has failed before.
    Other(Box<Incoming>, Box<Origin>, Option<OriginError>),
    /// Error of the first server, and the other one if that has failed as well.
    Failed(FetchError, Option<Box<Origin>>),
}

/// Sends a request on a connection, and after a time without a response also to another server,
/// which becomes that of the request if it answers first.
pub(super) async fn fetch_hedged(
    upstream: &Upstream<'_>,
    connection: Box<Connection>,
    request: &mut OriginRequest,
    client: Option<Client<'_>>,
) -> Result<Box<Incoming>, FetchError> {
    // As without hedging, a client that cancels its request on HTTP/2 ends the exchange.
    let watched = client.as_ref().filter(|_| !request.is_shared && !connection.is_http1());
    let end = watched.and_then(|client| client.socket.stream_end());
    let raced = race(upstream, connection, request);
    let raced = match end {
        None => raced.await,
        Some(end) => tokio::select! {
            biased;
            raced = raced => raced,
            () = end.cancelled() => return Err(FetchError::Client(SocketError::Closed)),
        },
    };
    let incoming = match raced {
        Raced::First(incoming) => incoming,
        Raced::Other(incoming, other, failed) => {
            request.origin.give_way(*other, failed.as_ref());
            incoming
        }
        Raced::Failed(error, other) => {
            if let Some(other) = other {
                request.origin.note_tried(&other);
            }
            return Err(error);
        }
    };
    if let Some(client) = client {
        *client.origin = incoming.connection.address;
    }
    Ok(incoming)
}

async fn race(upstream: &Upstream<'_>, connection: Box<Connection>, request: &OriginRequest) -> Raced {
    let begun = Instant::now();
    let of_first = |fetched: Result<Box<Incoming>, FetchError>, other| match fetched {
        Ok(incoming) => {
            request.note_time(&incoming, upstream.clock.now());
            Raced::First(incoming)
        }
        Err(error) => Raced::Failed(error, other),
    };
    let mut first = Box::pin(fetch_on(upstream, connection, request, None, true));
    let Some(after) = request.origin.hedge_after() else { return of_first(first.await, None) };
    if let Ok(fetched) = timeout(after, &mut first).await {
        return of_first(fetched, None);
    }
    let Some(mut other) = request.hedge(upstream.clock.now()) else { return of_first(first.await, None) };
    let mut second = Box::pin(fetch_from_other(upstream, &mut other));
    let mut failed = None;
    let fetched = tokio::select! {
        biased;
        fetched = &mut first => match fetched {
            // The other server may still answer.
            Err(FetchError::Origin(error)) => {
                failed = Some(error);
                (&mut second).await
            }
            fetched => return of_first(fetched, None),
        },
        fetched = &mut second => fetched,
    };
    drop(second);
    let now = upstream.clock.now();
    match fetched {
        Ok(incoming) => {
            if failed.is_none() {
                // The first would have taken longer. It had its connection.
                request.origin.note_time(request.client, begun.elapsed(), now);
            }
            other.note_time(&incoming, now);
            other.origin.note_hedge_won();
            Raced::Other(incoming, Box::new(other.origin), failed)
        }
        Err(error) => {
            let mut has_failed = false;
            if let FetchError::Origin(error) = error {
                // Without a connection within the limits, the server was not asked.
                has_failed = !error.is_of_limit();
                let failure = Failure { error, was_sent: true, may_repeat: false };
                other.origin.fail_over(now, request.client, &failure);
            }
            let other = has_failed.then(|| Box::new(other.origin));
            match failed {
                Some(error) => Raced::Failed(error.into(), other),
                None => of_first(first.await, other),
            }
        }
    }
}

/// Sends a hedged request to its server.
async fn fetch_from_other(
    upstream: &Upstream<'_>,
    request: &mut OriginRequest,
) -> Result<Box<Incoming>, FetchError> {
    let load = request.origin.load();
    let server = &request.origin.server;
    let slot = enter(upstream, server, request.client, (None, None)).await?;
    let connection = Connection::to(upstream, server, slot, request.http2()).await?;
    let mut incoming = fetch_on(upstream, connection, request, None, true).await?;
    incoming.connection.load = load;
    Ok(incoming)
}
