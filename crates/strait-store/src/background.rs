//! Background threads of the store. One loads the index, evicts and closes the store in order;
//! another syncs, so that eviction never waits for the disk's write cache; a third one scrubs.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::config::Scrub;
use crate::error::{Error, Result};
use crate::open::Earlier;
use crate::shared::Shared;
use crate::{eviction, load, scrub, sync};

/// Shortest and longest interval between two checks of pending unlinks. The interval doubles while
/// no reader closes one of the files.
const UNLINKS_EVERY_MIN: Duration = Duration::from_millis(1);
const UNLINKS_EVERY_MAX: Duration = Duration::from_millis(50);
/// Longest sleep of the eviction thread without a wake-up.
const IDLE: Duration = Duration::from_mins(1);

/// Starts the threads. Returns the handle of the eviction thread, which joins the others.
pub(crate) fn start(
    shared: Shared,
    earlier: Earlier,
    sync_every: Option<Duration>,
    scrub: Option<Scrub>,
) -> Result<(Arc<Shared>, JoinHandle<()>)> {
    let shared = Arc::new(shared);
    // The other threads end when they see the flag.
    let thread = start_all(&shared, earlier, sync_every, scrub).inspect_err(|_| {
        shared.lifecycle.close();
        shared.settle();
    })?;
    shared.lifecycle.set_thread(thread.thread().clone());
    // Handles requests made before the thread could be woken.
    shared.lifecycle.wake();
    Ok((shared, thread))
}

fn start_all(
    shared: &Arc<Shared>,
    earlier: Earlier,
    sync_every: Option<Duration>,
    scrub: Option<Scrub>,
) -> Result<JoinHandle<()>> {
    let mut others = Vec::new();
    if let Some(every) = sync_every {
        let own = shared.clone();
        others.push(spawn(shared, "strait-sync", move || sync_regularly(&own, every))?);
    }
    if let Some(scrub) = scrub {
        let own = shared.clone();
        let thread = spawn(shared, "strait-scrub", move || scrub::run(&own, scrub))?;
        shared.new_bodies.set_thread(thread.thread().clone());
        others.push(thread);
    }
    let own = shared.clone();
    spawn(shared, "strait-store", move || run(&own, earlier, others))
}

fn spawn(shared: &Shared, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|error| Error::io("start a thread for", &shared.segments.dir, &error))
}

fn run(shared: &Shared, earlier: Earlier, others: Vec<JoinHandle<()>>) {
    load::load(shared, earlier);
    let mut look_every = UNLINKS_EVERY_MIN;
    while !shared.lifecycle.is_closed() {
        let before = shared.segments.unlinks.pinned_files();
        eviction::close_unlinked(shared);
        eviction::evict_ahead(shared);
        // Callers may take the spare segments meanwhile.
        while !shared.lifecycle.is_closed() && eviction::cut_next(shared, false).is_some() {
            eviction::evict_ahead(shared);
        }
        let is_same = before > 0 && shared.segments.unlinks.pinned_files() == before;
        look_every = if is_same { (2 * look_every).min(UNLINKS_EVERY_MAX) } else { UNLINKS_EVERY_MIN };
        let idle = shared.demand.enospc.due_in().map_or(IDLE, |pause| pause.min(IDLE));
        thread::park_timeout(if shared.segments.unlinks.is_empty() { idle } else { idle.min(look_every) });
    }
    // Callers that wait for space are refused.
    shared.demand.begin_pass();
    shared.demand.note_futile();
    for other in &others {
        other.thread().unpark();
    }
    for other in others {
        // The threads do not panic; if the sync thread did, `finish` below makes the last sync.
        let _ = other.join();
    }
    sync::finish(shared);
}

/// Syncs once per `every`, from the end of loading until the store is closed.
fn sync_regularly(shared: &Shared, every: Duration) {
    shared.loading.wait();
    let mut due = Instant::now() + every;
    while !shared.lifecycle.is_closed() {
        let now = Instant::now();
        if now < due {
            thread::park_timeout(due - now);
            continue;
        }
        // A failure is counted; the next period tries again.
        let _ = shared.counted(sync::sync(shared));
        due = Instant::now() + every;
    }
}
