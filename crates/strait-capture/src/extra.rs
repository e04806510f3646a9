//! Blocks of pcapng files that belong to no packet, such as secrets and names: copied from file to
//! file.
//!
//! The file reader collects those of its file in an [`ExtraBlocks`], another thread takes them, and
//! [`FileSink::add_block`](crate::sink::FileSink::add_block) writes them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use strait_pcapng::Secrets;
use strait_pcapng::{BLOCK_BYTES_MAX, Error, NameRecord, Record, pcapng::Encoder};

/// Maximum number of names in a block.
pub const NAMES_MAX: usize = 1024;

/// Maximum bytes of blocks that wait for the program. The longest block of a file is shorter.
const WAITING_BYTES_MAX: usize = 2 * BLOCK_BYTES_MAX;

/// Encoded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraBlock {
    kind: ExtraKind,
    bytes: Box<[u8]>,
}

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraKind {
    /// Decryption secrets block (pcapng s4.8).
    Secrets,
    /// Name resolution block (pcapng s4.5).
    Names,
}

impl ExtraBlock {
    /// Encodes a decryption secrets block.
    ///
    /// # Errors
    /// The secrets are too long for a block.
    pub fn secrets(secrets: &Secrets<'_>) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        Encoder::secrets(&mut bytes, secrets)?;
        Ok(Self::new(ExtraKind::Secrets, bytes))
    }

    /// Encodes a name resolution block with a name for each address. A name has at most 255 bytes,
    /// and there are at most [`NAMES_MAX`].
    pub fn names<'n>(names: impl IntoIterator<Item = (IpAddr, &'n str)>) -> Self {
        let value = |(address, name): (IpAddr, &str)| {
            let (kind, mut value) = match address {
                IpAddr::V4(address) => (NameRecord::IPV4, address.octets().to_vec()),
                IpAddr::V6(address) => (NameRecord::IPV6, address.octets().to_vec()),
            };
            value.extend_from_slice(name.as_bytes());
            value.push(0);
            (kind, value)
        };
        let values: Vec<(u16, Vec<u8>)> = names.into_iter().take(NAMES_MAX).map(value).collect();
        let mut bytes = Vec::new();
        Encoder::names(&mut bytes, values.iter().map(|(kind, value)| NameRecord { kind: *kind, value }));
        Self::new(ExtraKind::Names, bytes)
    }

    /// The bytes get no spare capacity, as limits count their length.
    fn new(kind: ExtraKind, bytes: Vec<u8>) -> Self {
        Self { kind, bytes: bytes.into() }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ExtraKind {
        self.kind
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the memory that it takes in a queue, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    /// Returns the block for a record of a file, if it is one to be copied. The result is an error
    /// if it would be too long: the form of the copy can have a few bytes more.
    fn of(record: &Record<'_>) -> Option<Result<Self, ()>> {
        match record {
            Record::Secrets(secrets) => Some(Self::secrets(secrets).map_err(drop)),
            Record::Names(names) => {
                let mut bytes = Vec::new();
                Encoder::names(&mut bytes, names.records());
                Some(if bytes.len() <= BLOCK_BYTES_MAX {
                    Ok(Self::new(ExtraKind::Names, bytes))
                } else {
                    Err(())
                })
            }
            _ => None,
        }
    }
}

/// Blocks that a reader has found and the program has not taken yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ExtraBlocks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// True if blocks wait. It spares readers of packets the lock.
    has_any: AtomicBool,
    waiting: Mutex<Waiting>,
    dropped: AtomicU64,
}

/// Queue of blocks, oldest first.
#[derive(Debug, Default)]
struct Waiting {
    blocks: VecDeque<ExtraBlock>,
    /// Memory of the blocks, in bytes.
    bytes: usize,
}

impl ExtraBlocks {
    /// Takes the oldest block.
    #[inline]
    pub fn take(&self) -> Option<ExtraBlock> {
        if self.0.has_any.load(Ordering::Acquire) { self.take_waiting() } else { None }
    }

    /// Returns the number of blocks that were dropped, because too many waited or one was too long.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    fn take_waiting(&self) -> Option<ExtraBlock> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let block = waiting.blocks.pop_front();
        waiting.bytes -= block.as_ref().map_or(0, ExtraBlock::memory_bytes);
        self.0.has_any.store(!waiting.blocks.is_empty(), Ordering::Release);
        block
    }

    /// Adds the block for a record, if it is one to be copied.
    pub(crate) fn add(&self, record: &Record<'_>) {
        let Some(block) = ExtraBlock::of(record) else { return };
        let Ok(block) = block else {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.bytes + block.memory_bytes();
        if bytes > WAITING_BYTES_MAX {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes = bytes;
        waiting.blocks.push_back(block);
        self.0.has_any.store(true, Ordering::Release);
    }
}
