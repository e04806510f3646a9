//! Why a sink could not be opened or could not go on, in one line for the user.
//!
//! The door prints it as it is. It can be cloned, because a sink that failed says the same again.

use std::io;
use std::sync::Arc;

use strait_sys::Kind;

/// What went wrong with a capture file that was to be written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SinkError {
    /// The options contradict each other or the target.
    #[error("{0}")]
    Usage(String),
    /// The file could not be made.
    #[error("create {file}: {source}")]
    Create {
        /// The file as it was to be opened.
        file: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another process is writing the same file.
    #[error("create {file}: another capture is writing it")]
    Busy {
        /// The unfinished file.
        file: String,
    },
    /// The first write, that of the header, failed.
    #[error("write {file}: {source}")]
    Begin {
        /// The file's final name.
        file: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// A write failed: disk full, quota, I/O error. What was written before is whole.
    #[error("write {file}: {source}; the packets written before are kept")]
    Write {
        /// The file's final name; [`close`](super::FileSink::close) gives it that name.
        file: String,
        /// Packets that are in this file.
        packets: u64,
        /// Bytes that are in this file.
        bytes: u64,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Whoever read our pipe has gone (EPIPE). A reason to end quietly, not a fault.
    #[error("{file}: the reader has gone after {packets} packets")]
    ReaderGone {
        /// Standard output or the FIFO.
        file: String,
        /// Packets written before.
        packets: u64,
    },
    /// The complete file could not get its name. Nothing is lost.
    #[error("rename {from} to {to}: {source}; the capture is in {from}")]
    Rename {
        /// Where the capture is.
        from: String,
        /// The name that it should have.
        to: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another process has deleted or renamed the unfinished file.
    #[error("{file} was replaced meanwhile; {fate}")]
    Replaced {
        /// The unfinished file.
        file: String,
        /// Place of the capture.
        fate: String,
    },
    /// The format cannot hold this frame or interface.
    #[error(transparent)]
    Format(#[from] strait_pcapng::Error),
}

impl SinkError {
    /// What a caller can do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Usage(_) => Kind::Usage,
            _ => Kind::Failed,
        }
    }

    pub(super) fn create(file: String, source: io::Error) -> Self {
        Self::Create { file, source: Arc::new(source) }
    }

    pub(super) fn begin(file: String, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderGone { file, packets: 0 }
        } else {
            Self::Begin { file, source: Arc::new(source) }
        }
    }

    pub(super) fn write(file: String, packets: u64, bytes: u64, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderGone { file, packets }
        } else {
            Self::Write { file, packets, bytes, source: Arc::new(source) }
        }
    }
}
