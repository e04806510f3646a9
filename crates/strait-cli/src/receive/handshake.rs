//! Selects the sender to serve among all connections. No connection delays another one: all make
//! their offers and hash their files at the same time.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait_transfer::hash::Hasher;
use strait_transfer::offer::Begins;

use super::digest::Digest;
use super::part::Output;
use super::waiting::{Sender, Waiting, refuse_now};
use super::{Args, HASH_TICK, NegotiationError, TICK};
use crate::Error;
use crate::bulk::{cannot_listen, set_timeouts};
use crate::limit::Limit;
use crate::output::print_stderr;

/// Maximum connections that wait. A further connection evicts one of them.
const WAITING_MAX: usize = 64;
/// Connections accepted between checks for offers.
const ACCEPTS_MAX: usize = 16;
/// Maximum number of networks with failed senders that are remembered.
const FAILED_MAX: usize = 64;
/// Failures reported individually in a period. The rest is counted.
const REPORTS_MAX: u64 = 16;
const REPORTS_PERIOD: Duration = Duration::from_mins(1);

/// All connections until one of them sends its bytes.
pub(super) struct Senders<'a> {
    args: &'a Args,
    listener: TcpListener,
    /// The oldest first.
    waiting: Vec<Waiting>,
    digest: Digest,
    /// Networks with senders that were served and sent no byte, and their number.
    failed: Vec<(IpAddr, u32)>,
    reports: Reports,
}

impl<'a> Senders<'a> {
    /// Listens, and prints the address with the port that the kernel chose for port 0.
    pub(super) fn listen(args: &'a Args) -> Result<Self, Error> {
        let address = args.listen;
        let failed = |error: std::io::Error| cannot_listen(address, &error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        print_stderr(format_args!("listening on {}\n", listener.local_addr().map_err(failed)?));
        let (waiting, digest, failed) = (Vec::new(), Digest::default(), Vec::new());
        let reports = Reports(Limit::new(REPORTS_MAX, REPORTS_PERIOD, Instant::now()));
        Ok(Self { args, listener, waiting, digest, failed, reports })
    }

    /// Waits for a sender.
    pub(super) fn next(&mut self, output: &Output, terminated: &AtomicBool) -> Result<Sender, Error> {
        loop {
            self.serve(output)?;
            if let Some(index) = self.ready(Duration::ZERO)?
                && let Some(sender) = self.waiting.remove(index).into_sender()
            {
                return Ok(sender);
            }
            self.wait()?;
            if terminated.load(Ordering::Relaxed) {
                return Err(Error::Failed("interrupted before a transfer arrived".into()));
            }
        }
    }

    /// Reads the lines that have arrived, and accepts connections.
    fn serve(&mut self, output: &Output) -> Result<(), Error> {
        self.reports.sum_up(false);
        let mut index = 0;
        while let Some(waiting) = self.waiting.get_mut(index) {
            match waiting.advance(self.args, output, &mut self.digest) {
                Ok(()) => index += 1,
                Err(NegotiationError::Sender(error)) => {
                    let waiting = self.waiting.remove(index);
                    if !matches!(error, Error::PeerClosed { .. }) {
                        waiting.refuse(&error.to_string());
                    }
                    self.reports.report(&error);
                }
                Err(NegotiationError::Here(error)) => {
                    waiting.refuse(&error.to_string());
                    return Err(error);
                }
            }
        }
        self.accept()
    }

    /// Returns the index of the sender to serve: of those that can be served, the oldest of a
    /// network with the fewest failed senders. Waits for the hash of the present bytes up to
    /// `timeout`.
    fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, Error> {
        let (mut ready, mut timeout) = (Vec::new(), timeout);
        let offered = self.waiting.iter_mut().enumerate().filter(|(_, waiting)| waiting.is_offered());
        for (index, waiting) in offered {
            // All wait for the same hash.
            let is_ready = waiting.is_ready(&mut self.digest, std::mem::take(&mut timeout));
            if is_ready.inspect_err(|error| waiting.refuse(&error.to_string()))? {
                ready.push(index);
            }
        }
        let rank = |index: &usize| (self.failures_of(self.waiting[*index].network()), *index);
        Ok(ready.into_iter().min_by_key(rank))
    }

    fn failures_of(&self, network: IpAddr) -> u32 {
        self.failed.iter().find(|(failed, _)| *failed == network).map_or(0, |(_, failures)| *failures)
    }

    /// Waits for a line, a connection or the hash of the present bytes.
    fn wait(&mut self) -> Result<(), Error> {
        if self.waiting.iter().any(Waiting::is_offered) {
            return self.ready(HASH_TICK).map(drop);
        }
        let streams = self.waiting.iter().filter_map(Waiting::listens);
        let fds = std::iter::once(self.listener.as_fd()).chain(streams);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut fds, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Failed(format!("wait for a connection: {error}"))),
        }
    }

    /// Takes the hasher of the present bytes `kept`.
    pub(super) fn take_hasher(&mut self, kept: Begins) -> Hasher {
        self.digest.take(kept)
    }

    /// Refuses all connections.
    pub(super) fn refuse_all(self) {
        const REASON: &str = "another sender was first, and strait receive accepts one transfer";
        self.waiting.iter().for_each(|other| other.refuse(REASON));
        // A raw sender does not read lines.
        let most = if self.args.raw { 0 } else { WAITING_MAX };
        for _ in 0..most {
            let Ok(Some(stream)) = accept(&self.listener) else { return };
            refuse_now(&stream, REASON);
        }
    }

    /// Reports the failure of a sender that was served. The receiver continues to listen, and
    /// prefers senders of other networks.
    pub(super) fn note_failure(&mut self, network: IpAddr, error: &Error) {
        if let Some((_, failures)) = self.failed.iter_mut().find(|(failed, _)| *failed == network) {
            *failures = failures.saturating_add(1);
        } else {
            if self.failed.len() == FAILED_MAX {
                self.failed.remove(0);
            }
            self.failed.push((network, 1));
        }
        self.reports.report(error);
    }

    /// Accepts some connections; of raw ones one at a time, as it needs no offer.
    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..ACCEPTS_MAX {
            if self.args.raw && !self.waiting.is_empty() {
                return Ok(());
            }
            let Some(stream) = accept(&self.listener)? else { return Ok(()) };
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            set_timeouts(&stream, self.args.timeout)?;
            if self.waiting.len() == WAITING_MAX {
                self.evict();
            }
            self.waiting.push(Waiting::new(stream, self.args.raw));
        }
        Ok(())
    }

    /// Removes a connection to make a place for another one.
    fn evict(&mut self) {
        let waiting: Vec<_> =
            self.waiting.iter().map(|waiting| (waiting.network(), waiting.is_offered())).collect();
        if let Some(index) = first_to_evict(&waiting) {
            self.waiting.remove(index).refuse("no place: other connections wait, try again");
        }
    }
}

