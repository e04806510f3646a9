//! Programs of a measurement: Strait and the C peers, both built here.
//!
//! They are in the target directory, beside this program. Nothing is installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};

/// Sources of the C peers.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
/// Names of the peers, each with true if it needs libpcap.
const PEERS: [(&str, bool); 4] =
    [("timed", false), ("pcap_count", true), ("afpacket_recv", false), ("sendmmsg_gen", false)];

/// Paths of the programs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) strait: PathBuf,
    pub(crate) bench: PathBuf,
    peers: PathBuf,
}

impl Tools {
    /// Compiles the peers, and Strait unless a program is given.
    pub(crate) fn build(strait: Option<&Path>) -> Result<Self> {
        let bench = env::current_exe().map_err(|source| Error::file("find this program", source))?;
        let directory = bench.parent().unwrap_or(Path::new("."));
        let peers = directory.join("peers");
        fs::create_dir_all(&peers)
            .map_err(|source| Error::file(format!("make {}", peers.display()), source))?;
        for (name, needs_libpcap) in PEERS {
            compile(name, needs_libpcap, &peers)?;
        }
        let strait = match strait {
            Some(strait) => std::path::absolute(strait)
                .map_err(|source| Error::file(format!("find {}", strait.display()), source))?,
            None => build_strait(directory)?,
        };
        Ok(Self { strait, bench, peers })
    }

    /// Returns the path of the C peer of that name.
    pub(crate) fn peer(&self, name: &str) -> PathBuf {
        self.peers.join(name)
    }

    /// Returns the directory of all of them.
    pub(crate) fn directory(&self) -> &Path {
        self.bench.parent().unwrap_or(Path::new("."))
    }
}

/// Compiles a peer under a temporary name and renames it, because another process may be running
/// it.
fn compile(name: &str, needs_libpcap: bool, directory: &Path) -> Result<()> {
    let part = directory.join(format!("{name}.{}", std::process::id()));
    let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&part).arg(format!("{SOURCES}/{name}.c"));
    if needs_libpcap {
        command.arg("-lpcap");
    }
    run(command)?;
    let peer = directory.join(name);
    fs::rename(part, &peer).map_err(|source| Error::file(format!("make {}", peer.display()), source))
}

/// Builds `strait` and the library of `strait run` in the profile of this program, into its
/// directory.
fn build_strait(directory: &Path) -> Result<PathBuf> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--package", "strait-cli"]);
    command.args(["--package", "strait-pcap"]);
    command.arg("--target-dir").arg(directory.parent().unwrap_or(directory));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    run(command)?;
    Ok(directory.join("strait"))
}

fn run(mut command: Command) -> Result<()> {
    let program = format!("{command:?}");
    let output = command.output().map_err(|source| Error::file(format!("start {program}"), source))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Program { program, code: output.status.to_string(), said })
}
