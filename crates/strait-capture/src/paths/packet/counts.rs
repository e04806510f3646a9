//! Counters of a packet socket.

use std::sync::atomic::{AtomicU64, Ordering};

use strait_sys::packet::Socket;

use crate::error::Error;
use crate::live_counters::{KernelCounters, Reading};

/// Sums of the kernel's counters. A read sets those of the kernel to zero, so each reader adds the
/// values to the sums. There is no lock, so a signal handler can read.
#[derive(Debug)]
pub(super) struct Counts {
    socket: Socket,
    pub(super) packets: AtomicU64,
    pub(super) drops: AtomicU64,
    pub(super) freezes: AtomicU64,
}

impl Counts {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, packets: AtomicU64::new(0), drops: AtomicU64::new(0), freezes: AtomicU64::new(0) }
    }

    pub(super) fn read(&self) -> Result<(), Error> {
        let new = self.socket.statistics()?;
        self.packets.fetch_add(new.packets.into(), Ordering::Relaxed);
        self.drops.fetch_add(new.drops.into(), Ordering::Relaxed);
        self.freezes.fetch_add(new.freezes.into(), Ordering::Relaxed);
        Ok(())
    }
}

impl KernelCounters for Counts {
    fn reading(&self) -> Result<Reading, Error> {
        self.read()?;
        let (received, dropped) = (&self.packets, &self.drops);
        Ok(Reading { received: received.load(Ordering::Relaxed), dropped: dropped.load(Ordering::Relaxed) })
    }
}
