//! HTTP/2 connection of a client: a task for each stream, which answers it as a connection of its
//! own.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use strait_http2::Abuse;
use tokio::task::JoinSet;

use crate::cache::worker::Worker;
use crate::config::settings::Settings;
use crate::io::buffer::Buffer;
use crate::io::deadline::{Deadline, TimedOut};
use crate::io::http2::link::{Accepted, Link};
use crate::io::http2::translate::TargetForm;
use crate::io::stream::Stream;
use crate::server::connection::Client;
use crate::server::current::Current;

/// Time in which a client gets the last frames of its connection.
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection, of which `buffer` was read, until it ends.
pub(crate) async fn serve(
    stream: Stream,
    buffer: Buffer,
    peer: SocketAddr,
    current: &Current,
    is_idle: &Cell<bool>,
) {
    let worker = current.worker();
    let link = Link::new(stream, buffer, worker.settings().http2_streams, form(worker.settings()));
    drop(worker);
    let (mut tasks, mut deadline) = (JoinSet::new(), Deadline::default());
    let abuse = requests(&link, peer, current, is_idle, (&mut tasks, &mut deadline)).await;
    if let Some(abuse) = abuse {
        current.worker().counters().http2_abuse[abuse as usize].add(1);
    }
    link.go_away();
    link.end();
    // Errors end the connection; there is no peer left to inform.
    let _ = deadline.within(LINGER, poll_fn(|context| link.poll_close(context))).await;
    return_pipe(&link, &current.worker());
    // Exchanges end by themselves, so that each is accounted.
    while tasks.join_next().await.is_some() {}
}

/// Begins a task for each request; returns at the end of the connection, with the limit that the
/// client has exceeded, if it did.
async fn requests(
    link: &Link,
    peer: SocketAddr,
    current: &Current,
    is_idle: &Cell<bool>,
    (tasks, deadline): (&mut JoinSet<()>, &mut Deadline),
) -> Option<Abuse> {
    let mut is_quiet = false;
    loop {
        while tasks.try_join_next().is_some() {}
        let worker = current.worker();
        let timeouts = &worker.settings().timeouts;
        if worker.settings().is_closing() {
            link.go_away();
            if is_quiet {
                return None;
            }
        }
        let limit = if is_quiet { timeouts.idle } else { timeouts.client };
        let blocked = link.blocked_at();
        is_idle.set(is_quiet);
        let accepted = deadline.within(limit, poll_fn(|context| link.poll_accept(context, is_quiet))).await;
        is_idle.set(false);
        match accepted {
            Ok(Accepted::Request(stream)) => {
                is_quiet = false;
                worker.counters().http2_streams.add(1);
                tasks.spawn_local(Client::of_http2(&worker, stream, peer).serve_stream(worker.clone()));
            }
            Ok(Accepted::NeedsPipe) => link.lend(worker.pipes.borrow_mut().try_take()),
            Ok(Accepted::Idle) => {
                is_quiet = true;
                return_pipe(link, &worker);
            }
            Ok(Accepted::End(abuse)) => return abuse,
            // The client reads nothing, or sends nothing.
            Err(TimedOut) if is_quiet || (blocked.is_some() && blocked == link.blocked_at()) => return None,
            Err(TimedOut) => {}
        }
    }
}

/// Gives the pipe back to the worker, which closes it if bytes are in it.
fn return_pipe(link: &Link, worker: &Worker) {
    if let Some(pipe) = link.take_pipe() {
        worker.pipes.borrow_mut().give_back(pipe);
    }
}

fn form(settings: &Settings) -> TargetForm {
    if settings.origin.is_some() { TargetForm::Origin } else { TargetForm::Absolute }
}
