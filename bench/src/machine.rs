//! Where and with what the figures were measured: they mean little without it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// The machine, the programs and the command line of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    /// UTC, by the system's clock, when the run began.
    date: String,
    /// The benchmark's command line.
    command: String,
    /// Commit of the sources; `+` after it if they were changed since.
    commit: String,
    kernel: String,
    cpu: String,
    cpus: usize,
    memory_kib: u64,
    /// Of the last 1, 5 and 15 minutes before the run: on a busy machine the figures mean less.
    load_average: String,
    strait: String,
    /// tcpdump's version and that of the libpcap it runs on.
    tcpdump: String,
}

impl Machine {
    /// Looks at this machine. What cannot be found out is left empty.
    pub(crate) fn look(strait: &Path) -> Self {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let uname = rustix::system::uname();
        let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            date: said("date", &["--utc", "+%Y-%m-%dT%H:%M:%SZ"]),
            command: ["bench".into()].into_iter().chain(arguments).collect::<Vec<_>>().join(" "),
            commit: commit(),
            kernel: format!("{} {}", word(uname.sysname()), word(uname.release())),
            cpu: field("/proc/cpuinfo", "model name"),
            cpus: cpus(),
            memory_kib: field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0),
            load_average: load_average(),
            strait: said(strait, &["--version"]),
            tcpdump: said("tcpdump", &["--version"]).replace('\n', ", "),
        }
    }
}

/// CPUs of this machine, whichever this process is pinned to.
pub(crate) fn cpus() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count()
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let at = ["-C", env!("CARGO_MANIFEST_DIR")];
        said("git", &[&at, arguments].concat())
    };
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"]).is_empty();
    git(&["rev-parse", "HEAD"]) + if changed { "+" } else { "" }
}

/// What a program prints; nothing where it does not run.
fn said(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let output = Command::new(program.as_ref()).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// The value of the first `name : value` line of a file.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value).unwrap_or_default()
}
