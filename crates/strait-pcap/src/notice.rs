//! Messages to the user besides the program's own output: reports and fallbacks.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use strait_os::output;
use strait_os::text::printable;

/// Destination of notices.
#[derive(Clone, Debug)]
pub(crate) enum Notices {
    /// Standard error.
    Stderr,
    /// A file, to which notices are appended.
    File(Arc<Report>),
}

/// The file of `strait run --report=FILE`.
#[derive(Debug)]
pub(crate) struct Report {
    file: File,
    name: String,
}

impl Notices {
    /// Opens `file` for appending now, because the program may drop the privilege to do so later.
    pub(crate) fn to_file(file: &str) -> Result<Self, String> {
        output::append(Path::new(file))
            .map(|opened| Self::File(Arc::new(Report { file: opened, name: file.to_owned() })))
            .map_err(|error| format!("{}: {error}", setting(file)))
    }

    /// Prints `text`, which consists of complete lines. Control characters become escapes: names of
    /// interfaces may contain them. If the report's file cannot be written, the error is printed on
    /// standard error. Other errors are ignored: the program must continue as it would without
    /// notices.
    pub(crate) fn print(&self, text: &str) {
        let text = &printable(text);
        match self {
            Self::Stderr => print_to_user(text),
            Self::File(report) => {
                if let Err(error) = (&report.file).write_all(text.as_bytes()) {
                    print_to_user(&format!(
                        "strait: {}: the report is lost: {error}\n",
                        setting(&report.name)
                    ));
                }
            }
        }
    }
}

/// Returns the option and the variable for a report in `file`.
fn setting(file: &str) -> String {
    format!("strait run --report={file} (STRAIT_REPORT)")
}

fn print_to_user(text: &str) {
    // A closed terminal or pipe must not end the program.
    let _ = if stderr_carries_a_protocol() {
        print_to_terminal(text)
    } else {
        io::stderr().write_all(text.as_bytes())
    };
}

fn print_to_terminal(text: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open("/dev/tty")?.write_all(text.as_bytes())
}

/// Returns true if standard error carries dumpcap's protocol. The parent process (tshark or
/// Wireshark) accepts no other lines.
fn stderr_carries_a_protocol() -> bool {
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
    fn a_report_is_not_appended_to_a_hard_link() {
        let directory = tempfile::tempdir().unwrap();
        let (report, victim) = (directory.path().join("report"), directory.path().join("victim"));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        Notices::to_file(report.to_str().unwrap()).unwrap().print("one\n");
        Notices::to_file(report.to_str().unwrap()).unwrap().print("two \x1b[2J\n");
        assert_eq!(fs::read(&report).unwrap(), b"one\ntwo \\u{1b}[2J\n");
        fs::write(&victim, "untouched").unwrap();
        fs::remove_file(&report).unwrap();
        fs::hard_link(&victim, &report).unwrap();
        let error = Notices::to_file(report.to_str().unwrap()).unwrap_err();
        assert!(error.starts_with("strait run --report=") && error.contains("a second name"), "{error}");
    }
}
