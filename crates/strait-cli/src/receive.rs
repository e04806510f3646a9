//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file is `NAME.part` until it is whole; what an interrupted transfer left there is gone on with. A device or a named pipe is written
//! as it is.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::offer::{Done, From, Have, Offer};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{Bar, hear, reset_on_death, say, set_timeouts, while_waited_for};
use crate::output::{print_account, tell};
use crate::parse::seconds;

/// Options of `strait receive`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img
  strait receive | tar x                              # prints the address on standard error")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// File to write: it is FILE.part until it is whole, and a transfer that broke off goes on there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take no more than this
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    size_max: u64,
    /// The sender sends the bytes alone
    #[arg(long)]
    raw: bool,
    /// Seconds that a sender may be silent, once it has connected
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object, on standard error where the bytes go to standard output
    #[arg(long)]
    json: bool,
}

/// How long a wait may go on before it looks for a signal.
const TICK: Duration = Duration::from_millis(500);
/// How long who has connected may take for his offer.
const OFFER_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let listener = listen(args.listen)?;
    let output = Output::open(args.output.as_deref())?;
    let (stream, offer) = first_sender(args, &listener, terminated)?;
    drop(listener);
    let mut receiving = Receiving::begin(args, output, stream, offer, terminated)?;
    let began = Instant::now();
    let failure = receiving.all().and_then(|()| receiving.end()).err();
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

/// The first who has something to offer; whoever connects and does not, a port scanner say, is told of and let go.
fn first_sender(
    args: &Args,
    listener: &TcpListener,
    terminated: &AtomicBool,
) -> Result<(TcpStream, Option<Offer>), Error> {
    loop {
        let stream = accept(listener, terminated)?;
        if args.raw {
            set_timeouts(&stream, args.timeout)?;
            return Ok((stream, None));
        }
        // Others may wait behind one who says nothing.
        set_timeouts(&stream, args.timeout.min(OFFER_MAX))?;
        match hear(&stream) {
            Ok(offer) => {
                set_timeouts(&stream, args.timeout)?;
                return Ok((stream, Some(offer)));
            }
            Err(error) if !terminated.load(Ordering::Relaxed) => {
                tell(format_args!("strait: {error}; listening on\n"));
            }
            Err(error) => return Err(error),
        }
    }
}

fn accept(listener: &TcpListener, terminated: &AtomicBool) -> Result<TcpStream, Error> {
    let failed = |error: std::io::Error| Error::Failed(format!("take a connection: {error}"));
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(listener, PollFlags::IN)?,
            // It was gone before it was taken.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(failed(error)),
        }
        if terminated.load(Ordering::Relaxed) {
            return Err(Error::Failed("interrupted before anybody sent".into()));
        }
    }
}

fn wait(fd: &impl std::os::fd::AsFd, flags: PollFlags) -> Result<(), Error> {
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    match poll(&mut [PollFd::new(fd, flags)], Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::Failed(format!("wait for a connection: {error}"))),
    }
}

/// Where bytes go.
struct Output {
    /// For messages.
    name: String,
    file: File,
    /// Of a file: its path when it is whole, and until then.
    paths: Option<(PathBuf, PathBuf)>,
    /// Where the next byte goes, of a file.
    offset: Option<u64>,
}

impl Output {
    fn open(name: Option<&Path>) -> Result<Self, Error> {
        let Some(name) = name.filter(|name| *name != Path::new("-")) else {
            let duplicate = std::io::stdout().as_fd().try_clone_to_owned();
            let file = File::from(duplicate.map_err(Error::Output)?);
            return Ok(Self { name: "standard output".into(), file, paths: None, offset: None });
        };
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", name.display()));
        match std::fs::metadata(name) {
            Ok(found) if found.is_dir() => {
                Err(Error::Usage(format!("{} is a directory: give a file", name.display())))
            }
            // Behind a link is what is to be written, not in its place.
            Ok(found) if found.is_file() => Self::part(name.canonicalize().map_err(failed)?, Some(&found)),
            Ok(_) => {
                let file = OpenOptions::new().write(true).open(name).map_err(failed)?;
                Ok(Self { name: name.display().to_string(), file, paths: None, offset: None })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Self::part(name.to_path_buf(), None),
            Err(error) => Err(failed(error)),
        }
    }

    /// A file that is to take the place of `before`.
    fn part(name: PathBuf, before: Option<&Metadata>) -> Result<Self, Error> {
        let mut part = name.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", part.display()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part);
        let file = file.map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Error::Failed(format!("{}: another process is writing it", part.display())));
            }
            locked => locked.map_err(|error| failed(error.into()))?,
        }
        if let Some(before) = before {
            // Who may not give it away keeps it.
            let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
            file.set_permissions(before.permissions()).map_err(failed)?;
        }
        Ok(Self { name: name.display().to_string(), file, paths: Some((name, part)), offset: Some(0) })
    }

    /// What is there already.
    fn have(&self) -> Result<Have, Error> {
        let Some((_, part)) = &self.paths else { return Ok(Have::NOTHING) };
        let have = self.file.metadata().and_then(|metadata| Have::first(metadata.len(), &self.file));
        have.map_err(|error| Error::Failed(format!("{}: {error}", part.display())))
    }

    /// Keeps the first bytes alone.
    fn begin_at(&mut self, offset: u64) -> Result<(), Error> {
        if let Some((_, part)) = &self.paths {
            let cut = self.file.set_len(offset);
            cut.map_err(|error| Error::Failed(format!("{}: {error}", part.display())))?;
            self.offset = Some(offset);
        }
        Ok(())
    }

    /// Gives a whole file its name.
    fn finish(&mut self) -> Result<(), Error> {
        let Some((whole, part)) = &self.paths else { return Ok(()) };
        let done = self.file.sync_all().and_then(|()| std::fs::rename(part, whole));
        done.map_err(|error| Error::Failed(format!("{}: {error}", self.name)))?;
        self.paths = None;
        Ok(())
    }

    /// Bytes of what is not whole.
    fn bytes_of_part(&self) -> Option<(u64, &Path)> {
        let (_, part) = self.paths.as_ref()?;
        Some((self.file.metadata().ok()?.len(), part))
    }

    fn tell_of_part(&self) {
        if let Some((bytes, part)) = self.bytes_of_part().filter(|(bytes, _)| *bytes > 0) {
            let part = part.display();
            tell(format_args!(
                "{bytes} bytes are in {part}: of a file, the same two commands again go on there\n"
            ));
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // With a part of no bytes nobody can go on; it is in nobody's way if it stays.
        if let Some((0, part)) = self.bytes_of_part() {
            let _ = std::fs::remove_file(part);
        }
    }
}

