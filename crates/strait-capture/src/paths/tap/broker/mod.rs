//! Broker of taps: a process that keeps the privilege to load programs, for a program that drops
//! its own before it opens a capture.
//!
//! `strait run` starts the process, which calls [`serve_broker`](super::serve_broker); the libpcap
//! drop-in opens its captures with a [`Broker`]. The program inherits a socket for requests. A
//! caller shows a packet socket: it can capture on its network namespace already. It gets the
//! descriptors of rings and doorbells, and never that of a program or link. A [`receiver`] takes
//! the caller's descriptors. `docs/internals/libpcap.md` has the protocol.

pub(super) mod message;
pub(super) mod receiver;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use strait_filter::cbpf::Program;
use strait_filter::tap::layout::Sizes;
use strait_sys::bpf::{Doorbell, Map, TcxHook};
use strait_sys::{inherited, packet};

use self::message::{Call, Message, Outcome};
use super::memory::Memory;
use crate::error::Error;

/// Environment variable by which a program finds the broker.
pub const VARIABLE: &str = "STRAIT_TAP_BROKER";
/// Maximum time of a call: the verifier takes seconds for the longest filters.
const LIMIT: Duration = Duration::from_mins(1);

/// Access to a broker.
#[derive(Clone, Debug)]
pub struct Broker {
    socket: Arc<OwnedFd>,
}

impl Broker {
    /// Returns the access to a broker, and the socket that the broker has to
    /// [serve](super::serve_broker).
    pub fn pair() -> Result<(Self, OwnedFd), Error> {
        let (own, brokers) = pair().map_err(unmade)?;
        Ok((Self { socket: Arc::new(own) }, brokers))
    }

    /// Passes the access on to the next program of this process (execve(2)). Returns the value for
    /// its [`VARIABLE`].
    pub fn pass_on(&self) -> Result<String, Error> {
        rustix::io::fcntl_setfd(&*self.socket, FdFlags::empty()).map_err(|errno| failed("pass on", errno))?;
        let inode = inode(&self.socket).map_err(|errno| failed("look at", errno))?;
        Ok(format!("{}:{inode}", self.socket.as_raw_fd()))
    }

    /// Returns the access that an earlier program of this process passed on as `value`; `None` if
    /// the descriptor has been closed.
    pub fn inherited(value: &str) -> Option<Self> {
        let (number, expected) = value.split_once(':')?;
        let socket = inherited::duplicate(number.parse().ok()?).ok()?;
        // The program may have reused the number.
        let is_same = expected.parse() == Ok(inode(&socket).ok()?);
        is_same.then(|| Self { socket: Arc::new(socket) })
    }

    /// Has a tap's memory made. `socket` shows that this process may capture in its network
    /// namespace, which must be the broker's. `sizes` are those that the readers expect, for `cpus`
    /// processors.
    pub(super) fn open(
        &self,
        options: &Options<'_>,
        socket: &packet::Socket,
        sizes: &Sizes,
        cpus: u32,
    ) -> Result<(Tap, Memory), Error> {
        let call = Call::Open { options: *options }.encode()?;
        let mut descriptors = self.request(&call, socket.as_fd(), options.interface)?.into_iter();
        let mut next = || descriptors.next().ok_or_else(incomplete);
        let tap = Tap { socket: next()?, interface: options.interface.to_owned(), limit: LIMIT };
        let rings = Map::from_descriptor(next()?)?;
        if (rings.value_bytes() as usize, rings.entries()) != (sizes.value_bytes(), cpus) {
            return Err(Error::Usage(
                "the tap's broker has rings of other sizes: open the capture again, with rings of the default sizes"
                    .into(),
            ));
        }
        let doorbells =
            (0..options.lanes).map(|_| Ok(Arc::new(Doorbell::of(Map::from_descriptor(next()?)?)?)));
        let doorbells = doorbells.collect::<Result<_, Error>>()?;
        Ok((tap, Memory { rings, doorbells }))
    }

    /// Requests a tap, and returns the descriptors of the reply. Other processes have the access
    /// too, so the reply comes to a socket of this request.
    fn request(&self, call: &[u8], proof: BorrowedFd<'_>, interface: &str) -> Result<Vec<OwnedFd>, Error> {
        let (own, brokers) = pair().map_err(unmade)?;
        let deadline = Instant::now() + LIMIT;
        let sent = send(&self.socket, call, &[brokers.as_fd(), proof], deadline);
        // Without a copy here, `own` shows if the broker has ended.
        drop(brokers);
        outcome(sent.and_then(|()| receive(&own, deadline)), interface)
    }
}

/// Properties of a tap that the broker makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options<'a> {
    pub(super) interface: &'a str,
    /// Size of a CPU's spill ring, 0 for the default.
    pub(super) ring_bytes: u32,
    pub(super) lanes: u32,
    pub(super) rx_hash: bool,
}

