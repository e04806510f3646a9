//! `strait send`: sends a file or standard input to `strait receive`, or to any program that
//! accepts a connection.

mod source;

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use rustix::event::PollFlags;
use rustix::io::Errno;
use strait_program::Streams;
use strait_transfer::hash::{Follower, Hasher};
use strait_transfer::offer::{Answer, Begins, Done, Frame, From, Offer, WAIT};
use strait_transfer::{
    BufMut, Engine, FilePart, Options, Plan, Progress, Segment, Sender, StreamPart, ZeroCopy,
};

use self::source::{Mechanism, Source};
use crate::Error;
use crate::bulk::{
    Bar, Incoming, Lines, WAIT_PERIOD, look_up, name, no_address, refuse, reset_on_death, send_line,
    set_timeouts, with_keep_alive,
};
use crate::output::{print_account, print_stderr};
use crate::parse::seconds;

/// Options of `strait send`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait receive -l 0.0.0.0:9000 -o disk.img          # on the receiving host
  strait send disk.img there:9000                     # on the sending host; the same two commands resume a transfer
  tar c src | strait send - there:9000
  strait send --raw page.html localhost:8000          # to a program that is not strait receive")]
pub(crate) struct Args {
    /// File to send, or - for standard input
    file: String,
    /// Host and port to send to
    #[arg(value_name = "HOST:PORT")]
    to: String,
    /// How to send the bytes
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// With --mode zc: minimum bytes of a buffer to send without a copy, or auto
    #[arg(long, value_name = "BYTES", default_value = "auto", value_parser = threshold)]
    threshold: Threshold,
    /// Send plain bytes: without resuming, and without an acknowledgement by the other end; strait
    /// receive needs --raw too
    #[arg(long)]
    raw: bool,
    /// Do not compare a hash of the data with the other end. A spliced pipe is not hashed in any
    /// case: only its length is compared
    #[arg(long)]
    no_verify: bool,
    /// Seconds in which the other end neither accepts bytes nor reports, after which the transfer
    /// fails; an end that waits for its disk or reader keeps reporting
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns the standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        Streams { input: self.file == "-", output: self.json }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// A file by sendfile, a pipe by splice, anything else as zc
    Auto,
    /// Read and send
    Copy,
    /// Read, and send without a copy if the route allows it
    Zc,
    /// A file by sendfile
    Sendfile,
}

#[derive(Clone, Copy)]
enum Threshold {
    Auto,
    Bytes(usize),
}

fn threshold(text: &str) -> Result<Threshold, String> {
    match crate::parse::bytes(text).map(usize::try_from) {
        _ if text == "auto" => Ok(Threshold::Auto),
        Ok(Ok(bytes)) if bytes > 0 => Ok(Threshold::Bytes(bytes)),
        _ => Err("give a number of bytes above 0, or auto".into()),
    }
}

/// Interval at which a wait checks for a signal.
const TICK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let source = Source::open(&args.file, args.mode)?;
    let stream = connect(args)?;
    let mut lines = Lines::default();
    let (from, hasher) = if args.raw {
        (0, Hasher::default())
    } else {
        negotiate_offset(&stream, &mut lines, &source, args.timeout, terminated)?
    };
    reset_on_death(&stream, true)?;
    let engine = Engine::new(options(args, source.mechanism))?;
    let duplicate = |error: std::io::Error| Error::Failed(format!("duplicate a socket: {error}"));
    let sender = Sender::new(stream.try_clone().map_err(duplicate)?)?;
    let hashing = Hashing::start(args, &source, hasher)?;
    let mut sending = Sending {
        args,
        source,
        engine,
        sender,
        terminated,
        start_offset: from,
        offset: from,
        stream,
        lines,
        queued_line: Vec::new(),
        hashing,
        last_progress: Instant::now(),
        last_line_sent: Instant::now(),
    };
    let failure = sending.send_all().and_then(|()| sending.finish()).err();
    let account = sending.sender.account();
    if let Some(error) = sending.engine.no_zero_copy() {
        print_stderr(format_args!("strait: {error}\n"));
    }
    // After a failure the other end has fewer bytes than the kernel took here: the account alone
    // would look like a success.
    if failure.is_none() || args.json {
        print_account(&account, args.json)?;
    }
    failure.map_or(Ok(()), |error| Err(with_hint(error, args.raw)))
}

/// Adds a hint about --raw to the error of a raw transfer: strait receive without --raw expects an
/// offer, and closes the connection when it gets other bytes.
fn with_hint(error: Error, is_raw: bool) -> Error {
    match error {
        Error::Transfer(strait_transfer::Error::Closed { .. }) if is_raw => {
            Error::Failed(format!("{error}; strait receive accepts plain bytes only with --raw"))
        }
        error => error,
    }
}

