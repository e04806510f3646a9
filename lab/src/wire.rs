//! Two network namespaces joined by a veth pair: the smallest network.
//!
//! Integration tests and benchmarks send on one end and capture on the other. A wire is silent:
//! IPv6 is off by default, neighbours are known and offloads are off. Every frame on it was sent by
//! the test, complete and no longer than the MTU. It never touches the machine's own interfaces.

use std::ffi::OsStr;
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::thread::sched_getcpu;
use strait_os::Kind;
use strait_os::ethtool::Ethtool;
pub use strait_os::ethtool::Offload;
use strait_os::interface::Interface;
use strait_os::netlink::{LinkStats, Netlink, VethEnd};
use strait_os::netns::{self, Namespace};
use strait_os::process::{pin_thread, wait_for_receive_paths};

use crate::{Error, Launch, Result, skip, wait_until};

/// Time limit for bringing up a link.
const LIMIT: Duration = Duration::from_secs(10);
/// Time limit for sent frames to arrive on a busy machine.
const ARRIVAL: Duration = Duration::from_secs(50);

/// Offloads that a wire switches: those that make a veth frame differ from one on a cable.
const OFFLOADS: [Offload; 4] = [Offload::Gro, Offload::Tso, Offload::Gso, Offload::TxChecksum];

/// Options of a wire; start from [`Wire::builder`].
#[derive(Clone, Copy, Debug)]
pub struct WireBuilder {
    queues: u32,
    mtu: u32,
    offloads: &'static [Offload],
    ipv4: bool,
    ipv6: bool,
}

/// Two namespaces and the veth pair between them, removed when dropped.
#[derive(Debug)]
pub struct Wire {
    left: End,
    right: End,
}

/// One end: a namespace with one interface, which is up.
#[derive(Debug)]
pub struct End {
    namespace: Namespace,
    name: &'static str,
    number: u8,
}

impl WireBuilder {
    /// Sets the number of receive and transmit queues of each end; the default is 1.
    #[must_use]
    pub fn queues(self, queues: u32) -> Self {
        Self { queues, ..self }
    }

