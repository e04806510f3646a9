//! The store's one thread: it loads the index, keeps room free, syncs, and closes in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::file::lock;
use crate::load;
use crate::open::Earlier;
use crate::shared::Shared;

/// How often files that are evicted and still read are looked at.
const LEAVERS_EVERY: Duration = Duration::from_millis(50);
/// How long it sleeps where nothing is to be synced.
const IDLE: Duration = Duration::from_mins(1);

/// Starts the thread.
pub(crate) fn start(
    shared: Shared,
    earlier: Earlier,
    sync_every: Option<Duration>,
) -> Result<(Arc<Shared>, JoinHandle<()>)> {
    let shared = Arc::new(shared);
    let own = shared.clone();
    let thread = thread::Builder::new().name("strait-store".into());
    let thread = thread.spawn(move || run(&own, earlier, sync_every));
    let thread = thread.map_err(|error| Error::io("start a thread for", &shared.dir, &error))?;
    let _ = shared.thread.set(thread.thread().clone());
    // What came before it could be woken.
    shared.wake();
    Ok((shared, thread))
}

fn run(shared: &Shared, earlier: Earlier, sync_every: Option<Duration>) {
    load::load(shared, earlier);
    let mut due = Instant::now() + sync_every.unwrap_or(IDLE);
    while !shared.is_closed.load(Ordering::Acquire) {
        shared.see_off();
        shared.make_room();
        if Instant::now() >= due {
            if sync_every.is_some() {
                let _ = shared.counted(shared.sync());
            }
            due = Instant::now() + sync_every.unwrap_or(IDLE);
        }
        let idle = due.saturating_duration_since(Instant::now());
        let idle = shared.relief.due_in().map_or(idle, |relief| relief.min(idle));
        let nobody = lock(&shared.leavers).is_empty();
        thread::park_timeout(if nobody { idle } else { idle.min(LEAVERS_EVERY) });
    }
    shared.finish();
}
