//! Exceptions. Their text is the line that the program `strait` prints.

use arrow_schema::ArrowError;
use pyo3::exceptions::PyException;
use pyo3::{PyErr, create_exception};
use strait_capture::ErrorKind;
use strait_table::TableError;

create_exception!(strait, Error, PyException, "Failure of a capture or of a file.");
create_exception!(strait, UsageError, Error, "Wrong argument: a name, a filter or a limit.");
create_exception!(
    strait,
    RefusedError,
    Error,
    "A privilege, a feature of the kernel or a library is missing."
);

/// Failure of a reader.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The capture has failed, or the file is damaged.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// A system call has failed.
    #[error(transparent)]
    System(#[from] strait_os::Error),
    /// The encoder has failed.
    #[error(transparent)]
    Table(#[from] TableError),
    /// An argument is wrong.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Capture(error) => error.kind(),
            Self::System(error) => error.kind(),
            Self::Table(error) => error.kind(),
            Self::Usage(_) => ErrorKind::Usage,
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let text = failure.to_string();
        match failure.kind() {
            ErrorKind::Usage => UsageError::new_err(text),
            ErrorKind::Refused => RefusedError::new_err(text),
            ErrorKind::Failed => Error::new_err(text),
        }
    }
}

/// Returns the exception for a failed export of a batch.
pub(crate) fn arrow(error: &ArrowError) -> PyErr {
    Error::new_err(error.to_string())
}
