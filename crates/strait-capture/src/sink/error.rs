//! Error of a sink, in one line for the user.
//!
//! Programs print it unchanged. It can be cloned, because a sink that failed returns its error
//! again.

use std::io;
use std::path::Path;
use std::sync::Arc;

use strait_sys::Kind;

/// Error of writing a capture file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SinkError {
    /// The options contradict each other or the target.
    #[error("{0}")]
    Usage(String),
    /// The file could not be created.
    #[error("create {file}: {source}{}", remedy(file, source))]
    Create {
        /// Name of the file.
        file: String,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// Another process is writing the same file.
    #[error("create {file}: another capture is writing it")]
    Busy {
        /// Unfinished file.
        file: String,
    },
    /// The header could not be written.
    #[error("write {file}: {source}")]
    Begin {
        /// The file's final name.
        file: String,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// A write failed: disk full, quota, I/O error. The blocks written before are whole.
    #[error("write {file}: {source}; the packets written before are in the file")]
    Write {
        /// Final name, which [`close`](super::FileSink::close) gives the file. The name of the
        /// unfinished file if the thread that compresses has ended, which had the file.
        file: String,
        /// Packets that are in this file.
        packets: u64,
        /// Bytes that are in this file.
        bytes: u64,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The reader of the pipe has closed it (EPIPE). A program should end silently.
    #[error("{file}: the reader closed the pipe after {packets} packets")]
    ReaderClosed {
        /// Standard output or the FIFO.
        file: String,
        /// Number of packets written before.
        packets: u64,
    },
    /// The complete file could not be renamed. No packet is lost.
    #[error("rename {from} to {to}: {source}; the capture is in {from}")]
    Rename {
        /// Present name of the capture.
        from: String,
        /// Intended name.
        to: String,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// Another process has deleted or renamed the unfinished file.
    #[error("{file} was replaced during the capture; {location}")]
    Replaced {
        /// The unfinished file.
        file: String,
        /// Present location of the capture, as a sentence.
        location: String,
    },
    /// The thread that compresses could not be started.
    #[error("start a thread that compresses: {0}")]
    Thread(Arc<io::Error>),
    /// The format cannot hold this frame or interface.
    #[error(transparent)]
    Format(#[from] strait_pcapng::Error),
}

impl SinkError {
    /// Returns the kind, which decides how a caller can react.
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
            Self::ReaderClosed { file, packets: 0 }
        } else {
            Self::Begin { file, source: Arc::new(source) }
        }
    }

    pub(super) fn write(file: String, packets: u64, bytes: u64, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderClosed { file, packets }
        } else {
            Self::Write { file, packets, bytes, source: Arc::new(source) }
        }
    }
}

/// Returns the remedy for a file that could not be created, after a semicolon, if one is known.
fn remedy(file: &str, source: &io::Error) -> String {
    let directory = Path::new(file).parent().unwrap_or(Path::new(""));
    match source.kind() {
        io::ErrorKind::IsADirectory => "; give the name of a file".into(),
        io::ErrorKind::NotFound if !directory.exists() => {
            let directory = directory.display();
            format!("; the directory {directory} does not exist: mkdir -p {directory}")
        }
        _ => String::new(),
    }
}
