//! Runs a measured program on given CPUs, in a namespace, with a time limit, and reads its CPU
//! cost.
//!
//! Receivers and generators are separate programs, so that their CPU times are separate. They are
//! started through `strait-bench exec` ([`exec`]), which ends them with this process even if this
//! process is killed.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use strait_os::netns::Namespace;
use strait_os::process::Usage;
use strait_os::{process, wait};
use strait_sys::perf::Cycles;

use crate::error::{Error, Result};
use crate::memory_file;
use crate::wire::End;

/// Interval between two checks of a waiting loop.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of bytes read from a program's output.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// Program to run, with its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    path: String,
    arguments: Vec<String>,
}

impl Program {
    /// Creates a program from its path and arguments.
    pub fn new(path: impl Into<String>, arguments: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Returns the last path component and the arguments, for messages.
    pub fn name(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        format!("{name} {}", self.arguments.join(" "))
    }

    /// Returns the program's path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the program's arguments.
    pub(crate) fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Adds arguments.
    #[must_use]
    pub(crate) fn with(mut self, arguments: impl IntoIterator<Item: AsRef<str>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    fn failed(&self, message: impl Into<String>) -> Error {
        Error::Program { program: self.name(), message: message.into() }
    }
}

/// A running program. Dropping it kills it by its process id and waits for its end.
#[derive(Debug)]
pub struct Child {
    program: Program,
    process: std::process::Child,
    stdout: File,
    stderr: File,
    cycles: Option<Cycles>,
    /// Status and cost of its whole life, once it has been waited for.
    ended: Option<(ExitStatus, Usage)>,
}

/// Output and cost of an ended program.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Cost of its whole life.
    pub usage: Usage,
}

/// CPU cost of a program so far.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// User and system time of all threads.
    pub cpu: Duration,
    /// CPU cycles; None if the machine does not count them.
    pub cycles: Option<u64>,
}

impl Cost {
    /// Returns the cost since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let cycles = self.cycles.zip(before.cycles).map(|(now, then)| now.saturating_sub(then));
        Self { cpu: self.cpu.saturating_sub(before.cpu), cycles }
    }
}

/// Starts measured programs.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// Path of the program `strait-bench`.
    pub own: PathBuf,
    /// Path of the program `strait`.
    pub strait: PathBuf,
}

impl Launcher {
    /// Returns `strait` with arguments.
    pub(crate) fn strait(&self, arguments: impl IntoIterator<Item: Into<String>>) -> Program {
        Program::new(self.strait.to_string_lossy(), arguments)
    }

    /// Returns `strait-bench` with `arguments`, which select one of the programs to measure.
    pub(crate) fn own(&self, arguments: impl IntoIterator<Item: Into<String>>) -> Program {
        Program::new(self.own.to_string_lossy(), arguments)
    }

    /// Starts `program` at `end` on `cpus`. It is killed after `limit`.
    pub fn start(&self, end: &End, program: &Program, cpus: &[u32], limit: Duration) -> Result<Child> {
        let mut command = Command::new(&self.own);
        command.args(["exec", "--seconds", &limit.as_secs().max(1).to_string()]);
        if !cpus.is_empty() {
            let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
            command.args(["--cpus", &cpus.join(",")]);
        }
        if let Some(namespace) = end.namespace_path() {
            command.args(["--netns", &namespace]);
        }
        command.arg("--").arg(&program.path).args(&program.arguments);
        // Unlike a pipe, a file in memory can be read at any time and never blocks the program.
        let (stdout, stderr) = (memory_file::create("stdout")?, memory_file::create("stderr")?);
        command.stdin(Stdio::null()).stdout(duplicate(&stdout)?).stderr(duplicate(&stderr)?);
        let process = command.spawn().map_err(|error| program.failed(error.to_string()))?;
        let cycles = Cycles::of(process.id()).ok();
        Ok(Child { program: program.clone(), process, stdout, stderr, cycles, ended: None })
    }
}

fn duplicate(file: &File) -> Result<Stdio> {
    file.try_clone().map(Stdio::from).map_err(|error| Error::file("duplicate a descriptor", error))
}

impl Child {
    /// Returns the program's process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the program's cost so far.
    pub fn cost(&self) -> Result<Cost> {
        let cycles = self.cycles.as_ref().and_then(|cycles| cycles.count().ok());
        Ok(Cost { cpu: process::cpu_time_of(self.process.id())?, cycles })
    }

    /// Returns the program's standard error so far.
    pub fn stderr(&self) -> Result<String> {
        text(&self.stderr)
    }

