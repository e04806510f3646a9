//! Programs of a test: start, read output, send signals, and stop.
//!
//! Tests start peers (tcpdump, clients, servers) and Strait itself with it. Two threads read the
//! output continuously, so a program never blocks on a full pipe. Programs are stopped by process
//! id only.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use strait_os::netns::Namespace;

use crate::{Error, Result, wait_until};

/// Program to start, in a namespace or the calling thread's.
#[derive(Debug)]
pub struct Launch<'a> {
    namespace: Option<&'a Namespace>,
    command: Command,
}

impl Launch<'static> {
    /// Creates a launch of `program` in the calling thread's namespace.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::with(None, program)
    }
}

impl<'a> Launch<'a> {
    /// Creates a launch of `program` in `namespace`.
    pub fn inside(namespace: &'a Namespace, program: impl AsRef<OsStr>) -> Self {
        Self::with(Some(namespace), program)
    }

    fn with(namespace: Option<&'a Namespace>, program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The test itself may run in the background or under nohup, with ignored signals.
        strait_os::process::with_default_signals(&mut command);
        Self { namespace, command }
    }

    /// Starts the program in `namespace` instead.
    pub fn within(self, namespace: &Namespace) -> Launch<'_> {
        Launch { namespace: Some(namespace), command: self.command }
    }

    /// Sets standard input; the default is empty.
    #[must_use]
    pub fn stdin(mut self, input: impl Into<Stdio>) -> Self {
        self.command.stdin(input);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts the program. Its output is stored in memory.
    pub fn spawn(mut self) -> Result<Process> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        let child = match self.namespace {
            Some(namespace) => namespace.run(|| start(&mut self.command))?,
            None => start(&mut self.command),
        };
        let child = child.map_err(|source| Error::Start { program: program.clone(), source })?;
        Ok(Process::new(program, child))
    }

    /// Starts the program and waits for its end.
    pub fn run(self, limit: Duration) -> Result<Finished> {
        self.spawn()?.wait(limit)
    }
}

/// Starts a program. A program that was just written is busy (ETXTBSY) until each process that
/// another thread forks meanwhile has executed its own program, which closes the inherited
/// descriptor.
fn start(command: &mut Command) -> io::Result<Child> {
    const BUSY_MAX: Duration = Duration::from_secs(20);
    let begin = Instant::now();
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && begin.elapsed() < BUSY_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Running program; dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    program: String,
    child: Child,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// Ended program.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Complete standard output.
    pub stdout: Vec<u8>,
    /// Complete standard error, as text.
    pub stderr: String,
}

impl Finished {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns `self`, or panics with the output if the exit code is not 0.
    #[must_use]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{}: {}{}", self.status, self.text(), self.stderr);
        self
    }
}

impl Process {
    fn new(program: String, mut child: Child) -> Self {
        let stdout = PipeReader::start(child.stdout.take().expect("piped in spawn"));
        let stderr = PipeReader::start(child.stderr.take().expect("piped in spawn"));
        Self { program, child, stdout, stderr }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.output.lock().bytes).into_owned()
    }

    /// Returns its standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.output.lock().bytes).into_owned()
    }

    /// Waits until it has written `words` to standard error, such as tcpdump's `listening on`.
    pub fn wait_for_stderr(&self, words: &str, limit: Duration) -> Result<()> {
        self.wait_for(&self.stderr, words, limit)
    }

    /// Waits until it has written `words` to standard output.
    pub fn wait_for_stdout(&self, words: &str, limit: Duration) -> Result<()> {
        self.wait_for(&self.stdout, words, limit)
    }

    /// Waits until it has written `words` and an address to standard error. Returns the address.
    pub fn address_after(&self, words: &str, limit: Duration) -> SocketAddr {
        let mut address = None;
        let is_found = wait_until(limit, || {
            let text = self.stderr();
            let rest = text.split_once(words).map(|(_, rest)| rest);
            // The line may come in pieces.
            let word = rest.and_then(|rest| rest.split_once(['\n', '/'])).map(|(word, _)| word);
            address = word.and_then(|word| word.parse().ok());
            address.is_some()
        });
        assert!(is_found, "{}", self.stderr());
        address.expect("it was found")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id is positive");
        let id = Pid::from_raw(id).expect("a process id is not 0");
        // The id is still this child's, because it was not waited for. An ended child is not an
        // error.
        let _ = rustix::process::kill_process(id, signal);
    }

    /// Sends SIGINT, like Ctrl-C, and waits for its end.
    pub fn interrupt(self, limit: Duration) -> Result<Finished> {
        self.signal(Signal::INT);
        self.wait(limit)
    }

    /// Waits for its end and the end of its output.
    pub fn wait(mut self, limit: Duration) -> Result<Finished> {
        let mut status = None;
        let ended = wait_until(limit, || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        match status {
            Some(status) if ended => {
                let (stdout, stderr) = (self.stdout.drain(), self.stderr.drain());
                Ok(Finished { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() })
            }
            _ => Err(self.timeout_error("end", limit)),
        }
    }

    fn wait_for(&self, reader: &PipeReader, words: &str, limit: Duration) -> Result<()> {
        let output = reader.output.wait_for(words.as_bytes(), limit);
        if output { Ok(()) } else { Err(self.timeout_error(&format!("print {words:?}"), limit)) }
    }

    fn timeout_error(&self, action: &str, limit: Duration) -> Error {
        Error::Timeout {
            program: self.program.clone(),
            action: action.into(),
            seconds: limit.as_secs_f32(),
            output: self.stdout() + &self.stderr(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads one pipe to its end on a separate thread.
#[derive(Debug)]
struct PipeReader {
    output: Arc<SharedOutput>,
    thread: Option<JoinHandle<()>>,
}

impl PipeReader {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let output = Arc::new(SharedOutput::default());
        let writer = Arc::clone(&output);
        let thread = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(len @ 1..) = pipe.read(&mut chunk) {
                writer.append(&chunk[..len]);
            }
            writer.close();
        });
        Self { output, thread: Some(thread) }
    }

    /// Returns all output after the pipe is closed.
    fn drain(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a reader does not panic");
        }
        std::mem::take(&mut self.output.lock().bytes)
    }
}

