//! `--to nats://HOST/SUBJECT` and `--to kafka://HOST/TOPIC`: the program `strait-upload publish`
//! publishes flows and waits for the broker's acknowledgments.
//!
//! A batch goes to its standard input, and its answer comes from its standard output, as
//! [`strait_program::broker`] defines both. A program that has ended, or does not answer in time,
//! is started again after a pause; the flows of its batch are lost, and those during the pause.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strait_program::broker::{ANSWER_LEN_MAX, Answer, Broker, Head};
use strait_table::publish::{self, BATCH_BYTES_MAX, Outcome};

use super::program::{Program, set_nonblocking};
use crate::{Error, external};

/// Time for the answer to a batch: the program gives up before.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);
/// Interval at which it is checked if the time is over.
const CHECK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const _: () = assert!(BATCH_BYTES_MAX <= strait_program::broker::BATCH_BYTES_MAX);

/// Running program.
pub(super) struct Publisher {
    program: Program,
}

impl Publisher {
    /// Starts the program. The identifiers of messages start with `capture`.
    ///
    /// # Errors
    /// The program is missing, or refuses the credentials and has printed why.
    pub(super) fn start(broker: &Broker, capture: &str) -> Result<Self, Error> {
        let path = external::upload_program()?;
        let arguments = ["publish".into(), broker.to_string().into(), capture.into()];
        let program = Program::start(path, arguments.into())?;
        let mut publisher = Self { program };
        let greeted = publisher.exchange(0, b"", &|| false);
        greeted.map_err(|error| Error::Failed(format!("start the export to {broker}: {error}")))?;
        Ok(publisher)
    }

    /// Writes a batch, and reads its answer.
    fn exchange(&mut self, first: u64, batch: &[u8], is_over: &dyn Fn() -> bool) -> Result<Answer, String> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let is_late = || is_over() || Instant::now() >= deadline;
        let head = Head { first, bytes: batch.len() }.to_string();
        write(self.program.child(), &[head.as_bytes(), batch].concat(), &is_late)?;
        read(self.program.child(), &is_late)?.parse()
    }
}

impl publish::Publisher for Publisher {
    fn publish(&mut self, first: u64, batch: &[u8], is_over: &dyn Fn() -> bool) -> Result<Outcome, String> {
        if self.program.has_ended(Instant::now()) {
            return Err(ENDED.into());
        }
        match self.exchange(first, batch, is_over) {
            Ok(Answer { lost, cause, repeated, messages, bytes }) => {
                let cause = (!lost.is_empty()).then_some(cause);
                Ok(Outcome { lost: lost.into_iter().collect(), cause, repeated, messages, bytes })
            }
            Err(error) => {
                self.program.kill();
                Err(error)
            }
        }
    }
}

impl Drop for Publisher {
    /// Ends the program: it has answered all batches.
    fn drop(&mut self) {
        self.program.kill();
    }
}

const ENDED: &str = "strait-upload has ended";
const LATE: &str = "strait-upload has not answered in time";

fn write(child: &mut Child, mut bytes: &[u8], is_late: &dyn Fn() -> bool) -> Result<(), String> {
    let input = child.stdin.as_mut().ok_or(ENDED)?;
    set_nonblocking(input)?;
    while !bytes.is_empty() {
        match input.write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(input, PollFlags::OUT, is_late)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(ENDED.into()),
            Err(error) => return Err(format!("write to strait-upload: {error}")),
        }
    }
    Ok(())
}

/// Reads a line.
fn read(child: &mut Child, is_late: &dyn Fn() -> bool) -> Result<String, String> {
    let output = child.stdout.as_mut().ok_or(ENDED)?;
    set_nonblocking(output)?;
    let (mut line, mut part) = (Vec::new(), [0; 4096]);
    while !line.ends_with(b"\n") {
        match output.read(&mut part) {
            Ok(0) => return Err(ENDED.into()),
            Ok(length) => line.extend(part.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(output, PollFlags::IN, is_late)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("read from strait-upload: {error}")),
        }
        if line.len() > ANSWER_LEN_MAX {
            return Err("the answer of strait-upload is too long".into());
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Waits until a pipe is ready. Fails if the time is over.
fn wait(pipe: &impl AsFd, flags: PollFlags, is_late: &dyn Fn() -> bool) -> Result<(), String> {
    if is_late() {
        return Err(LATE.into());
    }
    match poll(&mut [PollFd::new(pipe, flags)], Some(&CHECK_EVERY)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(format!("wait for strait-upload: {errno}")),
    }
}
