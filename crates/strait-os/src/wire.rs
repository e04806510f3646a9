//! Link between a sender and a receiver: a veth pair in separate namespaces, or two interfaces of
//! the machine that are cabled together.
//!
//! The demo and the benchmarks send on one end and capture on the other. The namespaces have no
//! names, so they vanish with this process even if it is killed. A private link is silent: every
//! frame on it comes from its user.

mod bridge;

use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use crate::ethtool::{Ethtool, Offload};
use crate::interface::Interface;
use crate::netlink::{LinkStats, Netlink, VethEnd};
use crate::netns::{self, Namespace};
use crate::wait;
use crate::{Error, Kind, Result};

pub use self::bridge::Bridge;

/// Timeout of bringing a link up.
const UP_MAX: Duration = Duration::from_secs(10);
/// Interval between two checks of the link.
const LOOK: Duration = Duration::from_millis(5);
/// Prefix length of the addresses of a routed wire.
const PREFIX: u8 = 24;

/// Receive mode of a private wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// One frame at a time, in the sender's context.
    Direct,
    /// In batches (NAPI), like a NIC; veth takes redirected XDP frames only so.
    Batched,
}

/// Sending and receiving interface.
#[derive(Debug)]
pub struct Wire {
    sender: End,
    receiver: End,
}

/// One end of a wire.
#[derive(Debug)]
pub struct End {
    /// None for an interface of the machine's own namespace.
    namespace: Option<Namespace>,
    interface: String,
}

impl Wire {
    /// Creates a veth pair with `queues` queues at each end.
    ///
    /// # Errors
    /// Refused without CAP_SYS_ADMIN and CAP_NET_ADMIN.
    pub fn private(queues: u32, reception: Reception) -> Result<Self> {
        let wire = Self::lay(queues, |_| Ok(()))?;
        wire.switch_offloads(&[Offload::Gro, Offload::Tso, Offload::Gso, Offload::TxChecksum], false)?;
        wire.raise()?;
        if reception == Reception::Batched {
            // veth accepts redirected frames from its peer once GRO is switched on while both ends
            // are up (`veth_set_features` in drivers/net/veth.c).
            wire.switch_offloads(&[Offload::Gro], true)?;
        }
        Ok(wire)
    }

    /// Creates a veth pair, down, between two namespaces. `prepare` runs first with the sender's.
    fn lay(queues: u32, prepare: impl FnOnce(&Namespace) -> Result<()>) -> Result<Self> {
        let (sender, receiver) = (Namespace::new()?, Namespace::new()?);
        for namespace in [&sender, &receiver] {
            namespace.run(netns::disable_ipv6)??;
        }
        prepare(&sender)?;
        sender.run(|| {
            let near = VethEnd { queues, ..VethEnd::new("sender") };
            let far = VethEnd { queues, namespace: Some(receiver.as_fd()), ..VethEnd::new("receiver") };
            Netlink::open()?.add_veth(&near, &far)
        })??;
        let end = |namespace, name: &str| End { namespace: Some(namespace), interface: name.into() };
        Ok(Self { sender: end(sender, "sender"), receiver: end(receiver, "receiver") })
    }

    /// Creates a veth pair with default offloads, and an address at each end. If `cpu` is given,
    /// packets to the sender are received on it: if the sender's CPU also sends all packets, none
    /// overtakes another, which TCP would treat as loss.
    ///
    /// # Errors
    /// Those of [`Wire::private`].
    pub fn routed(addresses: [Ipv4Addr; 2], cpu: Option<u32>) -> Result<Self> {
        let wire = Self::lay(1, |sender| match cpu {
            Some(cpu) => sender.run(|| netns::steer_packets_to(cpu))?,
            None => Ok(()),
        })?;
        wire.raise()?;
        let macs = wire.ends().map(|end| end.run(|| Interface::find(&end.interface).map(|found| found.mac)));
        let [sender, receiver] = macs;
        let macs = [sender??, receiver??];
        for (own, end) in wire.ends().into_iter().enumerate() {
            let other = 1 - own;
            end.run(|| {
                let mut netlink = Netlink::open()?;
                let index = netlink.interface(&end.interface)?.index;
                netlink.add_address(index, addresses[own].into(), PREFIX)?;
                netlink.add_neighbour(index, addresses[other].into(), macs[other])
            })??;
        }
        Ok(wire)
    }

