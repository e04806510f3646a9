//! The `file` path: a capture file read as if it were an interface, with the same filter language
//! and ledger.
//!
//! A frame is copied once, out of the read buffer, so that it can be lent after the next one was
//! looked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use strait_filter::Metadata;
use strait_filter::cbpf::Program;
use strait_ledger::Capture;

use crate::error::Error;
use crate::file::{FileError, FileReader};
use crate::filter;
use crate::frame::{Direction, Frame};

/// A file, its filter and the frame that is to be lent next.
pub(crate) struct Engine {
    reader: FileReader,
    /// What the filter was compiled for.
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
    /// Opens `path` (`-`: standard input).
    pub(crate) fn open(path: &str, text: Option<&str>, snaplen: u32) -> Result<Self, Error> {
        let reader = FileReader::open(path)?;
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

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Reads on to the next frame that the filter matches. False at the end of the file, where a
    /// pipe has no more yet, and once the session is `stopping`: a file has no intake that
    /// could be ended before.
    pub(crate) fn ready(&mut self, stopping: &AtomicBool) -> Result<bool, Error> {
        while self.current.is_none() && !self.ended && !stopping.load(Ordering::Acquire) {
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
            let kept = self.program.run(packet.bytes, &metadata) as usize;
            if kept == 0 {
                self.filtered += 1;
                continue;
            }
            self.bytes.clear();
            self.bytes.extend_from_slice(&packet.bytes[..packet.bytes.len().min(kept)]);
            self.current = Some(Header {
                wire_len: packet.wire_len,
                timestamp_ns: packet.timestamp_ns,
                interface: packet.interface,
                direction: packet.direction,
            });
        }
        Ok(self.current.is_some() && !stopping.load(Ordering::Acquire))
    }

    /// Waits for a pipe.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), Error> {
        Ok(self.reader.wait(timeout)?)
    }

    pub(crate) fn take(&mut self) -> Batch<'_> {
        Batch { header: self.current.take(), bytes: &self.bytes }
    }

    pub(crate) fn account(&self, account: &mut Capture) {
        account.received = self.received;
        account.filtered = self.filtered;
        let pending = u64::from(self.current.is_some());
        account.lost.unread = pending;
    }
}

/// One frame of a file, or none.
pub(crate) struct Batch<'a> {
    header: Option<Header>,
    bytes: &'a [u8],
}

impl Batch<'_> {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.header.is_some())
    }

    pub(crate) fn frames(&mut self) -> Frames<'_> {
        Frames { header: self.header.take(), bytes: self.bytes }
    }
}

/// Iterates over a [`Batch`].
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
        })
    }
}
