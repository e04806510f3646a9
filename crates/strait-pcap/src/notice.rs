//! What the user is told beside the program's own words: a report, a fallback.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use strait_capture::output;

/// Where notices go.
#[derive(Clone, Debug)]
pub(crate) enum Notices {
    /// Standard error.
    Stderr,
    /// The end of a file.
    File(Arc<Report>),
}

/// The file of `strait run --report=FILE`.
#[derive(Debug)]
pub(crate) struct Report {
    file: File,
    name: String,
}

impl Notices {
    /// To the end of `file`, which is opened now: the program may give up the privilege to do it later.
    pub(crate) fn to_file(file: &str) -> Result<Self, String> {
        output::append(Path::new(file))
            .map(|opened| Self::File(Arc::new(Report { file: opened, name: file.to_owned() })))
            .map_err(|error| format!("{}: {error}", named(file)))
    }

    /// Tells `text`, whole lines. A report that its file does not take is said on standard error.
    /// Where there is no place for that either, it is not told: the program goes on as it would.
    pub(crate) fn tell(&self, text: &str) {
        match self {
            Self::Stderr => tell_user(text),
            Self::File(report) => {
                if let Err(error) = (&report.file).write_all(text.as_bytes()) {
                    tell_user(&format!("strait: {}: the report is lost: {error}\n", named(&report.name)));
                }
            }
        }
    }
}

/// The option and the variable that name a file.
fn named(file: &str) -> String {
    format!("strait run --report={file} (STRAIT_REPORT)")
}

fn tell_user(text: &str) {
    // A terminal or a pipe that is gone ends nothing.
    let _ = if stderr_is_a_channel() { tell_terminal(text) } else { io::stderr().write_all(text.as_bytes()) };
}

fn tell_terminal(text: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open("/dev/tty")?.write_all(text.as_bytes())
}

/// Whether standard error is for messages of a form of their own: dumpcap's to the tshark or Wireshark that started it,
/// which do not understand a line of ours.
fn stderr_is_a_channel() -> bool {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    Path::new(&program).file_name() == Some(OsStr::new("dumpcap"))
        && arguments.any(|argument| argument == "-Z")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_report_is_not_appended_to_a_file_that_another_user_can_have_chosen() {
        let directory = tempfile::tempdir().unwrap();
        let (report, victim) = (directory.path().join("report"), directory.path().join("victim"));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        Notices::to_file(report.to_str().unwrap()).unwrap().tell("one\n");
        Notices::to_file(report.to_str().unwrap()).unwrap().tell("two\n");
        assert_eq!(fs::read(&report).unwrap(), b"one\ntwo\n");
        fs::write(&victim, "untouched").unwrap();
        fs::remove_file(&report).unwrap();
        fs::hard_link(&victim, &report).unwrap();
        let error = Notices::to_file(report.to_str().unwrap()).unwrap_err();
        assert!(error.starts_with("strait run --report=") && error.contains("a second name"), "{error}");
    }
}
