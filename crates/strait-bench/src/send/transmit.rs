//! Measured sender: sends one message repeatedly on one connection, or on several in turn, by one
//! way, and prints its rate and CPU cost.
//!
//! The ways other than `strait` are minimal, so that their cost is that of the system calls.

mod parts;

use std::fs::File;
use std::io::{IoSlice, Read as _, Seek as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};
use serde::{Deserialize, Serialize};
use strait_ledger::Transfer;
use strait_os::{process, wait};
use strait_sys::uring::{Event, Ring, SendOptions, VIEWS_MAX};
use strait_transfer::plan::PIECES_MAX;
use strait_transfer::{Engine, FilePart, Options as EngineOptions, Plan, Segment, Sender};

use super::peers::PeersLoad;
use super::way::Way;
use crate::child;
use crate::error::{Error, Result};
use parts::{Parts, file};

/// Size of a small piece of a message in bytes.
pub const PIECE_BYTES: usize = 64;
/// Memory from which bodies are sent in turn, unless one body is larger. It exceeds the CPU caches,
/// in which a server's data rarely is.
pub const BODIES_BYTES: usize = 64 << 20;
/// Extra chunks for pieces that Strait gathers.
const GATHERING: u32 = 64;
/// Timeout of sends and completions.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the connection to the far end.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Messages between two readings of the clock.
const MESSAGES_PER_CLOCK_READING: u32 = 16;
/// Limit of zero-copy sends in flight.
const IN_FLIGHT_MAX: usize = 4096;
/// Limit of requests of a message.
const REQUESTS_MAX: usize = 8;
/// Bytes of a read in the way `send` of a file.
const READ_BYTES: usize = 64 << 10;
/// Congestion control of every way: bbr, the default of some systems, would pace the loopback.
const CONGESTION: &str = "reno";

/// Options of the sender.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the far end.
    pub to: SocketAddr,
    /// Way to send.
    pub way: Way,
    /// Message to send.
    pub message: Message,
    /// Time of the measurement.
    pub time: Duration,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Fixed number of sends to several peers, instead of the time.
    pub peers: Option<PeersLoad>,
}

/// Message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// This many pieces of [`PIECE_BYTES`], and a body.
    Memory {
        /// Number of pieces.
        pieces: usize,
        /// Size of the body in bytes.
        body: usize,
    },
    /// File of this size in bytes.
    File(u64),
}

impl Message {
    fn bytes(self) -> u64 {
        match self {
            Self::Memory { pieces, body } => (pieces * PIECE_BYTES + body) as u64,
            Self::File(bytes) => bytes,
        }
    }
}

/// Figures of the measured time, and totals of all connections.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    /// Complete messages.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Bytes of all connections, warm-up included.
    pub all_bytes: u64,
    /// Measured time in seconds.
    pub seconds: f64,
    /// CPU seconds of this process, user and system.
    pub cpu_s: f64,
    /// Share of all bytes sent without a copy, as reported by the kernel; None if the way has no
    /// zero-copy.
    pub zero_copy: Option<f64>,
    /// Share of all bytes sent as zero-copy requests, even if the kernel copied them; None if the
    /// way has no zero-copy.
    pub lent: Option<f64>,
    /// Way and congestion control.
    pub got: String,
}

/// Sends until the time is over or `terminated`, and prints an [`Account`] as JSON.
pub fn run(options: &Options, terminated: &AtomicBool) -> Result<()> {
    let peers = options.peers.map_or(1, |load| load.peers);
    let streams = (0..peers).map(|number| connect(peer(options.to, number)?)).collect::<Result<_>>()?;
    let mut transmitter = transmitter(options, RoundRobin::new(streams))?;
    let mut all = send_for(options.warm_up, &mut *transmitter, terminated)?;
    let (began, cpu) = (Instant::now(), cpu_time()?);
    let messages = match options.peers {
        Some(load) => send_each(load, &mut *transmitter, terminated)?,
        None => send_for(options.time, &mut *transmitter, terminated)?,
    };
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), cpu_time()?.saturating_sub(cpu).as_secs_f64());
    all += messages;
    let shares = transmitter.finish()?;
    let (zero_copy, lent) = shares.map(|shares| (shares.zero_copy, shares.lent)).unzip();
    let (bytes, all_bytes) = (messages * options.message.bytes(), all * options.message.bytes());
    let got = format!("{}, {CONGESTION}", options.way);
    let account = Account { messages, bytes, all_bytes, seconds, cpu_s, zero_copy, lent, got };
    child::print(&account)
}