    /// Sets the MTU of both ends in bytes; the default is 1500.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu, ..self }
    }

    /// Sets the offloads to enable at both ends; the default is none. GRO makes veth receive in
    /// batches (NAPI). TSO and GSO allow frames of up to 64 KiB, without checksums if those are
    /// offloaded too.
    #[must_use]
    pub fn offloads(self, offloads: &'static [Offload]) -> Self {
        Self { offloads, ..self }
    }

    /// Assigns 192.0.2.1 and 192.0.2.2, with static neighbour entries.
    #[must_use]
    pub fn ipv4(self) -> Self {
        Self { ipv4: true, ..self }
    }

    /// Assigns 2001:db8::1 and 2001:db8::2. The kernel then sends multicast listener reports by
    /// itself.
    #[must_use]
    pub fn ipv6(self) -> Self {
        Self { ipv6: true, ..self }
    }

    /// Creates the wire; both ends are up and have a carrier.
    pub fn build(self) -> Result<Wire> {
        let left = End { namespace: Namespace::new()?, name: "left", number: 1 };
        let right = End { namespace: Namespace::new()?, name: "right", number: 2 };
        for end in [&left, &right] {
            self.prepare(end)?;
        }
        let (near, far) = (self.veth_end(&left), self.veth_end(&right));
        let far = VethEnd { namespace: Some(right.namespace.as_fd()), ..far };
        left.namespace.run(|| Netlink::open()?.add_veth(&near, &far))??;
        // Set offloads before either end is up: when a veth comes up, its peer's GRO decides if it
        // takes redirected XDP frames.
        for end in [&left, &right] {
            end.namespace.run(|| self.switch_offloads(end))??;
        }
        for end in [&left, &right] {
            end.namespace.run(|| raise(end))??;
        }
        let wire = Wire { left, right };
        let running = || wire.left.interface().is_running() && wire.right.interface().is_running();
        assert!(wait_until(LIMIT, running), "a veth pair runs once both ends are up");
        for (end, other) in [(&wire.left, &wire.right), (&wire.right, &wire.left)] {
            end.namespace.run(|| self.assign(end, other))??;
        }
        Ok(wire)
    }

    /// Creates the wire, or prints SKIP without the privileges; panics on any other failure.
    pub fn or_skip(self) -> Option<Wire> {
        match self.build() {
            Ok(wire) => Some(wire),
            Err(Error::System(error)) if error.kind() == Kind::Refused => {
                skip(error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn veth_end(self, end: &End) -> VethEnd<'static> {
        let (queues, mtu) = (self.queues, Some(self.mtu));
        VethEnd { mac: Some(end.mac()), queues, mtu, ..VethEnd::new(end.name) }
    }

    fn prepare(self, end: &End) -> Result<()> {
        Ok(end.namespace.run(|| {
            if !self.ipv6 {
                netns::disable_ipv6()?;
            }
            let mut netlink = Netlink::open()?;
            let lo = netlink.interface("lo")?.index;
            netlink.set_up(lo, true)
        })??)
    }

    fn switch_offloads(self, end: &End) -> strait_os::Result<()> {
        let ethtool = Ethtool::open(end.name)?;
        OFFLOADS.iter().try_for_each(|offload| ethtool.set_offload(*offload, self.offloads.contains(offload)))
    }

    fn assign(self, end: &End, other: &End) -> strait_os::Result<()> {
        let mut netlink = Netlink::open()?;
        let index = netlink.interface(end.name)?.index;
        for (is_requested, prefix, own, neighbour) in
            [(self.ipv4, 24, end.ipv4(), other.ipv4()), (self.ipv6, 64, end.ipv6(), other.ipv6())]
        {
            if is_requested {
                netlink.add_address(index, own, prefix)?;
                netlink.add_neighbour(index, neighbour, other.mac())?;
            }
        }
        assert!(!self.ipv6 || wait_until(LIMIT, || has_route_to(end.ipv6())), "an IPv6 address is routed");
        Ok(())
    }
}

fn raise(end: &End) -> strait_os::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.interface(end.name)?.index;
    netlink.set_up(index, true)
}

/// Returns true if the namespace has a local route to `address`, which the kernel adds some time
/// after the address. A line of `/proc/net/ipv6_route` begins with the destination in hex and its
/// prefix length.
fn has_route_to(address: IpAddr) -> bool {
    let IpAddr::V6(address) = address else { return true };
    let start = format!("{:032x} 80 ", address.to_bits());
    let table = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    table.lines().any(|line| line.starts_with(&start))
}

impl Wire {
    /// Returns options with one queue, MTU 1500, no addresses, offloads off.
    pub fn builder() -> WireBuilder {
        WireBuilder { queues: 1, mtu: 1500, offloads: &[], ipv4: false, ipv6: false }
    }

    /// Returns the end with the interface `left`.
    pub fn left(&self) -> &End {
        &self.left
    }

    /// Returns the end with the interface `right`.
    pub fn right(&self) -> &End {
        &self.right
    }

    /// Waits until `count` frames more than `before` have reached the right end and its sockets.
    ///
    /// Without NAPI, a veth counts a frame when it is sent; the frame then waits in its CPU's
    /// backlog, on a busy machine for longer than a test takes.
    pub fn await_arrival(&self, before: u64, count: u64) {
        let arrived = || self.right.stats().rx_packets - before >= count && backlogs_are_empty();
        assert!(wait_until(ARRIVAL, arrived), "frames sent on a veth arrive");
        wait_for_receive_paths();
    }
}

impl End {
    /// Runs `work` on a thread in this end's namespace; sockets that it opens stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work).expect("the creator of a namespace may enter it")
    }

    /// Runs `work` like [`End::run`], but on one CPU, so that sent frames arrive in order. veth
    /// uses one backlog per CPU, so frames of a thread that migrates between two sends may overtake
    /// each other.
    pub fn run_in_order<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.run(|| {
            pin_thread(sched_getcpu() as u32).expect("a thread may stay where it runs");
            work()
        })
    }

    /// Creates a launch of a program in this end's namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Launch<'_> {
        Launch::inside(&self.namespace, program)
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the current state of the interface.
    pub fn interface(&self) -> Interface {
        self.run(|| Interface::find(self.name)).expect("the interface is there until it is deleted")
    }

    /// Returns the current counters of the interface.
    pub fn stats(&self) -> LinkStats {
        let index = self.interface().index;
        self.run(|| Netlink::open()?.stats(index)).expect("a link has counters")
    }

    /// Sets the interface up or down.
    pub fn set_up(&self, up: bool) {
        let index = self.interface().index;
        self.run(|| Netlink::open()?.set_up(index, up)).expect("a link can be set up and down");
    }

    /// Deletes the interface, and so the other end's.
    pub fn delete(&self) {
        let index = self.interface().index;
        self.run(|| Netlink::open()?.delete(index)).expect("a veth can be deleted");
    }

    /// Returns the interface's MAC address: 02:00:00:00:00:01 or :02.
    pub fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.number]
    }

    /// Returns 192.0.2.1 or .2, which is assigned with [`WireBuilder::ipv4`].
    pub fn ipv4(&self) -> IpAddr {
        IpAddr::from([192, 0, 2, self.number])
    }

    /// Returns 2001:db8::1 or ::2, which is assigned with [`WireBuilder::ipv6`].
    pub fn ipv6(&self) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(self.number)])
    }
}

