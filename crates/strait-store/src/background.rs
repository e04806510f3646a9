//! Background threads of the store. One loads the index, evicts and closes the store in order; the
//! other syncs, so that eviction never waits for the disk's write cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::lock;
use crate::load;
use crate::open::Earlier;
use crate::shared::Shared;

/// Shortest and longest interval between two checks of pending unlinks. The interval doubles while
/// no reader closes one of the files.
const UNLINKS_EVERY_MIN: Duration = Duration::from_millis(1);
const UNLINKS_EVERY_MAX: Duration = Duration::from_millis(50);
/// Longest sleep of the eviction thread without a wake-up.
const IDLE: Duration = Duration::from_mins(1);

/// Starts the threads. Returns the handle of the eviction thread, which joins the sync thread.
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
    // The sync thread ends when it sees the flag.
    let thread = evicting.inspect_err(|_| {
        shared.is_closed.store(true, Ordering::Release);
        shared.settle();
    })?;
    let _ = shared.thread.set(thread.thread().clone());
    // Handles requests made before the thread could be woken.
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
        shared.evict_ahead();
        let is_same = before > 0 && shared.unlinks.pinned_files() == before;
        look_every = if is_same { (2 * look_every).min(UNLINKS_EVERY_MAX) } else { UNLINKS_EVERY_MIN };
        let idle = shared.enospc.due_in().map_or(IDLE, |pause| pause.min(IDLE));
        thread::park_timeout(if shared.unlinks.is_empty() { idle } else { idle.min(look_every) });
    }
    if let Some(syncing) = syncing {
        syncing.thread().unpark();
        // The sync thread does not panic; if it did, `finish` below makes the last sync.
        let _ = syncing.join();
    }
    shared.finish();
}

/// Syncs once per `every`, from the end of loading until the store is closed.
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
        // A failure is counted; the next period tries again.
        let _ = shared.counted(shared.sync());
        due = Instant::now() + every;
    }
}
