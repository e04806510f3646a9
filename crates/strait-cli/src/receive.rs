//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file is `NAME.part` until it is whole; what an interrupted transfer left there is gone on
//! with. A device or a named pipe is written as it is. A connection that sends no byte of a body
//! changes no file, and the receiver waits for the next one.

mod handshake;
mod part;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use strait_program::Streams;
use strait_transfer::hash::Follower;
use strait_transfer::offer::{Attributes, Done, Frame, From};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{Bar, Beat, Heard, Lines, closed, refuse, reset_on_death, say, while_waited_for};
use crate::output::{print_account, tell};
use crate::parse::seconds;
use handshake::{Patience, Sender, Senders, hear_from};
use part::{Found, Output};

/// Options of `strait receive`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img
  strait receive | tar x                              # prints the address on standard error

A connection that offers no transfer, or speaks another protocol, is reported and closed; strait receive goes on
listening until a transfer comes. Ctrl-C before that ends it with exit code 1.")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = crate::parse::listen)]
    listen: SocketAddr,
    /// File to write: it is FILE.part until it is whole, and a transfer that broke off goes on
    /// there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take no more than this
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true, value_parser = crate::parse::bytes)]
    size_max: u64,
    /// Take the bytes of one connection alone, as strait send --raw or another program sends them
    #[arg(long)]
    raw: bool,
    /// Do not hash a file to compare it with what was sent
    #[arg(long)]
    no_verify: bool,
    /// Seconds that a sender may be silent, once it has connected; one that waits for its own input
    /// is not, but makes room for another one before its first byte
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object, on standard error where the bytes go to standard
    /// output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        let bytes = self.output.as_deref().is_none_or(|name| name == Path::new("-"));
        Streams::output(bytes || self.json)
    }
}

/// How long a wait may go on before it looks for a signal.
const TICK: Duration = Duration::from_millis(500);
/// How long a hash is waited for before a signal is looked for.
const HASH_TICK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let mut senders = Senders::listen(args)?;
    let mut output = Output::open(args.output.as_deref())?;
    let (mut receiving, peer) = loop {
        let sender = senders.next(terminated)?;
        let peer = sender.0.try_clone();
        let peer = peer.map_err(|error| Error::Failed(format!("duplicate a socket: {error}")))?;
        match Receiving::agree(args, &mut output, sender, &mut senders, terminated) {
            Ok(receiving) => break (receiving, peer),
            // No byte has come, so that another sender finds all as it was.
            Err(AgreeError::Sender(error)) if !terminated.load(Ordering::Relaxed) => {
                senders.report(&refused(args, &peer, error));
            }
            Err(error) => return Err(refused(args, &peer, error.into())),
        }
    };
    senders.turn_away();
    let began = Instant::now();
    let failure = receiving.all().and_then(|()| receiving.end()).err();
    receiving.beat = None;
    let failure = failure.map(|error| refused(args, &peer, error));
    if let Some(failure) = &failure {
        receiving.output.tell_of_part(&first_step(failure));
    }
    let mut account = receiving.receiver.account().clone();
    account.set_elapsed(began.elapsed());
    if args.output.is_some() {
        print_account(&account, args.json)?;
    } else if args.json {
        tell(format_args!(
            "{}\n",
            serde_json::to_string(&account).map_err(|error| Error::Failed(error.to_string()))?
        ));
    } else {
        tell(format_args!("{account}"));
    }
    failure.map_or(Ok(()), Err)
}

/// Gives the sender the reason of a failure.
fn refused(args: &Args, peer: &TcpStream, error: Error) -> Error {
    if !args.raw {
        refuse(peer, &error.to_string());
    }
    error
}

/// Failure of a transfer of which no byte has come.
enum AgreeError {
    /// Of the sender, which may have been a port scanner: the receiver waits for another one.
    Sender(Error),
    /// Of this end.
    Here(Error),
}

impl std::convert::From<Error> for AgreeError {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

impl std::convert::From<AgreeError> for Error {
    fn from(error: AgreeError) -> Self {
        let (AgreeError::Sender(error) | AgreeError::Here(error)) = error;
        error
    }
}

/// What has to be done before the same commands again can go on, if something does.
fn first_step(failure: &Error) -> String {
    let cause = match failure {
        Error::Transfer(strait_transfer::Error::System(error)) | Error::System(error) => error.errno(),
        _ => None,
    };
    match cause.map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC) => "free space there first; then, ".into(),
        Some(rustix::io::Errno::DQUOT) => "free some of the quota first; then, ".into(),
        _ => String::new(),
    }
}

fn wait(fd: &impl std::os::fd::AsFd, flags: PollFlags) -> Result<(), Error> {
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    match poll(&mut [PollFd::new(fd, flags)], Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::Failed(format!("wait for a connection: {error}"))),
    }
}