struct Receiving<'a> {
    args: &'a Args,
    output: Output,
    receiver: Receiver,
    terminated: &'a AtomicBool,
    /// Bytes of the whole, where the sender knows.
    length: Option<u64>,
    at: u64,
}

impl<'a> Receiving<'a> {
    /// Agrees with the sender.
    fn begin(
        args: &'a Args,
        mut output: Output,
        stream: TcpStream,
        offer: Option<Offer>,
        terminated: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let (mut length, mut at) = (None, 0);
        if let Some(offer) = offer {
            length = offer.length;
            if let Some(length) = length.filter(|length| *length > args.size_max) {
                let most = args.size_max;
                return Err(Error::Failed(format!(
                    "the sender has {length} bytes: --size-max {most} refuses"
                )));
            }
            let have = match length {
                Some(_) => while_waited_for(&stream, || output.have())??,
                None => Have::NOTHING,
            };
            say(&stream, &have)?;
            From(at) = hear(&stream)?;
            if at > have.bytes || length.is_some_and(|length| at > length) {
                return Err(Error::Failed(format!(
                    "the sender goes on at byte {at}, and {} are here",
                    have.bytes
                )));
            }
            if have.bytes > 0 && at == 0 {
                tell(format_args!("what is here is something else: receiving all\n"));
            } else if at > 0 {
                tell(format_args!("{at} bytes are here: receiving the rest\n"));
            }
        }
        output.begin_at(at)?;
        reset_on_death(&stream, true)?;
        let receiver = Receiver::new(stream, &*output.name)?;
        Ok(Self { args, output, receiver, terminated, length, at })
    }

    fn all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.length, self.at);
        let mut last = Instant::now();
        loop {
            // One byte more than may come tells that more is coming.
            let room = self.length.unwrap_or(self.args.size_max).saturating_sub(self.at).saturating_add(1);
            match self.receiver.step(&self.output.file, self.output.offset.as_mut(), room)? {
                Received::End => break,
                Received::Bytes(bytes) => {
                    self.at += bytes;
                    last = Instant::now();
                    bar.at(self.at);
                }
                Received::Nothing => wait(&self.receiver.socket(), PollFlags::IN)?,
                Received::NoRoom => {
                    // It is not the sender who is silent.
                    last = Instant::now();
                    wait(&self.output.file, PollFlags::OUT)?;
                }
            }
            if self.at > self.length.unwrap_or(self.args.size_max) {
                return Err(Error::Failed(format!("more than {} bytes came", self.at - 1)));
            }
            if self.terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted".into()));
            }
            if last.elapsed() > self.args.timeout {
                let seconds = self.args.timeout.as_secs_f64();
                return Err(Error::Failed(format!("the sender has been silent for {seconds} s")));
            }
        }
        match self.length {
            Some(length) if self.at < length => {
                Err(Error::Failed(format!("the sender ended {} bytes early", length - self.at)))
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        let stream = self.receiver.stream();
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        stream.set_nonblocking(false).map_err(failed)?;
        if self.args.raw {
            self.output.finish()?;
        } else {
            while_waited_for(stream, || self.output.finish())??;
        }
        reset_on_death(stream, false)?;
        if self.args.raw { Ok(()) } else { say(stream, &Done(self.at)) }
    }
}
