//! State of a session's link: how often and for how long it was set down or without a carrier.
//!
//! The kernel reports each change to a netlink socket of the session (`RTNLGRP_LINK`), so that even
//! the shortest flap is counted. Lanes wait for these notifications together with their frames and
//! read them; [`crate::Session::link`] reads them, too. A capture continues while its link is down:
//! the sockets receive again when it is up.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strait_os::interface::Interface;
use strait_os::netlink::{LinkEvent, LinkMonitor, LinkReading, Netlink};
use strait_sys::Kind;

use crate::error::Error;

/// Maximum number of notifications read in one call; the next call reads the rest.
const NOTIFICATIONS_MAX: u32 = 1024;

/// Link state of a session's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// The interface is set down; frames arrive again when it is up.
    pub is_down: bool,
    /// Number of times that it was set down since the session opened.
    pub downs: u64,
    /// Total time for which it was set down.
    pub down_for: Duration,
    /// The interface is set up and has no carrier: a cable is unplugged, or the other end is down.
    pub has_no_carrier: bool,
    /// Number of times that it lost its carrier while it was set up.
    pub carrier_losses: u64,
    /// Total time for which it was set up and had no carrier.
    pub no_carrier_for: Duration,
    /// The present MTU, if it has grown beyond the slots of the ring, which cut longer frames.
    pub mtu_beyond_slots: Option<u32>,
}

/// Watch on one interface. All interfaces together, and a file, have no state.
#[derive(Debug, Default)]
pub(crate) struct LinkWatch(Option<Watched>);

#[derive(Debug)]
struct Watched {
    monitor: LinkMonitor,
    /// True if the process may not read the notifications, as in a sandbox that it entered later.
    /// The socket then stays readable, so lanes must not wait for it.
    refused: AtomicBool,
    index: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Socket in the interface's namespace, because the reading thread may be in another one.
    netlink: Netlink,
    account: LinkAccount,
}

impl LinkWatch {
    /// Watches `interface` from here on.
    pub(crate) fn open(interface: &Interface) -> Result<Self, Error> {
        if interface.index == 0 {
            return Ok(Self::default());
        }
        let monitor = LinkMonitor::open(interface.index)?;
        let mut netlink = Netlink::open()?;
        // Read after the subscription to notifications, so that no change in between is missed.
        let account = LinkAccount::new(netlink.link(interface.index)?, Instant::now());
        let state = Mutex::new(State { netlink, account });
        Ok(Self(Some(Watched { monitor, refused: AtomicBool::new(false), index: interface.index, state })))
    }

    /// Sets the largest MTU with frames that the capture does not cut.
    pub(crate) fn set_mtu_max(&self, mtu_max: u32) {
        if let Some(watched) = &self.0 {
            watched.state().account.mtu_max = mtu_max;
        }
    }

    /// Returns the descriptor that is readable while there are unread changes.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let watched = self.0.as_ref().filter(|watched| !watched.refused.load(Ordering::Relaxed))?;
        Some(watched.monitor.as_fd())
    }

    /// Reads the changes so far, as of `now`. Returns true if there were any.
    pub(crate) fn read_changes(&self, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|watched| watched.read_changes(&mut watched.state(), now))
    }

    /// Reads the last changes at the end of a capture. Like [`LinkWatch::read_changes`], but also
    /// counts carrier losses that the kernel has not reported yet: it delays these notifications
    /// for up to a second.
    pub(crate) fn finish(&self, now: Instant) {
        let Some(watched) = &self.0 else { return };
        let mut state = watched.state();
        // Read before the notifications, so that those that arrive meanwhile are newer.
        let reading = state.netlink.link(watched.index);
        watched.read_changes(&mut state, now);
        if let Ok(LinkReading { carrier_downs, .. }) = reading {
            let last = state.account.last;
            state.account.note(LinkReading { carrier_downs, ..last }, now);
        }
    }

    pub(crate) fn read(&self, now: Instant) -> LinkStatus {
        let Some(watched) = &self.0 else { return LinkStatus::default() };
        let mut state = watched.state();
        watched.read_changes(&mut state, now);
        state.account.read(now)
    }
}

impl Watched {
    fn read_changes(&self, state: &mut State, now: Instant) -> bool {
        for count in 0..NOTIFICATIONS_MAX {
            match self.monitor.next() {
                Ok(Some(LinkEvent::Changed(reading))) => self.note(state, reading, now),
                // Flaps of the flags in between are lost, but the kernel counts carrier losses.
                Ok(Some(LinkEvent::Lost)) => {
                    if let Ok(reading) = state.netlink.link(self.index) {
                        state.account.note(reading, now);
                    }
                }
                // A lane ends with the error of its socket.
                Ok(Some(LinkEvent::Removed)) => {}
                Ok(None) => return count > 0,
                Err(_) => {
                    self.refused.store(true, Ordering::Relaxed);
                    return count > 0;
                }
            }
        }
        true
    }

