//! Counters of interfaces. A packet socket counts the frames that its filter matched, the interface
//! all frames: the difference is the number that the filter rejected.

use std::sync::{Mutex, PoisonError};

use strait_ledger::{self as ledger, Capture, Since};
use strait_os::interface::Interface;
use strait_os::netlink::Netlink;

use crate::directions::Directions;
use crate::error::Error;
use crate::link::Link;

/// Counters of the captured interfaces. They are read when the capture ends, and are 0 before.
pub(crate) struct Counters {
    /// One interface, or all interfaces that existed at the start.
    links: Vec<LinkCounters>,
    /// Socket in the interfaces' namespace, because the reading thread may be in another one.
    netlink: Mutex<Netlink>,
    pub(crate) directions: Directions,
    /// True if there is a filter that rejects any frame.
    pub(crate) filters: bool,
}

struct LinkCounters {
    index: u32,
    is_loopback: bool,
    received: Since,
    sent: Since,
    missed: Since,
}

impl Counters {
    pub(crate) fn start(
        interface: &Interface,
        link: Link,
        directions: Directions,
        filters: bool,
    ) -> Result<Self, Error> {
        let mut netlink = Netlink::open()?;
        let mut start = |index, is_loopback| -> Result<LinkCounters, Error> {
            let now = netlink.stats(index)?;
            Ok(LinkCounters {
                index,
                is_loopback,
                received: Since::starting_at(now.rx_packets),
                sent: Since::starting_at(now.tx_packets),
                missed: Since::starting_at(now.rx_missed_errors),
            })
        };
        let links = match link {
            Link::Own(_) => vec![start(interface.index, interface.is_loopback())?],
            Link::Cooked { loopback, .. } => {
                let indices = Interface::indices()?.into_iter();
                // Leave out an interface that was removed meanwhile.
                indices.filter_map(|index| start(index, index == loopback).ok()).collect()
            }
        };
        Ok(Self { links, netlink: Mutex::new(netlink), directions, filters })
    }

    pub(crate) fn stop(&mut self) {
        let netlink = self.netlink.get_mut().unwrap_or_else(PoisonError::into_inner);
        for link in &mut self.links {
            // A removed interface has no counters: the ledger then lacks the frames that the filter
            // rejected.
            if let Ok(now) = netlink.stats(link.index) {
                link.received.advance(now.rx_packets);
                link.sent.advance(now.tx_packets);
                link.missed.advance(now.rx_missed_errors);
            }
        }
    }

    /// Returns the frames that the NIC missed.
    pub(crate) fn missed(&self) -> Capture {
        let missed = self.links.iter().map(|link| link.missed.total()).sum();
        let mut account = Capture { received: missed, ..Capture::default() };
        account.lost.nic_missed = missed;
        account
    }

    /// Returns the number of frames that the NIC has missed so far, by a system call; 0 if the
    /// kernel does not report it.
    pub(crate) fn missed_now(&self) -> u64 {
        let mut netlink = self.netlink.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = |link: &LinkCounters| {
            let now = netlink.stats(link.index).ok()?;
            let mut missed = link.missed;
            missed.advance(now.rx_missed_errors);
            Some(missed.total())
        };
        self.links.iter().filter_map(missed).sum()
    }

    /// Returns the frames that the interface counted and no lane did: those that the filter
    /// rejected, and those that the NIC missed. `late_frames` frames matched after the end of the
    /// capture.
    pub(crate) fn filtered_and_missed(&self, lanes: &[ledger::LaneCounts], late_frames: u64) -> Capture {
        let matched = late_frames + lanes.iter().map(|lane| lane.capture.received).sum::<u64>();
        let mut account = self.missed();
        if self.filters {
            account.filtered = self.seen().saturating_sub(matched);
        }
        account.received += account.filtered;
        account
    }

    fn seen(&self) -> u64 {
        let seen = |link: &LinkCounters| match self.directions.without_duplicates(link.is_loopback) {
            Directions::In => link.received.total(),
            Directions::Out => link.sent.total(),
            Directions::Both => link.received.total() + link.sent.total(),
        };
        self.links.iter().map(seen).sum()
    }
}
