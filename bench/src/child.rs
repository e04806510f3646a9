//! A measured program: pinned, limited in time, with its cost measured by `peers/timed.c`.
//!
//! Receivers and generators are separate programs, so that their CPU times are separate. Dropping a
//! child kills it by its process id, and `timed` kills it at its time limit.

use std::fmt;
use std::time::Duration;

use lab::{End, Finished, Process};
use rustix::process::Signal;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::tools::Tools;

/// Time for a program to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Program to run, with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: String,
    pub(crate) arguments: Vec<String>,
}

/// Running program.
pub(crate) struct Child {
    process: Process,
    program: Program,
    snapshots: usize,
}

/// Output and cost of an ended program.
#[derive(Debug)]
pub(crate) struct Ended {
    program: Program,
    finished: Finished,
    /// CPU time of its whole life.
    pub(crate) cpu: Duration,
    /// Numbers of voluntary and involuntary context switches.
    pub(crate) switches: (f64, f64),
}

impl Program {
    /// Creates a program from its path and arguments.
    pub(crate) fn new(path: impl Into<String>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { path: path.into(), arguments }
    }

    /// Returns the last path component and the arguments, for messages.
    fn name(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        format!("{name} {}", self.arguments.join(" "))
    }
}

impl Child {
    /// Starts `program` at `end`, on `cpu`, for at most `limit`.
    pub(crate) fn start(
        tools: &Tools,
        end: &End,
        program: &Program,
        cpu: u32,
        limit: Duration,
    ) -> Result<Self> {
        let process = end
            .command(tools.peer("timed"))
            .args([cpu.to_string(), limit.as_secs().max(1).to_string()])
            .arg(&program.path)
            .args(&program.arguments)
            .spawn()?;
        Ok(Self { process, program: program.clone(), snapshots: 0 })
    }

    /// Returns true if it has written `words` to standard error.
    pub(crate) fn has_said(&self, words: &str) -> bool {
        self.process.stderr().contains(words)
    }

    /// Returns true if it ended without being stopped.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_said("timed: user_us=")
    }

    /// Returns its CPU time so far, user and system, all threads.
    pub(crate) fn cpu_so_far(&mut self) -> Result<Duration> {
        self.snapshots += 1;
        self.process.signal(Signal::USR1);
        let end = format!("snapshot={}\n", self.snapshots);
        self.process.wait_for_stderr(&end, PATIENCE)?;
        let said = self.process.stderr();
        let line = said.lines().rfind(|line| line.ends_with(end.trim_end()));
        let ns = line.and_then(|line| field(line, "cpu_ns")).ok_or_else(|| self.silent("cpu_ns", said))?;
        Ok(Duration::from_nanos(ns as u64))
    }

    /// Waits until it ends by itself, within `limit`, without using CPU time here.
    pub(crate) fn wait(self, limit: Duration) -> Result<Ended> {
        self.process.wait_for_stderr("limit=", limit + PATIENCE)?;
        let finished = self.process.wait(PATIENCE)?;
        Ended::new(self.program, finished)
    }

    /// Sends SIGINT and waits for its end.
    pub(crate) fn interrupt(self) -> Result<Ended> {
        self.process.signal(Signal::INT);
        self.wait(PATIENCE)
    }

    fn silent(&self, wanted: &str, said: String) -> Error {
        Error::Account { program: self.program.name(), wanted: wanted.into(), said }
    }
}

impl Ended {
    fn new(program: Program, finished: Finished) -> Result<Self> {
        let line = finished.stderr.lines().rfind(|line| line.starts_with("timed: user_us=")).unwrap_or("");
        let number = |name| field(line, name).unwrap_or(0.0);
        let cpu = Duration::from_micros((number("user_us") + number("system_us")) as u64);
        let switches = (number("voluntary"), number("involuntary"));
        if finished.status.success() && number("limit") < 1.0 {
            return Ok(Self { program, finished, cpu, switches });
        }
        let said = finished.stderr.lines().filter(|line| !line.starts_with("timed: ")).collect::<Vec<_>>();
        let in_time = number("limit") < 1.0;
        let code = if in_time { finished.status.to_string() } else { "killed at its time limit".into() };
        Err(Error::Program { program: program.name(), code, said: said.join("; ") })
    }

    /// Returns the JSON object that it printed.
    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.finished.stdout).map_err(|_| self.silent("one JSON object"))
    }

    /// Returns a number of its JSON object, by its path such as `delay.p99_ns`.
    pub(crate) fn number(&self, path: &str) -> Result<f64> {
        let pointer = format!("/{}", path.replace('.', "/"));
        self.json()?.pointer(&pointer).and_then(Value::as_f64).ok_or_else(|| self.silent(path))
    }

    /// Returns the number before `words` on standard error, as in tcpdump's `12 packets captured`.
    pub(crate) fn number_before(&self, words: &str) -> Result<f64> {
        let line = self.finished.stderr.lines().find_map(|line| line.strip_suffix(words));
        line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| self.silent(words))
    }

    fn silent(&self, wanted: &str) -> Error {
        let said = self.finished.text() + &self.finished.stderr;
        Error::Account { program: self.program.name(), wanted: wanted.into(), said }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program.name())
    }
}

/// Returns the number of `name=number` in a line of words.
fn field(line: &str, name: &str) -> Option<f64> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_complete_name() {
        let line = "timed: user_us=12 system_us=3 limit=0";
        assert_eq!(field(line, "system_us"), Some(3.0));
        assert_eq!(field(line, "us"), None);
        assert_eq!(field(line, "cpu_ns"), None);
    }
}