    /// Notes a reading. The kernel sets a link down before it deletes or moves it, and replies to a
    /// query only after both. So a link that is reported as down and no longer exists was removed,
    /// and does not count as set down.
    fn note(&self, state: &mut State, reading: LinkReading, now: Instant) {
        let is_removed = |state: &mut State| {
            let found = state.netlink.link(self.index);
            found.is_err_and(|error| error.kind() == Kind::Usage)
        };
        if reading.is_up || !is_removed(state) {
            state.account.note(reading, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts and times from a sequence of readings.
#[derive(Debug)]
struct LinkAccount {
    last: LinkReading,
    downs: u64,
    carrier_losses: u64,
    down: Span,
    no_carrier: Span,
    mtu_max: u32,
}

impl LinkAccount {
    fn new(reading: LinkReading, now: Instant) -> Self {
        let (down, no_carrier) = (Span::default(), Span::default());
        let mut account =
            Self { last: reading, downs: 0, carrier_losses: 0, down, no_carrier, mtu_max: u32::MAX };
        account.note(reading, now);
        account
    }

    fn note(&mut self, reading: LinkReading, now: Instant) {
        let set_down = self.last.is_up && !reading.is_up;
        self.downs += u64::from(set_down);
        let losses = self.losses_until(reading.carrier_downs);
        if self.last.is_up {
            // Drivers turn the carrier off with the interface, which is no loss of its own.
            self.carrier_losses += u64::from(losses.saturating_sub(set_down.into()));
        }
        let carrier_downs = self.last.carrier_downs.wrapping_add(losses);
        self.last = LinkReading { carrier_downs, ..reading };
        self.down.set(!reading.is_up, now);
        self.no_carrier.set(reading.is_up && !reading.has_carrier, now);
    }

    /// Returns the difference of the kernel's count to the last one; 0 for an older reading.
    fn losses_until(&self, carrier_downs: u32) -> u32 {
        let difference = carrier_downs.wrapping_sub(self.last.carrier_downs);
        if difference <= u32::MAX / 2 { difference } else { 0 }
    }

    fn read(&self, now: Instant) -> LinkStatus {
        LinkStatus {
            is_down: self.down.since.is_some(),
            downs: self.downs,
            down_for: self.down.total(now),
            has_no_carrier: self.no_carrier.since.is_some(),
            carrier_losses: self.carrier_losses,
            no_carrier_for: self.no_carrier.total(now),
            mtu_beyond_slots: Some(self.last.mtu).filter(|mtu| *mtu > self.mtu_max),
        }
    }
}

/// Total time of a state that starts and ends repeatedly.
#[derive(Debug, Default)]
struct Span {
    since: Option<Instant>,
    before: Duration,
}

impl Span {
    /// Starts or ends the state at `now`.
    fn set(&mut self, holds: bool, now: Instant) {
        match (holds, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.before += now.saturating_duration_since(since);
                self.since = None;
            }
            _ => {}
        }
    }

    fn total(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: LinkReading = LinkReading { is_up: true, has_carrier: true, carrier_downs: 0, mtu: 1500 };
    const UNPLUGGED: LinkReading = LinkReading { has_carrier: false, ..UP };
    const DOWN: LinkReading = LinkReading { is_up: false, ..UNPLUGGED };

    fn counted(reading: LinkReading, carrier_downs: u32) -> LinkReading {
        LinkReading { carrier_downs, ..reading }
    }

    /// Status at `seconds`, after a reading at each of the seconds before.
    fn after(readings: &[LinkReading]) -> LinkStatus {
        let start = Instant::now();
        let at = |second: usize| start + Duration::from_secs(second as u64);
        let mut account = LinkAccount::new(readings[0], at(0));
        for (second, reading) in readings.iter().enumerate().skip(1) {
            account.note(*reading, at(second));
        }
        account.read(at(readings.len()))
    }

    #[test]
    fn link_set_down_counts_no_carrier_loss() {
        let downs = |downs, seconds, is_down| LinkStatus {
            is_down,
            downs,
            down_for: Duration::from_secs(seconds),
            ..LinkStatus::default()
        };
        assert_eq!(after(&[UP, UP]), LinkStatus::default());
        assert_eq!(after(&[UP, counted(DOWN, 1), counted(DOWN, 1)]), downs(1, 2, true));
        assert_eq!(after(&[UP, counted(DOWN, 1), counted(UP, 1)]), downs(1, 1, false));
        // A driver that keeps the carrier.
        assert_eq!(after(&[UP, DOWN, UP, DOWN, UP]), downs(2, 2, false));
    }

    #[test]
    fn carrier_loss_is_counted_with_its_time() {
        let losses = |carrier_losses, seconds, has_no_carrier| LinkStatus {
            has_no_carrier,
            carrier_losses,
            no_carrier_for: Duration::from_secs(seconds),
            ..LinkStatus::default()
        };
        assert_eq!(after(&[UP, counted(UNPLUGGED, 1)]), losses(1, 1, true));
        assert_eq!(after(&[UP, counted(UNPLUGGED, 1), counted(UP, 1)]), losses(1, 1, false));
        // Flaps that the kernel reports together.
        assert_eq!(after(&[UP, counted(UP, 3)]), losses(3, 0, false));
        // No carrier at the start is time without one, and no loss.
        assert_eq!(after(&[UNPLUGGED, UP]), losses(0, 1, false));
        let wrapped = [counted(UP, u32::MAX), counted(UNPLUGGED, 0), counted(UP, 1)];
        assert_eq!(after(&wrapped), losses(2, 1, false));
        // An older reading.
        assert_eq!(after(&[counted(UP, 5), counted(UP, 4), counted(UP, 6)]), losses(1, 0, false));
    }

    #[test]
    fn down_and_carrier_loss_are_counted_separately() {
        let unplugged_then_down = [UP, counted(UNPLUGGED, 1), counted(DOWN, 1), counted(UNPLUGGED, 1)];
        let status = after(&unplugged_then_down);
        assert_eq!((status.downs, status.carrier_losses), (1, 1));
        assert_eq!((status.is_down, status.has_no_carrier), (false, true));
        let seconds = Duration::from_secs;
        assert_eq!((status.down_for, status.no_carrier_for), (seconds(1), seconds(2)));
        // Changes of the carrier while the link is down are no losses.
        assert_eq!(after(&[UP, counted(DOWN, 1), counted(DOWN, 4), counted(UP, 4)]).carrier_losses, 0);
    }
}
