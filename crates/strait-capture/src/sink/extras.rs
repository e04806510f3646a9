//! Blocks that belong to no packet: those that wait for the file, and those that each later file of
//! a rotation starts with.
//!
//! [`FileSink`] has one. A reader of a file needs secrets before the packets that they decrypt, but
//! a program often has them later. The sink therefore writes a block before all packets that are
//! still in its buffer.

use std::collections::VecDeque;

use super::options::SinkOptions;
use super::{FLUSH_BYTES, FileSink, SinkError};
use crate::extra::{ExtraBlock, ExtraKind};
use strait_pcapng::Format;

/// Maximum bytes of the blocks at the start of each later file.
const REPEATED_BYTES_MAX: u64 = 16 << 20;
/// Maximum share of these blocks in a file of limited size: half of it is for packets.
const REPEATED_SHARE: u64 = 2;
/// Bytes of a file of limited size that are left to blocks that arrive after its last packet.
const RESERVED_BYTES: u64 = 16 << 10;
/// Maximum share of these bytes in a file.
const RESERVED_SHARE: u64 = 16;

/// Blocks of a sink.
#[derive(Debug)]
pub(super) struct Extras {
    /// Encoded blocks that are not in the buffer yet.
    waiting: Vec<u8>,
    /// Blocks for later files, oldest first; none without rotation.
    repeated: Option<VecDeque<ExtraBlock>>,
    /// Memory that they take.
    repeated_bytes: u64,
    repeated_bytes_max: u64,
    reserve_bytes: u64,
    /// Maximum of the reserve and the waiting bytes, after the first block.
    reserved_bytes: u64,
    can_hold: bool,
}

/// Rule for blocks that would make the file larger than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placing {
    /// Leave them to the next file.
    IfTheyFit,
    /// Exceed the limit: there is no next file.
    Always,
}

impl Extras {
    pub(super) fn new(options: &SinkOptions) -> Self {
        let limit = options.rotate_bytes.unwrap_or(u64::MAX);
        Self {
            waiting: Vec::new(),
            repeated: options.rotates().then(VecDeque::new),
            repeated_bytes: 0,
            repeated_bytes_max: REPEATED_BYTES_MAX.min(limit / REPEATED_SHARE),
            reserve_bytes: RESERVED_BYTES.min(limit / RESERVED_SHARE),
            reserved_bytes: 0,
            can_hold: options.format == Format::Pcapng,
        }
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the bytes that packets must leave to blocks; 0 without blocks.
    #[inline]
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Returns true if a block of this length can be written. Without packets there is no next file
    /// for the waiting ones.
    fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.waiting.len().saturating_add(bytes) as u64;
        let is_bounded = self.repeated.is_none() || waiting <= self.repeated_bytes_max;
        self.can_hold && is_bounded
    }

    /// Appends the blocks that a new file starts with. Those that waited are among them.
    pub(super) fn repeat(&mut self, header: &mut Vec<u8>) {
        for block in self.repeated.iter().flatten() {
            header.extend_from_slice(block.bytes());
        }
        self.set_waiting(Vec::new());
    }

    fn set_waiting(&mut self, waiting: Vec<u8>) {
        self.waiting = waiting;
        self.reserved_bytes = self.reserve_bytes.max(self.waiting.len() as u64);
    }

    /// Stores a block for later files. Returns the number of blocks that are too much.
    fn keep(&mut self, block: ExtraBlock) -> u64 {
        let Some(repeated) = &mut self.repeated else { return 0 };
        self.repeated_bytes += block.memory_bytes() as u64;
        repeated.push_back(block);
        let mut too_much = 0;
        while self.repeated_bytes > self.repeated_bytes_max {
            let Some(oldest) = repeated.pop_front() else { break };
            self.repeated_bytes -= oldest.memory_bytes() as u64;
            too_much += 1;
        }
        too_much
    }
}

impl FileSink {
    /// Adds a block that belongs to no packet. It is written before the packets that are still in
    /// the buffer, or with an index before the next packet. Each later file of a rotation starts
    /// with all blocks so far; if they are longer than half of its limit, with the newest.
    ///
    /// A pcap file holds no such block, nor does a file of limited size more than half of it at
    /// once: [`Summary::lost_blocks`](super::Summary::lost_blocks) counts them.
    ///
    /// # Errors
    /// As for [`FileSink::flush`]; the mode of the file cannot be changed.
    pub fn add_block(&mut self, block: ExtraBlock) -> Result<(), SinkError> {
        let bytes = block.bytes();
        if !self.extras.has_room(bytes.len()) || self.failure.is_some() {
            self.summary.lost_blocks += 1;
            return Ok(());
        }
        if block.kind() == ExtraKind::Secrets && !self.options.is_private {
            self.make_private()?;
        }
        let mut waiting = std::mem::take(&mut self.extras.waiting);
        waiting.extend_from_slice(bytes);
        self.extras.set_waiting(waiting);
        self.summary.unrepeated_blocks += self.extras.keep(block);
        if self.extras.waiting.len() < FLUSH_BYTES { Ok(()) } else { self.flush() }
    }

    /// Removes the permissions of other users from the current file and all later ones.
    fn make_private(&mut self) -> Result<(), SinkError> {
        self.settle()?;
        self.options.is_private = true;
        let Some(output) = &self.output else { return Ok(()) };
        output.make_private().map_err(|cause| {
            let error = SinkError::create(output.present_name(), cause);
            self.failure = Some(error.clone());
            error
        })
    }

    /// Moves the waiting blocks to the buffer, before its packets. An index has their offsets
    /// already: with one they go behind them.
    pub(super) fn place_blocks(&mut self, placing: Placing) {
        let bytes = self.extras.waiting.len() as u64;
        if bytes == 0 || placing == Placing::IfTheyFit && self.bytes_with(bytes) > self.rotate_bytes {
            return;
        }
        let waiting = std::mem::take(&mut self.extras.waiting);
        if self.index.is_some() {
            self.buffer.extend_from_slice(&waiting);
        } else {
            self.buffer.splice(0..0, waiting);
        }
        self.extras.set_waiting(Vec::new());
    }
}
