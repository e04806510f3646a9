//! Broker of taps: a process that keeps the privilege to load programs, for a program that drops
//! its own before it opens a capture.
//!
//! `strait run` starts the process, which calls [`serve_broker`](super::serve_broker); the libpcap
//! drop-in opens its captures with a [`Broker`]. Both ends talk over a socket that the program
//! inherits. A caller shows a packet socket: it can capture on its network namespace already. It
//! gets the descriptors of rings and links, and never that of a program. `docs/internals/tap.md`
//! has the protocol.

pub(super) mod message;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, FdFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait_filter::cbpf::Program;
use strait_sys::bpf::{Doorbell, Link, Map, TcxHook};
use strait_sys::{inherited, packet};

use self::message::{Call, Outcome};
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
        let (own, brokers) = pair()?;
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
    /// namespace, which must be the broker's.
    pub(super) fn open(
        &self,
        options: &Options<'_>,
        socket: &packet::Socket,
    ) -> Result<(Tap, Memory), Error> {
        let interface = options.interface.to_owned();
        let (own, brokers) = pair()?;
        set_socket_timeout(&own, Timeout::Recv, Some(LIMIT)).map_err(|errno| failed("set up", errno))?;
        message::send(&self.socket, &[0], &[brokers.as_fd()]).map_err(|errno| failed("reach", errno))?;
        drop(brokers);
        let tap = Tap { socket: own, interface };
        let call = Call::Open { options: *options };
        let mut descriptors = tap.call(&call, &[socket.as_fd()])?.into_iter();
        let mut map =
            || Map::from_descriptor(descriptors.next().ok_or_else(incomplete)?).map_err(Error::from);
        let rings = map()?;
        let doorbells = (0..options.lanes).map(|_| Ok(Arc::new(Doorbell::of(map()?)?)));
        let doorbells = doorbells.collect::<Result<_, Error>>()?;
        Ok((tap, Memory { rings, doorbells }))
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

/// Open tap of a broker, which frees its memory when both processes have closed it.
#[derive(Debug)]
pub(super) struct Tap {
    socket: OwnedFd,
    interface: String,
}

impl Tap {
    /// Attaches a program with `filter`.
    pub(super) fn attach(&self, filter: &Program, hook: TcxHook) -> Result<Link, Error> {
        let link = self.call(&Call::Attach { hook, filter: filter.clone() }, &[])?.pop();
        Ok(Link::from_descriptor(link.ok_or_else(incomplete)?))
    }

    /// Replaces the programs of `links` by those of another filter.
    pub(super) fn replace(&self, filter: &Program, links: &[(TcxHook, Link)]) -> Result<(), Error> {
        let hooks = links.iter().map(|(hook, _)| *hook).collect();
        let descriptors: Vec<BorrowedFd<'_>> = links.iter().map(|(_, link)| link.as_fd()).collect();
        self.call(&Call::Replace { hooks, filter: filter.clone() }, &descriptors).map(drop)
    }

    /// Makes a call with `descriptors`, and returns those of the reply.
    fn call(&self, call: &Call<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>, Error> {
        let lost = |errno| failed("reach", errno);
        message::send(&self.socket, &call.encode()?, descriptors).map_err(lost)?;
        let reply = message::receive(&self.socket).map_err(lost)?;
        let (bytes, descriptors) = reply.ok_or_else(|| lost(Errno::CONNRESET))?;
        Outcome::decode(&bytes).ok_or_else(incomplete)?.into_result(&self.interface)?;
        Ok(descriptors)
    }
}

/// Returns a pair of connected sockets that keep the bounds of messages.
fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed("make a socket for", errno))
}

fn inode(socket: &OwnedFd) -> rustix::io::Result<u64> {
    Ok(rustix::fs::fstat(socket)?.st_ino)
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
    fn broker_that_ended_is_reported() {
        let (broker, brokers) = Broker::pair().unwrap();
        drop(brokers);
        let error = message::send(&broker.socket, &[0], &[]).unwrap_err();
        assert_eq!(error, Errno::PIPE);
    }
}
