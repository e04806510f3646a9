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

/// Maximum bytes of secrets at the start of each later file.
const SECRETS_BYTES_MAX: u64 = 16 << 20;
/// Maximum share of them in a file of limited size.
const SECRETS_SHARE: u64 = 2;
/// Maximum bytes of names at the start of each later file. Every host that can send DNS answers
/// into the network can cause names, so they never evict secrets.
const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Maximum share of them in a file of limited size.
const NAMES_SHARE: u64 = 16;
/// Bytes of a file of limited size that are left to blocks that arrive after its last packet.
const RESERVED_BYTES: u64 = 16 << 10;
/// Maximum share of these bytes in a file.
const RESERVED_SHARE: u64 = 16;

/// Blocks of a sink.
#[derive(Debug)]
pub(super) struct Extras {
    /// Encoded blocks that are not in the buffer yet.
    waiting: Vec<u8>,
    waiting_blocks: u64,
    /// Number of blocks in the buffer of the sink.
    pub(super) buffered_blocks: u64,
    secrets: Kept,
    names: Kept,
    reserve_bytes: u64,
    /// Maximum of the reserve and the waiting bytes, after the first block.
    reserved_bytes: u64,
    /// True if later files start with the blocks.
    repeats: bool,
    can_hold: bool,
}

/// Blocks of a kind for later files; none without rotation.
#[derive(Debug)]
struct Kept {
    /// Oldest first.
    blocks: VecDeque<ExtraBlock>,
    /// Memory that they take.
    bytes: u64,
    /// Memory of the newest ones, which wait. It is at most `bytes_max`, so that no waiting block
    /// is evicted.
    waiting_bytes: u64,
    bytes_max: u64,
}

impl Kept {
    fn new(bytes_max: u64) -> Self {
        Self { blocks: VecDeque::new(), bytes: 0, waiting_bytes: 0, bytes_max }
    }

    fn has_room(&self, block: &ExtraBlock) -> bool {
        self.waiting_bytes + block.memory_bytes() as u64 <= self.bytes_max
    }

    /// Stores a block that there is room for. Returns the number of older blocks that it evicts.
    fn push(&mut self, block: ExtraBlock) -> u64 {
        let bytes = block.memory_bytes() as u64;
        self.bytes += bytes;
        self.waiting_bytes += bytes;
        self.blocks.push_back(block);
        let mut evicted = 0;
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.blocks.pop_front() else { break };
            self.bytes -= oldest.memory_bytes() as u64;
            evicted += 1;
        }
        evicted
    }
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
            waiting_blocks: 0,
            buffered_blocks: 0,
            secrets: Kept::new(SECRETS_BYTES_MAX.min(limit / SECRETS_SHARE)),
            names: Kept::new(NAMES_BYTES_MAX.min(limit / NAMES_SHARE)),
            reserve_bytes: RESERVED_BYTES.min(limit / RESERVED_SHARE),
            reserved_bytes: 0,
            repeats: options.rotates(),
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

    fn kept(&mut self, kind: ExtraKind) -> &mut Kept {
        match kind {
            ExtraKind::Secrets => &mut self.secrets,
            ExtraKind::Names => &mut self.names,
        }
    }

    /// Returns true if a block can wait. Without packets there is no next file for the waiting
    /// ones.
    fn has_room(&mut self, block: &ExtraBlock) -> bool {
        self.can_hold && (!self.repeats || self.kept(block.kind()).has_room(block))
    }

    /// Returns true if a block of names has no room until the waiting ones are written.
    fn is_full_of_names(&mut self, block: &ExtraBlock) -> bool {
        block.kind() == ExtraKind::Names && self.names.waiting_bytes > 0 && !self.has_room(block)
    }

    /// Appends the blocks that a new file starts with. Those that waited are among them. Returns
    /// their number.
    pub(super) fn repeat(&mut self, header: &mut Vec<u8>) -> u64 {
        for block in self.secrets.blocks.iter().chain(&self.names.blocks) {
            header.extend_from_slice(block.bytes());
        }
        let waited = std::mem::take(&mut self.waiting_blocks);
        self.take_waiting();
        waited
    }

    fn take_waiting(&mut self) -> Vec<u8> {
        (self.secrets.waiting_bytes, self.names.waiting_bytes) = (0, 0);
        self.reserved_bytes = self.reserve_bytes;
        std::mem::take(&mut self.waiting)
    }

    /// Adds a block to the waiting ones, and stores it for later files. Returns the number of older
    /// blocks that it evicts.
    fn add(&mut self, block: ExtraBlock) -> u64 {
        self.waiting.extend_from_slice(block.bytes());
        self.waiting_blocks += 1;
        self.reserved_bytes = self.reserve_bytes.max(self.waiting.len() as u64);
        if self.repeats { self.kept(block.kind()).push(block) } else { 0 }
    }
}

impl FileSink {
    /// Returns true after a failed write: each later one fails as well.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns true if the format holds blocks that belong to no packet.
    pub fn holds_blocks(&self) -> bool {
        self.extras.can_hold
    }

    /// Adds a block that belongs to no packet. It is written before the packets that are still in
    /// the buffer, or with an index before the next packet. Each later file of a rotation starts
    /// with all secrets and names so far. If secrets are longer than half of its limit, or names
    /// than a sixteenth, it starts with the newest.
    ///
    /// A pcap file holds no such block, nor does a file of limited size more than this at once:
    /// [`Summary::lost_blocks`](super::Summary::lost_blocks) counts them.
    ///
    /// # Errors
    /// As for [`FileSink::flush`]; the mode of the file cannot be changed.
    pub fn add_block(&mut self, block: ExtraBlock) -> Result<(), SinkError> {
        if self.extras.is_full_of_names(&block) && self.failure.is_none() {
            self.flush()?;
        }
        if !self.extras.has_room(&block) || self.failure.is_some() {
            self.summary.lost_blocks += 1;
            return Ok(());
        }
        if block.kind() == ExtraKind::Secrets && !self.options.is_private {
            self.make_private()?;
        }
        self.summary.unrepeated_blocks += self.extras.add(block);
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
        let waiting = self.extras.take_waiting();
        self.extras.buffered_blocks += std::mem::take(&mut self.extras.waiting_blocks);
        if self.index.is_some() {
            self.buffer.extend_from_slice(&waiting);
        } else {
            self.buffer.splice(0..0, waiting);
        }
    }
}
