//! The `file` path: a capture file that is read like an interface, with the filter language and the
//! ledger of the other paths.
//!
//! A batch lends the packets that are complete in the read buffer, into which the kernel has copied
//! them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use strait_filter::Metadata;
use strait_filter::cbpf::Program;
use strait_ledger::Capture;

use crate::booking::Copies;
use crate::error::Error;
use crate::extra::ExtraBlocks;
use crate::file::{Buffered, FileError, FileReader, PacketRef};
use crate::filter;
use crate::frame::Frame;
use crate::paths::engine::{self, Lend, Lent};
use crate::wait::{Step, Wakers};

/// Least size of a packet with its header in a file: pcap's record, pcapng's simple packet block.
const RECORD_BYTES_MIN: usize = 16;
/// Maximum number of packets of a batch, after which the reader looks for a signal.
const BATCH_PACKETS: usize = 1024;

/// File and filter.
pub(crate) struct Engine {
    reader: FileReader,
    /// Link type that the filter was compiled for.
    link_type: u32,
    program: Program,
    /// Result of a program that always returns the same value. It need not be run.
    constant: Option<u32>,
    received: u64,
    filtered: u64,
    /// Error after the packets that were lent.
    failure: Option<Error>,
    ended: bool,
}

impl Engine {
    /// Opens a path, or standard input for `-`. Its blocks for a copy are added to the second part.
    pub(crate) fn open(
        (path, extras): (&str, Option<ExtraBlocks>),
        text: Option<&str>,
        snaplen: u32,
    ) -> Result<Self, Error> {
        let reader = FileReader::open_collecting(path, extras)?;
        let link_type = reader.link_type();
        let program = filter::offline(link_type, text, snaplen)?;
        Ok(Self {
            reader,
            link_type,
            constant: program.constant(),
            program,
            received: 0,
            filtered: 0,
            failure: None,
            ended: false,
        })
    }

    pub(crate) fn link_type(&self) -> u32 {
        self.link_type
    }

    /// Returns the number of bytes of the file that were read so far.
    pub(crate) fn offset(&self) -> u64 {
        self.reader.file_offset()
    }
}

impl Lend for Engine {
    type Batch<'a> = Batch<'a>;

    /// Reads until a packet is complete in the buffer. Returns false at the end of the file, if a
    /// pipe has no more bytes yet, and after the session was stopped (`stopping`).
    fn ready(&mut self, stopping: &AtomicBool) -> Result<bool, Error> {
        if self.ended || stopping.load(Ordering::Acquire) {
            return Ok(false);
        }
        // After an error there is nothing more to read.
        self.ended = true;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let filled = self.reader.try_fill()?;
        self.ended = filled == Poll::Ready(false);
        Ok(filled == Poll::Ready(true))
    }

    fn take(&mut self, limit: usize) -> Batch<'_> {
        Batch { engine: self, left: limit.min(BATCH_PACKETS) }
    }
}

impl engine::Engine for Engine {
    fn capacity(&self) -> usize {
        1
    }

    /// Returns 0: no frame of a file is lost.
    fn capacity_min(&self) -> usize {
        0
    }

    fn copies(&self) -> Copies {
        Copies::Captured
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Waits for bytes of a pipe.
    fn wait(&mut self, _step: Step, timeout: Duration, _wakers: Wakers<'_>) -> Result<(), Error> {
        Ok(self.reader.wait(timeout)?)
    }

    fn account(&mut self, account: &mut Capture, _discarded: u64) -> Result<(), Error> {
        account.received = self.received;
        account.filtered = self.filtered;
        Ok(())
    }

    fn ended(&self) -> bool {
        self.ended
    }

    /// Does nothing: the filter of an open file cannot be changed.
    fn discard_waiting(
        &mut self,
        _program: &Program,
        _account: &mut Capture,
        _discarded: &AtomicU64,
    ) -> Result<(), Error> {
        Ok(())
    }
}

/// Packets in the read buffer. Those that are left when it drops are lent again.
pub(crate) struct Batch<'a> {
    engine: &'a mut Engine,
    /// Maximum number of packets to read, with those that the filter rejects; 0 after the last one.
    left: usize,
}

impl Lent for Batch<'_> {
    type Frames<'b>
        = Frames<'b>
    where
        Self: 'b;

    /// Returns the number of the shortest packets that fit into the bytes of the buffer, as those
    /// are not decoded yet.
    fn len(&self) -> usize {
        self.left.min(self.engine.reader.buffered_bytes() / RECORD_BYTES_MIN)
    }

    fn frames(&mut self) -> Frames<'_> {
        let Engine { reader, link_type, program, constant, received, filtered, failure, .. } =
            &mut *self.engine;
        Frames {
            packets: reader.buffered(),
            filter: Filter { link_type: *link_type, program, constant: *constant },
            received,
            filtered,
            failure,
            left: &mut self.left,
        }
    }
}

/// Filter of a file.
struct Filter<'a> {
    link_type: u32,
    program: &'a Program,
    constant: Option<u32>,
}

impl Filter<'_> {
    /// Returns the part of a packet to lend; none if it does not match.
    #[inline]
    fn matched<'b>(&self, packet: &PacketRef<'b>) -> Option<&'b [u8]> {
        let limit = self.constant.unwrap_or_else(|| {
            let metadata = Metadata { wire_len: packet.wire_len, ..Metadata::default() };
            self.program.run(packet.bytes, &metadata)
        });
        (limit > 0).then(|| &packet.bytes[..packet.bytes.len().min(limit as usize)])
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    packets: Buffered<'a>,
    filter: Filter<'a>,
    received: &'a mut u64,
    filtered: &'a mut u64,
    failure: &'a mut Option<Error>,
    left: &'a mut usize,
}

impl<'a> Frames<'a> {
    /// Returns the next packet of the buffer, or `None` also after an error, which is kept.
    #[inline]
    fn packet(&mut self) -> Option<PacketRef<'a>> {
        *self.left = self.left.checked_sub(1)?;
        match self.packets.next() {
            Ok(Some(packet)) if packet.link_type != self.filter.link_type => {
                let (first, link_type) = (self.filter.link_type, packet.link_type);
                let file = self.packets.name().to_owned();
                *self.failure = Some(FileError::LinkTypes { file, first, link_type }.into());
                None
            }
            Ok(packet) => packet,
            Err(error) => {
                *self.failure = Some(error.into());
                None
            }
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        loop {
            let Some(packet) = self.packet() else {
                *self.left = 0;
                return None;
            };
            *self.received += 1;
            let Some(bytes) = self.filter.matched(&packet) else {
                *self.filtered += 1;
                continue;
            };
            return Some(Frame {
                bytes,
                wire_len: packet.wire_len,
                timestamp_ns: packet.timestamp_ns,
                interface: packet.interface,
                queue: 0,
                vlan: None,
                direction: packet.direction,
                rx_hash: 0,
                hardware_ns: 0,
                owner: 0,
            });
        }
    }
}
