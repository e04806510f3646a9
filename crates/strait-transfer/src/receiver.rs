//! Moves received bytes into a file or a pipe by splice(2), without a copy to user space.
//!
//! If the output does not support splice (a terminal, a file opened to append), bytes are read and
//! written, and counted as copied.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;
use strait_ledger::Transfer;

use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};

/// Bytes of one read if the output does not support splice.
const READ_CHUNK: usize = 64 << 10;

/// Result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Number of bytes that were written to the output.
    Bytes(u64),
    /// Nothing has been received: wait until the socket is readable.
    Nothing,
    /// The output is not ready: wait until it is writable.
    NoRoom,
    /// The sender has ended the stream, and all bytes are in the output.
    End,
}

/// Method of moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Splice,
    Write,
}

/// Receiving end of a connection.
#[derive(Debug)]
pub struct Receiver {
    stream: TcpStream,
    pipe: Pipe,
    /// Name of the output for messages.
    output: String,
    ended: bool,
    method: Method,
    account: Transfer,
}

impl Receiver {
    /// Creates a receiver on a connected stream, and makes the stream non-blocking. Errors name the
    /// output by `output`.
    ///
    /// # Errors
    /// If no pipe can be created.
    pub fn new(stream: TcpStream, output: impl Into<String>) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|error| Error::os("receive on", "a socket", error))?;
        let pipe = Pipes::default().take()?;
        let output = output.into();
        Ok(Self { stream, pipe, output, ended: false, method: Method::Splice, account: Transfer::default() })
    }

    /// Moves up to `limit` received bytes to `output`: to `offset` of a file, which is advanced.
    ///
    /// # Errors
    /// If the connection was reset, or the output cannot be written to (the disk is full, the
    /// reader has closed).
    pub fn step(&mut self, output: &File, offset: Option<&mut u64>, limit: u64) -> Result<Received> {
        if self.method == Method::Write {
            return self.read_and_write(output, offset, limit);
        }
        if self.pipe.held() == 0 && !self.ended {
            match self.pipe.fill(&self.stream, limit) {
                Ok(read) => self.ended = read == 0,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                Err(error) => return Err(Error::os("receive from", "the sender", error)),
            }
        }
        if self.pipe.held() == 0 {
            return Ok(Received::End);
        }
        self.empty(output, offset)
    }

    fn empty(&mut self, output: &File, offset: Option<&mut u64>) -> Result<Received> {
        match self.pipe.empty(output, offset) {
            Ok(moved) => {
                self.account.spliced += moved as u64;
                Ok(Received::Bytes(moved as u64))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::NoRoom),
            Err(Errno::INVAL) => {
                self.account.fall_back("the output does not support splice");
                self.method = Method::Write;
                Ok(Received::Bytes(0))
            }
            Err(error) => Err(Error::output("write to", &*self.output, error)),
        }
    }

    /// Reads the rest of the pipe first, then the socket.
    fn read_and_write(
        &mut self,
        mut output: &File,
        offset: Option<&mut u64>,
        limit: u64,
    ) -> Result<Received> {
        let mut bytes = vec![0; limit.min(READ_CHUNK as u64) as usize];
        let read = if self.pipe.held() > 0 {
            self.pipe.read(&mut bytes).map_err(std::io::Error::from)
        } else {
            self.stream.read(&mut bytes)
        };
        let read = match read {
            Ok(0) => return Ok(Received::End),
            Ok(read) => read,
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::INTR)) => {
                return Ok(Received::Nothing);
            }
            Err(error) => return Err(Error::os("receive from", "the sender", error)),
        };
        let written = match offset {
            Some(offset) => output.write_all_at(&bytes[..read], *offset).map(|()| *offset += read as u64),
            None => output.write_all(&bytes[..read]),
        };
        written.map_err(|error| Error::output("write to", &*self.output, error))?;
        self.account.sent += read as u64;
        Ok(Received::Bytes(read as u64))
    }

    /// Returns the received bytes by mechanism.
    pub fn account(&self) -> &Transfer {
        &self.account
    }

    /// Returns the connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the socket, to wait until it is readable.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
