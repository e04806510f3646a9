//! The `file` path: a capture file that is read like an interface, with the filter language and the
//! ledger of the other paths.
//!
//! A frame is copied once, out of the read buffer: reading the next block may move that buffer.

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
use crate::file::{FileError, FileReader};
use crate::filter;
use crate::frame::{Direction, Frame};
use crate::paths::engine::{self, Lend, Lent};
use crate::wait::{Step, Wakers};

/// Maximum number of packets that the filter rejects before the lane looks for a signal.
const REJECTED_MAX: u32 = 4096;

/// File, filter and the frame to be lent next.
pub(crate) struct Engine {
    reader: FileReader,
    /// Link type that the filter was compiled for.
    link_type: u32,
    program: Program,
    received: u64,
    filtered: u64,
    current: Option<Header>,
    bytes: Vec<u8>,
    ended: bool,
}

struct Header {
    wire_len: u32,
    timestamp_ns: u64,
    interface: u32,
    direction: Direction,
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
            program,
            received: 0,
            filtered: 0,
            current: None,
            bytes: Vec::new(),
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

    /// Reads up to the next frame that the filter matches. Returns false at the end of the file, if
    /// a pipe has no more bytes yet, after many rejected packets, and after the session was stopped
    /// (`stopping`).
    fn ready(&mut self, stopping: &AtomicBool) -> Result<bool, Error> {
        let rejected = self.filtered;
        while self.filtered - rejected < u64::from(REJECTED_MAX)
            && self.current.is_none()
            && !self.ended
            && !stopping.load(Ordering::Acquire)
        {
            // After an error there is nothing more to read.
            self.ended = true;
            let next = self.reader.try_next()?;
            self.ended = matches!(next, Poll::Ready(None));
            let Poll::Ready(Some(packet)) = next else { break };
            if packet.link_type != self.link_type {
                self.ended = true;
                let (first, link_type) = (self.link_type, packet.link_type);
                let file = self.reader.name().to_owned();
                return Err(FileError::LinkTypes { file, first, link_type }.into());
            }
            self.received += 1;
            let metadata = Metadata { wire_len: packet.wire_len, ..Metadata::default() };
            let limit = self.program.run(packet.bytes, &metadata) as usize;
            if limit == 0 {
                self.filtered += 1;
                continue;
            }
            self.bytes.clear();
            self.bytes.extend_from_slice(&packet.bytes[..packet.bytes.len().min(limit)]);
            self.current = Some(Header {
                wire_len: packet.wire_len,
                timestamp_ns: packet.timestamp_ns,
                interface: packet.interface,
                direction: packet.direction,
            });
        }
        Ok(self.current.is_some() && !stopping.load(Ordering::Acquire))
    }

    fn take(&mut self, _limit: usize) -> Batch<'_> {
        Batch { header: self.current.take(), bytes: &self.bytes }
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
        account.lost.unread = u64::from(self.current.is_some());
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

/// At most one frame of a file.
pub(crate) struct Batch<'a> {
    header: Option<Header>,
    bytes: &'a [u8],
}

impl Lent for Batch<'_> {
    type Frames<'b>
        = Frames<'b>
    where
        Self: 'b;

    fn len(&self) -> usize {
        usize::from(self.header.is_some())
    }

    fn frames(&mut self) -> Frames<'_> {
        Frames { header: self.header.take(), bytes: self.bytes }
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    header: Option<Header>,
    bytes: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let header = self.header.take()?;
        Some(Frame {
            bytes: self.bytes,
            wire_len: header.wire_len,
            timestamp_ns: header.timestamp_ns,
            interface: header.interface,
            queue: 0,
            vlan: None,
            direction: header.direction,
            rx_hash: 0,
            hardware_ns: 0,
            owner: 0,
        })
    }
}
