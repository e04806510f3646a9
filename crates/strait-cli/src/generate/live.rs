//! `strait generate --path live`: frames made inside the kernel, in slices short enough to keep a pace and to be stopped.

use std::time::Instant;

use strait_capture::LiveGenerator;
use strait_ledger as ledger;
use strait_packet::traffic::Traffic;
use strait_sys::clock;

use super::Limits;
use crate::Error;
use crate::parse::Rate;

/// Frames of one run at the maximum rate: some 10 ms.
const SLICE: u64 = 40_000;
/// How long a run's frames last at a given pace.
const SLICE_NS: u64 = 1_000_000;

pub(super) fn run(
    interface: &str,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<ledger::Send, Error> {
    let generator = LiveGenerator::open(interface, traffic)?;
    let (started, start_ns) = (Instant::now(), clock::monotonic_ns());
    let mut sent = 0;
    while !limits.reached(sent, started) {
        let slice = rate.due_within(SLICE_NS).unwrap_or(SLICE).clamp(1, SLICE).min(limits.count - sent);
        if let Some(due_ns) = rate.due_ns(sent) {
            let wait_ns = (start_ns + due_ns).saturating_sub(clock::monotonic_ns());
            strait_sys::wait::sleep(std::time::Duration::from_nanos(wait_ns));
        }
        generator.send(slice as u32)?;
        sent += slice;
    }
    let elapsed = started.elapsed();
    let mut account = generator.finish()?;
    account.set_elapsed(elapsed);
    Ok(account)
}