fn options(args: &Args, mechanism: Option<Mechanism>) -> Options {
    let zero_copy = match (args.mode, args.threshold) {
        _ if mechanism.is_some() => ZeroCopy::Never,
        (Mode::Copy | Mode::Sendfile, _) => ZeroCopy::Never,
        (_, Threshold::Bytes(bytes)) => ZeroCopy::From(bytes),
        (Mode::Auto | Mode::Zc, Threshold::Auto) => ZeroCopy::Adaptive,
    };
    Options { zero_copy, ..Options::default() }
}

fn connect(args: &Args) -> Result<TcpStream, Error> {
    let Args { to, timeout, raw, .. } = args;
    let (timeout, mut last) = (*timeout, None);
    for address in look_up(to)? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                set_timeouts(&stream, timeout)?;
                let set = stream.set_nodelay(true);
                set.map_err(|error| Error::Failed(format!("set TCP_NODELAY: {error}")))?;
                return Ok(stream);
            }
            Err(error) => {
                let remedy = match error.kind() {
                    ErrorKind::ConnectionRefused if *raw => "; no program listens there".into(),
                    ErrorKind::ConnectionRefused => {
                        format!("; start strait receive -l {address} there first")
                    }
                    _ => String::new(),
                };
                last = Some(Error::Failed(format!("connect to {to}: {error}{remedy}")));
            }
        }
    }
    Err(last.unwrap_or_else(|| no_address(to)))
}

/// Offers the bytes, and negotiates the start offset with the receiver. Returns the offset and the
/// hash of the bytes before it.
fn negotiate_offset(
    stream: &TcpStream,
    lines: &mut Lines,
    source: &Source,
    timeout: Duration,
    terminated: &AtomicBool,
) -> Result<(u64, Hasher), Error> {
    send_line(stream, &Offer { length: source.length, attributes: source.attributes() })?;
    let (have, from, hasher) = match lines.read(stream, timeout)? {
        Answer::From(from) => (0, from, Hasher::default()),
        Answer::Have(bytes) => {
            let hasher = with_keep_alive(stream, terminated, |stop| source.hash_prefix(bytes, stop));
            let hasher = hasher.map_err(|error| refusal_or(error, stream, lines))??;
            send_line(stream, &Begins { bytes, hash: hasher.value() })
                .map_err(|error| refusal_or(error, stream, lines))?;
            (bytes, lines.read(stream, timeout)?, hasher)
        }
    };
    let From(from) = from;
    if from != 0 && from != have {
        return Err(Error::Failed(format!("{} requests byte {from} and has {have} bytes", name(stream))));
    }
    let hasher = if from == 0 { Hasher::default() } else { hasher };
    if let Some(length) = source.length.filter(|_| have > 0) {
        match from {
            0 => print_stderr(format_args!("the other end's file differs: sending all {length} bytes\n")),
            _ if from == length => {
                print_stderr(format_args!("the other end has all {length} bytes: sending nothing\n"));
            }
            _ => print_stderr(format_args!("the other end has {from} of {length} bytes: sending the rest\n")),
        }
    }
    Ok((from, hasher))
}

/// Returns the refusal that the receiver sent before it closed the connection, or `error` without
/// one.
fn refusal_or(error: Error, stream: &TcpStream, lines: &mut Lines) -> Error {
    loop {
        match lines.poll::<From>(stream) {
            Ok(Incoming::Alive) => {}
            Err(refusal @ Error::PeerRefused { .. }) => return refusal,
            _ => return error,
        }
    }
}

/// Hashing of the sent bytes.
enum Hashing {
    /// A separate thread reads the file: sendfile does not pass the bytes through this process.
    Thread(Follower),
    /// This thread hashes the bytes that it reads.
    Inline(Hasher),
    /// No hash.
    Disabled,
}

impl Hashing {
    fn start(args: &Args, source: &Source, hasher: Hasher) -> Result<Self, Error> {
        match source.mechanism {
            _ if args.raw || args.no_verify => Ok(Self::Disabled),
            None => Ok(Self::Inline(hasher)),
            Some(Mechanism::Splice) => Ok(Self::Disabled),
            Some(Mechanism::Sendfile) => {
                let follower = source.file.try_clone().and_then(|file| Follower::start(hasher, file));
                Ok(Self::Thread(follower.map_err(|error| source.failed(&error))?))
            }
        }
    }
}

/// Result of a step.
enum Next {
    /// Bytes have moved: make the next step at once.
    Moved,
    /// Wait for the sender: for room in the socket, or input of a splice.
    Sender(Progress),
    /// Wait for a free buffer.
    Buffer,
    /// Wait for input from the source.
    Source,
    /// All bytes are planned.
    End,
}

