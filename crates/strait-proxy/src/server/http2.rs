//! HTTP/2 connection of a client: hits in the memory cache are sent at once, and a task for each
//! other stream answers it as a connection of its own.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use strait_http2::Abuse;
use tokio::task::JoinSet;

use crate::cache::worker::Worker;
use crate::config::settings::Settings;
use crate::config::sites::Sites;
use crate::io::buffer::Buffer;
use crate::io::deadline::{Deadline, TimedOut};
use crate::io::http2::accept::Accepted;
use crate::io::http2::link::Link;
use crate::io::http2::opened::Opened;
use crate::io::http2::translate::TargetForm;
use crate::io::stream::Stream;
use crate::io::turn;
use crate::observe::refusals::Refusal;
use crate::server::at_once::{self, Attempt};
use crate::server::client_limits::Share;
use crate::server::connection::Client;
use crate::server::current::Current;

/// Time in which a client gets the last frames of its connection.
const LINGER: Duration = Duration::from_secs(2);

/// Time in which a client learns that it is to open no more streams, after which they are refused:
/// more than a round trip (RFC 9113, section 6.8).
const ANNOUNCED: Duration = Duration::from_secs(2);

/// HTTP/2 connection of a client.
pub(crate) struct Http2Connection<'a> {
    pub(crate) current: &'a Current,
    pub(crate) peer: SocketAddr,
    pub(crate) share: &'a Share,
}

impl Http2Connection<'_> {
    /// Serves the connection, of which `buffer` was read, until it ends.
    pub(crate) async fn serve(&self, stream: Stream, buffer: Buffer) {
        let worker = self.current.worker();
        let settings = worker.settings();
        let are_independent = settings.sites.as_ref().is_some_and(Sites::use_http2);
        let link = Link::new(stream, buffer, settings.http2.streams, form(settings), are_independent);
        drop(worker);
        let (mut tasks, mut deadline) = (JoinSet::new(), Deadline::default());
        let abuse = self.requests(&link, &mut tasks, &mut deadline).await;
        if let Some(abuse) = abuse {
            self.current.worker().counters().http2_abuse[abuse as usize].add(1);
        }
        link.go_away();
        link.end();
        // Errors end the connection; there is no peer left to inform.
        let _ = deadline.within(LINGER, poll_fn(|context| link.poll_close(context))).await;
        return_pipe(&link, &self.current.worker());
        // Exchanges end by themselves, so that each is accounted.
        while tasks.join_next().await.is_some() {}
    }

    /// Begins a task for each request; returns at the end of the connection, with the limit that
    /// the client has exceeded, if it did.
    async fn requests(&self, link: &Link, tasks: &mut JoinSet<()>, deadline: &mut Deadline) -> Option<Abuse> {
        let mut is_quiet = false;
        let mut announced: Option<Instant> = None;
        loop {
            while tasks.try_join_next().is_some() {}
            let worker = self.current.worker();
            let timeouts = &worker.settings().timeouts;
            let mut limit = if is_quiet { timeouts.idle } else { timeouts.client };
            let is_closing = worker.settings().is_closing();
            let announcement = ANNOUNCED.min(timeouts.drain / 2);
            let is_announcing =
                is_closing && announced.get_or_insert_with(Instant::now).elapsed() < announcement;
            if is_announcing {
                link.announce_end();
                limit = limit.min(announcement);
            } else if is_closing {
                link.go_away();
                if is_quiet {
                    return None;
                }
            }
            let blocked = link.blocked_at();
            let accept = deadline.within(limit, poll_fn(|context| link.poll_accept(context, is_quiet)));
            let accepted = tokio::select! {
                biased;
                accepted = accept => Some(accepted),
                // The client must learn it, also while it has no streams.
                () = self.current.closing() => None,
            };
            let Some(accepted) = accepted else { continue };
            match accepted {
                Ok(Accepted::Request(opened)) => {
                    is_quiet = false;
                    let bytes = self.begin(&worker, opened, tasks);
                    // The requests of a fast client are always at hand.
                    turn::count(bytes).await;
                }
                Ok(Accepted::NeedsPipe) => {
                    link.lend(worker.pipes.borrow_mut().try_take());
                    // The stream fills it before the driver sends.
                    tokio::task::yield_now().await;
                }
                Ok(Accepted::Idle) => {
                    is_quiet = true;
                    return_pipe(link, &worker);
                }
                Ok(Accepted::End(abuse)) => return abuse,
                Err(TimedOut) if is_announcing => {}
                // The client sends nothing, or reads nothing.
                Err(TimedOut) if is_quiet => return None,
                Err(TimedOut) if blocked.is_some() && blocked == link.blocked_at() => return None,
                Err(TimedOut) => {}
            }
        }
    }

    /// Answers a request at once, or begins its task, unless its client, or all clients, have as
    /// many as they may. Returns the body bytes of a response at once.
    fn begin(&self, worker: &Rc<Worker>, opened: Opened, tasks: &mut JoinSet<()>) -> u64 {
        let refuse = |opened: Opened, refusal| {
            worker.note_refusal(refusal, self.peer.ip(), true);
            opened.refuse();
            0
        };
        if let Err(refusal) = Open::check(worker, self.share, self.peer) {
            return refuse(opened, refusal);
        }
        let found = match at_once::answer(worker, &opened, self.peer) {
            Attempt::Answered(bytes) => {
                worker.counters().http2_streams.add(1);
                opened.end();
                return bytes;
            }
            Attempt::Left(found) => found,
        };
        let open = match Open::of(worker, self.share, self.peer) {
            Ok(open) => open,
            Err(refusal) => return refuse(opened, refusal),
        };
        worker.counters().http2_streams.add(1);
        let client = Client::of_http2(worker, opened.into_stream(), self.peer, found);
        let worker = worker.clone();
        // In a box, because the runtime moves a task several times, and this one has thousands of
        // bytes.
        tasks.spawn_local(Box::pin(async move {
            client.serve_stream(worker).await;
            drop(open);
        }));
        0
    }
}

/// Open stream, counted as a connection until it is dropped.
struct Open {
    worker: Rc<Worker>,
    _share: Share,
}

impl Open {
    /// Returns the reason if the limits allow no other stream.
    fn check(worker: &Worker, share: &Share, peer: SocketAddr) -> Result<(), Refusal> {
        let (settings, open) = (worker.settings(), worker.shared.connections());
        match open < settings.connections_max {
            false => Err(Refusal::Connections),
            true if share.has_room_for_stream(settings, peer.ip(), open) => Ok(()),
            true => Err(Refusal::PerClient),
        }
    }

    fn of(worker: &Rc<Worker>, share: &Share, peer: SocketAddr) -> Result<Self, Refusal> {
        let settings = worker.settings();
        if worker.shared.connections() >= settings.connections_max {
            return Err(Refusal::Connections);
        }
        let share = share.of_stream(settings, peer.ip()).ok_or(Refusal::PerClient)?;
        worker.counters().http2_open.add(1);
        Ok(Self { worker: worker.clone(), _share: share })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.worker.counters().http2_open.sub(1);
    }
}

/// Gives the pipe back to the worker, which closes it if bytes are in it.
fn return_pipe(link: &Link, worker: &Worker) {
    if let Some(pipe) = link.take_pipe() {
        worker.pipes.borrow_mut().give_back(pipe);
    }
}

fn form(settings: &Settings) -> TargetForm {
    if settings.is_reverse() { TargetForm::Origin } else { TargetForm::Absolute }
}