struct Receiving<'a> {
    args: &'a Args,
    output: &'a mut Output,
    receiver: Receiver,
    terminated: &'a AtomicBool,
    lines: Lines,
    beat: Option<Beat>,
    attributes: Option<Attributes>,
    /// Hashes what is written, where that can be read again.
    follower: Option<Follower>,
    /// The file was here before: there is nothing to write.
    is_complete: bool,
    /// Bytes of the whole, where the sender knows.
    length: Option<u64>,
    at: u64,
    /// Bytes that are to come before the next line.
    frame: u64,
    /// The sender's hash, behind all bytes.
    hash: Option<u64>,
    /// The sender's last line has come.
    is_ended: bool,
    /// A byte of the body has come: the output is written to.
    is_begun: bool,
}

impl<'a> Receiving<'a> {
    /// Agrees with the sender, and waits for the first byte of the body or the end of an empty one.
    fn agree(
        args: &'a Args,
        output: &'a mut Output,
        sender: Sender,
        senders: &mut Senders<'_>,
        terminated: &'a AtomicBool,
    ) -> Result<Self, AgreeError> {
        let mut patience = Patience::new(args);
        let mut receiving = Self::offered(args, output, sender, (senders, &mut patience), terminated)?;
        if !args.raw {
            receiving.until(|receiving| {
                patience.check(senders)?;
                receiving.hear_first()
            })?;
            if receiving.is_ended {
                receiving.verify().map_err(AgreeError::Sender)?;
            }
        }
        let at = if receiving.is_complete { 0 } else { receiving.at };
        receiving.output.begin_at(at)?;
        receiving.is_begun = true;
        Ok(receiving)
    }

