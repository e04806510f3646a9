//! Properties of a handle that any thread and its own callback can query without a lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Properties of a handle with an open capture.
#[derive(Debug, Default)]
pub(crate) struct Properties {
    link_type: AtomicU32,
    snaplen: AtomicI32,
    nanoseconds: AtomicBool,
    nonblocking: AtomicBool,
    descriptor: AtomicI32,
    polled: AtomicBool,
    missed: AtomicU64,
}

impl Properties {
    /// Stores the properties of the opened capture.
    pub(crate) fn set(&self, link_type: u32, snaplen: i32, nanoseconds: bool, descriptor: RawFd) {
        self.link_type.store(link_type, Relaxed);
        self.snaplen.store(snaplen, Relaxed);
        self.nanoseconds.store(nanoseconds, Relaxed);
        self.descriptor.store(descriptor, Relaxed);
    }

    /// Returns the `LINKTYPE_*` of the packets.
    pub(crate) fn link_type(&self) -> u32 {
        self.link_type.load(Relaxed)
    }

    pub(crate) fn set_link_type(&self, link_type: u32) {
        self.link_type.store(link_type, Relaxed);
    }

    /// Returns the snapshot length in bytes.
    pub(crate) fn snaplen(&self) -> i32 {
        self.snaplen.load(Relaxed)
    }

    /// Returns true if times are in nanoseconds.
    pub(crate) fn nanoseconds(&self) -> bool {
        self.nanoseconds.load(Relaxed)
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Relaxed);
    }

    /// Returns the descriptor for the program to poll.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.load(Relaxed)
    }

    /// Returns true if the program has ever requested the descriptor.
    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Relaxed)
    }

    pub(crate) fn set_polled(&self) {
        self.polled.store(true, Relaxed);
    }

    /// Returns the frames that the NIC missed, as of the last query.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    pub(crate) fn set_missed(&self, missed: u64) {
        self.missed.store(missed, Relaxed);
    }
}
