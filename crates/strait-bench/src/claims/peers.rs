//! Programs in C for comparison (peers): `peers/*.c`, compiled here for a run.
//!
//! Their sources are part of this program. The compiled programs are in a directory that is removed
//! when [`Peers`] is dropped.

use std::env;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::Program;
use crate::error::{Error, Result};

/// Peer: its name, its source, and true if it needs libpcap.
type Source = (&'static str, &'static str, bool);

const SOURCES: [Source; 3] = [
    ("pcap_count", include_str!("../../peers/pcap_count.c"), true),
    ("afpacket_recv", include_str!("../../peers/afpacket_recv.c"), false),
    ("sendmmsg_gen", include_str!("../../peers/sendmmsg_gen.c"), false),
];
/// Header of all sources.
const HEADER: (&str, &str) = ("peer.h", include_str!("../../peers/peer.h"));

/// Compiled peers.
#[derive(Debug)]
pub struct Peers {
    directory: Scratch,
}

impl Peers {
    /// Compiles the peers, with `$CC` or `cc`.
    ///
    /// # Errors
    /// There is no C compiler, or no libpcap to link with.
    pub fn compile() -> Result<Self> {
        let directory = Scratch::make(&env::temp_dir(), "strait-peers")?;
        write(&directory.0.join(HEADER.0), HEADER.1)?;
        for (name, source, needs_libpcap) in SOURCES {
            let source_file = directory.0.join(format!("{name}.c"));
            write(&source_file, source)?;
            let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
            command.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(directory.0.join(name)).arg(source_file);
            run(command.args(needs_libpcap.then_some("-lpcap")))?;
        }
        Ok(Self { directory })
    }

    /// Returns the peer of that name with arguments.
    pub fn program(&self, name: &str, arguments: impl IntoIterator<Item: Into<String>>) -> Program {
        Program::new(self.directory.0.join(name).to_string_lossy(), arguments)
    }
}

/// Directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Creates a directory that only this user can enter. A planted entry of its name is an error.
    pub(crate) fn make(parent: &Path, name: &str) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::file(format!("make {}", path.display()), error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves it in its parent directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Error::file(format!("write {}", path.display()), error))
}

fn run(command: &mut Command) -> Result<()> {
    let program = format!("{command:?}");
    let output = command.output().map_err(|error| Error::file(format!("start {program}"), error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Program { program, message: String::from_utf8_lossy(&output.stderr).into_owned() })
}
