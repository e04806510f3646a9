//! `strait generate --path live`: frames made inside the kernel, in slices short enough to keep a pace and to be stopped.

use std::time::{Duration, Instant};

use strait_capture::LiveGenerator;
use strait_ledger as ledger;
use strait_packet::traffic::Traffic;
use strait_sys::clock;

use super::Limits;
use crate::Error;
use crate::parse::Rate;

/// Frames of the first run at the maximum rate.
const SLICE_FIRST: u64 = 40_000;
/// Frames of one run at most.
const SLICE_MAX: u64 = 1 << 24;
/// How long a run at the maximum rate is to last. Each costs the kernel some 10 ms beside its frames, for the pages that
/// it makes them in; a run can be ended by a signal, but not by a time.
const SLICE_TIME: Duration = Duration::from_millis(200);
/// A signal ended the kernel's run.
const EINTR: i32 = 4;

pub(super) fn run(
    interface: &str,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<ledger::Send, Error> {
    let generator = LiveGenerator::open(interface, traffic)?;
    let (started, start_ns) = (Instant::now(), clock::monotonic_ns());
    let mut sent = 0;
    let mut fastest = SLICE_FIRST;
    while !limits.reached(sent, started) {
        if let Some(due_ns) = rate.due_ns(sent) {
            let wait_ns = (start_ns + due_ns).saturating_sub(clock::monotonic_ns());
            strait_sys::wait::sleep(Duration::from_nanos(wait_ns));
        }
        // A run takes all that is due by now, so that its own cost does not slow the pace.
        let due = rate.due_within(clock::monotonic_ns() - start_ns).map(|due| (due + 1).saturating_sub(sent));
        let slice = due.unwrap_or(fastest).clamp(1, SLICE_MAX).min(limits.count - sent);
        let began = Instant::now();
        match generator.send(slice as u32) {
            Err(strait_capture::Error::System(error)) if error.errno() == Some(EINTR) => break,
            result => result?,
        }
        sent += slice;
        if began.elapsed() < SLICE_TIME / 2 {
            fastest = (fastest * 2).min(SLICE_MAX);
        }
    }
    let elapsed = started.elapsed();
    let mut account = generator.finish()?;
    account.set_elapsed(elapsed);
    Ok(account)
}