    /// Answers the offer.
    fn offered(
        args: &'a Args,
        output: &'a mut Output,
        (stream, mut lines, offer): Sender,
        (senders, patience): (&mut Senders<'_>, &mut Patience),
        terminated: &'a AtomicBool,
    ) -> Result<Self, AgreeError> {
        let (mut at, mut is_complete, mut found) = (0, false, Found::nothing());
        let length = offer.and_then(|offer| offer.length);
        if let Some(length) = length.filter(|length| *length > args.size_max) {
            let most = args.size_max;
            return Err(
                Error::Failed(format!("the sender has {length} bytes: --size-max {most} refuses")).into()
            );
        }
        if offer.is_some() {
            if let Some(length) = length {
                let find = while_waited_for(&stream, terminated, |stop| output.find(length, stop));
                found = find.map_err(AgreeError::Sender)??;
            }
            say(&stream, &found.have).map_err(AgreeError::Sender)?;
            patience.allow_hashing(found.have.bytes);
            From(at) =
                hear_from((&stream, &mut lines), args.timeout, terminated, || patience.check(senders))?;
            is_complete = found.is_whole && at > 0;
            let is_too_far = at > found.have.bytes || length.is_some_and(|length| at > length);
            if is_too_far || is_complete && Some(at) != length {
                let here = found.have.bytes;
                let text = format!("the sender goes on at byte {at}, and {here} are here");
                return Err(AgreeError::Sender(Error::Failed(text)));
            }
            tell_of_beginning(&output.name, &found, at, length);
        }
        let hasher = if at > 0 { found.hasher } else { Found::nothing().hasher };
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", output.name));
        let follower = if offer.is_some() && output.is_file() && !args.no_verify {
            let file = output.file.try_clone().map_err(failed)?;
            Some(Follower::start(hasher, file).map_err(failed)?)
        } else {
            None
        };
        reset_on_death(&stream, true)?;
        let beat = if args.raw { None } else { Some(Beat::start(&stream)?) };
        let receiver = Receiver::new(stream, &*output.name).map_err(Error::from)?;
        let attributes = offer.and_then(|offer| offer.attributes);
        Ok(Self {
            args,
            output,
            receiver,
            terminated,
            lines,
            beat,
            attributes,
            follower,
            is_complete,
            length,
            at,
            frame: 0,
            hash: None,
            is_ended: false,
            is_begun: false,
        })
    }

    /// Receives all bytes.
    fn all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.length, self.at);
        let received = self.until(|receiving| {
            bar.at(receiving.at);
            let is_body = receiving.args.raw || receiving.frame > 0;
            if is_body { Ok(receiving.take()?) } else { receiving.hear_frame() }
        });
        received.map_err(Error::from)
    }

    /// Repeats `step` until it returns true, as long as the sender is not silent for too long.
    fn until(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<Heard<bool>, AgreeError>,
    ) -> Result<(), AgreeError> {
        let mut last = Instant::now();
        while !self.is_ended {
            match step(self)? {
                Heard::Line(true) => return Ok(()),
                Heard::Line(false) | Heard::Alive => last = Instant::now(),
                Heard::Nothing => wait(&self.receiver.socket(), PollFlags::IN)?,
            }
            if self.terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted".into()).into());
            }
            if last.elapsed() > self.args.timeout {
                let seconds = self.args.timeout.as_secs_f64();
                let text = format!("the sender has been silent for {seconds} s");
                return Err(AgreeError::Sender(Error::Failed(text)));
            }
        }
        Ok(())
    }

    /// Bytes that may come at most.
    fn bytes_max(&self) -> u64 {
        self.length.unwrap_or(self.args.size_max)
    }

    /// Looks for the first byte of the body; true where it or the end has come.
    fn hear_first(&mut self) -> Result<Heard<bool>, AgreeError> {
        if self.frame == 0 {
            return self.hear_frame();
        }
        let stream = self.receiver.stream();
        match recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((1.., _)) => Ok(Heard::Line(true)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Heard::Nothing),
            Ok(_) | Err(_) => Err(AgreeError::Sender(closed(stream))),
        }
    }

    /// Looks for the sender's next line; true at the end.
    fn hear_frame(&mut self) -> Result<Heard<bool>, AgreeError> {
        let sender = |text: String| Err(AgreeError::Sender(Error::Failed(text)));
        let heard = match self.lines.hear_now(self.receiver.stream()) {
            Err(error @ Error::PeerRefused { .. }) if self.is_begun => {
                let fate = self.output.discard();
                return sender(format!("{error}; {fate}"));
            }
            heard => heard.map_err(AgreeError::Sender)?,
        };
        match heard {
            Heard::Nothing => Ok(Heard::Nothing),
            Heard::Alive => Ok(Heard::Alive),
            Heard::Line(Frame::Data(bytes)) => {
                let most = self.bytes_max();
                if bytes > most.saturating_sub(self.at) {
                    let error = Error::Failed(format!("more than {most} bytes came"));
                    // Beyond its own offer it is the sender's mistake, else beyond --size-max.
                    let is_offered = self.length.is_some();
                    return Err(if is_offered { AgreeError::Sender(error) } else { error.into() });
                }
                self.frame = bytes;
                Ok(Heard::Line(false))
            }
            Heard::Line(Frame::End { bytes, hash }) => {
                if bytes != self.at || self.length.is_some_and(|length| length != bytes) {
                    let at = self.at;
                    return sender(format!("the sender ended at byte {bytes}, and {at} came"));
                }
                self.hash = hash;
                self.is_ended = true;
                Ok(Heard::Line(true))
            }
        }
    }

    /// Moves bytes to the output; true at the end of those that come alone.
    fn take(&mut self) -> Result<Heard<bool>, Error> {
        // One byte more than may come tells that more is coming.
        let alone = self.bytes_max().saturating_sub(self.at).saturating_add(1);
        let limit = if self.args.raw { alone } else { self.frame };
        match self.receiver.step(&self.output.file, self.output.offset.as_mut(), limit)? {
            Received::End if self.args.raw => return Ok(Heard::Line(true)),
            Received::End => {
                let missing = self.length.map_or(self.frame, |length| length - self.at);
                return Err(Error::Failed(format!("the sender ended {missing} bytes early")));
            }
            Received::Bytes(bytes) => {
                self.at += bytes;
                self.frame = self.frame.saturating_sub(bytes);
            }
            Received::Nothing => return Ok(Heard::Nothing),
            // It is not the sender that is silent.
            Received::NoRoom => {
                wait(&self.output.file, PollFlags::OUT)?;
                return Ok(Heard::Alive);
            }
        }
        if self.at > self.bytes_max() {
            return Err(Error::Failed(format!("more than {} bytes came", self.at - 1)));
        }
        if let Some(follower) = &self.follower {
            follower.follow(self.at);
        }
        Ok(Heard::Alive)
    }

    /// Compares what is here with what was sent.
    fn verify(&mut self) -> Result<(), Error> {
        let (Some(follower), Some(sent)) = (self.follower.take(), self.hash) else { return Ok(()) };
        follower.end(self.at);
        let hasher = loop {
            if let Some(result) = follower.result(HASH_TICK) {
                break result;
            }
            if self.terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted".into()));
            }
        };
        let hasher = hasher.map_err(|error| Error::Failed(format!("{}: {error}", self.output.name)))?;
        if (hasher.bytes(), hasher.value()) == (self.at, sent) {
            return Ok(());
        }
        // Before the body nothing is written, and what was here belongs to another sender.
        let fate = if self.is_begun { self.output.discard() } else { "nothing is written".into() };
        let name = &self.output.name;
        Err(Error::Failed(format!("{name} differs from what was sent, its hash says; {fate}: send it again")))
    }

    fn end(&mut self) -> Result<(), Error> {
        self.verify()?;
        if !self.is_complete {
            self.output.finish(self.attributes)?;
        }
        self.beat = None;
        let stream = self.receiver.stream();
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        stream.set_nonblocking(false).map_err(failed)?;
        reset_on_death(stream, false)?;
        if self.args.raw { Ok(()) } else { say(stream, &Done(self.at)) }
    }
}

fn tell_of_beginning(name: &str, found: &Found, at: u64, length: Option<u64>) {
    if found.have.bytes > 0 && at == 0 {
        tell(format_args!(
            "what is here is something else: receiving all
"
        ));
    } else if found.is_whole && at > 0 {
        tell(format_args!(
            "{name} is complete already: receiving nothing
"
        ));
    } else if at > 0 && Some(at) == length {
        tell(format_args!(
            "all {at} bytes are here: receiving nothing
"
        ));
    } else if at > 0 {
        tell(format_args!(
            "{at} bytes are here: receiving the rest
"
        ));
    }
}
