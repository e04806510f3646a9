//! The one error of this crate: which call failed, on what, with which errno, and what would help.
//!
//! Every module returns it; callers match on [`Error::errno`] or [`Error::kind`] and print it as it is.
//! Nothing here prints.

use std::fmt;
use std::io;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error; the program's exit code follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The operation failed; nothing in particular is missing.
    Failed,
    /// A privilege, a kernel feature, a driver ability or a library is missing.
    Refused,
    /// What was asked for does not exist or cannot be meant: an interface, a queue, a size, a filter.
    Usage,
}

/// A failed operation: `operation subject: cause; remedy`.
#[derive(Clone, Debug)]
pub struct Error {
    operation: &'static str,
    subject: String,
    cause: Cause,
    kind: Kind,
    remedy: Option<String>,
}

#[derive(Clone, Debug)]
enum Cause {
    Os(i32),
    Said(String),
}

impl Error {
    /// `operation` on `subject` failed with the given `errno`.
    pub fn os(operation: &'static str, subject: impl Into<String>, errno: i32) -> Self {
        let kind = match errno {
            libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS => Kind::Refused,
            libc::ENODEV | libc::ENXIO => Kind::Usage,
            _ => Kind::Failed,
        };
        Self { operation, subject: subject.into(), cause: Cause::Os(errno), kind, remedy: None }
    }

    /// `operation` on `subject` failed; the cause is the calling thread's last errno.
    pub fn last_os(operation: &'static str, subject: impl Into<String>) -> Self {
        Self::from_io(operation, subject, &io::Error::last_os_error())
    }

    /// `operation` on `subject` failed with `error`.
    pub fn from_io(operation: &'static str, subject: impl Into<String>, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::os(operation, subject, errno),
            None => Self::said(Kind::Failed, operation, subject, error.to_string()),
        }
    }

    /// `operation` on `subject` cannot be done for a reason that is not an errno.
    pub fn said(
        kind: Kind,
        operation: &'static str,
        subject: impl Into<String>,
        cause: impl Into<String>,
    ) -> Self {
        Self { operation, subject: subject.into(), cause: Cause::Said(cause.into()), kind, remedy: None }
    }

    /// The same error with what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same error with another kind, where the caller knows better than the errno.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The errno, where the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Os(errno) => Some(errno),
            Cause::Said(_) => None,
        }
    }

    /// What failed and why, without what would help.
    pub fn failure(&self) -> String {
        Self { remedy: None, ..self.clone() }.to_string()
    }

    /// Why it failed, without what was tried.
    pub fn cause(&self) -> String {
        match &self.cause {
            Cause::Os(errno) => io::Error::from_raw_os_error(*errno).to_string(),
            Cause::Said(cause) => cause.clone(),
        }
    }

    /// What would help, where that is known.
    pub fn advice(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        if !self.subject.is_empty() {
            write!(f, " {}", self.subject)?;
        }
        write!(f, ": {}", self.cause())?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// Turns a C return value into a result: negative means that errno holds the cause.
pub(crate) fn check(
    returned: libc::c_int,
    operation: &'static str,
    subject: impl Into<String>,
) -> Result<libc::c_int> {
    if returned < 0 { Err(Error::last_os(operation, subject)) } else { Ok(returned) }
}
