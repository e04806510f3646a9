//! Proxy with all processes that replace one another.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lab::{Launch, Process, program_or_skip, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::{Client, get};
use crate::rig::{LIMIT, PROGRAM, status};

/// Proxy with its configuration, its cache, and a link to its program.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) folder: TempDir,
    pub(super) process: Process,
}

/// Text of a configuration with an origin.
pub(super) fn toml(origin: SocketAddr) -> String {
    format!("listen = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\norigin = \"http://{origin}\"\n")
}

impl Service {
    /// Starts one with two workers, and with these further lines of configuration.
    pub(super) fn start(origin: SocketAddr, config: &str) -> Self {
        Self::launch(&(toml(origin) + config), |program, options| Launch::new(program).args(options))
    }

    /// Starts one by a launch, which gets the path of the program and its options.
    pub(super) fn launch(config: &str, launch: impl FnOnce(&Path, &[String]) -> Launch<'static>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (program, file) = (folder.path().join("strait-proxy"), folder.path().join("strait.toml"));
        symlink(PROGRAM, &program).unwrap();
        fs::write(&file, config).unwrap();
        let cache = folder.path().join("cache");
        let options = [
            "--config".into(),
            file.display().to_string(),
            "--cache-dir".into(),
            cache.display().to_string(),
        ];
        let options = [&options[..], &["--workers".into(), "2".into()]].concat();
        let process = launch(&program, &options).spawn().unwrap();
        let address = process.address_after("listening on ", LIMIT);
        Self { address, folder, process }
    }

    /// Second address of its configuration.
    pub(super) fn second_address(&self) -> SocketAddr {
        let second = || {
            let text = self.process.stderr();
            // The last line may not be whole.
            let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            lines.filter_map(|line| line.strip_prefix("listening on ")?.parse().ok()).nth(1)
        };
        assert!(wait_until(LIMIT, || second().is_some()), "{}", self.process.stderr());
        second().unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write_config(&self, text: &str) {
        fs::write(self.path("strait.toml"), text).unwrap();
    }

    /// Lets an upgrade start a script of Python in place of the program; false without Python.
    pub(super) fn replace_program(&self, script: &str) -> bool {
        if !program_or_skip("python3") {
            return false;
        }
        let (path, new) = (self.path("strait-proxy"), self.path("new"));
        // Another process writes it: see `everyones_copy`.
        let write = "cat > \"$0\" && chmod 755 \"$0\"";
        let text = format!("#!/usr/bin/env python3\n{SUCCESSOR}\n{script}");
        let source = self.path("script");
        fs::write(&source, text).unwrap();
        let launch = Launch::new("sh").args(["-c", write]).arg(&new).stdin(fs::File::open(source).unwrap());
        let _ = launch.run(LIMIT).unwrap().success();
        fs::rename(new, path).unwrap();
        true
    }

    /// Ids of all processes so far, the oldest first.
    pub(super) fn ids(&self) -> Vec<u32> {
        let text = self.process.stderr();
        let started =
            text.lines().filter_map(|line| line.strip_prefix("upgrade: process ")?.strip_suffix(" starts"));
        [self.process.id()].into_iter().chain(started.map(|id| id.parse().unwrap())).collect()
    }

    /// Process that serves.
    pub(super) fn newest(&self) -> u32 {
        let text = self.process.stderr();
        let mut upgraded = text.lines().filter_map(|line| line.strip_prefix("upgraded: process "));
        let last = upgraded.next_back().and_then(|rest| rest.split_once(' '));
        last.map_or(self.process.id(), |(id, _)| id.parse().unwrap())
    }

    /// Process that was started last.
    pub(super) fn last_started(&self) -> u32 {
        self.ids()[self.ids().len() - 1]
    }

    /// Number of finished upgrades.
    pub(super) fn upgraded(&self) -> usize {
        self.process.stderr().lines().filter(|line| line.starts_with("upgraded: process ")).count()
    }

    /// Replaces the newest process; returns its successor.
    pub(super) fn upgrade(&self) -> u32 {
        self.upgrade_listening(1)
    }

    /// Like [`Self::upgrade`], to a configuration with that number of addresses.
    pub(super) fn upgrade_listening(&self, addresses: usize) -> u32 {
        let (upgraded, listening) = (self.upgraded(), self.listening());
        signal(self.newest(), Signal::USR2);
        self.wait_for("upgraded: process ", upgraded + 1);
        self.wait_for("listening on ", listening + addresses);
        self.newest()
    }

    /// Number of addresses that the processes have begun to accept from.
    fn listening(&self) -> usize {
        self.process.stderr().matches("listening on ").count()
    }

    /// Waits until the processes have written a text that often.
    pub(super) fn wait_for(&self, text: &str, count: usize) {
        let has = || self.process.stderr().matches(text).count() >= count;
        assert!(wait_until(LIMIT, has), "{text}: {}", self.process.stderr());
    }

    pub(super) fn client(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    /// Returns the value of a metric.
    pub(super) fn metric(&self, name: &str) -> u64 {
        let admin = self.process.address_after("admin page on http://", LIMIT);
        let text = get_admin(admin, "/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }
}

fn get_admin(admin: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {admin}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns true if a response is a hit.
pub(super) fn is_hit(address: SocketAddr, target: &str) -> bool {
    get(address, target, "").head.is_hit()
}

pub(super) fn signal(id: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(id as i32).unwrap(), signal);
}

/// Waits until a process has ended.
pub(super) fn await_end(id: u32) {
    assert!(wait_until(LIMIT, || has_ended(id)), "process {id} goes on");
}

pub(super) fn has_ended(id: u32) -> bool {
    status(&id.to_string(), "State").is_none_or(|state| state.starts_with(['Z', 'X']))
}

impl Drop for Service {
    fn drop(&mut self) {
        let folder = self.folder.path().to_string_lossy().into_owned();
        for id in self.ids() {
            // Another process may have the number now.
            let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&arguments).contains(&folder) {
                signal(id, Signal::KILL);
            }
        }
    }
}

/// Functions for scripts that replace the program: the sockets and messages of an upgrade.
const SUCCESSOR: &str = "
import os, socket, sys, time
names = os.environ['LISTEN_FDNAMES'].split(':')
messages = socket.socket(fileno=3 + names.index('strait.upgrade'))
";