/// Returns the address of a peer: peers have consecutive addresses.
fn peer(first: SocketAddr, number: u32) -> Result<SocketAddr> {
    match first.ip() {
        IpAddr::V4(ip) => {
            let ip = Ipv4Addr::from_bits(ip.to_bits().wrapping_add(number));
            Ok(SocketAddr::new(ip.into(), first.port()))
        }
        IpAddr::V6(_) if number == 0 => Ok(first),
        IpAddr::V6(_) => Err(Error::Usage("several peers need an IPv4 address".into())),
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let failed = |source| Error::file(format!("connect to {to}"), source);
    let stream = TcpStream::connect_timeout(&to, CONNECT_MAX).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    sockopt::set_tcp_congestion(&stream, CONGESTION)
        .map_err(|error| Error::file(format!("use the congestion control {CONGESTION}"), error))?;
    Ok(stream)
}

fn cpu_time() -> Result<Duration> {
    Ok(process::cpu_time_of(std::process::id())?)
}

/// Sends for `time`; returns the number of messages.
fn send_for(time: Duration, transmitter: &mut dyn Transmit, terminated: &AtomicBool) -> Result<u64> {
    let (began, mut messages) = (Instant::now(), 0);
    while began.elapsed() < time && !terminated.load(Ordering::Relaxed) {
        for _ in 0..MESSAGES_PER_CLOCK_READING {
            transmitter.message()?;
        }
        messages += u64::from(MESSAGES_PER_CLOCK_READING);
    }
    Ok(messages)
}

/// Sends to each peer in turn as often as `load` says; returns the number of messages.
fn send_each(load: PeersLoad, transmitter: &mut dyn Transmit, terminated: &AtomicBool) -> Result<u64> {
    let all = u64::from(load.peers) * u64::from(load.sends);
    for sent in 0..all {
        if terminated.load(Ordering::Relaxed) {
            return Ok(sent);
        }
        transmitter.message()?;
        if !load.pause.is_zero() {
            wait::sleep(load.pause);
        }
    }
    Ok(all)
}

/// Connections used in turn.
struct RoundRobin<T> {
    all: Vec<T>,
    turn: usize,
}

impl<T> RoundRobin<T> {
    fn new(all: Vec<T>) -> Self {
        Self { all, turn: 0 }
    }

    fn next(&mut self) -> &mut T {
        self.turn = (self.turn + 1) % self.all.len();
        &mut self.all[self.turn]
    }

    fn try_map<U>(self, make: impl FnMut(T) -> Result<U>) -> Result<RoundRobin<U>> {
        Ok(RoundRobin::new(self.all.into_iter().map(make).collect::<Result<_>>()?))
    }
}

/// Shares of all bytes.
struct Shares {
    /// Sent without a copy, as reported by the kernel.
    zero_copy: f64,
    /// Sent as zero-copy requests.
    lent: f64,
}

/// Way to send.
trait Transmit {
    /// Passes one message to the kernel.
    fn message(&mut self) -> Result<()>;

    /// Waits until the kernel has released all zero-copy buffers. Returns the shares of a way that
    /// has zero-copy.
    fn finish(&mut self) -> Result<Option<Shares>> {
        Ok(None)
    }
}

fn transmitter(options: &Options, mut streams: RoundRobin<TcpStream>) -> Result<Box<dyn Transmit>> {
    let to = options.to.to_string();
    match (options.way, options.message) {
        (Way::Send, Message::Memory { pieces, body }) => {
            let pool = Parts::pool(pieces, body)?;
            Ok(Box::new(Copying { streams, parts: Parts::new(|| pool.take(), pieces, body)? }))
        }
        (Way::Coalesce, Message::Memory { pieces, body }) => {
            let pool = Parts::pool(pieces, body)?;
            let parts = Parts::new(|| pool.take(), pieces, body)?;
            Ok(Box::new(Coalescing { streams, parts, whole: Vec::new() }))
        }
        (Way::ZeroCopy | Way::Registered | Way::Split, Message::Memory { pieces, body }) => {
            let pool = Parts::pool(pieces, body)?;
            let mut ring = Ring::new(REQUESTS_MAX as u32, IN_FLIGHT_MAX)?;
            if options.way == Way::Registered {
                ring.register(&pool)?;
            }
            let parts = Parts::new(|| pool.take(), pieces, body)?;
            let splits = options.way == Way::Split;
            Ok(Box::new(ZeroCopySend::new(ring, streams, parts, splits, to)?))
        }
        (Way::Mapped, message) => {
            let ring = Ring::new(REQUESTS_MAX as u32, IN_FLIGHT_MAX)?;
            Ok(Box::new(ZeroCopySend::new(ring, streams, Parts::mapped(message)?, false, to)?))
        }
        (Way::Strait, message) => Ok(Box::new(Planned::new(message, streams)?)),
        (Way::Send, Message::File(bytes)) => {
            let stream = streams.all.swap_remove(0);
            Ok(Box::new(Reading { stream, file: file(bytes)?, chunk: vec![0; READ_BYTES] }))
        }
        (Way::Sendfile, Message::File(bytes)) => {
            let stream = streams.all.swap_remove(0);
            Ok(Box::new(FromFile { stream, file: file(bytes)?, bytes }))
        }
        (way, _) => Err(Error::Usage(format!("{way} does not send this"))),
    }
}

fn failed(error: Errno) -> Error {
    Error::file("send", error)
}

/// sendmsg(2).
struct Copying {
    streams: RoundRobin<TcpStream>,
    parts: Parts,
}

impl Transmit for Copying {
    fn message(&mut self) -> Result<()> {
        let stream = self.streams.next();
        let views = match self.parts.next() {
            ([], [body]) => return stream.write_all(body).map_err(|error| Error::file("send", error)),
            _ => &self.parts.views,
        };
        let last = views.chunks(PIECES_MAX).count() - 1;
        for (number, pieces) in views.chunks(PIECES_MAX).enumerate() {
            let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut slices = &mut slices[..];
            let more = if number == last { SendFlags::empty() } else { SendFlags::MORE };
            while !slices.is_empty() {
                let sent = sendmsg(&*stream, slices, &mut SendAncillaryBuffer::default(), more);
                IoSlice::advance_slices(&mut slices, sent.map_err(failed)?);
            }
        }
        Ok(())
    }
}

/// Copies all parts into one buffer, then send(2).
struct Coalescing {
    streams: RoundRobin<TcpStream>,
    parts: Parts,
    whole: Vec<u8>,
}

impl Transmit for Coalescing {
    fn message(&mut self) -> Result<()> {
        let (pieces, body) = self.parts.next();
        self.whole.clear();
        for view in pieces.iter().chain(body) {
            self.whole.extend_from_slice(view);
        }
        self.streams.next().write_all(&self.whole).map_err(|error| Error::file("send", error))
    }
}

/// The kernel's reports on zero-copy buffers.
#[derive(Default)]
struct Reported {
    messages: u64,
    copied: u64,
}

impl Reported {
    /// Returns the share of buffers that were not copied.
    fn zero_copy(&self) -> f64 {
        1.0 - self.copied as f64 / self.messages.max(1) as f64
    }
}

/// `SEND_ZC` or `SENDMSG_ZC`. With `splits` the pieces go by `SENDMSG`, linked to `SEND_ZC` for the
/// body, as D5 proposes.
struct ZeroCopySend {
    ring: Ring,
    sockets: RoundRobin<Arc<OwnedFd>>,
    parts: Parts,
    /// True if the pieces are copied, by separate requests.
    splits: bool,
    reported: Reported,
    to: String,
}

impl ZeroCopySend {
    fn new(
        ring: Ring,
        streams: RoundRobin<TcpStream>,
        parts: Parts,
        splits: bool,
        to: String,
    ) -> Result<Self> {
        let sockets = streams.try_map(|stream| Ok(Arc::new(OwnedFd::from(stream))))?;
        Ok(Self { ring, sockets, parts, splits, reported: Reported::default(), to })
    }

    /// Takes all pending completions; returns the number of results.
    fn take(&mut self) -> Result<usize> {
        let mut results = 0;
        while let Some(event) = self.ring.next_event() {
            match event {
                Event::Sent { result: Ok(_), .. } => results += 1,
                Event::Sent { result: Err(errno), .. } => {
                    return Err(Error::file(
                        format!("send to {}", self.to),
                        std::io::Error::from_raw_os_error(errno),
                    ));
                }
                Event::Returned { copied, .. } => {
                    self.reported.messages += 1;
                    self.reported.copied += u64::from(copied);
                }
            }
        }
        Ok(results)
    }
}

impl Transmit for ZeroCopySend {
    fn message(&mut self) -> Result<()> {
        // Wait until the whole chain fits: links do not cross two submissions.
        while self.ring.in_progress() + REQUESTS_MAX > IN_FLIGHT_MAX {
            self.ring.enter(1, TIMEOUT)?;
            self.take()?;
        }
        let socket = self.sockets.next();
        let (pieces, body) = self.parts.next();
        let (copied, lent) = if self.splits { (pieces, body) } else { (&[][..], &self.parts.views[..]) };
        let requests = copied.chunks(VIEWS_MAX).map(|some| (some, false));
        let mut requests = requests.chain(lent.chunks(VIEWS_MAX).map(|some| (some, true))).peekable();
        let mut under_way = 0;
        while let Some((some, zero_copy)) = requests.next() {
            let linked = requests.peek().is_some();
            let how =
                SendOptions { zero_copy, wait_all: true, more: linked, linked, ..SendOptions::default() };
            let pushed = self.ring.push(socket, some, how, 0);
            pushed
                .map_err(|_| Error::Usage(format!("give at most {} pieces", REQUESTS_MAX * VIEWS_MAX / 2)))?;
            under_way += 1;
        }
        while under_way > 0 {
            self.ring.enter(under_way, TIMEOUT)?;
            under_way -= self.take()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<Shares>> {
        let deadline = Instant::now() + TIMEOUT;
        while self.ring.borrowed() > 0 && Instant::now() < deadline {
            self.ring.enter(1, Duration::from_millis(100))?;
            self.take()?;
        }
        let lent = if self.splits { self.parts.body_share() } else { 1.0 };
        Ok(Some(Shares { zero_copy: self.reported.zero_copy(), lent }))
    }
}

/// Strait's sender. As in a server, each message gets a new plan.
struct Planned {
    engine: Engine,
    senders: RoundRobin<Sender>,
    content: Content,
}

enum Content {
    Parts(Parts),
    File(FilePart),
}

impl Planned {
    fn new(message: Message, streams: RoundRobin<TcpStream>) -> Result<Self> {
        let senders = streams.try_map(|stream| Ok(Sender::new(stream)?))?;
        let (pieces, body) = match message {
            Message::Memory { pieces, body } => (pieces, body),
            Message::File(bytes) => {
                let part = FilePart { file: Arc::new(file(bytes)?), offset: 0, len: bytes };
                let engine = Engine::new(EngineOptions::default())?;
                return Ok(Self { engine, senders, content: Content::File(part) });
            }
        };
        let engine = Engine::new(EngineOptions {
            buffer_bytes: Parts::chunk_bytes(pieces, body),
            buffers: Parts::chunks(pieces, body) + GATHERING,
            ..EngineOptions::default()
        })?;
        let parts = Parts::new(|| engine.buffer(), pieces, body)?;
        Ok(Self { engine, senders, content: Content::Parts(parts) })
    }
}

impl Transmit for Planned {
    fn message(&mut self) -> Result<()> {
        let mut plan = Plan::new();
        match &mut self.content {
            Content::File(part) => plan.push(Segment::File(part.clone())),
            Content::Parts(parts) => {
                let (pieces, body) = parts.next();
                if !pieces.is_empty() {
                    plan.push(self.engine.gather(pieces.iter().map(|piece| &**piece)));
                }
                for body in body {
                    plan.push(Segment::Shared(body.clone()));
                }
            }
        }
        Ok(self.senders.next().send(&mut self.engine, plan, TIMEOUT)?)
    }

    fn finish(&mut self) -> Result<Option<Shares>> {
        let mut account = Transfer::default();
        for sender in &mut self.senders.all {
            sender.finish(&mut self.engine, TIMEOUT)?;
            account.add(&sender.account());
        }
        // Files are sent with sendfile, which does not count as a zero-copy request.
        if matches!(self.content, Content::File(_)) {
            return Ok(None);
        }
        let share = |bytes: u64| bytes as f64 / account.bytes().max(1) as f64;
        let lent = account.zero_copy + account.zero_copy_copied + account.zero_copy_unreported;
        Ok(Some(Shares { zero_copy: share(account.zero_copy), lent: share(lent) }))
    }
}

/// read(2) and send(2).
struct Reading {
    stream: TcpStream,
    file: File,
    chunk: Vec<u8>,
}

impl Transmit for Reading {
    fn message(&mut self) -> Result<()> {
        let failed = |error| Error::file("send a file", error);
        self.file.rewind().map_err(failed)?;
        loop {
            let read = self.file.read(&mut self.chunk).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            self.stream.write_all(&self.chunk[..read]).map_err(failed)?;
        }
    }
}

/// sendfile(2).
struct FromFile {
    stream: TcpStream,
    file: File,
    bytes: u64,
}

impl Transmit for FromFile {
    fn message(&mut self) -> Result<()> {
        let mut offset = 0;
        while offset < self.bytes {
            let left = (self.bytes - offset) as usize;
            rustix::fs::sendfile(&self.stream, &self.file, Some(&mut offset), left).map_err(failed)?;
        }
        Ok(())
    }
}
