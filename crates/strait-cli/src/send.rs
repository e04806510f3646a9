//! `strait send`: a file or standard input to a listening `strait receive`, or to any program that reads a connection.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use strait_sys::buffer::BufMut;
use strait_transfer::offer::{Done, From, Have, Offer};
use strait_transfer::plan::TO_THE_END;
use strait_transfer::{Engine, FilePart, Options, Plan, Progress, Segment, Sender, StreamPart, ZeroCopy};

use crate::Error;
use crate::bulk::{Bar, hear, look_up, no_address, reset_on_death, say, set_timeouts, while_waited_for};
use crate::output::{print_account, tell};
use crate::parse::seconds;

/// Options of `strait send`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img          # there
  strait send disk.img there:9000                     # here; after an interruption, the same again goes on where it stopped
  tar c src | strait send - there:9000
  strait send --raw page.html localhost:8000          # to a program that is not strait receive")]
pub(crate) struct Args {
    /// File to send, or - for standard input
    file: String,
    /// Host and port to send to
    #[arg(value_name = "HOST:PORT")]
    to: String,
    /// How bytes leave
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// From which size a buffer is sent without a copy with --mode zc: bytes, or auto
    #[arg(long, value_name = "BYTES", default_value = "auto", value_parser = threshold)]
    threshold: Threshold,
    /// Send the bytes alone: no resuming, and no word from the other end that it has them
    #[arg(long)]
    raw: bool,
    /// Seconds that the other end may take for an answer, or to take bytes
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// From a file's pages by sendfile, from a pipe by splice, else as zc
    Auto,
    /// Read and send
    Copy,
    /// Read, and send without a copy where the route allows it
    Zc,
    /// From a file's pages by sendfile
    Sendfile,
}

#[derive(Clone, Copy)]
enum Threshold {
    Auto,
    Bytes(usize),
}

fn threshold(text: &str) -> Result<Threshold, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Threshold::Auto),
        Ok(bytes) if bytes > 0 => Ok(Threshold::Bytes(bytes)),
        _ => Err("give a number of bytes above 0, or auto".into()),
    }
}

/// How long a wait may go on before it looks for a signal.
const TICK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let source = Source::open(&args.file, args.mode)?;
    let stream = connect(&args.to, args.timeout)?;
    let from = if args.raw { 0 } else { agree(&stream, &source)? };
    reset_on_death(&stream, true)?;
    let engine = Engine::new(options(args, source.kernel))?;
    let own = stream.try_clone().map_err(|error| Error::Failed(format!("duplicate a socket: {error}")))?;
    let sender = Sender::new(own)?;
    let mut sending = Sending { args, source, engine, sender, terminated, first: from, at: from };
    let failure = sending.all().and_then(|()| sending.end(&stream)).err();
    let account = sending.sender.account();
    if let Some(error) = sending.engine.no_zero_copy() {
        tell(format_args!("strait: {error}\n"));
    }
    print_account(&account, args.json)?;
    failure.map_or(Ok(()), Err)
}

fn options(args: &Args, kernel: Option<ByKernel>) -> Options {
    let zero_copy = match (args.mode, args.threshold) {
        _ if kernel.is_some() => ZeroCopy::Never,
        (Mode::Copy | Mode::Sendfile, _) => ZeroCopy::Never,
        (_, Threshold::Bytes(bytes)) => ZeroCopy::From(bytes),
        (Mode::Auto | Mode::Zc, Threshold::Auto) => ZeroCopy::Adaptive,
    };
    Options { zero_copy, ..Options::default() }
}

fn connect(to: &str, timeout: Duration) -> Result<TcpStream, Error> {
    let mut last = None;
    for address in look_up(to)? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                set_timeouts(&stream, timeout)?;
                return Ok(stream);
            }
            Err(error) => last = Some(Error::Failed(format!("connect to {to}: {error}"))),
        }
    }
    Err(last.unwrap_or_else(|| no_address(to)))
}

/// Offers the bytes, hears what the receiver has, and says from where they come.
fn agree(stream: &TcpStream, source: &Source) -> Result<u64, Error> {
    say(stream, &Offer { length: source.length })?;
    let have: Have = hear(stream)?;
    let from = if while_waited_for(stream, || source.begins_so(&have))?? { have.bytes } else { 0 };
    say(stream, &From(from))?;
    if let Some(length) = source.length.filter(|_| have.bytes > 0) {
        match from {
            0 => tell(format_args!("the other end has something else: sending all {length} bytes\n")),
            _ => tell(format_args!("the other end has {from} of {length} bytes: sending the rest\n")),
        }
    }
    Ok(from)
}

/// Where the bytes come from.
struct Source {
    name: String,
    file: Arc<File>,
    /// Of a regular file from its start.
    length: Option<u64>,
    /// How the kernel can move the bytes by itself.
    kernel: Option<ByKernel>,
}

#[derive(Clone, Copy)]
enum ByKernel {
    Sendfile,
    Splice,
}

