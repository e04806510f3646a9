//! Selects the sender with an offer among all connections. Silent connections do not delay others.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::offer::Offer;

use super::{AgreeError, Args, TICK};
use crate::Error;
use crate::bulk::{Incoming, Lines, cannot_listen, name, no_answer, set_timeouts};
use crate::output::tell;

/// Maximum connections without an offer. A further connection evicts one of them.
const WAITING_MAX: usize = 64;
/// Connections accepted between checks for offers.
const ACCEPTS_MAX: usize = 16;
/// Assumed hash rate of the sender: the read rate of a slow disk.
const HASHED_BYTES_S_MIN: u64 = 20_000_000;
/// Maximum number of reported failures.
const REPORTS_MAX: usize = 16;

/// A connection, its lines, and its offer unless the transfer is raw.
pub(super) type Sender = (TcpStream, Lines, Option<Offer>);

/// All connections until one of them sends its bytes.
pub(super) struct Senders<'a> {
    args: &'a Args,
    listener: TcpListener,
    waiting: Vec<Waiting>,
    /// The next sender, found while another one was served.
    successor: Option<Sender>,
    reports: usize,
}

/// A connection without an offer yet.
struct Waiting {
    stream: TcpStream,
    lines: Lines,
    since: Instant,
    network: IpAddr,
}

impl<'a> Senders<'a> {
    /// Listens, and prints the address with the port that the kernel chose for port 0.
    pub(super) fn listen(args: &'a Args) -> Result<Self, Error> {
        let address = args.listen;
        let failed = |error: std::io::Error| cannot_listen(address, &error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        tell(format_args!("listening on {}\n", listener.local_addr().map_err(failed)?));
        Ok(Self { args, listener, waiting: Vec::new(), successor: None, reports: 0 })
    }

    /// Waits for a sender.
    pub(super) fn next(&mut self, terminated: &AtomicBool) -> Result<Sender, Error> {
        loop {
            if self.has_sender()?
                && let Some(sender) = self.successor.take()
            {
                return Ok(sender);
            }
            wait(&self.listener, &self.waiting)?;
            if terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted before a transfer arrived".into()));
            }
        }
    }

    /// Returns true if there is a sender, which [`Self::next`] returns.
    fn has_sender(&mut self) -> Result<bool, Error> {
        if self.successor.is_none() {
            self.successor = self.offering();
        }
        if self.successor.is_none() {
            self.successor = self.accept()?;
        }
        Ok(self.successor.is_some())
    }

    /// Refuses all other connections.
    pub(super) fn refuse_all(self) {
        const REASON: &str = "another sender was first, and strait receive accepts one transfer";
        let others = self.waiting.into_iter().map(|other| other.stream);
        for other in others.chain(self.successor.map(|(stream, ..)| stream)) {
            refuse_now(&other, REASON);
        }
        // A raw sender does not read lines.
        let most = if self.args.raw { 0 } else { WAITING_MAX };
        for _ in 0..most {
            let Ok(Some(stream)) = accept(&self.listener) else { return };
            refuse_now(&stream, REASON);
        }
    }

    /// Reports the failure of a sender. The receiver continues to listen.
    pub(super) fn report(&mut self, error: &Error) {
        self.reports += 1;
        if self.reports <= REPORTS_MAX {
            tell(format_args!("strait: {error}; listening on\n"));
        }
    }

    /// Returns the oldest connection with an offer.
    fn offering(&mut self) -> Option<Sender> {
        let mut index = 0;
        while index < self.waiting.len() {
            match self.waiting[index].offer(self.args) {
                Ok(None) => index += 1,
                Ok(Some(offer)) => return Some(self.waiting.remove(index).with(offer)),
                Err(error) => {
                    self.waiting.remove(index);
                    self.report(&error);
                }
            }
        }
        None
    }

    /// Accepts some connections. Returns a sender if the transfer is raw, or if an evicted
    /// connection has an offer.
    fn accept(&mut self) -> Result<Option<Sender>, Error> {
        for _ in 0..ACCEPTS_MAX {
            let Some(stream) = accept(&self.listener)? else { return Ok(None) };
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            set_timeouts(&stream, self.args.timeout)?;
            if self.args.raw {
                return Ok(Some((stream, Lines::default(), None)));
            }
            let sender = if self.waiting.len() < WAITING_MAX { None } else { self.evict() };
            self.waiting.push(Waiting::new(stream));
            if sender.is_some() {
                return Ok(sender);
            }
        }
        Ok(None)
    }

    /// Removes a connection to make a place for another one, and returns it if its offer has
    /// arrived.
    fn evict(&mut self) -> Option<Sender> {
        let networks: Vec<IpAddr> = self.waiting.iter().map(|waiting| waiting.network).collect();
        let mut evicted = self.waiting.remove(oldest_of_the_most(&networks)?);
        match evicted.offer(self.args) {
            Ok(Some(offer)) => return Some(evicted.with(offer)),
            Ok(None) => {
                refuse_now(&evicted.stream, "no offer arrived, and other connections wait: try again");
            }
            Err(error) => self.report(&error),
        }
        None
    }
}

/// Returns the first index of the most frequent value, so that a client with many connections
/// evicts its own.
fn oldest_of_the_most(networks: &[IpAddr]) -> Option<usize> {
    let count = |index: &usize| networks.iter().filter(|other| **other == networks[*index]).count();
    // max_by_key returns the last of equal elements.
    (0..networks.len()).rev().max_by_key(count)
}

/// Returns an IPv4 address, or the /64 network of an IPv6 address, in which a client has any number
/// of addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

impl Waiting {
    fn new(stream: TcpStream) -> Self {
        // The address of a connection that was already reset is unknown.
        let address = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
        Self { stream, lines: Lines::default(), since: Instant::now(), network: network(address) }
    }