/// Reported failures of connections. Dropping it reports the number of the hidden ones.
struct Reports(Limit);

impl Reports {
    fn report(&mut self, error: &Error) {
        if self.0.permits() {
            print_stderr(format_args!("strait: {error}; listening on\n"));
        }
    }

    /// Reports the number of hidden failures at the end of a period, or at the end of all.
    fn sum_up(&mut self, is_end: bool) {
        if let Some(hidden) = self.0.renew(Instant::now(), is_end) {
            print_stderr(format_args!("strait: {hidden} more connections failed\n"));
        }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.sum_up(true);
    }
}

/// Returns the index of the connection to evict, given the network of each, and true for those with
/// a complete offer: of the network with the most, so that a client with many connections evicts
/// its own; of these the first one without an offer.
fn first_to_evict(waiting: &[(IpAddr, bool)]) -> Option<usize> {
    let rank = |index: &usize| {
        let (network, is_offered) = waiting[*index];
        (waiting.iter().filter(|(other, _)| *other == network).count(), !is_offered)
    };
    // max_by_key returns the last of equal elements.
    (0..waiting.len()).rev().max_by_key(rank)
}

/// Time limit for the first byte of a sender while another sender waits. Without it a sender could
/// block all others by sending only `wait`.
pub(super) struct Deadline {
    since: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn new(args: &Args) -> Self {
        Self { since: Instant::now(), limit: args.timeout }
    }

    /// Serves the other connections. Fails if the limit has passed and one of them can replace the
    /// sender.
    pub(super) fn check(&self, senders: &mut Senders<'_>, output: &Output) -> Result<(), NegotiationError> {
        senders.serve(output)?;
        if self.since.elapsed() <= self.limit || senders.ready(Duration::ZERO)?.is_none() {
            return Ok(());
        }
        let seconds = self.limit.as_secs_f64();
        let text = format!("the sender has sent no byte for {seconds} s, and another sender waits");
        Err(NegotiationError::Sender(Error::Failed(text)))
    }
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn line() -> Line {
        <Line as clap::Parser>::parse_from(["receive"])
    }

