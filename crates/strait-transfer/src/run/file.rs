//! Sends a part of a file from the page cache by sendfile(2).

use std::os::unix::fs::FileExt as _;

use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::destination::{Destination, Step};
use crate::error::{Error, Result};
use crate::plan::FilePart;

/// Bytes of one sendfile(2). The call ends anyway when the socket buffer is full; smaller calls
/// leave time for signals.
const CHUNK: u64 = 1 << 20;
/// Bytes of one read from a file without sendfile support.
const READ_CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct FileRun {
    /// Remaining part.
    part: FilePart,
    /// True if the file system does not support sendfile: bytes are read and sent.
    read: bool,
}

impl FileRun {
    pub(super) fn new(part: FilePart) -> Self {
        Self { part, read: false }
    }

    pub(super) fn step(&mut self, to: &Destination<'_>) -> Result<Step> {
        let moved = if self.read { self.read_and_send(to) } else { self.send_file(to) };
        let moved = match moved {
            Ok(moved) => moved,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::NoRoom),
            Err(Errno::INVAL | Errno::NOSYS) if !self.read => {
                to.tally.borrow_mut().account.fall_back("the file does not support sendfile");
                self.read = true;
                return Ok(Step::Moved);
            }
            Err(error) => return Err(Error::os("send a file to", to.peer, error)),
        };
        if moved == 0 {
            return Err(Error::Truncated { what: "the file", missing: self.part.len });
        }
        self.part.len -= moved;
        Ok(if self.part.len == 0 { Step::Done } else { Step::Moved })
    }

    fn send_file(&mut self, to: &Destination<'_>) -> Result<u64, Errno> {
        let asked = self.part.len.min(CHUNK) as usize;
        let moved = sendfile(to.socket, &*self.part.file, Some(&mut self.part.offset), asked)? as u64;
        to.tally.borrow_mut().account.sendfile += moved;
        Ok(moved)
    }

    fn read_and_send(&mut self, to: &Destination<'_>) -> Result<u64, Errno> {
        let mut bytes = vec![0; self.part.len.min(READ_CHUNK as u64) as usize];
        let read = self.part.file.read_at(&mut bytes, self.part.offset);
        let read = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        if read == 0 {
            return Ok(0);
        }
        let sent = send(to.socket, &bytes[..read], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? as u64;
        self.part.offset += sent;
        to.tally.borrow_mut().account.sent += sent;
        Ok(sent)
    }
}