/// Output of a pipe, with a condition variable for waiting threads.
#[derive(Debug, Default)]
struct SharedOutput {
    output: Mutex<Output>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Output {
    bytes: Vec<u8>,
    closed: bool,
}

impl SharedOutput {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, bytes: &[u8]) {
        self.lock().bytes.extend_from_slice(bytes);
        self.changed.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn wait_for(&self, words: &[u8], limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut output = self.lock();
        loop {
            if contains(&output.bytes, words) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if output.closed || left.is_zero() {
                return false;
            }
            output = self.changed.wait_timeout(output, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    words.is_empty() || bytes.windows(words.len()).any(|window| window == words)
}

/// Counts the deleted files below `dir` that this process has open.
///
/// # Panics
/// `/proc` is not mounted.
pub fn deleted_files(dir: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let targets = links.filter_map(|link| fs::read_link(link.expect("/proc is readable").path()).ok());
    targets
        .filter(|target| target.starts_with(dir) && target.to_string_lossy().ends_with(" (deleted)"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Process {
        Launch::new("sh").args(["-c", script]).spawn().unwrap()
    }

    #[test]
    fn wait_finds_words_and_returns_all_output() {
        let process = shell("echo ready >&2; read line; echo done; exit 3");
        process.wait_for_stderr("ready", LIMIT).unwrap();
        let finished = process.wait(LIMIT).unwrap();
        assert_eq!((finished.status.code(), finished.text().as_str()), (Some(3), "done\n"));
        assert_eq!(finished.stderr, "ready\n");
    }

    #[test]
    fn wait_ends_when_a_program_ends_silently() {
        let error = shell("echo no").wait_for_stdout("yes", LIMIT).unwrap_err();
        assert!(error.to_string().starts_with("sh did not print \"yes\" within"), "{error}");
    }

    #[test]
    fn signal_reaches_the_program() {
        let process = shell("trap 'echo caught; exit 7' INT; echo ready; while :; do :; done");
        process.wait_for_stdout("ready", LIMIT).unwrap();
        let finished = process.interrupt(LIMIT).unwrap();
        assert_eq!((finished.status.code(), finished.text().as_str()), (Some(7), "ready\ncaught\n"));
    }

    #[test]
    fn signal_ignored_by_the_test_reaches_the_program() {
        // As in a background job of a script, or under nohup(1).
        let script = "trap '' INT QUIT HUP; exec \"$0\" --exact process::tests::signal_reaches_the_program";
        let mut command = Command::new("sh");
        let output = command.args(["-c", script]).arg(std::env::current_exe().unwrap()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn dropping_the_guard_kills_the_program() {
        let process = shell("echo ready; exec sleep 1000");
        process.wait_for_stdout("ready", LIMIT).unwrap();
        let path = format!("/proc/{}", process.id());
        assert!(std::path::Path::new(&path).exists());
        drop(process);
        assert!(!std::path::Path::new(&path).exists());
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = Launch::new("strait-no-such-program").spawn().unwrap_err();
        assert!(matches!(error, Error::Start { .. }), "{error}");
    }
}
