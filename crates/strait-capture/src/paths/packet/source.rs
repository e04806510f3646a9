//! Intake of a session on packet sockets.

use strait_ledger::{self as ledger, Capture};
use strait_sys::packet::Socket;
use strait_sys::process::wait_for_readers;

use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::paths::spec::{FilterChange, Lanes, Source};
use crate::placing::{Placing, Replaced};

/// Larger than the part of any frame that a slot of a ring holds.
const SLOT_BYTES_MAX: u32 = 1 << 16;

/// Sockets of all lanes, to end their intake, and the interface's counters, which give the number
/// of frames that the filter rejected.
pub(super) struct PacketSource {
    pub(super) sockets: Vec<Socket>,
    pub(super) counters: Counters,
    /// See [`super::ring::Ring::CUTS_AT_SNAPLEN`].
    pub(super) cuts_at_snaplen: bool,
}

impl PacketSource {
    /// Returns a note on the part of a frame that a filter in this process sees, if slots were made
    /// for the snaplen.
    fn limits(&self, snaplen: u32) -> String {
        if self.cuts_at_snaplen && snaplen < SLOT_BYTES_MAX {
            format!("; it sees at most {snaplen} bytes of a frame: --path v3 shows it all of them")
        } else {
            String::new()
        }
    }
}

impl Source for PacketSource {
    fn stop(&mut self) -> Result<(), Error> {
        // Read before the sockets reject frames one after the other: frames that arrive meanwhile
        // must not count as filtered.
        self.counters.stop();
        for socket in &self.sockets {
            socket.reject_all()?;
        }
        // After this, frames that passed a filter earlier are in their ring and counted.
        wait_for_readers();
        Ok(())
    }

    fn missed(&self) -> u64 {
        self.counters.missed_now()
    }

    fn unattributed(&self, lanes: &[ledger::Lane], beyond: u64) -> Capture {
        self.counters.filtered_and_missed(lanes, beyond)
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        self.counters.filters = true;
        let placing = Placing { link: change.link, directions: change.directions };
        let mut replaced = placing.replace(change.old, change.new, |split| lanes.place(split))?;
        replaced.why_here = replaced.why_here.map(|why| why + &self.limits(change.snaplen));
        Ok(replaced)
    }

    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error> {
        self.counters.directions = directions;
        Ok(true)
    }
}
