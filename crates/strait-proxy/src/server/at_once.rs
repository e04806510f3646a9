//! Hits in the memory cache that are sent at once on HTTP/2: in the task of the connection, by the
//! fields of the request, without a stream.
//!
//! Requests of routes with other rules than a cache policy are left to a stream: rules count
//! requests, and change heads. So are responses that would have to wait.

use std::cell::OnceCell;
use std::net::SocketAddr;

use strait_http::cache_status::{Answer, CacheStatus};
use strait_http::framing;
use strait_http::head::Request;

use crate::cache::worker::Worker;
use crate::config::rules::Rules;
use crate::config::sites::Resource;
use crate::io::http2::opened::Opened;
use crate::observe::access::{Account, Record};
use crate::serve::deliver;
use crate::serve::route::{Route, drop_fields, route};
use crate::server::connection::{Found, Hit, memory_hit};

/// Outcome of an attempt.
pub(super) enum Attempt {
    /// A response with this number of body bytes was sent.
    Answered(u64),
    /// The stream's user answers, with the result of the lookup if there was one.
    Left(Option<Found>),
}

/// Answers a request if the memory cache has the response and it can be sent at once.
pub(super) fn answer(worker: &Worker, opened: &Opened, peer: SocketAddr) -> Attempt {
    let look =
        |request: &Request<'_>, resource: &Resource<'_>| memory_hit(worker, peer.ip(), request, resource, 0);
    match with_resource(worker, opened, look) {
        Some(Some(hit)) => match send(worker, opened, peer, &hit) {
            Some(bytes) => Attempt::Answered(bytes),
            None => Attempt::Left(Some(Found::Hit(Box::new(hit)))),
        },
        Some(None) => Attempt::Left(Some(Found::NoHit)),
        None => Attempt::Left(None),
    }
}

/// Calls `look` with a request and its resource; `None` if the request, or its route, is not to be
/// answered at once.
fn with_resource<T>(
    worker: &Worker,
    opened: &Opened,
    look: impl FnOnce(&Request<'_>, &Resource<'_>) -> T,
) -> Option<T> {
    if !opened.may_be_answered() {
        return None;
    }
    let (settings, path) = (worker.settings(), OnceCell::new());
    let mut request = opened.request()?;
    drop_fields(settings, &mut request);
    let body = framing::of_request(&request).ok()?;
    let route = route(settings, &request, body, opened.is_encrypted(), &path).ok()?;
    match &route {
        Route::Cache(resource) if route.rules().is_none_or(Rules::are_of_cache_alone) => {
            Some(look(&request, resource))
        }
        Route::Cache(_) | Route::Bypass(_) => None,
    }
}

/// Sends, counts and logs a hit, and returns the bytes of its body; `None`, with nothing sent, if
/// that is not possible at once.
fn send(worker: &Worker, opened: &Opened, peer: SocketAddr, hit: &Hit) -> Option<u64> {
    let (object, selected) = (&*hit.object, &hit.selected);
    let (lines, body) = deliver::whole_in_memory(object, selected, hit.options)?;
    // A response that has to wait is not encoded.
    let room = opened.room(body.len())?;
    let ttl = Some(object.times.ttl(worker.now()));
    let status = CacheStatus { by: &worker.settings().name, answer: Answer::Hit, ttl, detail: None };
    let mut record = Record { trace: hit.trace, ..Record::default() };
    let mut block = worker.heads.take();
    deliver::encode_whole(&mut block, worker, &mut record, (object, lines), &status, hit.options);
    let moved = room.send(&block, body);
    worker.heads.give_back(block);
    let request = if worker.outputs_request(record.trace.as_ref()) { opened.request() } else { None };
    worker.account(&Account {
        client: peer,
        stream: Some(opened.id()),
        tls: opened.tls_version(),
        request: request.as_ref(),
        record: &record,
        moved,
        took: opened.received.elapsed(),
        is_whole: true,
    });
    Some(body.len() as u64)
}