/// Returns true if no CPU's backlog holds a frame: columns 14 and 15 of `/proc/net/softnet_stat`.
fn backlogs_are_empty() -> bool {
    let text = fs::read_to_string("/proc/net/softnet_stat").expect("the kernel counts its backlogs");
    let waiting = |line: &str| line.split_whitespace().skip(13).take(2).any(|len| len != "00000000");
    !text.lines().any(waiting)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn ping(wire: &Wire, from: IpAddr, to: IpAddr) {
        let receiver = wire.right().run(|| UdpSocket::bind((to, 0)).unwrap());
        receiver.set_read_timeout(Some(LIMIT)).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sender = wire.left().run(|| UdpSocket::bind((from, 0)).unwrap());
        sender.send_to(b"over the wire", (to, port)).unwrap();
        let mut bytes = [0; 64];
        let (len, peer) = receiver.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], peer.ip()), (&b"over the wire"[..], from));
    }

    #[test]
    fn only_the_sent_datagram_crosses() {
        let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
        ping(&wire, wire.left().ipv4(), wire.right().ipv4());
        let (left, right) = (wire.left().stats(), wire.right().stats());
        assert_eq!((left.tx_packets, left.rx_packets, right.rx_packets, right.tx_packets), (1, 0, 1, 0));
        assert_eq!((left.tx_bytes, right.rx_bytes), (14 + 20 + 8 + 13, 14 + 20 + 8 + 13));
    }

    #[test]
    fn datagram_crosses_over_ipv6() {
        let Some(wire) = Wire::builder().ipv6().or_skip() else { return };
        ping(&wire, wire.left().ipv6(), wire.right().ipv6());
    }

    #[test]
    fn wire_has_the_requested_options() {
        let Some(wire) = Wire::builder().queues(2).mtu(9000).offloads(&[Offload::Gro]).or_skip() else {
            return;
        };
        for (end, mac) in [(wire.left(), [2, 0, 0, 0, 0, 1]), (wire.right(), [2, 0, 0, 0, 0, 2])] {
            let interface = end.interface();
            assert_eq!((interface.mtu, interface.rx_queues, interface.mac), (9000, 2, mac));
            assert!(interface.is_running());
            let offload = |offload| end.run(|| Ethtool::open(end.name()).unwrap().offload(offload).unwrap());
            assert!(offload(Offload::Gro) && !offload(Offload::Tso) && !offload(Offload::TxChecksum));
        }
    }

    #[test]
    fn programs_run_in_the_namespace_and_see_the_link_deleted() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let list =
            || wire.right().command("cat").arg("/proc/self/net/dev").run(LIMIT).unwrap().success().text();
        assert!(list().contains("right:") && !list().contains("left:"));
        wire.left().set_up(false);
        assert!(wait_until(LIMIT, || !wire.right().interface().is_running()));
        wire.left().delete();
        assert!(!list().contains("right:"));
    }
}
