//! Where and with what the figures were measured: they mean little without it.

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
    pub(crate) commit: String,
    kernel: String,
    cpu: String,
    cpus: u32,
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

/// What a program prints; nothing where it does not run.
fn said(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let output = Command::new(program.as_ref()).args(arguments).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
