//! Where packets are measured: a veth pair in namespaces of its own, or two interfaces of the machine that are cabled
//! together.
//!
//! The namespaces have no names: they go with this process, however it ends. A private wire is silent, so that every
//! frame on it is one that was sent to be measured.

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

/// How long the kernel may take to bring a link up.
const UP_MAX: Duration = Duration::from_secs(10);
/// How often to look whether it is.
const LOOK: Duration = Duration::from_millis(5);
/// The length of the network part of a routed wire's addresses, in bits.
const PREFIX: u8 = 24;

/// How the ends of a private wire receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// One frame at a time, in the context of the sender.
    Direct,
    /// In batches (NAPI), as a NIC does; veth takes redirected XDP frames in no other way.
    Batched,
}

/// A sending and a receiving interface.
#[derive(Debug)]
pub struct Wire {
    sender: End,
    receiver: End,
}

/// The wires of a benchmark: the machine's own interfaces for every receiver, or a private pair for each number of lanes, for
/// an AF_XDP receiver has as many lanes as its interface has queues.
#[derive(Debug)]
pub struct Wires {
    wires: Vec<(u32, Wire)>,
}

impl Wires {
    /// A private pair for each number of lanes.
    ///
    /// # Errors
    /// As for [`Wire::private`]; usage if there is no number.
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

    /// Two interfaces of this machine, for any number of lanes.
    ///
    /// # Errors
    /// As for [`Wire::of`].
    pub fn cabled(sender: &str, receiver: &str) -> Result<Self> {
        Ok(Self { wires: vec![(1, Wire::of(sender, receiver)?)] })
    }

    /// The one for a receiver with so many lanes.
    pub fn of(&self, lanes: u32) -> &Wire {
        let found = self.wires.iter().find(|(has, _)| *has == lanes);
        &found.unwrap_or(&self.wires[0]).1
    }

    /// Whether they were made for the measurement.
    pub fn are_private(&self) -> bool {
        self.wires[0].1.is_private()
    }
}

/// One end of a wire.
#[derive(Debug)]
pub struct End {
    /// None where the interface is the machine's own.
    namespace: Option<Namespace>,
    interface: String,
}

impl Wire {
    /// A veth pair with `queues` queues at each end.
    ///
    /// # Errors
    /// Refused without CAP_SYS_ADMIN and CAP_NET_ADMIN.
    pub fn private(queues: u32, reception: Reception) -> Result<Self> {
        let wire = Self::lay(queues, |_| Ok(()))?;
        wire.switch_offloads(&[Offload::Gro, Offload::Tso, Offload::Gso, Offload::TxChecksum], false)?;
        wire.raise()?;
        if reception == Reception::Batched {
            // veth tells its peer that it takes redirected frames when GRO is switched on while both are up
            // (`veth_set_features` in drivers/net/veth.c).
            wire.switch_offloads(&[Offload::Gro], true)?;
        }
        Ok(wire)
    }

    /// A veth pair, down, between two namespaces, of which `prepare` sees the sender's before.
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

    /// A veth pair with the offloads that a veth pair has, and an address at each end. What comes back to the sender is received on
    /// `cpu`, if there is one: where the sender's CPU sends all packets, none overtakes another, which TCP would take for loss.
    ///
    /// # Errors
    /// As for [`Wire::private`].
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

    /// Two interfaces of this machine, cabled together.
    ///
    /// # Errors
    /// There is no such interface, both are the same, or one is down.
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

    /// Where frames are sent.
    pub fn sender(&self) -> &End {
        &self.sender
    }

    /// Where they are captured.
    pub fn receiver(&self) -> &End {
        &self.receiver
    }

    /// The sender's end and the receiver's. The wire lasts as long as one of them.
    pub fn into_ends(self) -> (End, End) {
        (self.sender, self.receiver)
    }

    /// Whether it was made for the measurement.
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
    /// An interface of this machine.
    pub(crate) fn own(interface: impl Into<String>) -> Self {
        Self { namespace: None, interface: interface.into() }
    }

    /// Its interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Runs `work` where the interface is.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.run(work)?),
            None => Ok(work()),
        }
    }

    /// The interface's counters.
    pub fn stats(&self) -> Result<LinkStats> {
        self.run(|| {
            let mut netlink = Netlink::open()?;
            let index = netlink.interface(&self.interface)?.index;
            netlink.stats(index)
        })?
        .map_err(Error::from)
    }

    /// A path at which another process of the same user can open its namespace, while this process lives.
    pub(crate) fn namespace_path(&self) -> Option<String> {
        self.namespace.as_ref().map(memory_file::path_of)
    }

    fn is_running(&self) -> Result<bool> {
        Ok(self.run(|| Interface::find(&self.interface))??.is_running())
    }
}