    fn with(self, offer: Offer) -> Sender {
        (self.stream, self.lines, Some(offer))
    }

    /// Returns the offer if it has arrived.
    fn offer(&mut self, args: &Args) -> Result<Option<Offer>, Error> {
        match self.lines.poll(&self.stream) {
            Ok(Incoming::Line(offer)) => Ok(Some(offer)),
            Ok(Incoming::Nothing | Incoming::Alive) if self.since.elapsed() < args.timeout => Ok(None),
            Ok(_) => Err(Error::Failed(format!("{}: no offer in time", name(&self.stream)))),
            Err(error) => {
                // The reason is sent without waiting: the sender may be gone.
                if !matches!(error, Error::PeerClosed { .. }) {
                    refuse_now(&self.stream, &error.to_string());
                }
                Err(error)
            }
        }
    }
}

/// Time limit for a sender's first byte while another sender waits. Without it a sender could block
/// all others by sending only `wait`.
pub(super) struct Deadline {
    since: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn new(args: &Args) -> Self {
        Self { since: Instant::now(), limit: args.timeout }
    }

    /// Restarts the limit, and extends it by the time in which the sender hashes `bytes` bytes.
    pub(super) fn allow_hashing(&mut self, bytes: u64) {
        self.since = Instant::now();
        self.limit += Duration::from_secs(bytes / HASHED_BYTES_S_MIN);
    }

    /// Fails if the limit has passed and another sender waits.
    pub(super) fn check(&self, senders: &mut Senders<'_>) -> Result<(), AgreeError> {
        if self.since.elapsed() <= self.limit || !senders.has_sender()? {
            return Ok(());
        }
        let seconds = self.limit.as_secs_f64();
        let text = format!("the sender has sent no byte for {seconds} s, and another sender waits");
        Err(AgreeError::Sender(Error::Failed(text)))
    }
}

/// Waits for a line of a sender that hashes its file first.
pub(super) fn read_line<T: FromStr<Err: Display>>(
    (stream, lines): (&TcpStream, &mut Lines),
    timeout: Duration,
    terminated: &AtomicBool,
    mut check: impl FnMut() -> Result<(), AgreeError>,
) -> Result<T, AgreeError> {
    let mut last = Instant::now();
    loop {
        match lines.poll(stream).map_err(AgreeError::Sender)? {
            Incoming::Line(line) => return Ok(line),
            Incoming::Alive => last = Instant::now(),
            Incoming::Nothing => super::wait(stream, PollFlags::IN)?,
        }
        if terminated.load(Ordering::Relaxed) {
            return Err(Error::Failed("interrupted".into()).into());
        }
        if last.elapsed() > timeout {
            return Err(AgreeError::Sender(no_answer(stream)));
        }
        check()?;
    }
}

/// Refuses a connection without waiting for its end.
fn refuse_now(stream: &TcpStream, reason: &str) {
    let line = strait_transfer::offer::Refusal(reason.to_owned()).to_string();
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    // An error means that the other end is gone, which needs no reason.
    let _ = rustix::net::send(stream, line.as_bytes(), flags);
}

fn failed(error: &std::io::Error) -> Error {
    Error::Failed(format!("accept a connection: {error}"))
}

/// Returns the next connection, if there is one.
fn accept(listener: &TcpListener) -> Result<Option<TcpStream>, Error> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|error| failed(&error))?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            // The connection was reset before accept(2), or a signal arrived.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(failed(&error)),
        }
    }
}

fn wait(listener: &TcpListener, waiting: &[Waiting]) -> Result<(), Error> {
    let streams = waiting.iter().map(|waiting| waiting.stream.as_fd());
    let fds = std::iter::once(listener.as_fd()).chain(streams);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    match poll(&mut fds, Some(&tick)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Error::Failed(format!("wait for a connection: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn evicted_connection_with_an_offer_becomes_the_sender() {
        let line = <Line as clap::Parser>::parse_from(["receive"]);
        let mut senders = Senders::listen(&line.args).unwrap();
        let address = senders.listener.local_addr().unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let first = connect();
        while senders.waiting.is_empty() {
            assert!(senders.accept().unwrap().is_none());
        }
        (&first).write_all(b"strait-send 4 length=7\n").unwrap();
        senders.waiting[0].stream.peek(&mut [0]).unwrap();
        let others: Vec<_> = (1..WAITING_MAX).map(|_| connect()).collect();
        while senders.waiting.len() < WAITING_MAX {
            assert!(senders.accept().unwrap().is_none());
        }
        let last = connect();
        let (sender, _, offer) = loop {
            if let Some(sender) = senders.accept().unwrap() {
                break sender;
            }
        };
        assert_eq!(sender.peer_addr().unwrap(), first.local_addr().unwrap());
        assert_eq!(offer.unwrap().length, Some(7));
        assert_eq!(senders.waiting.len(), WAITING_MAX);
        drop((others, last));
    }

    #[test]
    fn oldest_connection_of_the_most_frequent_address_is_evicted() {
        let of =
            |last: &[u8]| last.iter().map(|last| Ipv4Addr::new(10, 0, 0, *last).into()).collect::<Vec<_>>();
        for (networks, index) in
            [(&[1, 2, 3][..], 0), (&[1, 2, 2], 1), (&[1, 2, 3, 3, 2], 1), (&[1, 2, 1, 2, 2], 1)]
        {
            assert_eq!(oldest_of_the_most(&of(networks)), Some(index), "{networks:?}");
        }
        assert_eq!(oldest_of_the_most(&[]), None);
    }

    #[test]
    fn addresses_of_a_network_count_as_one() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
