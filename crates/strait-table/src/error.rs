//! Errors of tables and their files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parquet::errors::ParquetError;
use strait_os::Kind;

/// Failure to write a table.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TableError {
    /// The system refused an operation on a file or a directory.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// `create`, `write`, `rename` and so on.
        operation: &'static str,
        /// File or directory.
        path: PathBuf,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// The encoder refused the rows.
    #[error("encode the table {table}: {source}")]
    Encode {
        /// Name of the table.
        table: &'static str,
        /// Error of the encoder.
        source: Arc<ParquetError>,
    },
    /// There is no route to a collector.
    #[error("connect to {collector}: {source}")]
    Connect {
        /// HOST:PORT.
        collector: String,
        /// Error of the system.
        source: Arc<io::Error>,
    },
    /// An option is wrong.
    #[error("{0}")]
    Usage(String),
    /// The thread of the tables has ended early.
    #[error("the thread that writes tables has ended: this is a defect of strait, please report it")]
    ThreadEnded,
}

impl TableError {
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io { operation, path: path.into(), source: Arc::new(source.into()) }
    }

    pub(crate) fn encode(table: &'static str, source: ParquetError) -> Self {
        Self::Encode { table, source: Arc::new(source) }
    }

    /// Returns the class of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Usage(_) => Kind::Usage,
            Self::Io { .. } | Self::Encode { .. } | Self::Connect { .. } | Self::ThreadEnded => Kind::Failed,
        }
    }
}
