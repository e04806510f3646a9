//! The `v2` path: a `TPACKET_V2` ring of slots, one frame each.
//!
//! The kernel wakes the reader for each frame, so the delay is short. Every slot has the size of
//! the longest frame, so the ring holds fewer frames than blocks of the same memory.

use strait_sys::packet::{Cooked, Socket, v2};

use crate::error::Error;
use crate::paths::packet::ring::{RawBatch, Ring};
use crate::paths::packet::shape::{DEFAULT_FRAMES, RING_BYTES, Shape, size};
use crate::paths::packet::{self, engine};
use crate::paths::spec::Spec;

/// Maximum number of frames in a batch: enough to make the cost per batch negligible, few enough to
/// stay in the cache.
const BATCH_MAX: usize = 256;
/// Unit of a ring's size, a block of the longest slots.
const RING_UNIT: usize = 1 << 20;
/// Minimum number of slots of a lane's ring of default size, for any number of lanes.
const SLOTS_MIN: usize = 256;
/// A ring of default size takes at most one part in this many of the machine's memory.
pub(crate) const MEMORY_SHARE: usize = 8;

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> = packet::spec();

/// Packet socket with a ring of slots.
pub(crate) type Engine = engine::Engine<v2::Ring>;

impl Ring for v2::Ring {
    const PATH: &'static str = "v2";
    const HAS_SLOTS: bool = true;
    const CUTS_AT_SNAPLEN: bool = true;

    type Batch<'a> = v2::Batch<'a>;

    fn default_bytes(shape: &Shape) -> usize {
        let slot_bytes = v2::Geometry::new(RING_BYTES, shape.frame_bytes).slot_bytes;
        let slots = (DEFAULT_FRAMES / shape.lanes.max(1)).max(SLOTS_MIN);
        let holding = (slots * slot_bytes).next_multiple_of(RING_UNIT);
        RING_BYTES.max(holding.min(memory_bytes() / MEMORY_SHARE))
    }

    fn sized(socket: &Socket, shape: &Shape, ring_bytes: usize) -> Result<Self, Error> {
        Ok(Self::new(socket, v2::Geometry::new(ring_bytes, shape.frame_bytes))?)
    }

    fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.set_cooked(cooked);
    }

    fn ready(&mut self, _socket: &Socket) -> Result<bool, Error> {
        Ok(Self::ready(self))
    }

    fn take(&mut self, limit: usize) -> v2::Batch<'_> {
        self.take(limit.min(BATCH_MAX))
    }

    fn bytes(&self) -> usize {
        self.geometry().ring_bytes()
    }

    fn describe(&self) -> String {
        let v2::Geometry { slots, slot_bytes, .. } = self.geometry();
        format!("{slots} slots of {}", size(slot_bytes))
    }

    fn capacity(&self) -> usize {
        self.geometry().slots
    }

    fn capacity_min(&self) -> usize {
        self.geometry().slots
    }

    fn frame_bytes_max(&self) -> Option<usize> {
        Some(self.geometry().frame_bytes_max())
    }
}

impl RawBatch for v2::Batch<'_> {
    type Frames<'b>
        = v2::Frames<'b>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn frames(&mut self) -> v2::Frames<'_> {
        self.frames()
    }
}

/// Returns the size of the machine's memory in bytes.
pub(crate) fn memory_bytes() -> usize {
    let system = rustix::system::sysinfo();
    (system.totalram as usize).saturating_mul(system.mem_unit as usize)
}