impl Source {
    fn open(name: &str, mode: Mode) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("{name}: {error}"));
        let file = if name == "-" {
            let duplicate = std::io::stdin().as_fd().try_clone_to_owned();
            File::from(duplicate.map_err(|error| failed(&error))?)
        } else {
            File::open(name).map_err(|error| failed(&error))?
        };
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if metadata.is_dir() {
            return Err(Error::Usage(format!(
                "{name} is a directory: tar c {name} | strait send - HOST:PORT"
            )));
        }
        // A file of the kernel's own says that it has no bytes, and one on standard input may be read in part: streams both.
        let is_stream = metadata.len() == 0 || (&file).stream_position().is_ok_and(|at| at > 0);
        let length = (metadata.is_file() && !is_stream).then_some(metadata.len());
        let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type());
        let kernel = match mode {
            Mode::Auto | Mode::Sendfile if length.is_some() => Some(ByKernel::Sendfile),
            Mode::Auto if is_pipe => Some(ByKernel::Splice),
            Mode::Sendfile if !metadata.is_file() => {
                return Err(Error::Usage(format!("{name} is no file: sendfile cannot send it")));
            }
            _ => None,
        };
        Ok(Self { name: name.to_owned(), file: Arc::new(file), length, kernel })
    }

    /// Whether the file begins with the bytes that the receiver has.
    fn begins_so(&self, have: &Have) -> Result<bool, Error> {
        if have.bytes == 0 || self.length.is_none_or(|length| have.bytes > length) {
            return Ok(false);
        }
        let own = Have::first(have.bytes, &*self.file);
        Ok(own.map_err(|error| Error::Failed(format!("{}: {error}", self.name)))? == *have)
    }
}

struct Sending<'a> {
    args: &'a Args,
    source: Source,
    engine: Engine,
    sender: Sender,
    terminated: &'a AtomicBool,
    /// Where the transfer began, and how far the source has been read or planned.
    first: u64,
    at: u64,
}

impl Sending<'_> {
    /// Hands all bytes over to the kernel.
    fn all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.source.length, self.first);
        let mut last = Instant::now();
        let mut planned = self.plan_by_kernel();
        loop {
            let before = self.sender.account().bytes();
            let progress = self.sender.advance(&mut self.engine)?;
            let sent = self.sender.account().bytes();
            bar.at(self.first + sent);
            if self.terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted".into()));
            }
            last = if sent > before { Instant::now() } else { last };
            match progress {
                Progress::More => continue,
                Progress::Idle if planned => return Ok(()),
                // Reading may take a while, so that all that was read before is on its way.
                Progress::Idle => match self.engine.buffer() {
                    Some(buffer) => {
                        planned = self.read_one(buffer)?;
                        last = Instant::now();
                        continue;
                    }
                    None => self.engine.wait(None, TICK)?,
                },
                Progress::Room | Progress::Input => {
                    self.engine.wait(self.sender.waits_for(progress), TICK)?
                }
            };
            if progress != Progress::Input && last.elapsed() > self.args.timeout {
                let (peer, seconds) = (self.sender.peer(), self.args.timeout.as_secs_f64());
                return Err(Error::Failed(format!("{peer} has taken nothing for {seconds} s")));
            }
        }
    }

    /// Plans what the kernel moves by itself; false where bytes have to be read.
    fn plan_by_kernel(&mut self) -> bool {
        let segment = match (self.source.kernel, self.source.length) {
            (Some(ByKernel::Sendfile), Some(length)) => Segment::File(FilePart {
                file: self.source.file.clone(),
                offset: self.at,
                len: length - self.at,
            }),
            (Some(ByKernel::Splice), _) => match self.source.file.as_fd().try_clone_to_owned() {
                Ok(pipe) => Segment::Socket(StreamPart { socket: Arc::new(pipe), len: TO_THE_END }),
                Err(_) => return false,
            },
            _ => return false,
        };
        self.sender.push(&mut self.engine, Plan::new().with(segment));
        true
    }

    /// Reads into a buffer and plans it; true at the end.
    fn read_one(&mut self, mut buffer: BufMut) -> Result<bool, Error> {
        let read = match self.source.length {
            Some(_) => self.source.file.read_at(&mut buffer, self.at),
            None => (&*self.source.file).read(&mut buffer),
        };
        let read = match read {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(Error::Failed(format!("{}: {error}", self.source.name))),
        };
        self.at += read as u64;
        if read == 0 {
            return match self.source.length {
                Some(length) if self.at < length => {
                    Err(Error::Failed(format!("{} ended {} bytes early", self.source.name, length - self.at)))
                }
                _ => Ok(true),
            };
        }
        self.sender.push(&mut self.engine, Plan::new().with(Segment::Shared(buffer.freeze(0..read))));
        Ok(false)
    }

    /// Ends the stream, waits for what is lent and for the receiver's word.
    fn end(&mut self, stream: &TcpStream) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        reset_on_death(stream, false)?;
        stream.shutdown(Shutdown::Write).map_err(failed)?;
        let mut lent = self.sender.lent();
        while lent > 0 {
            let left = self.sender.finish(&mut self.engine, self.args.timeout)?;
            if left == lent {
                return Err(Error::Failed(format!(
                    "{} has not acknowledged all in time",
                    self.sender.peer()
                )));
            }
            lent = left;
        }
        if self.args.raw {
            return Ok(());
        }
        stream.set_nonblocking(false).map_err(failed)?;
        let Done(got) = hear(stream)?;
        let sent = self.first + self.sender.account().bytes();
        if got == sent {
            return Ok(());
        }
        Err(Error::Failed(format!("{} has {got} of {sent} bytes", self.sender.peer())))
    }
}
