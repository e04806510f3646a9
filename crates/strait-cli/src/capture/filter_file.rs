//! File with the filter of a capture. It is read again on request, and the filter is replaced
//! without a gap.
//!
//! The thread that watches the lanes polls it. Another thread compiles, as libpcap's compiler can
//! need seconds. A defective file changes nothing.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;
use strait_capture::FilterCompiler;
use strait_filter::cbpf::Program;

use crate::Error;
use crate::requests::Requests;

/// Maximum bytes of a filter file. The time of libpcap's compiler grows faster than the text, about
/// with its cube: it has no limit.
const FILTER_BYTES_MAX: u64 = 1 << 20;

/// Reads a filter from a file.
pub(crate) fn read(file: &Path) -> Result<String, Error> {
    File::open(file).map_err(|error| error.to_string()).and_then(text).map_err(|reason| failed(file, &reason))
}

/// Reads a filter again. A pipe has no text a second time, and could block.
fn read_again(path: &Path) -> Result<String, Error> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let regular = |file: File| match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err("it is not a regular file, and cannot be read again".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let opened = options.open(path).map_err(|error| error.to_string());
    opened.and_then(regular).and_then(text).map_err(|reason| failed(path, &reason))
}

fn failed(file: &Path, reason: &str) -> Error {
    Error::Failed(format!("read the filter from {}: {reason}", file.display()))
}

/// Reads at most [`FILTER_BYTES_MAX`] bytes.
fn text(file: File) -> Result<String, String> {
    let mut text = String::new();
    file.take(FILTER_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILTER_BYTES_MAX {
        return Err(format!("it has more than {FILTER_BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// Filter for each interface, or the error of the file.
pub(crate) type Compiled = Result<Vec<Program>, Error>;

/// Filter file of a running capture.
pub(super) struct FilterFile {
    path: PathBuf,
    /// For each interface in order. A handle of libpcap is for one thread at a time.
    compilers: Arc<Mutex<Vec<FilterCompiler>>>,
    requests: Requests<Compiled>,
}

impl FilterFile {
    /// Opens the compilers. Call it before privileges are dropped.
    pub(super) fn open(path: &Path, interfaces: &[String]) -> Result<Self, Error> {
        let compilers: Result<_, _> = interfaces.iter().map(|name| FilterCompiler::open(name)).collect();
        Ok(Self {
            path: path.to_owned(),
            compilers: Arc::new(Mutex::new(compilers?)),
            requests: Requests::default(),
        })
    }

    /// Reads the file again.
    pub(super) fn request(&self) {
        self.requests.add();
    }

    /// After a request, starts to read and compile the file. Returns the result of a call once,
    /// some time later.
    pub(super) fn poll(&self) -> Option<Compiled> {
        let compiled = self.requests.poll("filter", || {
            let (path, compilers) = (self.path.clone(), Arc::clone(&self.compilers));
            move || {
                let compilers = compilers.lock().unwrap_or_else(PoisonError::into_inner);
                let text = read_again(&path)?;
                compilers.iter().map(|compiler| Ok(compiler.compile(&text)?)).collect()
            }
        });
        compiled.map(Result::flatten)
    }

    /// Returns the note for the user about a replacement.
    pub(super) fn note(&self, replaced: &Result<(), Error>) -> String {
        match replaced {
            Ok(()) => format!("the filter is that of {} now", self.path.display()),
            Err(error) => format!("the filter stays as it was: {error}"),
        }
    }
}
