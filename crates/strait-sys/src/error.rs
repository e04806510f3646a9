//! Error type of this crate: the failed call, its subject, the errno and a remedy.
//!
//! Every module returns it. Callers match on [`Error::errno`] or [`Error::kind`] and print it
//! unchanged. Nothing here prints.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an error; the program's exit code follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The operation failed; nothing in particular is missing.
    Failed,
    /// A privilege, a kernel feature, a driver ability or a library is missing.
    Refused,
    /// The request is wrong: no such interface or queue, an invalid size or filter.
    Usage,
}

/// Failed operation, displayed as `operation subject: cause; remedy`.
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
    Text(String),
}

impl Error {
    /// Makes an error of `operation` on `subject` with the given `errno`.
    pub fn os(operation: &'static str, subject: impl Into<String>, errno: i32) -> Self {
        let kind = match errno {
            libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS => Kind::Refused,
            libc::ENODEV | libc::ENXIO => Kind::Usage,
            _ => Kind::Failed,
        };
        Self { operation, subject: subject.into(), cause: Cause::Os(errno), kind, remedy: None }
    }

    /// Makes an error of `operation` on `subject` with the calling thread's last errno.
    pub fn last_os(operation: &'static str, subject: impl Into<String>) -> Self {
        Self::from_io(operation, subject, &io::Error::last_os_error())
    }

    /// Makes an error of `operation` on `subject` from an I/O error.
    pub fn from_io(operation: &'static str, subject: impl Into<String>, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::os(operation, subject, errno),
            None => Self::new(Kind::Failed, operation, subject, error.to_string()),
        }
    }

    /// Makes an error of `operation` on `subject` with a cause in words, where there is no errno.
    pub fn new(
        kind: Kind,
        operation: &'static str,
        subject: impl Into<String>,
        cause: impl Into<String>,
    ) -> Self {
        Self { operation, subject: subject.into(), cause: Cause::Text(cause.into()), kind, remedy: None }
    }

    /// Adds a remedy: an action for the user.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Replaces the kind, if the caller knows better than the errno.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns the errno, if the kernel reported one.
    pub fn errno(&self) -> Option<i32> {
        match self.cause {
            Cause::Os(errno) => Some(errno),
            Cause::Text(_) => None,
        }
    }

    /// Returns true if the kernel reported one of `errnos`.
    pub fn is_one_of(&self, errnos: &[Errno]) -> bool {
        self.errno().is_some_and(|errno| errnos.contains(&Errno::from_raw_os_error(errno)))
    }

    /// Returns the message without the remedy.
    pub fn failure(&self) -> String {
        Self { remedy: None, ..self.clone() }.to_string()
    }

    /// Returns the cause alone: errno text or words.
    pub fn cause(&self) -> String {
        match &self.cause {
            Cause::Os(errno) => io::Error::from_raw_os_error(*errno).to_string(),
            Cause::Text(cause) => cause.clone(),
        }
    }

    /// Returns the remedy, if one is known.
    pub fn advice(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// Returns the class of the error.
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

/// Turns a C return value into a result: a negative value means that errno holds the cause.
pub(crate) fn check(
    returned: libc::c_int,
    operation: &'static str,
    subject: impl Into<String>,
) -> Result<libc::c_int> {
    if returned < 0 { Err(Error::last_os(operation, subject)) } else { Ok(returned) }
}