    fn output() -> Output {
        Output::open(None).unwrap()
    }

    fn connect_from(last: u8, senders: &Senders<'_>) -> TcpStream {
        let SocketAddr::V4(address) = senders.listener.local_addr().unwrap() else { unreachable!() };
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
        connect(&socket, &address).unwrap();
        socket.into()
    }

    fn offered(senders: &Senders<'_>) -> usize {
        senders.waiting.iter().filter(|waiting| waiting.is_offered()).count()
    }

    #[test]
    fn connection_with_an_offer_is_not_evicted_for_silent_ones() {
        let line = line();
        let (mut senders, output) = (Senders::listen(&line.args).unwrap(), output());
        let first = connect_from(1, &senders);
        (&first).write_all(b"strait-send 4 length=7\n").unwrap();
        while offered(&senders) == 0 {
            senders.serve(&output).unwrap();
        }
        let others: Vec<_> = (0..WAITING_MAX)
            .map(|_| {
                let (other, waiting) = (connect_from(1, &senders), senders.waiting.len());
                while waiting < WAITING_MAX && senders.waiting.len() == waiting {
                    senders.serve(&output).unwrap();
                }
                other
            })
            .collect();
        // The last connection evicts one.
        let mut evicted = Vec::new();
        while evicted.is_empty() {
            senders.serve(&output).unwrap();
            let is_evicted = |other: &&TcpStream| {
                other.set_nonblocking(true).unwrap();
                other.peek(&mut [0]).is_ok()
            };
            evicted = others.iter().filter(is_evicted).collect();
        }
        let sender = senders.next(&output, &AtomicBool::new(false)).unwrap();
        assert_eq!(sender.stream.peer_addr().unwrap(), first.local_addr().unwrap());
        assert_eq!(sender.offer.unwrap().length, Some(7));
    }

    #[test]
    fn sender_from_a_network_without_failures_is_served_first() {
        let line = line();
        let (mut senders, output) = (Senders::listen(&line.args).unwrap(), output());
        let failure = Error::Failed("no byte".into());
        for last in [1, 2, 1] {
            senders.note_failure(Ipv4Addr::new(127, 0, 0, last).into(), &failure);
        }
        let all = [1, 2, 3].map(|last| {
            let (stream, before) = (connect_from(last, &senders), offered(&senders));
            (&stream).write_all(b"strait-send 4 length=7\n").unwrap();
            while offered(&senders) == before {
                senders.serve(&output).unwrap();
            }
            stream
        });
        for expected in [2, 1, 0] {
            let sender = senders.next(&output, &AtomicBool::new(false)).unwrap();
            assert_eq!(sender.stream.peer_addr().unwrap(), all[expected].local_addr().unwrap());
        }
    }

    #[test]
    fn number_of_remembered_failures_is_limited() {
        let line = line();
        let mut senders = Senders::listen(&line.args).unwrap();
        let failure = Error::Failed("no byte".into());
        for last in 0..=FAILED_MAX as u8 {
            senders.note_failure(Ipv4Addr::new(10, 0, 0, last).into(), &failure);
        }
        assert_eq!(senders.failed.len(), FAILED_MAX);
        assert_eq!(senders.failures_of(Ipv4Addr::new(10, 0, 0, 0).into()), 0);
        assert_eq!(senders.failures_of(Ipv4Addr::new(10, 0, 0, 1).into()), 1);
    }

    #[test]
    fn oldest_connection_of_the_most_frequent_address_is_evicted() {
        let of = |last: &[u8], offered: &[usize]| -> Vec<(IpAddr, bool)> {
            let is_offered = |index| offered.contains(&index);
            let network = |last: &u8| Ipv4Addr::new(10, 0, 0, *last).into();
            last.iter().enumerate().map(|(index, last)| (network(last), is_offered(index))).collect()
        };
        for (networks, offered, index) in [
            (&[1, 2, 3][..], &[][..], 0),
            (&[1, 2, 2], &[], 1),
            (&[1, 2, 3, 3, 2], &[], 1),
            (&[1, 2, 1, 2, 2], &[], 1),
            (&[1, 2, 3], &[0], 1),
            (&[1, 2, 2], &[1], 2),
            (&[1, 2, 2], &[1, 2], 1),
        ] {
            assert_eq!(first_to_evict(&of(networks, offered)), Some(index), "{networks:?} {offered:?}");
        }
        assert_eq!(first_to_evict(&[]), None);
    }
}
