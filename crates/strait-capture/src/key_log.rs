//! Key log of a TLS program in the format of NSS (`SSLKEYLOGFILE`; RFC 9850), followed while it
//! grows.
//!
//! `strait capture --keylog` embeds its lines in pcapng files. A log that exists at the start must
//! be well-formed, so that a wrong file is refused at once; a malformed line that comes later is
//! skipped and counted. Messages have no content of the file. It never waits.

mod line;
#[cfg(test)]
mod tests;

use std::fs::{File, Metadata, OpenOptions, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::line::{Kind, is_whole, kind_of};
use crate::extra::{ExtraBlock, Secrets};

/// Maximum bytes that are read of a key log: about 9,000 connections of TLS 1.3.
/// With TLS_AES_256_GCM_SHA384 the five lines of one have 938 bytes.
pub const KEY_LOG_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of lines with secrets.
pub const KEY_LOG_LINES_MAX: u64 = 50_000;
/// Maximum bytes of a line. Those of TLS 1.3 have at most 193.
pub const KEY_LOG_LINE_BYTES_MAX: usize = 4096;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Failure to open a key log.
#[derive(Debug, thiserror::Error)]
pub enum KeyLogError {
    /// The system refused to open or read it.
    #[error("read the key log {file}: {source}{}", remedy(source))]
    Io {
        /// The file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is a FIFO, a symbolic link or no regular file for another reason.
    #[error("the key log {file} is {kind}: give a regular file")]
    Refused {
        /// The file.
        file: String,
        /// Its kind.
        kind: &'static str,
    },
    /// A line has another format.
    #[error(
        "line {line} of the key log {file} is not in the format of NSS: LABEL CLIENT_RANDOM SECRET, the last two in hexadecimal"
    )]
    Format {
        /// The file.
        file: String,
        /// Number of the line, from 1.
        line: u64,
    },
    /// The file is too long.
    #[error(
        "the key log {file} has more than {} bytes or {} lines: keep those of the captured connections",
        KEY_LOG_BYTES_MAX,
        KEY_LOG_LINES_MAX
    )]
    TooLong {
        /// The file.
        file: String,
    },
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; create it first, as the user of the program that writes it (touch)",
        _ => "",
    }
}

/// Event that the user should see, at most once for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLogEvent {
    /// The file has become shorter: it is read again from its start.
    Truncated,
    /// Another file has its name, or it was deleted: the capture goes on to read the old one.
    Replaced,
    /// A limit is reached: further lines are not read.
    Full,
    /// It cannot be read any more.
    Failed,
    /// It ended with a part of a line, which was left out.
    Unfinished,
}

/// Open key log.
#[derive(Debug)]
pub struct KeyLog {
    file: File,
    path: PathBuf,
    /// Offset of the next byte to read.
    offset: u64,
    /// Bytes read in total, also before a truncation.
    read_bytes: u64,
    /// Start of a line without its end.
    partial: Vec<u8>,
    /// True if the rest of a line that is too long is skipped.
    is_skipping: bool,
    /// Number of lines read since the start of the file.
    line: u64,
    /// Lines with secrets, and the number of their bytes that were taken.
    fresh: Vec<u8>,
    taken: usize,
    /// Number of lines with secrets.
    secrets: u64,
    /// Number of malformed lines, and the number of the first one.
    malformed: (u64, u64),
    /// Events in the order of [`KeyLogEvent`]: seen, and reported.
    seen: Vec<KeyLogEvent>,
    reported: usize,
    is_over: bool,
}

impl KeyLog {
    /// Opens a key log and reads its present lines. A line without an end is left until the end
    /// comes: the program may be writing it.
    ///
    /// # Errors
    /// It cannot be read; it is no regular file, or a symbolic link, which another user could
    /// direct to a file that only root can read; a line has another format; it is longer than
    /// [`KEY_LOG_BYTES_MAX`] or [`KEY_LOG_LINES_MAX`].
    pub fn open(path: &Path) -> Result<Self, KeyLogError> {
        let name = || path.display().to_string();
        let file = open(path)?;
        let mut log = Self {
            file,
            path: path.to_owned(),
            offset: 0,
            read_bytes: 0,
            partial: Vec::new(),
            is_skipping: false,
            line: 0,
            fresh: Vec::new(),
            taken: 0,
            secrets: 0,
            malformed: (0, 0),
            seen: Vec::new(),
            reported: 0,
            is_over: false,
        };
        log.read().map_err(|source| KeyLogError::Io { file: name(), source })?;
        match log.malformed {
            (0, _) if log.is_over => Err(KeyLogError::TooLong { file: name() }),
            (0, _) => Ok(log),
            (_, line) => Err(KeyLogError::Format { file: name(), line }),
        }
    }

    /// Takes the last line, also without an end: the file is complete.
    ///
    /// # Errors
    /// The line has another format.
    pub fn complete(&mut self) -> Result<(), KeyLogError> {
        let before = self.malformed.0;
        self.end_line();
        if self.malformed.0 == before {
            return Ok(());
        }
        Err(KeyLogError::Format { file: self.path.display().to_string(), line: self.line })
    }