/// Open tap of a broker, which detaches its programs when this process has closed it.
#[derive(Debug)]
pub(super) struct Tap {
    socket: OwnedFd,
    interface: String,
    /// Maximum time of a call.
    limit: Duration,
}

impl Tap {
    /// Attaches programs with `filter` to `hooks`, and detaches those of other hooks.
    ///
    /// # Errors
    /// The outcome of the call. If there is none, the tap ends: a late reply would be taken for
    /// that of the next call.
    pub(super) fn attach(&self, filter: &Program, hooks: &[TcxHook]) -> Result<(), Error> {
        let call = Call::Attach { hooks: hooks.to_vec(), filter: filter.clone() }.encode()?;
        let deadline = Instant::now() + self.limit;
        let sent = send(&self.socket, &call, &[], deadline);
        let reply = sent.and_then(|()| receive(&self.socket, deadline));
        if reply.is_err() {
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        outcome(reply, &self.interface).map(drop)
    }
}

/// Returns the descriptors of a reply.
fn outcome(reply: rustix::io::Result<Message>, interface: &str) -> Result<Vec<OwnedFd>, Error> {
    let Message { bytes, descriptors, is_whole } = reply.map_err(lost)?;
    if bytes.is_empty() {
        return Err(lost(Errno::CONNRESET));
    }
    if !is_whole {
        // The table of descriptors is full.
        return Err(lost(Errno::MFILE));
    }
    Outcome::decode(&bytes).ok_or_else(incomplete)?.into_result(interface)?;
    Ok(descriptors)
}

/// Sends a message as soon as it fits.
fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: Instant,
) -> rustix::io::Result<()> {
    retry_until(deadline, (socket, PollFlags::OUT), || message::send(socket, bytes, descriptors))
}

/// Receives the next message.
fn receive(socket: &OwnedFd, deadline: Instant) -> rustix::io::Result<Message> {
    retry_until(deadline, (socket, PollFlags::IN), || message::receive(socket))
}

/// Repeats `call` each time that the socket is ready for it, until it does not fail with EAGAIN.
///
/// # Errors
/// Those of `call`, and ETIMEDOUT at `deadline`. Options of the socket set no limit, because every
/// process with the socket can change them.
fn retry_until<T>(
    deadline: Instant,
    (socket, flags): (&OwnedFd, PollFlags),
    mut call: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::AGAIN) => {}
            outcome => return outcome,
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(socket, flags)], Some(&timeout)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn lost(errno: Errno) -> Error {
    failed("reach", errno)
}

/// Returns a pair of connected sockets that keep the bounds of messages.
pub(super) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn inode(socket: &OwnedFd) -> rustix::io::Result<u64> {
    Ok(rustix::fs::fstat(socket)?.st_ino)
}

/// Returns the error of a socket that could not be made.
pub(super) fn unmade(errno: Errno) -> Error {
    failed("make a socket for", errno)
}

pub(super) fn failed(operation: &'static str, errno: Errno) -> Error {
    strait_sys::Error::os(operation, "the tap's broker", errno.raw_os_error()).into()
}

pub(super) fn incomplete() -> Error {
    Error::Usage(
        "the tap's broker is of another version: use strait and libstrait_pcap.so of one version".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_found_by_its_descriptor_and_inode() {
        let (broker, _brokers) = Broker::pair().unwrap();
        let value = broker.pass_on().unwrap();
        assert!(Broker::inherited(&value).is_some());
        let (number, inode) = value.split_once(':').unwrap();
        let other = inode.parse::<u64>().unwrap() + 1;
        for value in ["", ":", "0", "-1:2", &format!("{number}:{other}"), &format!("1000000:{inode}")] {
            assert!(Broker::inherited(value).is_none(), "{value}");
        }
    }

    #[test]
    fn tap_ends_with_a_call_that_has_no_reply() {
        let (own, brokers) = pair().unwrap();
        let tap = Tap { socket: own, interface: "lo".into(), limit: Duration::from_millis(1) };
        let call = || tap.attach(&Program::accept_all(96), &[TcxHook::Ingress]).unwrap_err();
        assert!(call().is_one_of(&[Errno::TIMEDOUT]));
        let late = message::send(&brokers, &Outcome::Done.encode(), &[]);
        assert!(late.is_err(), "nobody waits for it");
        assert!(call().is_one_of(&[Errno::PIPE]));
    }

    #[test]
    fn broker_that_ended_is_reported() {
        let (broker, brokers) = Broker::pair().unwrap();
        drop(brokers);
        let error = message::send(&broker.socket, &[0], &[]).unwrap_err();
        assert_eq!(error, Errno::PIPE);
    }
}
