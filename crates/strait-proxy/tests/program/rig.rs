//! Starts `strait-proxy`, knows its address, and measures its memory and its descriptors.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::{Finished, Launch, Process, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

/// Program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_strait-proxy");
/// Timeout of a step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(50);
/// Arguments of setpriv(1) for a user without privileges.
pub(crate) const AS_NOBODY: [&str; 5] =
    ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];

/// Runs the program with `arguments` to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    Launch::new(PROGRAM).args(arguments).run(LIMIT).unwrap()
}

/// Copies the program to a directory, and lets every user run it there. Another process copies: a
/// child that another test forks meanwhile would have the file open for writing, which cannot be
/// executed then (ETXTBSY of execve(2)).
pub(crate) fn everyones_copy(directory: &Path) -> PathBuf {
    let copy = directory.join(Path::new(PROGRAM).file_name().unwrap());
    assert!(Command::new("cp").arg(PROGRAM).arg(&copy).status().unwrap().success());
    for path in [directory, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

/// Returns a line of `/proc/ID/status`.
pub(crate) fn status(id: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Proxy to start.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Program that starts it, with arguments: `prlimit`, `nsenter`. Empty: it is started directly.
    launcher: Vec<String>,
    arguments: Vec<String>,
    config: String,
}

impl Setup {
    /// Describes a reverse proxy for an origin.
    pub(crate) fn for_origin(origin: SocketAddr) -> Self {
        let arguments = ["--origin".to_owned(), format!("http://{origin}")];
        Self { launcher: Vec::new(), arguments: arguments.into(), config: String::new() }
    }

    /// Describes a forward proxy that may connect to this machine.
    pub(crate) fn forward() -> Self {
        let config = "access.reach = [\"127.0.0.0/8\"]\n".to_owned();
        Self { launcher: Vec::new(), arguments: Vec::new(), config }
    }

    /// Describes a proxy with that `strait.toml`.
    pub(crate) fn of_config(config: &str) -> Self {
        Self { launcher: Vec::new(), arguments: Vec::new(), config: config.to_owned() }
    }

    /// Adds a text to its `strait.toml`.
    pub(crate) fn config(mut self, text: &str) -> Self {
        self.config.push_str(text);
        self
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Lets another program start it, with its path and arguments as last arguments.
    pub(crate) fn by(mut self, program: &[&str]) -> Self {
        self.launcher = program.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Starts it with a store in `cache`, and waits until it listens.
    pub(crate) fn start_in(self, cache: &Path) -> Proxy {
        let config = tempfile::NamedTempFile::new().unwrap();
        fs::write(config.path(), &self.config).unwrap();
        let words: Vec<_> = self.launcher.iter().map(String::as_str).chain([PROGRAM]).collect();
        let launch = Launch::new(words[0]).args(&words[1..]).args(["--listen", "127.0.0.1:0"]);
        let launch = launch.arg("--config").arg(config.path()).arg("--cache-dir").arg(cache);
        let process = launch.args(&self.arguments).spawn().unwrap();
        process.wait_for_stderr("listening on ", LIMIT).unwrap();
        let mut address = None;
        // The line may come in pieces.
        let is_listening = wait_until(LIMIT, || {
            address = listening_on(&process.stderr());
            address.is_some()
        });
        assert!(is_listening, "{}", process.stderr());
        Proxy { address: address.unwrap(), process, _cache: None }
    }

    /// Starts it with a store of its own, which is removed with it.
    pub(crate) fn start(self) -> Proxy {
        let cache = tempfile::tempdir().unwrap();
        let proxy = self.start_in(cache.path());
        Proxy { _cache: Some(cache), ..proxy }
    }
}

/// Returns the address of its first complete line about one.
fn listening_on(output: &str) -> Option<SocketAddr> {
    let mut lines = output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines.find_map(|line| line.strip_prefix("listening on ")?.parse().ok())
}

/// Running proxy; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    process: Process,
    /// Store of its own.
    _cache: Option<TempDir>,
}

impl Proxy {
    /// Kills it by SIGKILL.
    pub(crate) fn kill(self) {
        self.process.signal(Signal::KILL);
        let finished = self.process.wait(LIMIT).unwrap();
        assert_eq!(finished.status.code(), None);
    }

    /// Ends it by SIGTERM, like systemd.
    pub(crate) fn terminate(self) -> Finished {
        self.process.signal(Signal::TERM);
        self.process.wait(LIMIT).unwrap().success()
    }

    /// Waits until it has printed a text to standard error.
    pub(crate) fn await_stderr(&self, text: &str) {
        self.process.wait_for_stderr(text, LIMIT).unwrap();
    }

    /// Returns the addresses that it has reported so far.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let output = self.process.stderr();
        let lines = output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.filter_map(|line| line.strip_prefix("listening on ")?.parse().ok()).collect()
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns its resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.status("VmRSS")
    }

    /// Returns its largest resident memory in bytes.
    pub(crate) fn memory_peak(&self) -> u64 {
        self.status("VmHWM")
    }

    fn status(&self, name: &str) -> u64 {
        let value = status(&self.process.id().to_string(), name).unwrap();
        value.strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Counts its open descriptors by kind.
    pub(crate) fn descriptors(&self) -> Descriptors {
        let mut open = Descriptors::default();
        for (_, link) in self.links() {
            match link.split(':').next().unwrap() {
                "pipe" => open.pipes += 1,
                "socket" => open.sockets += 1,
                _ if link.ends_with(" (deleted)") => open.deleted += 1,
                _ => open.others += 1,
            }
        }
        open
    }

    /// Returns paths to its open files in a directory, also of files without a name.
    pub(crate) fn open_files(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.links().filter(move |(_, link)| Path::new(link).starts_with(folder)).map(|(path, _)| path)
    }

    /// Returns its descriptors and their files.
    fn links(&self) -> impl Iterator<Item = (PathBuf, String)> + use<> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        // A descriptor that was closed meanwhile does not count.
        entries.flatten().filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            Some((entry.path(), link.to_string_lossy().into_owned()))
        })
    }

    /// Waits until it has at most `most` sockets.
    pub(crate) fn await_sockets(&self, most: usize) -> bool {
        wait_until(LIMIT, || self.descriptors().sockets <= most)
    }
}

/// Open descriptors of a process by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) pipes: usize,
    pub(crate) sockets: usize,
    /// Files without a name.
    pub(crate) deleted: usize,
    pub(crate) others: usize,
}
