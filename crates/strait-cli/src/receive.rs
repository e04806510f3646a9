//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file has the name `NAME.part` until it is complete, and a later transfer resumes such a part.
//! Devices and named pipes are written directly. A connection that sends no byte of a body changes
//! no file, and the receiver waits for the next one.

mod digest;
mod handshake;
mod part;
mod waiting;

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
use strait_transfer::offer::{Attributes, Begins, Done, Frame, From};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{Bar, Incoming, KeepAlive, Lines, closed, refuse, reset_on_death, send_line};
use crate::output::{print_account, print_stderr};
use crate::parse::seconds;
use digest::beginning;
use handshake::{Deadline, Senders};
use part::{Found, Output};
use waiting::Sender;

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
    /// Seconds without bytes or reports after which a connected sender is disconnected; a sender
    /// that waits for its own input keeps reporting, but loses its place to another sender if it
    /// has sent no byte in this time
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
    let terminated = strait_os::process::on_termination()?;
    // First, so that the line "listening on" promises that a transfer can be stored.
    let mut output = Output::open(args.output.as_deref())?;
    let mut senders = Senders::listen(args)?;
    let (mut receiving, peer) = loop {
        let sender = senders.next(&output, terminated)?;
        let (peer, network) = (sender.stream.try_clone(), sender.network);
        let peer = peer.map_err(|error| Error::Failed(format!("duplicate a socket: {error}")))?;
        match Receiving::negotiate(args, &mut output, sender, &mut senders, terminated) {
            Ok(receiving) => break (receiving, peer),
            // No byte has arrived, so the next sender finds the output unchanged.
            Err(NegotiationError::Sender(error)) if !terminated.load(Ordering::Relaxed) => {
                senders.note_failure(network, &refused(args, &peer, error));
            }
            Err(error) => return Err(refused(args, &peer, error.into())),
        }
    };
    senders.refuse_all();
    let began = Instant::now();
    let failure = receiving.receive_all().and_then(|()| receiving.end()).err();
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
        print_stderr(format_args!(
            "{}\n",
            serde_json::to_string(&account).map_err(|error| Error::Failed(error.to_string()))?
        ));
    } else {
        print_stderr(format_args!("{account}"));
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
enum NegotiationError {
    /// A failure of the sender, which may be a port scanner: the receiver waits for another one.
    Sender(Error),
    /// A failure of this end.
    Here(Error),
}

impl std::convert::From<Error> for NegotiationError {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

impl std::convert::From<NegotiationError> for Error {
    fn from(error: NegotiationError) -> Self {
        let (NegotiationError::Sender(error) | NegotiationError::Here(error)) = error;
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
    /// True if the complete file existed before. Nothing is written then.
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
    /// Negotiates the start offset with the sender, and waits for the first byte of the body or the
    /// end of an empty one.
    fn negotiate(
        args: &'a Args,
        output: &'a mut Output,
        sender: Sender,
        senders: &mut Senders<'_>,
        terminated: &'a AtomicBool,
    ) -> Result<Self, NegotiationError> {
        let deadline = Deadline::new(args);
        let (offer, kept) = (sender.offer, sender.kept);
        let mut receiving = Self::accept_offer(args, output, sender, terminated)?;
        if !args.raw {
            receiving.repeat_until(|receiving| {
                deadline.check(senders, receiving.output)?;
                receiving.poll_first_byte()
            })?;
        }
        let is_hashed = offer.is_some() && receiving.output.is_file() && !args.no_verify;
        match receiving.hash {
            Some(sent) if is_hashed && receiving.is_ended => {
                receiving.check_hash(kept, sent).map_err(NegotiationError::Sender)?;
            }
            _ if is_hashed => receiving.follow(senders.take_hasher(kept))?,
            _ => {}
        }
        let at = if receiving.is_complete { 0 } else { receiving.at };
        receiving.output.begin_at(at)?;
        receiving.is_begun = true;
        Ok(receiving)
    }

    /// Accepts the offer, and opens the receiver.
    fn accept_offer(
        args: &'a Args,
        output: &'a mut Output,
        Sender { stream, lines, offer, found, kept, .. }: Sender,
        terminated: &'a AtomicBool,
    ) -> Result<Self, NegotiationError> {
        let (length, at) = (offer.and_then(|offer| offer.length), kept.bytes);
        if let Some(length) = length.filter(|length| *length > args.size_max) {
            let most = args.size_max;
            return Err(
                Error::Failed(format!("the sender has {length} bytes: --size-max {most} refuses")).into()
            );
        }
        if offer.is_some() {
            send_line(&stream, &From(at)).map_err(NegotiationError::Sender)?;
            report_start(&output.name, found.as_ref(), at, length);
        }
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
            follower: None,
            is_complete: found.is_some_and(|found| found.is_complete) && at > 0,
            length,
            at,
            frame: 0,
            hash: None,
            is_ended: false,
            is_begun: false,
        })
    }

    /// Starts to hash the bytes that are written after those of `hasher`.
    fn follow(&mut self, hasher: Hasher) -> Result<(), Error> {
        let follower = self.output.file.try_clone().and_then(|file| Follower::start(hasher, file));
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", self.output.name));
        self.follower = Some(follower.map_err(failed)?);
        Ok(())
    }

    /// Receives all bytes.
    fn receive_all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.length, self.at);
        let received = self.repeat_until(|receiving| {
            bar.update(receiving.at);
            let is_body = receiving.args.raw || receiving.frame > 0;
            if is_body { Ok(receiving.take()?) } else { receiving.poll_frame() }
        });
        received.map_err(Error::from)
    }

    /// Repeats `step` until it returns true. Fails if the sender is silent for longer than the
    /// timeout.
    fn repeat_until(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<Incoming<bool>, NegotiationError>,
    ) -> Result<(), NegotiationError> {
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
                return Err(NegotiationError::Sender(Error::Failed(text)));
            }
        }
        Ok(())
    }

    /// Returns the maximum number of bytes to accept.
    fn bytes_max(&self) -> u64 {
        self.length.unwrap_or(self.args.size_max)
    }

    /// Checks for the first byte of the body or the end. Returns true if it has arrived.
    fn poll_first_byte(&mut self) -> Result<Incoming<bool>, NegotiationError> {
        if self.frame == 0 {
            return self.poll_frame();
        }
        let stream = self.receiver.stream();
        match recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((1.., _)) => Ok(Incoming::Line(true)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Incoming::Nothing),
            Ok(_) | Err(_) => Err(NegotiationError::Sender(closed(stream))),
        }
    }

    /// Checks for the sender's next line. Returns true at the end of the transfer.
    fn poll_frame(&mut self) -> Result<Incoming<bool>, NegotiationError> {
        let sender = |text: String| Err(NegotiationError::Sender(Error::Failed(text)));
        let incoming = match self.lines.poll(self.receiver.stream()) {
            Err(error @ Error::PeerRefused { .. }) if self.is_begun => {
                let outcome = self.output.discard();
                return sender(format!("{error}; {outcome}"));
            }
            incoming => incoming.map_err(NegotiationError::Sender)?,
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
                    return Err(if is_offered { NegotiationError::Sender(error) } else { error.into() });
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
            // The output is full: the sender is not silent, but waits for this end.
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
        self.check_hash(beginning(&hasher), sent)
    }

    /// Compares the hash of all bytes with the sender's.
    fn check_hash(&mut self, all: Begins, sent: u64) -> Result<(), Error> {
        if (all.bytes, all.hash) == (self.at, sent) {
            return Ok(());
        }
        // Before the first byte of the body nothing is written; the present bytes are from an
        // earlier sender.
        let outcome = if self.is_begun { self.output.discard() } else { "nothing is written".into() };
        let name = &self.output.name;
        Err(Error::Failed(format!("{name} differs from the sent file by its hash; {outcome}: send it again")))
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

/// Reports which bytes are received.
fn report_start(name: &str, found: Option<&Found>, at: u64, length: Option<u64>) {
    let Some(found) = found else { return };
    if at == 0 {
        print_stderr(format_args!("{name} has different content: receiving all bytes\n"));
    } else if found.is_complete {
        print_stderr(format_args!("{name} is already complete: receiving nothing\n"));
    } else if at > 0 && Some(at) == length {
        print_stderr(format_args!("all {at} bytes are present: receiving nothing\n"));
    } else if at > 0 {
        print_stderr(format_args!("{at} bytes are present: receiving the rest\n"));
    }
}
