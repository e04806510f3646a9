//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file has the name `NAME.part` until it is complete, and a later transfer resumes such a part.
//! Devices and named pipes are written directly. A connection that sends no byte of a body changes
//! no file, and the receiver waits for the next one.

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
use strait_transfer::hash::{Follower, Hasher};
use strait_transfer::offer::{Answer, Attributes, Begins, Done, Frame, From};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{
    Bar, Incoming, KeepAlive, Lines, closed, refuse, reset_on_death, send_line, with_keep_alive,
};
use crate::output::{print_account, tell};
use crate::parse::seconds;
use handshake::{Deadline, Sender, Senders, read_line};
use part::{Found, Output};

/// Options of `strait receive`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img
  strait receive | tar x                              # prints the address on standard error

A connection that offers no transfer, or uses another protocol, is reported and closed; strait receive continues to
listen for a transfer. Ctrl-C before a transfer ends it with exit code 1.")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = crate::parse::listen)]
    listen: SocketAddr,
    /// File to write, with the name FILE.part until it is complete; an existing part is resumed
    /// [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Maximum bytes to receive
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true, value_parser = crate::parse::bytes)]
    size_max: u64,
    /// Receive the plain bytes of one connection, from strait send --raw or another program
    #[arg(long)]
    raw: bool,
    /// Do not compare the hash of a file with the sender's
    #[arg(long)]
    no_verify: bool,
    /// Seconds that a connected sender may be silent; a sender that waits for its own input is not
    /// silent, but loses its place to another sender if it has sent no byte in this time
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object; on standard error if the bytes go to standard output
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

