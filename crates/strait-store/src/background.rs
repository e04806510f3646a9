//! The store's threads: one loads the index, keeps room free and closes the store in order; one syncs, so that eviction never waits
//! for the disk's cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::lock;
use crate::load;
use crate::open::Earlier;
use crate::shared::Shared;

/// How often evicted files that are still read are looked at: at first, and when none of them is closed again and again.
const UNLINKS_EVERY_MIN: Duration = Duration::from_millis(1);
const UNLINKS_EVERY_MAX: Duration = Duration::from_millis(50);
/// How long the eviction thread sleeps where nothing wakes it.
const IDLE: Duration = Duration::from_mins(1);

/// Starts the threads; returns the handle of the one that joins the other.
pub(crate) fn start(
    shared: Shared,
    earlier: Earlier,
    sync_every: Option<Duration>,
) -> Result<(Arc<Shared>, JoinHandle<()>)> {
    let shared = Arc::new(shared);
    let syncing = match sync_every {
        Some(every) => {
            let own = shared.clone();
            Some(spawn(&shared, "strait-sync", move || sync_regularly(&own, every))?)
        }
        None => None,
    };
    let own = shared.clone();
    let evicting = spawn(&shared, "strait-store", move || run(&own, earlier, syncing));
    // The other thread ends when it sees that.
    let thread = evicting.inspect_err(|_| {
        shared.is_closed.store(true, Ordering::Release);
        shared.settle();
    })?;
    let _ = shared.thread.set(thread.thread().clone());
    // For what came before it could be woken.
    shared.wake();
    Ok((shared, thread))
}

fn spawn(shared: &Shared, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map_err(|error| Error::io("start a thread for", &shared.dir, &error))
}

fn run(shared: &Shared, earlier: Earlier, syncing: Option<JoinHandle<()>>) {
    load::load(shared, earlier);
    let mut look_every = UNLINKS_EVERY_MIN;
    while !shared.is_closed.load(Ordering::Acquire) {
        let before = shared.unlinks.pinned_files();
        shared.close_unlinked();
        shared.make_room();
        let is_same = before > 0 && shared.unlinks.pinned_files() == before;
        look_every = if is_same { (2 * look_every).min(UNLINKS_EVERY_MAX) } else { UNLINKS_EVERY_MIN };
        let idle = shared.relief.due_in().map_or(IDLE, |relief| relief.min(IDLE));
        thread::park_timeout(if shared.unlinks.is_empty() { idle } else { idle.min(look_every) });
    }
    if let Some(syncing) = syncing {
        syncing.thread().unpark();
        // It does not panic; if it did, the last sync is made below.
        let _ = syncing.join();
    }
    shared.finish();
}

/// Syncs every `every` from when the index is loaded, until the store is closed.
fn sync_regularly(shared: &Shared, every: Duration) {
    let guard = lock(&shared.is_loaded);
    drop(shared.loaded.wait_while(guard, |is_loaded| !*is_loaded));
    let mut due = Instant::now() + every;
    while !shared.is_closed.load(Ordering::Acquire) {
        let now = Instant::now();
        if now < due {
            thread::park_timeout(due - now);
            continue;
        }
        // It is counted, and tried again the next time.
        let _ = shared.counted(shared.sync());
        due = Instant::now() + every;
    }
}
