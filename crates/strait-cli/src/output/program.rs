//! Program that runs beside a capture, and is started again when it has ended.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Error;

/// Pause before the program is started again, which doubles each time that the program has not run
/// for [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// Standard output of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    None,
    Pipe,
}

/// Program that ends when its standard input, a pipe, is closed.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    output: Output,
    child: Child,
    started: Instant,
    /// Time of the first look after its end.
    ended: Option<Instant>,
    pause: Duration,
}

impl Program {
    pub(super) fn start(path: PathBuf, arguments: Vec<OsString>, output: Output) -> Result<Self, Error> {
        let child = spawn(&path, &arguments, output);
        let child = child.map_err(|error| Error::Failed(format!("run {}: {error}", path.display())))?;
        Ok(Self { path, arguments, output, child, started: Instant::now(), ended: None, pause: PAUSE })
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
        let ended = *self.ended.get_or_insert(now);
        if now.saturating_duration_since(ended) < self.pause {
            return true;
        }
        let ran = ended.saturating_duration_since(self.started);
        self.pause = if ran < PAUSE_MAX { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE };
        (self.started, self.ended) = (now, None);
        // After a failure the ended child is found again, and the next attempt follows a pause.
        spawn(&self.path, &self.arguments, self.output).map(|child| self.child = child).is_err()
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, arguments: &[OsString], output: Output) -> io::Result<Child> {
    let output = match output {
        Output::None => Stdio::null(),
        Output::Pipe => Stdio::piped(),
    };
    Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(output).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_ends_is_started_again_after_growing_pauses() {
        let mut program = Program::start("/bin/true".into(), Vec::new(), Output::None).unwrap();
        let (mut pauses, mut now) = (Vec::new(), program.started);
        for _ in 0..8 {
            let child = program.child.id();
            program.child.wait().unwrap();
            assert!(program.has_ended(now), "the pause has not passed");
            pauses.push(program.pause.as_secs());
            now += program.pause;
            assert!(!program.has_ended(now) && program.child.id() != child);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
        program.child.wait().unwrap();
        now += PAUSE_MAX;
        assert!(program.has_ended(now));
        now += program.pause;
        assert!(!program.has_ended(now));
        assert_eq!(program.pause, PAUSE, "it has run for long");
        program.child.wait().unwrap();
    }
}
