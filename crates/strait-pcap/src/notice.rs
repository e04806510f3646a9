//! What the user is told beside the program's own words: a report, a fallback.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where notices go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notices {
    /// Standard error.
    Stderr,
    /// The end of a file.
    File(PathBuf),
}

impl Notices {
    /// Tells `text`, whole lines. Where there is no place for it, it is not told: the program goes on as it would.
    pub(crate) fn tell(&self, text: &str) {
        let _ = match self {
            Self::File(file) => append(file, text),
            Self::Stderr if stderr_is_a_channel() => append(Path::new("/dev/tty"), text),
            Self::Stderr => io::stderr().write_all(text.as_bytes()),
        };
    }
}

fn append(file: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(file)?.write_all(text.as_bytes())
}

/// Whether standard error is for messages of a form of their own: dumpcap's to the tshark or Wireshark that started it,
/// which do not understand a line of ours.
fn stderr_is_a_channel() -> bool {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    Path::new(&program).file_name() == Some(OsStr::new("dumpcap"))
        && arguments.any(|argument| argument == "-Z")
}
