//! Lines for the operator about servers that change and clients that are refused, on a thread of
//! their own.
//!
//! The thread looks at an interval. A server that changes more often makes one line in each, with
//! the number of the changes that it leaves out; and no worker and no check waits for the output.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

use crate::cache::worker::Shared;
use crate::config::error::{Error, Result};
use crate::config::pool::ServerPool;
use crate::config::settings::Settings;
use crate::observe::OnNote;
use crate::observe::refusals::Refusals;

/// Interval of the lines about one server.
const EVERY: Duration = Duration::from_secs(1);
/// Interval of the lines about refused clients, in looks.
const REFUSALS_EVERY: u64 = 10;
/// Maximum wait for the last lines.
const END_MAX: Duration = Duration::from_secs(1);

/// Thread that passes lines.
pub(super) struct NoticeThread {
    /// Ends the thread, which drops what it gets after the last lines.
    end: Sender<Sender<()>>,
    handle: JoinHandle<()>,
}

impl NoticeThread {
    /// Starts the thread, which passes lines to `on_note`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        settings: watch::Receiver<Arc<Settings>>,
        shared: Arc<Shared>,
        on_note: OnNote,
    ) -> Result<Self> {
        let (end, ends) = channel();
        let work = move || run(&settings, &shared, &ends, &on_note);
        let handle = Builder::new().name("notices".to_owned()).spawn(work);
        let handle = handle.map_err(|error| Error::os("start", &"a thread", error))?;
        Ok(Self { end, handle })
    }

    /// Ends the thread after the last lines. It is left alone if their reader has stalled: the
    /// proxy must end nevertheless.
    pub(super) fn end(self) {
        let (sender, ended) = channel();
        // It has ended if it does not take it.
        let _ = self.end.send(sender);
        if ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Disconnected) {
            // A thread that has panicked has ended as well.
            let _ = self.handle.join();
        }
    }
}

/// Passes lines to `on_note` until something comes from `ends`, or nothing can.
fn run(
    settings: &watch::Receiver<Arc<Settings>>,
    shared: &Shared,
    ends: &Receiver<Sender<()>>,
    on_note: &OnNote,
) {
    let mut notices = Notices { on_note: on_note.clone(), outages: HashSet::new(), refusals_at: None };
    for look in 0.. {
        let end = ends.recv_timeout(EVERY);
        let settings = settings.borrow().clone();
        notices.of_servers(&settings, shared.clock.now());
        notices.of_refusals(look, &shared.refusals);
        if !matches!(end, Err(RecvTimeoutError::Timeout)) {
            return;
        }
    }
}

struct Notices {
    on_note: OnNote,
    /// Names of the pools without an available server.
    outages: HashSet<Box<str>>,
    /// Look of the last lines about refused clients.
    refusals_at: Option<u64>,
}

impl Notices {
    /// Notes the changes of servers, and the pools without an available one.
    fn of_servers(&mut self, settings: &Settings, now: u64) {
        let pools = settings.sites.iter().flat_map(|sites| &sites.pools);
        let mut outages = HashSet::new();
        for pool in pools {
            // The server of the one-line form is the only one, and is always tried.
            let Some(name) = &pool.name else { continue };
            self.of_changes(pool, name, now);
            let is_out = pool.members().iter().all(|member| member.is_out() || member.is_ejected(now));
            let was_out = self.outages.contains(name);
            if is_out {
                outages.insert(name.clone());
            }
            if is_out != was_out {
                let text = if is_out { "no server is available" } else { "has an available server again" };
                (self.on_note)(&format!("pool {name}: {text}"));
            }
        }
        self.outages = outages;
    }

    fn of_refusals(&mut self, look: u64, refusals: &Refusals) {
        if self.refusals_at.is_some_and(|last| look - last < REFUSALS_EVERY) {
            return;
        }
        let lines = refusals.take();
        if !lines.is_empty() {
            self.refusals_at = Some(look);
        }
        for line in &lines {
            (self.on_note)(line);
        }
    }

    fn of_changes(&self, pool: &ServerPool, name: &str, now: u64) {
        for member in &*pool.members() {
            let Some((change, earlier)) = member.take_change(now) else { continue };
            let earlier = match earlier {
                0 => String::new(),
                1 => " (1 change before is left out)".to_owned(),
                _ => format!(" ({earlier} changes before are left out)"),
            };
            (self.on_note)(&format!("pool {name}: server {} {}{earlier}", member.server, change.text));
        }
    }
}
