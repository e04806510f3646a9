//! Program that runs beside a capture, and is started again when it has ended.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use strait_os::retry::Attempts;

use crate::Error;

/// First and longest pause before the program is started again. The first one follows also when the
/// program has run for [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// Program that ends when its standard input, a pipe, is closed. Its standard output is a pipe.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    child: Child,
    started: Instant,
    /// Time of the first look after its end.
    ended: Option<Instant>,
    attempts: Attempts,
}

impl Program {
    pub(super) fn start(path: PathBuf, arguments: Vec<OsString>) -> Result<Self, Error> {
        let child = spawn(&path, &arguments);
        let child = child.map_err(|error| Error::Failed(format!("run {}: {error}", path.display())))?;
        Ok(Self {
            path,
            arguments,
            child,
            started: Instant::now(),
            ended: None,
            attempts: Attempts::new(PAUSE, PAUSE_MAX),
        })
    }

    /// Returns the running program, or the one that has ended.
    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns true if it has ended. Starts it again after a pause.
    pub(super) fn has_ended(&mut self, now: Instant) -> bool {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            return false;
        }
        if self.ended.is_none() {
            self.ended = Some(now);
            if now.saturating_duration_since(self.started) >= PAUSE_MAX {
                self.attempts.succeed();
            }
            self.attempts.fail(now);
        }
        if !self.attempts.until_next(now).is_zero() {
            return true;
        }
        (self.started, self.ended) = (now, None);
        // After a failure the ended child is found again, and the next attempt follows a pause.
        spawn(&self.path, &self.arguments).map(|child| self.child = child).is_err()
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, arguments: &[OsString]) -> io::Result<Child> {
    Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Lets a pipe of a program return at once if it is not ready.
pub(super) fn set_nonblocking(pipe: &impl AsFd) -> Result<(), String> {
    let set = fcntl_getfl(pipe).and_then(|flags| fcntl_setfl(pipe, flags | OFlags::NONBLOCK));
    set.map_err(|errno| format!("set the pipe of strait-upload: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_ends_is_started_again_after_growing_pauses() {
        let mut program = Program::start("/bin/true".into(), Vec::new()).unwrap();
        let (mut pauses, mut now) = (Vec::new(), program.started);
        for _ in 0..8 {
            let child = program.child.id();
            program.child.wait().unwrap();
            assert!(program.has_ended(now), "the pause has not passed");
            let pause = program.attempts.until_next(now);
            pauses.push(pause.as_secs());
            now += pause;
            assert!(!program.has_ended(now) && program.child.id() != child);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
        program.child.wait().unwrap();
        now += PAUSE_MAX;
        assert!(program.has_ended(now));
        assert_eq!(program.attempts.until_next(now), PAUSE, "it has run for long");
        assert!(!program.has_ended(now + PAUSE));
        program.child.wait().unwrap();
    }
}