    /// Reads the last lines. One without an end is taken if no digit can be missing: its program
    /// may not have written the rest.
    pub fn end(&mut self) {
        self.poll();
        let is_blank = matches!(self.partial.first(), None | Some(b'#')) && !self.is_skipping;
        if self.is_over || is_blank {
            return;
        }
        if !self.is_skipping && is_whole(&self.partial) {
            self.end_line();
        } else {
            self.note(KeyLogEvent::Unfinished);
        }
    }

    /// Reads the lines that were added since the last call. It makes one or two system calls if
    /// there are none.
    pub fn poll(&mut self) {
        if !self.is_over && self.read().is_err() {
            self.is_over = true;
            self.note(KeyLogEvent::Failed);
        }
    }

    /// Looks if the file still has its name.
    pub fn check_name(&mut self) {
        let same = |named: Metadata| {
            let own = self.file.metadata().ok()?;
            Some((named.dev(), named.ino()) == (own.dev(), own.ino()))
        };
        let is_replaced = match symlink_metadata(&self.path) {
            Ok(named) => same(named) == Some(false),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_replaced {
            self.note(KeyLogEvent::Replaced);
        }
    }

    /// Returns a block with the lines that were read since the last call, if there are any: the
    /// first ones of `bytes_max` bytes together, but at least one. Call it until it returns `None`.
    pub fn take_block(&mut self, bytes_max: usize) -> Option<ExtraBlock> {
        let rest = &self.fresh[self.taken..];
        let Some(first) = rest.iter().position(|byte| *byte == b'\n') else {
            self.fresh.clear();
            self.taken = 0;
            return None;
        };
        let most = &rest[..bytes_max.min(rest.len())];
        let end = most.iter().rposition(|byte| *byte == b'\n').unwrap_or(first) + 1;
        self.taken += end;
        // The limit of the file is below that of a block.
        ExtraBlock::secrets(&Secrets { kind: Secrets::TLS_KEY_LOG, data: &rest[..end] }).ok()
    }

    /// Returns the next event that was not returned before.
    pub fn take_event(&mut self) -> Option<KeyLogEvent> {
        let event = self.seen.get(self.reported).copied()?;
        self.reported += 1;
        Some(event)
    }

    /// Returns the number of lines with secrets that were read.
    pub fn secrets(&self) -> u64 {
        self.secrets
    }

    /// Returns the number of skipped lines that have another format.
    pub fn malformed(&self) -> u64 {
        self.malformed.0
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads up to the present end of the file.
    fn read(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.offset {
            self.note(KeyLogEvent::Truncated);
            self.offset = 0;
            self.line = 0;
            self.partial.clear();
            self.is_skipping = false;
        }
        let mut chunk = vec![0; READ_BYTES.min(length.saturating_sub(self.offset) as usize)];
        while !chunk.is_empty() && !self.is_over {
            let bytes = match self.file.read_at(&mut chunk, self.offset) {
                Ok(0) => break,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.offset += bytes as u64;
            self.read_bytes += bytes as u64;
            self.take_bytes(&chunk[..bytes]);
            if self.read_bytes > KEY_LOG_BYTES_MAX {
                self.fill();
            }
        }
        Ok(())
    }

    fn take_bytes(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.add_to_line(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.add_to_line(bytes);
    }

    fn add_to_line(&mut self, bytes: &[u8]) {
        if self.partial.len() + bytes.len() > KEY_LOG_LINE_BYTES_MAX {
            self.is_skipping = true;
        }
        if !self.is_skipping {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        self.line += 1;
        let line = self.partial.strip_suffix(b"\r").unwrap_or(&self.partial);
        let kind = if self.is_skipping { Kind::Malformed } else { kind_of(line) };
        match kind {
            Kind::Blank => {}
            Kind::Secret if self.secrets >= KEY_LOG_LINES_MAX => self.fill(),
            Kind::Secret => {
                self.fresh.extend_from_slice(line);
                self.fresh.push(b'\n');
                self.secrets += 1;
            }
            Kind::Malformed => {
                let first = if self.malformed.0 == 0 { self.line } else { self.malformed.1 };
                self.malformed = (self.malformed.0 + 1, first);
            }
        }
        self.partial.clear();
        self.is_skipping = false;
    }

    /// Reads no further.
    fn fill(&mut self) {
        self.is_over = true;
        self.note(KeyLogEvent::Full);
    }

    fn note(&mut self, event: KeyLogEvent) {
        if !self.seen.contains(&event) {
            self.seen.push(event);
        }
    }
}

/// Opens a regular file. It waits for no writer of a FIFO, and follows no symbolic link.
fn open(path: &Path) -> Result<File, KeyLogError> {
    let file = || path.display().to_string();
    let refused = |kind| Err(KeyLogError::Refused { file: file(), kind });
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let opened = match opened {
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return refused("a symbolic link");
        }
        opened => opened.and_then(|opened| opened.metadata().map(|found| (opened, found))),
    };
    match opened {
        Ok((opened, found)) if found.is_file() => Ok(opened),
        Ok((_, found)) if found.is_dir() => refused("a directory"),
        Ok(_) => refused("a FIFO or a device"),
        Err(source) => Err(KeyLogError::Io { file: file(), source }),
    }
}
