//! Errors of commands. Each is one line with an exit code.

use std::io;

use strait_capture::sink::SinkError;
use strait_os::Kind;
use strait_program::Failure;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Failure of the code shared by all programs.
    #[error(transparent)]
    Program(#[from] strait_program::Error),
    /// Failure of the capture engine.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// Failure of a system call.
    #[error(transparent)]
    System(#[from] strait_os::Error),
    /// Failure of the transfer engine.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// Failure to write a capture file.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// Failure to write tables.
    #[error(transparent)]
    Table(#[from] strait_table::TableError),
    /// Failure to write to standard output.
    #[error("write to standard output: {0}")]
    Output(std::io::Error),
    /// Contradictory options.
    #[error("{0}")]
    Usage(String),
    /// A privilege, a library or a feature of the machine is missing.
    #[error("{0}")]
    Refused(String),
    /// The program to run does not exist: exit code 127, as for env(1) in POSIX.
    #[error("{0}: no such program")]
    NoProgram(String),
    /// The program to run cannot be started: exit code 126, as for env(1) in POSIX.
    #[error("{0}")]
    NotStarted(String),
    /// The other end refused the transfer.
    #[error("{peer} refuses: {reason}")]
    PeerRefused { peer: String, reason: String },
    /// The other end of the transfer closed the connection.
    #[error("{peer} has closed the connection")]
    PeerClosed { peer: String },
    /// Another failure: operation, subject and cause.
    #[error("{0}")]
    Failed(String),
}

impl Failure for Error {
    /// Returns 1 for a failure, 2 for a usage error, 3 for a refusal. For a program to run, returns
    /// 126 if it cannot be started and 127 if it does not exist.
    fn exit_code(&self) -> u8 {
        let kind = match self {
            Self::Program(error) => error.kind(),
            Self::Capture(error) => error.kind(),
            Self::System(error) => error.kind(),
            Self::Transfer(error) => error.kind(),
            Self::Sink(error) => error.kind(),
            Self::Table(error) => error.kind(),
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
            Self::Sink(error) => matches!(error, SinkError::ReaderClosed { .. }),
            _ => false,
        }
    }
}
