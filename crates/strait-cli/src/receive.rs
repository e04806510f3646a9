//! `strait receive`: one transfer of `strait send` into a file or to standard output.
//!
//! A file is `NAME.part` until it is whole; what an interrupted transfer left there is gone on with.

use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::offer::{Done, From, Have, Offer, TAIL_BYTES_MAX, hash};
use strait_transfer::{Received, Receiver};

use crate::Error;
use crate::bulk::{Bar, hear, reset_on_death, say, set_timeouts};
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
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Take no more than this
    #[arg(long, value_name = "BYTES", default_value_t = u64::MAX, hide_default_value = true)]
    size_max: u64,
    /// The sender sends the bytes alone
    #[arg(long)]
    raw: bool,
    /// Seconds that the sender may be silent
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object, on standard error where the bytes go to standard output
    #[arg(long)]
    json: bool,
}

/// How long a wait may go on before it looks for a signal.
const TICK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let output = Output::open(args.output.as_deref())?;
    let stream = accept(args.listen, terminated)?;
    set_timeouts(&stream, args.timeout)?;
    let mut receiving = Receiving::begin(args, output, stream, terminated)?;
    let began = Instant::now();
    let failure = receiving.all().and_then(|()| receiving.end()).err();
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

/// The first connection. The address is told first: with port 0 nobody else knows it.
fn accept(address: SocketAddr, terminated: &AtomicBool) -> Result<TcpStream, Error> {
    let failed = |error: std::io::Error| Error::Failed(format!("listen on {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    tell(format_args!("listening on {}\n", listener.local_addr().map_err(failed)?));
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                wait(&listener, PollFlags::IN)?;
            }
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
    file: File,
    /// Of a file: its name when it is whole, and until then.
    names: Option<(PathBuf, PathBuf)>,
    /// Where the next byte goes, of a file.
    offset: Option<u64>,
}

impl Output {
    /// For messages.
    fn name(&self) -> String {
        let whole = self.names.as_ref().map(|(whole, _)| whole.display().to_string());
        whole.unwrap_or_else(|| "standard output".into())
    }

    fn open(name: Option<&Path>) -> Result<Self, Error> {
        let Some(name) = name else {
            let duplicate = std::io::stdout().as_fd().try_clone_to_owned();
            let file = File::from(duplicate.map_err(Error::Output)?);
            return Ok(Self { file, names: None, offset: None });
        };
        let mut part = name.to_path_buf().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", part.display()));
        if name.is_dir() {
            return Err(Error::Usage(format!("{} is a directory: give a file", name.display())));
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&part);
        let file = file.map_err(failed)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Failed(format!("{}: another process is writing it", part.display())))?;
        Ok(Self { file, names: Some((name.to_path_buf(), part)), offset: Some(0) })
    }

    /// What is there already.
    fn have(&self) -> Result<Have, Error> {
        let Some((_, part)) = &self.names else { return Ok(Have::NOTHING) };
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", part.display()));
        let bytes = self.file.metadata().map_err(failed)?.len();
        let tail = bytes.min(TAIL_BYTES_MAX);
        let mut end = vec![0; tail as usize];
        self.file.read_exact_at(&mut end, bytes - tail).map_err(failed)?;
        Ok(Have { bytes, tail, hash: hash(&end) })
    }

    /// Keeps the first bytes alone.
    fn begin_at(&mut self, offset: u64) -> Result<(), Error> {
        if let Some((_, part)) = &self.names {
            let cut = self.file.set_len(offset);
            cut.map_err(|error| Error::Failed(format!("{}: {error}", part.display())))?;
            self.offset = Some(offset);
        }
        Ok(())
    }

    /// Gives a whole file its name.
    fn finish(&self) -> Result<(), Error> {
        let Some((name, part)) = &self.names else { return Ok(()) };
        let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", name.display()));
        self.file.sync_all().map_err(failed)?;
        std::fs::rename(part, name).map_err(failed)
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
        terminated: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let (mut length, mut at) = (None, 0);
        if !args.raw {
            let offer: Offer = hear(&stream)?;
            length = offer.length;
            if length.is_some_and(|length| length > args.size_max) {
                let length = length.unwrap_or_default();
                return Err(Error::Failed(format!(
                    "the sender has {length} bytes: --size-max {} refuses",
                    args.size_max
                )));
            }
            let have = if length.is_some() { output.have()? } else { Have::NOTHING };
            say(&stream, &have)?;
            From(at) = hear(&stream)?;
            if at > have.bytes {
                return Err(Error::Failed(format!(
                    "the sender goes on at byte {at}, and {} are here",
                    have.bytes
                )));
            }
        }
        output.begin_at(at)?;
        reset_on_death(&stream, true)?;
        let receiver = Receiver::new(stream, output.name())?;
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
                Received::NoRoom => wait(&self.output.file, PollFlags::OUT)?,
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
        self.output.finish()?;
        let stream = self.receiver.stream();
        reset_on_death(stream, false)?;
        if self.args.raw {
            return Ok(());
        }
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        stream.set_nonblocking(false).map_err(failed)?;
        say(stream, &Done(self.at))
    }
}
