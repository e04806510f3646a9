//! A program that a part of the demo runs: strait or tcpdump. Dropping it kills the process.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child as Process, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::part::REFUSED;
use crate::Error;

/// Time limit of one step of a program.
const STEP_MAX: Duration = Duration::from_secs(30);
/// Interval between checks for the end of a step.
const POLL: Duration = Duration::from_millis(5);

/// A running program with its output.
pub(super) struct Child {
    name: String,
    process: Process,
    stdout: Option<JoinHandle<String>>,
    stderr: Arc<Mutex<String>>,
}

/// Output and exit code of a finished program.
pub(super) struct Ended {
    /// Its exit code; `None` if a signal ended it.
    code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Returns a command that runs strait with `arguments`.
pub(super) fn strait(arguments: &[&str]) -> Result<Command, Error> {
    let own =
        std::env::current_exe().map_err(|error| Error::Failed(format!("find this program: {error}")))?;
    let mut command = Command::new(own);
    command.args(arguments);
    Ok(command)
}

impl Child {
    /// Starts `command` in the calling thread's namespace.
    pub(super) fn start(mut command: Command) -> Result<Self, Error> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::NoProgram(name.clone()),
            _ => Error::Failed(format!("run {name}: {error}")),
        })?;
        let stdout = process.stdout.take().map(|pipe| thread::spawn(move || all(pipe)));
        let stderr = Arc::new(Mutex::new(String::new()));
        if let Some(pipe) = process.stderr.take() {
            let text = Arc::clone(&stderr);
            thread::spawn(move || follow(pipe, &text));
        }
        Ok(Self { name, process, stdout, stderr })
    }

    /// Returns the standard error so far.
    pub(super) fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `done` returns a value. Fails if the program ends first, or takes longer than
    /// [`STEP_MAX`].
    pub(super) fn wait_until<T>(&mut self, mut done: impl FnMut(&Self) -> Option<T>) -> Result<T, Error> {
        let deadline = Instant::now() + STEP_MAX;
        loop {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            let ended = self.process.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                // The reading thread may not have read the last lines yet.
                strait_os::wait::sleep(10 * POLL);
                let code = ended.and_then(|status| status.code());
                return Err(failed(&self.name, &self.stderr(), code));
            }
            strait_os::wait::sleep(POLL);
        }
    }

    /// Waits for the rest of the line on standard error after `words`.
    pub(super) fn wait_for(&mut self, words: &str) -> Result<String, Error> {
        self.wait_until(|child| child.line_after(words))
    }

    /// Returns the rest of the line on standard error after `words`, once the line is complete.
    pub(super) fn line_after(&self, words: &str) -> Option<String> {
        let stderr = self.stderr();
        let (rest, _) = stderr.split_once(words)?.1.split_once('\n')?;
        Some(rest.trim().to_owned())
    }

    pub(super) fn signal(&self, signal: Signal) {
        // Fails for a program that has ended. `end` reads its result.
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// Waits until the program ends.
    pub(super) fn end(mut self) -> Result<Ended, Error> {
        let deadline = Instant::now() + STEP_MAX;
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => strait_os::wait::sleep(POLL),
                Ok(None) => return Err(Error::Failed(format!("{} does not end", self.name))),
                Err(error) => return Err(Error::Failed(format!("wait for {}: {error}", self.name))),
            }
        };
        let stdout = self.stdout.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        strait_os::wait::sleep(POLL);
        Ok(Ended { code: status.code(), stdout, stderr: self.stderr() })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both calls fail for a program that has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Ended {
    /// Parses the last line of standard output as JSON.
    pub(super) fn json(&self, what: &str) -> Result<serde_json::Value, Error> {
        let line = self.stdout.lines().next_back().unwrap_or_default();
        match serde_json::from_str(line) {
            Ok(value) if self.code == Some(0) => Ok(value),
            _ => Err(failed(what, &self.stderr, self.code)),
        }
    }
}

/// Returns the error of a program that ended with exit code `code`, or `None` if it did not end or
/// a signal ended it. [`Error::Refused`] stays distinct, so that a missing privilege skips the
/// part.
fn failed(name: &str, stderr: &str, code: Option<i32>) -> Error {
    let message = match (stderr.trim(), code) {
        ("", Some(code)) => format!("{name}: ended with exit code {code} and no message"),
        ("", None) => format!("{name}: did not finish its step within {} s", STEP_MAX.as_secs()),
        (stderr, _) => format!("{name}: {stderr}"),
    };
    if code == Some(i32::from(REFUSED)) { Error::Refused(message) } else { Error::Failed(message) }
}

fn all(mut pipe: impl Read) -> String {
    let mut text = Vec::new();
    // A broken pipe ends the text. The exit code reports the failure.
    let _ = pipe.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn follow(pipe: impl Read, text: &Mutex<String>) {
    for line in BufReader::new(pipe).lines().map_while(Result::ok) {
        let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(&line);
        text.push('\n');
    }
}
