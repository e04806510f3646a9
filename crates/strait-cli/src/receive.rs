//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file is `NAME.part` until it is whole; what an interrupted transfer left there is gone on with. A device or a named pipe is written
//! as it is.

mod handshake;
mod part;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::hash::Follower;
use strait_transfer::offer::{Attributes, Done, Frame, From, Offer};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{Bar, Beat, Heard, Lines, refuse, reset_on_death, say, while_waited_for};
use crate::output::{print_account, tell};
use crate::parse::seconds;
use handshake::first_sender;
use part::{Found, Output};

/// Options of `strait receive`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img
  strait receive | tar x                              # prints the address on standard error")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = crate::parse::listen)]
    listen: SocketAddr,
    /// File to write: it is FILE.part until it is whole, and a transfer that broke off goes on there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take no more than this
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true, value_parser = crate::parse::bytes)]
    size_max: u64,
    /// The sender sends the bytes alone
    #[arg(long)]
    raw: bool,
    /// Do not hash a file to compare it with what was sent
    #[arg(long)]
    no_verify: bool,
    /// Seconds that a sender may be silent, once it has connected; one that only waits for its own input is not
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object, on standard error where the bytes go to standard output
    #[arg(long)]
    json: bool,
}

/// How long a wait may go on before it looks for a signal.
const TICK: Duration = Duration::from_millis(500);
/// How long a hash is waited for before a signal is looked for.
const HASH_TICK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let listener = listen(args.listen)?;
    let output = Output::open(args.output.as_deref())?;
    let (stream, lines, offer) = first_sender(args, &listener, terminated)?;
    drop(listener);
    let peer = stream.try_clone().map_err(|error| Error::Failed(format!("duplicate a socket: {error}")))?;
    let refused = |error: Error| {
        if !args.raw {
            refuse(&peer, &error.to_string());
        }
        error
    };
    let mut receiving =
        Receiving::begin(args, output, (stream, lines), offer, terminated).map_err(refused)?;
    let began = Instant::now();
    let failure = receiving.all().and_then(|()| receiving.end()).err();
    receiving.beat = None;
    let failure = failure.map(refused);
    if failure.is_some() {
        receiving.output.tell_of_part();
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

/// The address is told: with port 0 nobody else knows it.
fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let failed = |error: std::io::Error| Error::Failed(format!("listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    tell(format_args!("listening on {}\n", listener.local_addr().map_err(failed)?));
    Ok(listener)
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
    output: Output,
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
}

impl<'a> Receiving<'a> {
    /// Agrees with the sender.
    fn begin(
        args: &'a Args,
        mut output: Output,
        (stream, mut lines): (TcpStream, Lines),
        offer: Option<Offer>,
        terminated: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let (mut at, mut is_complete, mut found) = (0, false, Found::nothing());
        let length = offer.and_then(|offer| offer.length);
        if let Some(length) = length.filter(|length| *length > args.size_max) {
            let most = args.size_max;
            return Err(Error::Failed(format!("the sender has {length} bytes: --size-max {most} refuses")));
        }
        if offer.is_some() {
            if let Some(length) = length {
                found = while_waited_for(&stream, || output.find(length))??;
            }
            say(&stream, &found.have)?;
            From(at) = lines.hear(&stream, args.timeout)?;
            is_complete = found.is_whole && at > 0;
            let is_too_far = at > found.have.bytes || length.is_some_and(|length| at > length);
            if is_too_far || is_complete && Some(at) != length {
                return Err(Error::Failed(format!(
                    "the sender goes on at byte {at}, and {} are here",
                    found.have.bytes
                )));
            }
            tell_of_beginning(&output.name, &found, at, length);
        }
        output.begin_at(if is_complete { 0 } else { at })?;
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
        let receiver = Receiver::new(stream, &*output.name)?;
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
        })
    }

    fn all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.length, self.at);
        let mut last = Instant::now();
        loop {
            let heard = if self.args.raw || self.frame > 0 { self.take()? } else { self.hear_frame()? };
            match heard {
                Heard::Line(true) => return Ok(()),
                Heard::Line(false) | Heard::Alive => {
                    last = Instant::now();
                    bar.at(self.at);
                }
                Heard::Nothing => wait(&self.receiver.socket(), PollFlags::IN)?,
            }
            if self.terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted".into()));
            }
            if last.elapsed() > self.args.timeout {
                let seconds = self.args.timeout.as_secs_f64();
                return Err(Error::Failed(format!("the sender has been silent for {seconds} s")));
            }
        }
    }

    /// Bytes that may come at most.
    fn bytes_max(&self) -> u64 {
        self.length.unwrap_or(self.args.size_max)
    }

    /// Looks for the sender's next line; true at the end.
    fn hear_frame(&mut self) -> Result<Heard<bool>, Error> {
        let heard = match self.lines.hear_now(self.receiver.stream()) {
            Err(error) if error.to_string().contains(" refuses: ") => {
                let fate = self.output.discard();
                return Err(Error::Failed(format!("{error}; {fate}")));
            }
            heard => heard?,
        };
        match heard {
            Heard::Nothing => Ok(Heard::Nothing),
            Heard::Alive => Ok(Heard::Alive),
            Heard::Line(Frame::Data(bytes)) => {
                let most = self.bytes_max();
                if bytes > most.saturating_sub(self.at) {
                    return Err(Error::Failed(format!("more than {most} bytes came")));
                }
                self.frame = bytes;
                Ok(Heard::Line(false))
            }
            Heard::Line(Frame::End { bytes, hash }) => {
                if bytes != self.at || self.length.is_some_and(|length| length != bytes) {
                    let at = self.at;
                    return Err(Error::Failed(format!("the sender ended at byte {bytes}, and {at} came")));
                }
                self.hash = hash;
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
        let (Some(mut follower), Some(sent)) = (self.follower.take(), self.hash) else { return Ok(()) };
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
        let fate = self.output.discard();
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
