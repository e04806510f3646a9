//! Machine, programs and command line of a run: the context of its figures.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// Machine, programs and command line of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    /// Start of the run in UTC, by the system clock.
    date: String,
    /// Command line of the benchmark.
    command: String,
    /// Commit of the sources, followed by `+` if they have changes.
    pub(crate) commit: String,
    kernel: String,
    cpu: String,
    cpus: u32,
    memory_kib: u64,
    /// Load averages of the last 1, 5 and 15 minutes before the run: figures from a busy machine
    /// are less reliable.
    load_average: String,
    strait: String,
    /// Versions of tcpdump and its libpcap.
    tcpdump: String,
}

impl Machine {
    /// Detects the properties of this machine; unknown ones stay empty.
    pub(crate) fn look(strait: &Path) -> Self {
        let arguments = std::env::args().skip(1);
        let command = ["bench".into()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ");
        let machine = strait_bench::machine::Machine::look(command, commit(), said(strait, &["--version"]));
        Self {
            date: machine.date,
            command: machine.command,
            commit: machine.commit,
            kernel: machine.kernel,
            cpu: machine.cpu,
            cpus: machine.cpus,
            memory_kib: machine.memory_kib,
            load_average: machine.load_average,
            strait: machine.program,
            tcpdump: said("tcpdump", &["--version"]).replace('\n', ", "),
        }
    }
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let at = ["-C", env!("CARGO_MANIFEST_DIR")];
        said("git", &[&at, arguments].concat())
    };
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"]).is_empty();
    git(&["rev-parse", "HEAD"]) + if changed { "+" } else { "" }
}

/// Returns the output of a program; empty if it fails to run.
fn said(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let output = Command::new(program.as_ref()).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
