//! Hedging: a request without a response head after a time is also sent to another server of its
//! pool. The first head wins, and the other request is given up with its connection.
//!
//! Only GET and HEAD without content are hedged. Interim responses of such requests are not
//! forwarded: a client could get a part of one when the other server wins.

use std::time::Instant;

use tokio::time::timeout;

use crate::io::socket::SocketError;
use crate::upstream::error::{Failure, FetchError};
use crate::upstream::fetch::{Client, fetch_on};
use crate::upstream::incoming::Incoming;
use crate::upstream::origin::Origin;
use crate::upstream::origin_request::OriginRequest;
use crate::upstream::pool::{Connection, Upstream, enter};

/// Response with the server of a hedged request, if that was the first to answer.
type Won = (Box<Incoming>, Option<Origin>);

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
    let (incoming, other) = match end {
        None => raced.await?,
        Some(end) => tokio::select! {
            biased;
            raced = raced => raced?,
            () = end.cancelled() => return Err(FetchError::Client(SocketError::Closed)),
        },
    };
    if let Some(other) = other {
        request.origin.give_way(other);
    }
    if let Some(client) = client {
        *client.origin = incoming.connection.address;
    }
    Ok(incoming)
}

async fn race(
    upstream: &Upstream<'_>,
    connection: Box<Connection>,
    request: &OriginRequest,
) -> Result<Won, FetchError> {
    let begun = Instant::now();
    let of_first = |incoming: Box<Incoming>| {
        request.note_time(&incoming, upstream.clock.now());
        (incoming, None)
    };
    let mut first = Box::pin(fetch_on(upstream, connection, request, None, true));
    let Some(after) = request.origin.hedge_after() else { return first.await.map(of_first) };
    if let Ok(fetched) = timeout(after, &mut first).await {
        return fetched.map(of_first);
    }
    let Some(mut other) = request.hedge(upstream.clock.now()) else { return first.await.map(of_first) };
    let mut second = Box::pin(fetch_from_other(upstream, &mut other));
    let fetched = tokio::select! {
        biased;
        fetched = &mut first => return fetched.map(of_first),
        fetched = &mut second => fetched,
    };
    drop(second);
    let now = upstream.clock.now();
    match fetched {
        Ok(incoming) => {
            // The first would have taken longer. It had its connection.
            request.origin.note_time(request.client, begun.elapsed(), now);
            other.note_time(&incoming, now);
            other.origin.note_hedge_won();
            Ok((incoming, Some(other.origin)))
        }
        Err(error) => {
            if let FetchError::Origin(error) = error {
                let failure = Failure { error, was_sent: true, may_repeat: false };
                other.origin.fail_over(now, request.client, &failure);
            }
            first.await.map(of_first)
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