    /// Waits until `ready` returns true.
    pub fn wait_until(&mut self, limit: Duration, ready: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready(self)? {
            if let Some((status, _)) = self.ended()? {
                return Err(self.program.failed(last_line(&self.stderr()?, &status.to_string())));
            }
            if Instant::now() > deadline {
                let late = format!("it is not ready after {limit:?}");
                return Err(self.program.failed(last_line(&self.stderr()?, &late)));
            }
            wait::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the program's standard output so far.
    pub fn stdout(&self) -> Result<String> {
        text(&self.stdout)
    }

    /// Sends SIGINT, waits for the program to end, and returns its output.
    ///
    /// # Errors
    /// The program ended with a code other than 0, or did not end in time.
    pub fn interrupt(self, limit: Duration) -> Result<Output> {
        self.signal(Signal::INT)?;
        self.finish(limit)
    }

    /// Sends SIGTERM and waits for the program to end; its exit code is ignored.
    ///
    /// # Errors
    /// The program does not end in time; it is then killed.
    pub(crate) fn terminate(mut self, limit: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.end(limit).map(drop)
    }

    /// Waits for the program to end and returns its output.
    ///
    /// # Errors
    /// The program ended with a code other than 0, or did not end in time.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let (status, usage) = self.end(limit)?;
        if status.success() {
            return Ok(Output { stdout: text(&self.stdout)?, stderr: text(&self.stderr)?, usage });
        }
        if status.signal() == Some(Signal::ALARM.as_raw()) {
            return Err(self.program.failed("killed at its time limit"));
        }
        Err(self.program.failed(last_line(&self.stderr()?, &status.to_string())))
    }

    fn end(&mut self, limit: Duration) -> Result<(ExitStatus, Usage)> {
        let deadline = Instant::now() + limit;
        loop {
            match self.ended()? {
                Some(ended) => return Ok(ended),
                None if Instant::now() > deadline => return Err(self.program.failed("it did not end")),
                None => wait::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Returns the program's status and cost once it has ended.
    fn ended(&mut self) -> Result<Option<(ExitStatus, Usage)>> {
        if self.ended.is_none() {
            self.ended = process::try_wait(&self.process)?;
        }
        Ok(self.ended)
    }

    /// Sends a signal, unless the program has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let id = Pid::from_child(&self.process);
        rustix::process::kill_process(id, signal).map_err(|error| Error::file("signal a program", error))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Its process id may belong to another process once it has been waited for.
        if self.ended.is_none() {
            // Ignore errors: the program may already have ended.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Returns the last line of `stderr`, or `end` if there is none.
fn last_line(stderr: &str, end: &str) -> String {
    stderr.lines().next_back().unwrap_or(end).to_owned()
}

fn text(file: &File) -> Result<String> {
    let failed = |error: io::Error| Error::file("read a program's output", error);
    // The program writes at the descriptor's shared offset: open the file again to read it.
    let mut bytes = Vec::new();
    let mut copy = File::open(memory_file::path_of(file)).map_err(failed)?;
    copy.rewind().map_err(failed)?;
    copy.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints an account of a measured program as JSON, for [`parse`].
pub(crate) fn print(account: &impl Serialize) -> Result<()> {
    let failed = |source| Error::file("write to standard output", source);
    let text = serde_json::to_string(account).map_err(|error| failed(error.into()))?;
    writeln!(io::stdout(), "{text}").map_err(failed)
}

/// Parses the account that [`print()`] wrote.
pub(crate) fn parse<'de, T: Deserialize<'de>>(program: &Program, text: &'de str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Program {
        program: program.name(),
        message: format!("its output is not a valid account: {error}"),
    })
}

/// Options of `strait-bench exec`.
#[derive(Clone, Debug)]
pub struct Exec<'a> {
    /// Path of the network namespace to enter.
    pub netns: Option<&'a Path>,
    /// CPUs to run on; any if empty.
    pub cpus: &'a [u32],
    /// Time limit in seconds; the program is killed when it expires.
    pub seconds: u32,
    /// Program and arguments.
    pub command: &'a [String],
}

/// Executes the program in its namespace and on its CPUs. The program is killed when its parent
/// exits or its time limit expires. Returns only on failure.
pub fn exec(options: &Exec<'_>) -> Error {
    match prepare(options) {
        Ok(mut command) => Error::file(format!("start {}", options.command[0]), command.exec()),
        Err(error) => error,
    }
}

fn prepare(options: &Exec<'_>) -> Result<Command> {
    process::end_with_parent()?;
    process::end_after(options.seconds);
    if let Some(path) = options.netns {
        Namespace::open(path)?.enter()?;
    }
    if !options.cpus.is_empty() {
        process::pin_thread_to(options.cpus)?;
    }
    let (program, arguments) =
        options.command.split_first().ok_or_else(|| Error::Usage("give a program to run after --".into()))?;
    let mut command = Command::new(program);
    command.args(arguments);
    // A shell that starts this process in the background makes it ignore SIGINT. Measured programs
    // are stopped with SIGINT, so restore the default action.
    process::with_default_signals(&mut command);
    Ok(command)
}
