//! The `v3` path: a `TPACKET_V3` ring of blocks, each filled with frames of any length.
//!
//! Blocks need the least CPU time per frame, but the kernel hands a block over only when it is full
//! or its retire timer expires. Two measures remove that delay: the reader reads the open block
//! early (`strait_sys::packet::v3::Early`), and a doorbell wakes it for the first frame on a quiet
//! link (`paths/packet/doorbell.rs`). `docs/internals/tpacket-v3.md` has the measurements.

use std::time::Duration;

use strait_sys::packet::{Cooked, Socket, v3};

use crate::error::Error;
use crate::paths::packet::ring::{RawBatch, Ring};
use crate::paths::packet::shape::{RING_BYTES, Shape, size};
use crate::paths::packet::{self, engine};
use crate::paths::spec::Spec;

/// Bytes of a minimum-size frame in a block, including its header and alignment.
const BLOCK_FRAME_BYTES: usize = 144;
/// Size of a block. At a million minimum-size frames a second a few hundred blocks are retired a
/// second, so wake-ups cost little.
const BLOCK_BYTES: usize = 1 << 18;
/// Retire timer for a reader that depends on it: it bounds the delay of a frame.
const RETIRE: Duration = Duration::from_millis(8);
/// Retire timer for a reader that does not depend on it, because the doorbell wakes it (or it
/// spins) and it reads the open block. When the timer expires a block is used up, however few
/// frames it holds. On a quiet link a reader can therefore pause for this time multiplied by the
/// number of blocks without a loss.
const RETIRE_LONG: Duration = Duration::from_millis(128);

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> = packet::spec();

/// Packet socket with a ring of blocks.
pub(crate) type Engine = engine::Engine<v3::Ring>;

impl Ring for v3::Ring {
    const PATH: &'static str = "v3";
    const HAS_BLOCKS: bool = true;

    type Batch<'a> = v3::Batch<'a>;

    fn default_bytes(_shape: &Shape) -> usize {
        RING_BYTES
    }

    fn sized(socket: &Socket, shape: &Shape, ring_bytes: usize) -> Result<Self, Error> {
        let retire = if shape.long_retire { RETIRE_LONG } else { RETIRE };
        let geometry = v3::Geometry::new(ring_bytes, BLOCK_BYTES, retire);
        let mut ring = Self::new(socket, geometry, shape.rx_hash)?;
        ring.set_early(shape.early);
        Ok(ring)
    }

    fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.set_cooked(cooked);
    }

    fn ready(&mut self, _socket: &Socket) -> Result<bool, Error> {
        Ok(Self::ready(self))
    }

    fn take(&mut self, limit: usize) -> v3::Batch<'_> {
        self.take(limit)
    }

    fn bytes(&self) -> usize {
        self.geometry().ring_bytes()
    }

    fn describe(&self) -> String {
        let v3::Geometry { blocks, block_bytes, retire } = self.geometry();
        format!("{blocks} blocks of {}, retired after {retire:?}", size(block_bytes))
    }

    fn capacity(&self) -> usize {
        self.geometry().ring_bytes() / BLOCK_FRAME_BYTES
    }

    /// Returns the number of blocks less one: each retired block holds at least one frame, but the
    /// open block may be empty.
    fn capacity_min(&self) -> usize {
        self.geometry().blocks - 1
    }

    fn reads_early(&self) -> bool {
        self.reads_early()
    }

    fn fill_time(&self) -> Duration {
        self.fill_time()
    }
}

impl RawBatch for v3::Batch<'_> {
    type Frames<'b>
        = v3::Frames<'b>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn frames(&mut self) -> v3::Frames<'_> {
        self.frames()
    }
}