    /// Uses two interfaces of this machine, cabled together.
    ///
    /// # Errors
    /// An interface does not exist, is down or without carrier, or both are the same.
    pub fn of(sender: &str, receiver: &str) -> Result<Self> {
        if sender == receiver {
            let cause = "it cannot be both ends of a link";
            return Err(unusable(sender, cause).remedy("give two interfaces that are cabled together"));
        }
        let end = |name: &str| -> Result<End> {
            if !Interface::find(name)?.is_running() {
                return Err(
                    unusable(name, "no carrier").remedy("plug in its cable, and set the other end up")
                );
            }
            Ok(End::own(name))
        };
        for name in [sender, receiver] {
            if !Interface::find(name)?.is_up() {
                return Err(unusable(name, "it is down").remedy(format!("ip link set {name} up")));
            }
        }
        Ok(Self { sender: end(sender)?, receiver: end(receiver)? })
    }

    /// Returns the end that sends frames.
    pub fn sender(&self) -> &End {
        &self.sender
    }

    /// Returns the end that captures them.
    pub fn receiver(&self) -> &End {
        &self.receiver
    }

    /// Splits the wire into the sender's and the receiver's end. The link exists until both are
    /// dropped.
    pub fn into_ends(self) -> (End, End) {
        (self.sender, self.receiver)
    }

    /// Returns true if the wire was created for the measurement.
    pub fn is_private(&self) -> bool {
        self.sender.namespace.is_some()
    }

    fn ends(&self) -> [&End; 2] {
        [&self.sender, &self.receiver]
    }

    fn switch_offloads(&self, offloads: &[Offload], on: bool) -> Result<()> {
        for end in self.ends() {
            end.run(|| {
                let ethtool = Ethtool::open(&end.interface)?;
                offloads.iter().try_for_each(|offload| ethtool.set_offload(*offload, on))
            })??;
        }
        Ok(())
    }

    fn raise(&self) -> Result<()> {
        for end in self.ends() {
            end.run(|| {
                let mut netlink = Netlink::open()?;
                let index = netlink.interface(&end.interface)?.index;
                netlink.set_up(index, true)
            })??;
        }
        let deadline = Instant::now() + UP_MAX;
        while !(self.sender.is_running()? && self.receiver.is_running()?) {
            if Instant::now() > deadline {
                let cause = format!("it did not come up within {UP_MAX:?}");
                return Err(Error::new(Kind::Failed, "create", "a private link", cause));
            }
            wait::sleep(LOOK);
        }
        Ok(())
    }
}

impl End {
    /// Uses an interface of this process's namespace.
    pub fn own(interface: impl Into<String>) -> Self {
        Self { namespace: None, interface: interface.into() }
    }

    /// Returns the interface name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Runs `work` in the namespace of the interface.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(work),
            None => Ok(work()),
        }
    }

    /// Returns the interface's counters.
    pub fn stats(&self) -> Result<LinkStats> {
        self.run(|| {
            let mut netlink = Netlink::open()?;
            let index = netlink.interface(&self.interface)?.index;
            netlink.stats(index)
        })?
    }

    /// Returns a path at which another process of the same user can open the namespace while this
    /// process lives.
    pub fn namespace_path(&self) -> Option<String> {
        let namespace = self.namespace.as_ref()?;
        Some(format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd()))
    }

    /// Returns another interface of this end's namespace.
    fn sibling(&self, interface: &str) -> Result<Self> {
        let namespace = self.namespace.as_ref().map(Namespace::try_clone).transpose()?;
        Ok(Self { namespace, interface: interface.into() })
    }

    fn namespace_fd(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(Namespace::as_fd)
    }

    fn is_running(&self) -> Result<bool> {
        Ok(self.run(|| Interface::find(&self.interface))??.is_running())
    }
}

fn unusable(interface: &str, cause: &str) -> Error {
    Error::new(Kind::Usage, "use interface", interface, cause)
}
