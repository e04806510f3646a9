//! A measured program: on its own CPUs, in its namespace, bounded in time, and accounted for.
//!
//! Receivers and generators run as programs of their own, so that one's CPU time is not mixed with another's. They are
//! started through `strait bench exec` ([`exec`]), so that none outlives this process, however that ends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use strait_sys::netns::Namespace;
use strait_sys::perf::Cycles;
use strait_sys::{process, wait};

use crate::error::{Error, Result};
use crate::memory_file;
use crate::wire::End;

/// How often a wait looks.
const LOOK: Duration = Duration::from_millis(2);
/// What of a program's output is read at most.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// A program to be run, with its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    path: String,
    arguments: Vec<String>,
}

impl Program {
    /// `path` with `arguments`.
    pub fn new(path: impl Into<String>, arguments: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    /// Its last path component and its arguments, for people.
    pub fn name(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        format!("{name} {}", self.arguments.join(" "))
    }

    fn failed(&self, said: impl Into<String>) -> Error {
        Error::Program { program: self.name(), said: said.into() }
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
}

/// What a program wrote.
#[derive(Clone, Debug)]
pub struct Output {
    /// To standard output.
    pub stdout: String,
    /// To standard error.
    pub stderr: String,
}

/// What a program has cost so far.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// User and system, all threads.
    pub cpu: Duration,
    /// None where the machine does not count them.
    pub cycles: Option<u64>,
}

impl Cost {
    /// The cost since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let cycles = self.cycles.zip(before.cycles).map(|(now, then)| now.saturating_sub(then));
        Self { cpu: self.cpu.saturating_sub(before.cpu), cycles }
    }
}

/// Starts measured programs.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program `strait`.
    pub strait: PathBuf,
}

impl Launcher {
    /// Starts `program` at `end` on `cpus`, for `limit` at most.
    pub fn start(&self, end: &End, program: &Program, cpus: &[u32], limit: Duration) -> Result<Child> {
        let mut command = Command::new(&self.strait);
        command.args(["bench", "exec", "--seconds", &limit.as_secs().max(1).to_string()]);
        if !cpus.is_empty() {
            let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
            command.args(["--cpus", &cpus.join(",")]);
        }
        if let Some(namespace) = end.namespace_path() {
            command.args(["--netns", &namespace]);
        }
        command.arg("--").arg(&program.path).args(&program.arguments);
        // What is written to them can be read at any time, and nobody waits for a reader.
        let (stdout, stderr) = (memory_file::create("stdout")?, memory_file::create("stderr")?);
        command.stdin(Stdio::null()).stdout(duplicate(&stdout)?).stderr(duplicate(&stderr)?);
        let process = command.spawn().map_err(|error| program.failed(error.to_string()))?;
        let cycles = Cycles::of(process.id()).ok();
        Ok(Child { program: program.clone(), process, stdout, stderr, cycles })
    }
}

fn duplicate(file: &File) -> Result<Stdio> {
    file.try_clone().map(Stdio::from).map_err(|error| Error::file("duplicate a descriptor", error))
}

impl Child {
    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it cost so far.
    pub fn cost(&self) -> Result<Cost> {
        let cycles = self.cycles.as_ref().and_then(|cycles| cycles.count().ok());
        Ok(Cost { cpu: process::cpu_time_of(self.process.id())?, cycles })
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> Result<String> {
        text(&self.stderr)
    }

    /// Waits until it is `ready`.
    pub fn wait_until(&mut self, limit: Duration, ready: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready(self)? {
            if let Some(status) = self.status()? {
                return Err(self.program.failed(last_words(&self.stderr()?, &status.to_string())));
            }
            if Instant::now() > deadline {
                let late = format!("it is not ready after {limit:?}");
                return Err(self.program.failed(last_words(&self.stderr()?, &late)));
            }
            wait::sleep(LOOK);
        }
        Ok(())
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> Result<String> {
        text(&self.stdout)
    }

    /// Sends it SIGINT, waits for its end and returns what it wrote.
    ///
    /// # Errors
    /// It ended with another code than 0, or not at all.
    pub fn interrupt(self, limit: Duration) -> Result<Output> {
        self.signal(Signal::INT)?;
        self.finish(limit)
    }

    /// Sends it SIGTERM and waits for its end, however it ends.
    ///
    /// # Errors
    /// It does not end: it is killed.
    pub(crate) fn terminate(mut self, limit: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.end(limit).map(drop)
    }

    /// Waits for its end and returns what it wrote.
    ///
    /// # Errors
    /// The same.
    pub fn finish(mut self, limit: Duration) -> Result<Output> {
        let status = self.end(limit)?;
        if status.success() {
            return Ok(Output { stdout: text(&self.stdout)?, stderr: text(&self.stderr)? });
        }
        Err(self.program.failed(last_words(&self.stderr()?, &status.to_string())))
    }

    fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.status()? {
                Some(status) => return Ok(status),
                None if Instant::now() > deadline => return Err(self.program.failed("it did not end")),
                None => wait::sleep(LOOK),
            }
        }
    }

    fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.process.try_wait().map_err(|error| Error::file("wait for a program", error))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_child(&self.process);
        rustix::process::kill_process(id, signal).map_err(|error| Error::file("signal a program", error))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and has been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The last line that a program wrote; what became of it where it wrote none.
fn last_words(stderr: &str, end: &str) -> String {
    stderr.lines().next_back().unwrap_or(end).to_owned()
}

fn text(file: &File) -> Result<String> {
    let failed = |error: io::Error| Error::file("read a program's output", error);
    // The descriptor shares its offset with the program's: look without moving it.
    let mut bytes = Vec::new();
    let mut copy = File::open(memory_file::path_of(file)).map_err(failed)?;
    copy.rewind().map_err(failed)?;
    copy.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints what a measured program of ours has to say, for [`parse`].
pub(crate) fn print(account: &impl Serialize) -> Result<()> {
    let failed = |source| Error::file("write to standard output", source);
    let text = serde_json::to_string(account).map_err(|error| failed(error.into()))?;
    writeln!(io::stdout(), "{text}").map_err(failed)
}

/// What it printed.
pub(crate) fn parse<'de, T: Deserialize<'de>>(program: &Program, text: &'de str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Program {
        program: program.name(),
        said: format!("it prints no account: {error}"),
    })
}

/// What `strait bench exec` is asked for.
#[derive(Clone, Debug)]
pub struct Exec<'a> {
    /// Path of the network namespace to enter.
    pub netns: Option<&'a Path>,
    /// CPUs to run on; any unless given.
    pub cpus: &'a [u32],
    /// After how many seconds it is ended.
    pub seconds: u32,
    /// The program and its arguments.
    pub command: &'a [String],
}

/// Becomes the program, in its namespace and on its CPUs; it is ended with its parent or when its time is over. Returns
/// only if that fails.
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
    // It is ended by SIGINT, which this process ignores where a shell started it in the background.
    process::with_default_signals(&mut command);
    Ok(command)
}
