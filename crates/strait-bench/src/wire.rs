//! Link to measure on: a veth pair in separate namespaces, or two interfaces of the machine that
//! are cabled together.
//!
//! The namespaces have no names, so they vanish with this process even if it is killed. A private
//! link is silent: every frame on it belongs to the measurement.

use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use strait_sys::ethtool::{Ethtool, Offload};
use strait_sys::interface::Interface;
use strait_sys::netlink::{LinkStats, Netlink, VethEnd};
use strait_sys::netns::{self, Namespace};
use strait_sys::wait;

use crate::error::{Error, Result};
use crate::memory_file;

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

/// Wires of a benchmark: two interfaces of the machine for every receiver, or a private pair for
/// each number of lanes, because an AF_XDP receiver has as many lanes as its interface has queues.
#[derive(Debug)]
pub struct Wires {
    wires: Vec<(u32, Wire)>,
}

impl Wires {
    /// Creates a private pair for each number of lanes.
    ///
    /// # Errors
    /// Those of [`Wire::private`]; usage if `lanes` is empty.
    pub fn private(lanes: &[u32], reception: Reception) -> Result<Self> {
        let mut numbers = lanes.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() {
            return Err(Error::Usage("give a number of lanes".into()));
        }
        let wire = |lanes| Ok((lanes, Wire::private(lanes, reception)?));
        Ok(Self { wires: numbers.into_iter().map(wire).collect::<Result<_>>()? })
    }

    /// Uses two interfaces of this machine, for any number of lanes.
    ///
    /// # Errors
    /// Those of [`Wire::of`].
    pub fn cabled(sender: &str, receiver: &str) -> Result<Self> {
        Ok(Self { wires: vec![(1, Wire::of(sender, receiver)?)] })
    }

    /// Returns the wire for a receiver with this number of lanes.
    pub fn of(&self, lanes: u32) -> &Wire {
        let found = self.wires.iter().find(|(has, _)| *has == lanes);
        &found.unwrap_or(&self.wires[0]).1
    }

    /// Returns true if the wires were created for the measurement.
    pub fn are_private(&self) -> bool {
        self.wires[0].1.is_private()
    }
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
            Some(cpu) => Ok(sender.run(|| netns::steer_packets_to(cpu))??),
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
            return Err(Error::Usage(format!(
                "{sender} cannot be both ends: give two interfaces that are cabled together"
            )));
        }
        let end = |name: &str| -> Result<End> {
            if !Interface::find(name)?.is_running() {
                return Err(Error::Usage(format!(
                    "{name} has no carrier: is its cable plugged in, and the other end up?"
                )));
            }
            Ok(End::own(name))
        };
        for name in [sender, receiver] {
            if !Interface::find(name)?.is_up() {
                return Err(Error::Usage(format!("{name} is down: ip link set {name} up")));
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
                return Err(Error::Void("the private link did not come up".into()));
            }
            wait::sleep(LOOK);
        }
        Ok(())
    }
}

impl End {
    /// Uses an interface of this process's namespace.
    pub(crate) fn own(interface: impl Into<String>) -> Self {
        Self { namespace: None, interface: interface.into() }
    }

    /// Returns the interface name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Runs `work` in the namespace of the interface.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.run(work)?),
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
        .map_err(Error::from)
    }

    /// Returns a path at which another process of the same user can open the namespace while this
    /// process lives.
    pub(crate) fn namespace_path(&self) -> Option<String> {
        self.namespace.as_ref().map(memory_file::path_of)
    }

    fn is_running(&self) -> Result<bool> {
        Ok(self.run(|| Interface::find(&self.interface))??.is_running())
    }
}
