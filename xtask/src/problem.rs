//! Problems that the checks report.

use std::fmt;
use std::path::PathBuf;

/// Problem to fix, printed as `path:line: what`, or without a line if it concerns the whole file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    pub(crate) path: PathBuf,
    /// Line number from 1; 0 for the whole file.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Problem {
    pub(crate) fn new(path: impl Into<PathBuf>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.what),
        }
    }
}
