//! What a command ends with when it cannot do what was asked: one line, and an exit code.

use std::io;

use strait_capture::sink::SinkError;
use strait_program::Failure;
use strait_sys::Kind;

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The code that programs share failed.
    #[error(transparent)]
    Program(#[from] strait_program::Error),
    /// The capture engine says why.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// The kernel says why.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The transfer engine says why.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// A capture file could not be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// Standard output could not be written to.
    #[error("write to standard output: {0}")]
    Output(std::io::Error),
    /// Options that contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A privilege or a library is missing, or the machine cannot do it.
    #[error("{0}")]
    Refused(String),
    /// There is no such program (env(1), POSIX): exit code 127.
    #[error("{0}: no such program")]
    NoProgram(String),
    /// The program cannot be started (the same): exit code 126.
    #[error("{0}")]
    NotStarted(String),
    /// The other end of a transfer refuses it.
    #[error("{peer} refuses: {reason}")]
    PeerRefused { peer: String, reason: String },
    /// The other end of a transfer has closed the connection.
    #[error("{peer} has closed the connection")]
    PeerClosed { peer: String },
    /// Something else failed: what, on what, why.
    #[error("{0}")]
    Failed(String),
}

impl Failure for Error {
    /// 1 failed, 2 usage, 3 refused; of a program that was to be run, 126 not started and 127 not
    /// found.
    fn exit_code(&self) -> u8 {
        let kind = match self {
            Self::Program(error) => error.kind(),
            Self::Capture(error) => error.kind(),
            Self::System(error) => error.kind(),
            Self::Transfer(error) => error.kind(),
            Self::Sink(error) => error.kind(),
            Self::Output(_) | Self::PeerRefused { .. } | Self::PeerClosed { .. } | Self::Failed(_) => {
                Kind::Failed
            }
            Self::Usage(_) => Kind::Usage,
            Self::Refused(_) => Kind::Refused,
            Self::NotStarted(_) => return 126,
            Self::NoProgram(_) => return 127,
        };
        strait_program::exit_code(kind)
    }

    fn is_reader_gone(&self) -> bool {
        match self {
            Self::Program(error) => error.is_reader_gone(),
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Sink(error) => matches!(error, SinkError::ReaderGone { .. }),
            _ => false,
        }
    }
}
