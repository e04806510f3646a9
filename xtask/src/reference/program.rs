//! The program `strait`, built from this tree, as a child process.
//!
//! The other modules of `reference` call it. A child that has to be stopped gets SIGTERM, so that
//! it prints its account.

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::source::Result;

/// Time limit of a server: a failure must not look like a slow run.
const SERVER_SECONDS_MAX: &str = "60";

/// Directory of `strait-query` below that of the build.
const QUERY: &str = "query/release";

/// Path of the program, and the search path with which it finds `strait-query`.
pub(super) struct Program {
    path: PathBuf,
    search: OsString,
}

/// Running command that prints its addresses on standard error and its result at the end.
pub(super) struct Server {
    child: Child,
    errors: ChildStderr,
    seen: Vec<u8>,
}

impl Program {
    /// Builds all programs of the workspace, as `strait` starts some of the others.
    pub(super) fn build(root: &Path) -> Result<Self> {
        let built = Command::new("cargo")
            .args(["build", "--quiet", "--locked", "--workspace", "--bins"])
            .current_dir(root)
            .status()?;
        if !built.success() {
            return Err("the programs do not build".into());
        }
        Self::built(root)
    }

    /// Returns the programs that a build of this tree has left.
    pub(super) fn built(root: &Path) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let path = target.join("debug/strait");
        if !path.is_file() {
            return Err(format!("{} is not built", path.display()).into());
        }
        // `scripts/query` builds this program, as its workspace is a separate one.
        let own = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::iter::once(target.join(QUERY)).chain(std::env::split_paths(&own));
        Ok(Self { search: std::env::join_paths(directories)?, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the standard output of a command that must succeed.
    pub(super) fn text(&self, arguments: &[&str]) -> Result<String> {
        output(Command::new(&self.path).args(arguments).env("PATH", &self.search))
    }

    /// Returns the JSON values that a command prints.
    pub(super) fn json(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        values(&self.text(arguments)?)
    }

    /// Returns the JSON values that a shell script prints in a network namespace of its own, where
    /// `$STRAIT` is the program; `None` where no namespace can be made.
    pub(super) fn json_in_namespace(&self, script: &str) -> Option<Vec<Value>> {
        values(&self.text_in_namespace(script)?).ok().filter(|values| !values.is_empty())
    }

    /// Like [`json_in_namespace`](Self::json_in_namespace) for a script that prints text.
    pub(super) fn text_in_namespace(&self, script: &str) -> Option<String> {
        let mine: &[&str] = &["--net"];
        let mapped: &[&str] = &["--net", "--user", "--map-root-user"];
        [mine, mapped].iter().find_map(|options| {
            let mut command = Command::new("unshare");
            command.args(*options).args(["sh", "-ec", script]).env("STRAIT", &self.path);
            output(command.stderr(Stdio::null())).ok().filter(|printed| !printed.is_empty())
        })
    }

    /// Starts a command that prints its addresses on standard error.
    pub(super) fn serve(&self, arguments: &[&str]) -> Result<Server> {
        let mut command = Command::new("timeout");
        command.args(["--foreground", SERVER_SECONDS_MAX]).arg(&self.path).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let errors = child.stderr.take().ok_or("no standard error")?;
        Ok(Server { child, errors, seen: Vec::new() })
    }
}

impl Server {
    /// Waits until it prints an address of host `host`.
    pub(super) fn address(&mut self, host: &str) -> Result<SocketAddr> {
        loop {
            if let Some(address) = address_in(&self.text(), &format!("{host}:")) {
                return Ok(address);
            }
            let mut bytes = [0; 4096];
            let len = self.errors.read(&mut bytes)?;
            if len == 0 {
                return Err(format!("it printed no address: {}", self.text()).into());
            }
            self.seen.extend(&bytes[..len]);
        }
    }

    /// Waits for its end and returns what it printed as JSON.
    pub(super) fn wait(mut self) -> Result<Vec<Value>> {
        let mut printed = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            output.read_to_string(&mut printed)?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            self.errors.read_to_end(&mut self.seen)?;
            return Err(format!("{status}: {}", self.text()).into());
        }
        values(&printed)
    }

    /// Ends it with SIGTERM, and returns what it printed as JSON.
    pub(super) fn stop(self) -> Result<Vec<Value>> {
        self.terminate();
        self.wait()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Sends SIGTERM. timeout(1) passes it on, which it could not with SIGKILL.
    fn terminate(&self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
    }
}

/// A server that was not waited for must not outlive a failure.
impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
            let _ = self.child.wait();
        }
    }
}

/// Returns the first address after `start` with a port other than 0, if a character after it shows
/// that it is complete.
fn address_in(text: &str, start: &str) -> Option<SocketAddr> {
    text.match_indices(start).find_map(|(at, _)| {
        let rest = &text[at + start.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        format!("{start}{}", &rest[..end]).parse().ok().filter(|address: &SocketAddr| address.port() != 0)
    })
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {errors}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

pub(super) fn values(text: &str) -> Result<Vec<Value>> {
    let values: std::result::Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(text).into_iter().collect();
    values.map_err(|error| format!("{error}: {text:.200}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_once_it_is_complete() {
        let find = |text| address_in(text, "127.0.0.2:").map(|address| address.port());
        assert_eq!(find("relaying 127.0.0.2:40"), None);
        assert_eq!(find("on http://127.0.0.2:4012/\n"), Some(4012));
        assert_eq!(find("127.0.0.2:0 becomes 127.0.0.2:7\n"), Some(7));
        assert_eq!(find("127.0.0.1:7\n"), None);
    }
}