/// Interval at which a wait checks for a signal.
const TICK: Duration = Duration::from_millis(500);
/// Interval at which a wait for a hash checks for a signal.
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
            // No byte has arrived, so that the next sender finds the output unchanged.
            Err(AgreeError::Sender(error)) if !terminated.load(Ordering::Relaxed) => {
                senders.report(&refused(args, &peer, error));
            }
            Err(error) => return Err(refused(args, &peer, error.into())),
        }
    };
    senders.refuse_all();
    let began = Instant::now();
    let failure = receiving.all().and_then(|()| receiving.end()).err();
    receiving.keep_alive = None;
    let failure = failure.map(|error| refused(args, &peer, error));
    if let Some(failure) = &failure {
        receiving.output.report_part(&first_step(failure));
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

/// Sends the reason of a failure to the sender, and returns the error.
fn refused(args: &Args, peer: &TcpStream, error: Error) -> Error {
    if !args.raw {
        refuse(peer, &error.to_string());
    }
    error
}

/// Failure of a transfer before its first byte.
enum AgreeError {
    /// A failure of the sender, which may be a port scanner: the receiver waits for another one.
    Sender(Error),
    /// A failure of this end.
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

/// Returns the step that is needed before the transfer can be resumed, or nothing.
fn first_step(failure: &Error) -> String {
    let cause = match failure {
        Error::Transfer(strait_transfer::Error::System(error)) | Error::System(error) => error.errno(),
        _ => None,
    };
    match cause.map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC) => "free disk space, then ".into(),
        Some(rustix::io::Errno::DQUOT) => "free some of the disk quota, then ".into(),
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

/// A transfer with an accepted offer.
struct Receiving<'a> {
    args: &'a Args,
    output: &'a mut Output,
    receiver: Receiver,
    terminated: &'a AtomicBool,
    lines: Lines,
    keep_alive: Option<KeepAlive>,
    attributes: Option<Attributes>,
    /// Hashes the written bytes, if the output can be read again.
    follower: Option<Follower>,
    /// True if the complete file existed before, so that nothing is written.
    is_complete: bool,
    /// Total length, if the sender knows it.
    length: Option<u64>,
    at: u64,
    /// Remaining bytes before the next line of the protocol.
    frame: u64,
    /// The sender's hash of all bytes.
    hash: Option<u64>,
    /// True if the sender's last line has arrived.
    is_ended: bool,
    /// True after the first byte of the body: the output is modified.
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
        let mut deadline = Deadline::new(args);
        let mut receiving = Self::accept_offer(args, output, sender, (senders, &mut deadline), terminated)?;
        if !args.raw {
            receiving.until(|receiving| {
                deadline.check(senders)?;
                receiving.poll_first_byte()
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

    /// Answers the offer, and opens the receiver.
    fn accept_offer(
        args: &'a Args,
        output: &'a mut Output,
        (stream, mut lines, offer): Sender,
        (senders, deadline): (&mut Senders<'_>, &mut Deadline),
        terminated: &'a AtomicBool,
    ) -> Result<Self, AgreeError> {
        let (mut is_complete, mut kept) = (false, Hasher::default());
        let length = offer.and_then(|offer| offer.length);
        if let Some(length) = length.filter(|length| *length > args.size_max) {
            let most = args.size_max;
            return Err(
                Error::Failed(format!("the sender has {length} bytes: --size-max {most} refuses")).into()
            );
        }
        if offer.is_some() {
            let found = match length {
                Some(length) => output.find(length)?,
                None => None,
            };
            // More bytes than are offered are those of another file.
            let is_candidate = |found: &&Found| length.is_some_and(|length| found.bytes <= length);
            if let Some(found) = found.as_ref().filter(is_candidate) {
                kept = compare(args, (&stream, &mut lines), found, (senders, deadline), terminated)?;
                is_complete = found.is_complete && kept.bytes() > 0;
            }
            send_line(&stream, &From(kept.bytes())).map_err(AgreeError::Sender)?;
            report_start(&output.name, found.as_ref(), kept.bytes(), length);
        }
        let at = kept.bytes();
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", output.name));
        let follower = if offer.is_some() && output.is_file() && !args.no_verify {
            let file = output.file.try_clone().map_err(failed)?;
            Some(Follower::start(kept, file).map_err(failed)?)
        } else {
            None
        };
        reset_on_death(&stream, true)?;
        let keep_alive = if args.raw { None } else { Some(KeepAlive::start(&stream)?) };
        let receiver = Receiver::new(stream, &*output.name).map_err(Error::from)?;
        let attributes = offer.and_then(|offer| offer.attributes);
        Ok(Self {
            args,
            output,
            receiver,
            terminated,
            lines,
            keep_alive,
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
            if is_body { Ok(receiving.take()?) } else { receiving.poll_frame() }
        });
        received.map_err(Error::from)
    }

    /// Repeats `step` until it returns true. Fails if the sender is silent for longer than the
    /// timeout.
    fn until(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<Incoming<bool>, AgreeError>,
    ) -> Result<(), AgreeError> {
        let mut last = Instant::now();
        while !self.is_ended {
            match step(self)? {
                Incoming::Line(true) => return Ok(()),
                Incoming::Line(false) | Incoming::Alive => last = Instant::now(),
                Incoming::Nothing => wait(&self.receiver.socket(), PollFlags::IN)?,
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

    /// Returns the maximum number of bytes to accept.
    fn bytes_max(&self) -> u64 {
        self.length.unwrap_or(self.args.size_max)
    }

    /// Checks for the first byte of the body or the end. Returns true if it has arrived.
    fn poll_first_byte(&mut self) -> Result<Incoming<bool>, AgreeError> {
        if self.frame == 0 {
            return self.poll_frame();
        }
        let stream = self.receiver.stream();
        match recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((1.., _)) => Ok(Incoming::Line(true)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Incoming::Nothing),
            Ok(_) | Err(_) => Err(AgreeError::Sender(closed(stream))),
        }
    }

    /// Checks for the sender's next line. Returns true at the end of the transfer.
    fn poll_frame(&mut self) -> Result<Incoming<bool>, AgreeError> {
        let sender = |text: String| Err(AgreeError::Sender(Error::Failed(text)));
        let incoming = match self.lines.poll(self.receiver.stream()) {
            Err(error @ Error::PeerRefused { .. }) if self.is_begun => {
                let fate = self.output.discard();
                return sender(format!("{error}; {fate}"));
            }
            incoming => incoming.map_err(AgreeError::Sender)?,
        };
        match incoming {
            Incoming::Nothing => Ok(Incoming::Nothing),
            Incoming::Alive => Ok(Incoming::Alive),
            Incoming::Line(Frame::Data(bytes)) => {
                let most = self.bytes_max();
                if bytes > most.saturating_sub(self.at) {
                    let error = Error::Failed(format!("more than {most} bytes arrived"));
                    // More than the sender's own offer is its mistake; otherwise --size-max is
                    // exceeded.
                    let is_offered = self.length.is_some();
                    return Err(if is_offered { AgreeError::Sender(error) } else { error.into() });
                }
                self.frame = bytes;
                Ok(Incoming::Line(false))
            }
            Incoming::Line(Frame::End { bytes, hash }) => {
                if bytes != self.at || self.length.is_some_and(|length| length != bytes) {
                    let at = self.at;
                    return sender(format!("the sender ended at byte {bytes}, but {at} bytes arrived"));
                }
                self.hash = hash;
                self.is_ended = true;
                Ok(Incoming::Line(true))
            }
        }
    }

    /// Moves bytes to the output. Returns true at the end of a raw transfer.
    fn take(&mut self) -> Result<Incoming<bool>, Error> {
        // One byte above the maximum shows that the sender sends too much.
        let raw_limit = self.bytes_max().saturating_sub(self.at).saturating_add(1);
        let limit = if self.args.raw { raw_limit } else { self.frame };
        match self.receiver.step(&self.output.file, self.output.offset.as_mut(), limit)? {
            Received::End if self.args.raw => return Ok(Incoming::Line(true)),
            Received::End => {
                let missing = self.length.map_or(self.frame, |length| length - self.at);
                return Err(Error::Failed(format!("the sender ended {missing} bytes early")));
            }
            Received::Bytes(bytes) => {
                self.at += bytes;
                self.frame = self.frame.saturating_sub(bytes);
            }
            Received::Nothing => return Ok(Incoming::Nothing),
            // The output is full, so that the sender is not the silent end.
            Received::NoRoom => {
                wait(&self.output.file, PollFlags::OUT)?;
                return Ok(Incoming::Alive);
            }
        }
        if self.at > self.bytes_max() {
            return Err(Error::Failed(format!("more than {} bytes arrived", self.at - 1)));
        }
        if let Some(follower) = &self.follower {
            follower.follow(self.at);
        }
        Ok(Incoming::Alive)
    }

    /// Compares the hash of the written bytes with the sender's.
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
        // Before the body nothing is written, and the present bytes are from another sender.
        let fate = if self.is_begun { self.output.discard() } else { "nothing is written".into() };
        let name = &self.output.name;
        Err(Error::Failed(format!("{name} differs from the sent file by its hash; {fate}: send it again")))
    }

    fn end(&mut self) -> Result<(), Error> {
        self.verify()?;
        if !self.is_complete {
            self.output.finish(self.attributes)?;
        }
        self.keep_alive = None;
        let stream = self.receiver.stream();
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        stream.set_nonblocking(false).map_err(failed)?;
        reset_on_death(stream, false)?;
        if self.args.raw { Ok(()) } else { send_line(stream, &Done(self.at)) }
    }
}

/// Compares the present bytes with the beginning of the sender's file. Returns the hash of the
/// bytes to keep: all or none.
fn compare(
    args: &Args,
    (stream, lines): (&TcpStream, &mut Lines),
    found: &Found,
    (senders, deadline): (&mut Senders<'_>, &mut Deadline),
    terminated: &AtomicBool,
) -> Result<Hasher, AgreeError> {
    // Both ends hash at the same time.
    send_line(stream, &Answer::Have(found.bytes)).map_err(AgreeError::Sender)?;
    let hasher = with_keep_alive(stream, terminated, |stop| found.hash(stop));
    let hasher = hasher.map_err(AgreeError::Sender)??;
    deadline.allow_hashing(found.bytes);
    let check = || deadline.check(senders);
    let Begins { bytes, hash } = read_line((stream, lines), args.timeout, terminated, check)?;
    if bytes != found.bytes {
        let text = format!("the sender hashed {bytes} bytes, but {} are present", found.bytes);
        return Err(AgreeError::Sender(Error::Failed(text)));
    }
    let is_same = (hasher.bytes(), hasher.value()) == (bytes, hash);
    Ok(if is_same { hasher } else { Hasher::default() })
}

/// Reports which bytes are received.
fn report_start(name: &str, found: Option<&Found>, at: u64, length: Option<u64>) {
    let Some(found) = found else { return };
    if at == 0 {
        tell(format_args!("{name} has other content: receiving all bytes\n"));
    } else if found.is_complete {
        tell(format_args!("{name} is already complete: receiving nothing\n"));
    } else if at > 0 && Some(at) == length {
        tell(format_args!("all {at} bytes are present: receiving nothing\n"));
    } else if at > 0 {
        tell(format_args!("{at} bytes are present: receiving the rest\n"));
    }
}