struct Sending<'a> {
    args: &'a Args,
    source: Source,
    engine: Engine,
    sender: Sender,
    terminated: &'a AtomicBool,
    /// Start offset of the transfer.
    start_offset: u64,
    /// Offset up to which the source has been read or planned.
    offset: u64,
    stream: TcpStream,
    lines: Lines,
    /// Unsent rest of a protocol line.
    queued_line: Vec<u8>,
    hashing: Hashing,
    /// Time of the last sent bytes or received line.
    last_progress: Instant,
    /// Time of the last sent line.
    last_line_sent: Instant,
}

impl Sending<'_> {
    /// Passes all bytes to the kernel.
    fn send_all(&mut self) -> Result<(), Error> {
        let mut bar = Bar::new(self.source.length, self.start_offset);
        loop {
            let before = self.sender.account().bytes();
            let next = match self.step() {
                Ok(next) => next,
                // The receiver may have sent the reason: report it instead.
                Err(error) => return Err(self.poll_lines().err().unwrap_or(error)),
            };
            let sent = self.sender.account().bytes();
            bar.update(self.start_offset + sent);
            if let Hashing::Thread(follower) = &self.hashing {
                follower.follow(self.start_offset + sent);
            }
            if sent > before {
                self.last_progress = Instant::now();
            }
            self.poll_lines()?;
            match next {
                Next::End => return Ok(()),
                Next::Moved => {}
                Next::Sender(progress) => {
                    self.engine.wait(self.sender.waits_for(progress), TICK)?;
                    self.check_timeout()?;
                }
                Next::Buffer => {
                    self.engine.wait(None, TICK)?;
                    self.check_timeout()?;
                }
                Next::Source => {
                    self.last_progress = Instant::now();
                    self.engine.wait(Some((self.source.file.as_fd(), PollFlags::IN)), TICK)?;
                    self.queue_wait();
                }
            }
        }
    }

    /// Reads the lines of the receiver, unless the transfer is raw.
    fn poll_lines(&mut self) -> Result<(), Error> {
        if self.terminated.load(Ordering::Relaxed) {
            return Err(Error::Failed("interrupted".into()));
        }
        while !self.args.raw {
            match self.lines.poll::<Done>(&self.stream)? {
                Incoming::Nothing => break,
                Incoming::Alive => self.last_progress = Instant::now(),
                Incoming::Line(Done(got)) => {
                    let peer = self.sender.peer();
                    return Err(Error::Failed(format!("{peer} ended the transfer at byte {got}")));
                }
            }
        }
        Ok(())
    }

    fn check_timeout(&self) -> Result<(), Error> {
        if self.last_progress.elapsed() <= self.args.timeout {
            return Ok(());
        }
        let (peer, seconds) = (self.sender.peer(), self.args.timeout.as_secs_f64());
        Err(Error::Failed(format!("{peer} has accepted no bytes for {seconds} s")))
    }

    /// Queues a `wait` line if no other line is queued and the last one is old enough.
    fn queue_wait(&mut self) {
        if !self.args.raw && self.queued_line.is_empty() && self.last_line_sent.elapsed() >= WAIT_PERIOD {
            self.queued_line.extend_from_slice(WAIT.as_bytes());
        }
    }

    /// Makes one system call that moves bytes.
    fn step(&mut self) -> Result<Next, Error> {
        if !self.send_queued_line()? {
            return Ok(Next::Sender(Progress::Room));
        }
        match self.sender.advance(&mut self.engine)? {
            Progress::Yield => Ok(Next::Moved),
            Progress::Idle => self.plan(),
            waits => Ok(Next::Sender(waits)),
        }
    }

    /// Sends the rest of the queued line. Returns false if the socket has no room.
    fn send_queued_line(&mut self) -> Result<bool, Error> {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let flags =
            if self.queued_line.starts_with(b"data=") { flags | rustix::net::SendFlags::MORE } else { flags };
        while !self.queued_line.is_empty() {
            match rustix::net::send(self.sender.socket(), &self.queued_line, flags) {
                Ok(sent) => drop(self.queued_line.drain(..sent)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(error) => {
                    return Err(Error::Failed(format!("send to {}: {error}", self.sender.peer())));
                }
            }
            self.last_line_sent = Instant::now();
        }
        Ok(true)
    }

    /// Plans the next bytes.
    fn plan(&mut self) -> Result<Next, Error> {
        let segment = match (self.source.mechanism, self.source.length) {
            (Some(Mechanism::Sendfile), Some(length)) => {
                let (offset, len) = (self.offset, length - self.offset);
                Segment::File(FilePart { file: self.source.file.clone(), offset, len })
            }
            (Some(Mechanism::Splice), _) => {
                let available = rustix::io::ioctl_fionread(&*self.source.file);
                let len = available.map_err(|error| self.source.failed(&error.into()))?;
                if len == 0 && !self.source.is_ready()? {
                    return Ok(Next::Source);
                }
                // Query again: bytes may have arrived since the poll. A count of 0 now means end of
                // pipe.
                let available = rustix::io::ioctl_fionread(&*self.source.file);
                let len = available.map_err(|error| self.source.failed(&error.into()))?;
                let pipe = self.source.file.as_fd().try_clone_to_owned();
                let socket = Arc::new(pipe.map_err(|error| self.source.failed(&error))?);
                Segment::Socket(StreamPart { socket, len })
            }
            _ => {
                if self.source.length.is_none() && !self.source.is_ready()? {
                    return Ok(Next::Source);
                }
                let Some(buffer) = self.engine.buffer() else { return Ok(Next::Buffer) };
                return self.read_one(buffer);
            }
        };
        if segment.is_empty() {
            return Ok(Next::End);
        }
        self.push(segment);
        Ok(Next::Moved)
    }

    /// Plans a segment, after a line with its length.
    fn push(&mut self, segment: Segment) {
        if self.source.mechanism.is_some() {
            self.offset += segment.len();
        }
        if !self.args.raw {
            self.queued_line.extend_from_slice(Frame::Data(segment.len()).to_string().as_bytes());
        }
        self.sender.push(&mut self.engine, Plan::new().with(segment));
    }

    /// Reads into a buffer and plans it.
    fn read_one(&mut self, mut buffer: BufMut) -> Result<Next, Error> {
        let read = match self.source.length {
            Some(_) => self.source.file.read_at(&mut buffer, self.offset),
            None => (&*self.source.file).read(&mut buffer),
        };
        let read = match read {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Next::Moved),
            Err(error) => return Err(self.source.failed(&error)),
        };
        // A file that has grown is sent up to its offered length.
        let left = self.source.length.map_or(usize::MAX, |length| (length - self.offset) as usize);
        let read = read.min(left);
        if read == 0 {
            return match self.source.length {
                Some(length) if self.offset < length => Err(Error::Failed(format!(
                    "{} ended {} bytes early",
                    self.source.name,
                    length - self.offset
                ))),
                _ => Ok(Next::End),
            };
        }
        self.offset += read as u64;
        let view = buffer.freeze(0..read);
        if let Hashing::Inline(hasher) = &mut self.hashing {
            hasher.write(&view);
        }
        self.push(Segment::Shared(view));
        Ok(Next::Moved)
    }

    /// Returns the hash of all bytes, if they are hashed.
    fn hash(&mut self) -> Result<Option<u64>, Error> {
        let total = self.start_offset + self.sender.account().bytes();
        let follower = match std::mem::replace(&mut self.hashing, Hashing::Disabled) {
            Hashing::Disabled => return Ok(None),
            Hashing::Inline(hasher) => return Ok(Some(hasher.value())),
            Hashing::Thread(follower) => follower,
        };
        follower.end(total);
        loop {
            if let Some(result) = follower.result(WAIT_PERIOD) {
                return Ok(Some(result.map_err(|error| self.source.failed(&error))?.value()));
            }
            self.poll_lines()?;
            self.queue_wait();
            self.send_queued_line()?;
        }
    }

    /// Ends the stream. A raw transfer then waits for the peer to acknowledge all zero-copy
    /// buffers; other transfers wait for the receiver's last line.
    fn finish(&mut self) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::Failed(format!("end the stream: {error}"));
        let sent = self.start_offset + self.sender.account().bytes();
        if !self.args.raw {
            let hash = self.hash()?;
            if !self.source.is_unchanged()? {
                let reason = format!("{} changed while it was sent: send it again", self.source.name);
                refuse(&self.stream, &reason);
                return Err(Error::Failed(reason));
            }
            self.queued_line.extend_from_slice(Frame::End { bytes: sent, hash }.to_string().as_bytes());
            while !self.send_queued_line()? {
                self.poll_lines()?;
                self.engine.wait(Some((self.stream.as_fd(), PollFlags::OUT)), TICK)?;
                self.check_timeout()?;
            }
        }
        reset_on_death(&self.stream, false)?;
        self.stream.shutdown(Shutdown::Write).map_err(failed)?;
        let mut unacknowledged = self.sender.borrowed();
        while unacknowledged > 0 && self.args.raw {
            let left = self.sender.finish(&mut self.engine, self.args.timeout)?;
            if left == unacknowledged {
                let peer = self.sender.peer();
                return Err(Error::Failed(format!("{peer} has not acknowledged all bytes in time")));
            }
            unacknowledged = left;
        }
        if self.args.raw {
            return Ok(());
        }
        let Done(got) = self.lines.read(&self.stream, self.args.timeout)?;
        // The receiver has all bytes, so the remaining buffers are released soon.
        self.sender.finish(&mut self.engine, self.args.timeout)?;
        if got == sent {
            return Ok(());
        }
        Err(Error::Failed(format!("{} has {got} of {sent} bytes", self.sender.peer())))
    }
}
