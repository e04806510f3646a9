//! What a connection receives, into a file or a pipe, through a pipe of its own (splice(2)): no
//! byte comes to user space.
//!
//! Where the output does no splice (a terminal, a file opened to append) bytes are read and
//! written, and counted so.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;
use strait_ledger::Transfer;

use crate::error::{Error, Result};
use crate::pipe::{Pipe, Pipes};

/// Bytes read at a time where nothing can be spliced.
const READ_CHUNK: usize = 64 << 10;

/// SendOptions far one call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes reached the output.
    Bytes(u64),
    /// Nothing has come: wait until the socket is readable.
    Nothing,
    /// The output takes nothing now: wait until it is writable.
    NoRoom,
    /// The sender has ended the stream, and all of it is in the output.
    End,
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Splice,
    Write,
}

/// Receives on a connection.
#[derive(Debug)]
pub struct Receiver {
    stream: TcpStream,
    pipe: Pipe,
    /// What the output is called.
    output: String,
    ended: bool,
    method: Method,
    account: Transfer,
}

impl Receiver {
    /// A receiver on a connected stream, which does not block from now on; `output` is the name
    /// that errors give to what is written to.
    ///
    /// # Errors
    /// No pipe can be made.
    pub fn new(stream: TcpStream, output: impl Into<String>) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|error| Error::os("receive on", "a socket", error))?;
        let pipe = Pipes::default().take()?;
        let output = output.into();
        Ok(Self { stream, pipe, output, ended: false, method: Method::Splice, account: Transfer::default() })
    }

    /// Moves what has come, up to `limit` bytes, to `output`: at `offset` if it is a file, which
    /// then moves on.
    ///
    /// # Errors
    /// The connection was reset, or the output cannot be written to: the disk is full, its reader
    /// is gone.
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
                self.account.fall_back("the output does no splice");
                self.method = Method::Write;
                Ok(Received::Bytes(0))
            }
            Err(error) => Err(Error::output("write to", &*self.output, error)),
        }
    }

    /// First what the pipe still holds, then from the socket.
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

    /// What was received so far, by which mechanism.
    pub fn account(&self) -> &Transfer {
        &self.account
    }

    /// The connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Readable when there is something to receive.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
