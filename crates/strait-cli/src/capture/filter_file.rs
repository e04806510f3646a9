//! File with the filter of a capture. SIGHUP reads it again and replaces the filter, without a gap.
//!
//! The thread that watches the lanes calls it. A defective file changes nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use strait_capture::FilterCompiler;
use strait_filter::cbpf::Program;

use crate::Error;

/// Maximum bytes of a filter file. libpcap's compiler would need minutes for more.
const FILTER_BYTES_MAX: u64 = 1 << 20;

/// Reads a filter from a file.
pub(crate) fn read(file: &Path) -> Result<String, Error> {
    let failed = |reason: String| Error::Failed(format!("read the filter from {}: {reason}", file.display()));
    let length = fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
    if length > FILTER_BYTES_MAX {
        return Err(failed(format!("it has {length} bytes, more than {FILTER_BYTES_MAX}")));
    }
    fs::read_to_string(file).map_err(|error| failed(error.to_string()))
}

/// Filter file of a running capture.
pub(crate) struct FilterFile {
    path: PathBuf,
    /// For each interface in order. Lanes share the limits of the capture, and a handle of libpcap
    /// is for one thread at a time.
    compilers: Mutex<Vec<FilterCompiler>>,
    /// Set by each SIGHUP.
    reloads: &'static AtomicBool,
    /// Ends the capture.
    terminated: &'static AtomicBool,
    /// True if the program was started at a terminal.
    has_terminal: bool,
}

impl FilterFile {
    /// Handles SIGHUP from now on. Call it before privileges are dropped.
    pub(crate) fn open(
        path: &Path,
        interfaces: &[String],
        terminated: &'static AtomicBool,
    ) -> Result<Self, Error> {
        let compilers: Result<_, _> = interfaces.iter().map(|name| FilterCompiler::open(name)).collect();
        let compilers = Mutex::new(compilers?);
        let reloads = strait_os::process::on_reload()?;
        Ok(Self { path: path.to_owned(), compilers, reloads, terminated, has_terminal: has_terminal() })
    }

    /// After SIGHUP, reads the file and passes its filter for each interface to `replace`. Returns
    /// the note for the user. A terminal that was closed ends the capture instead.
    pub(crate) fn reload_if_requested(
        &self,
        replace: impl FnOnce(&[Program]) -> Result<(), Error>,
    ) -> Option<String> {
        if !self.reloads.swap(false, Ordering::AcqRel) {
            return None;
        }
        if self.has_terminal && !has_terminal() {
            self.terminated.store(true, Ordering::Release);
            return None;
        }
        let compilers = self.compilers.lock().unwrap_or_else(PoisonError::into_inner);
        let compile = |text: String| -> Result<Vec<_>, Error> {
            compilers.iter().map(|compiler| Ok(compiler.compile(&text)?)).collect()
        };
        let replaced = read(&self.path).and_then(compile).and_then(|programs| replace(&programs));
        Some(match replaced {
            Ok(()) => format!("the filter is that of {} now", self.path.display()),
            Err(error) => format!("the filter stays as it was: {error}"),
        })
    }
}

/// Returns true if the process has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
