//! What may be asked of a handle at any time, from its own callback and from other threads too: nothing here is locked.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Facts about a handle whose capture is open.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    link_type: AtomicU32,
    snaplen: AtomicI32,
    nanoseconds: AtomicBool,
    nonblocking: AtomicBool,
    descriptor: AtomicI32,
    polled: AtomicBool,
    missed: AtomicU64,
}

impl Facts {
    /// What the capture turned out to be.
    pub(crate) fn set(&self, link_type: u32, snaplen: i32, nanoseconds: bool, descriptor: RawFd) {
        self.link_type.store(link_type, Relaxed);
        self.snaplen.store(snaplen, Relaxed);
        self.nanoseconds.store(nanoseconds, Relaxed);
        self.descriptor.store(descriptor, Relaxed);
    }

    /// `LINKTYPE_*` of its packets.
    pub(crate) fn link_type(&self) -> u32 {
        self.link_type.load(Relaxed)
    }

    pub(crate) fn set_link_type(&self, link_type: u32) {
        self.link_type.store(link_type, Relaxed);
    }

    /// Bytes that are kept of a packet.
    pub(crate) fn snaplen(&self) -> i32 {
        self.snaplen.load(Relaxed)
    }

    /// Whether times are in nanoseconds.
    pub(crate) fn nanoseconds(&self) -> bool {
        self.nanoseconds.load(Relaxed)
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Relaxed);
    }

    /// The descriptor that the program polls.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.load(Relaxed)
    }

    /// Whether the program has asked for it; true from then on.
    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Relaxed)
    }

    pub(crate) fn set_polled(&self) {
        self.polled.store(true, Relaxed);
    }

    /// Frames that the NIC missed, as last asked.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    pub(crate) fn set_missed(&self, missed: u64) {
        self.missed.store(missed, Relaxed);
    }
}
