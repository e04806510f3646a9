//! Reception of a session on packet sockets.

use std::sync::Arc;

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture};
use strait_os::process::wait_for_receive_paths;
use strait_sys::packet::Socket;

use super::doorbell::DoorbellFilter;
use super::engine;
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::paths::spec::{FilterChange, Lanes, Source};
use crate::placing::{Placing, Replaced};

/// Larger than the part of any frame that a slot of a ring holds.
const SLOT_BYTES_MAX: u32 = 1 << 16;

/// Sockets of all lanes, to stop reception, and the interface's counters, from which the number of
/// frames that the filter rejected is computed.
pub(super) struct PacketSource {
    pub(super) sockets: Vec<Socket>,
    pub(super) doorbells: Vec<Arc<DoorbellFilter>>,
    pub(super) counters: Counters,
    /// See [`super::ring::Ring::CUTS_AT_SNAPLEN`].
    pub(super) cuts_at_snaplen: bool,
}

impl PacketSource {
    /// Returns a note about the part of a frame that a filter in this process sees, if slots hold
    /// only the snaplen.
    fn limit_note(&self, snaplen: u32) -> String {
        if self.cuts_at_snaplen && snaplen < SLOT_BYTES_MAX {
            format!("; it sees at most {snaplen} bytes of a frame: with --path v3 it sees all of them")
        } else {
            String::new()
        }
    }

    /// Replaces the filter of every socket. The kernel exchanges the program of a socket between
    /// two frames (`SO_ATTACH_FILTER`), so that each frame passes either the earlier or the new
    /// one.
    fn attach(&self, program: &Program) -> Result<(), Error> {
        let rejects_sent = self.sockets.len() > 1 && self.counters.directions == Directions::In;
        self.sockets.iter().try_for_each(|socket| engine::attach(program, socket, rejects_sent))?;
        self.doorbells.iter().try_for_each(|doorbell| doorbell.replace(program))
    }
}

/// Names the limit of memory if it is the cause: the kernel charges the new program before it frees
/// the earlier one (`__sk_attach_prog` of net/core/filter.c).
fn memory_error(error: Error) -> Error {
    if !error.is_one_of(&[Errno::NOMEM]) {
        return error;
    }
    Error::Filter(
        "the new filter and the earlier one exceed net.core.optmem_max: increase it with sysctl, or restart the capture"
            .into(),
    )
}

impl Source for PacketSource {
    fn stop(&mut self) -> Result<(), Error> {
        // Read first: the sockets then reject frames one after the other, and frames that arrive
        // meanwhile must not count as filtered.
        self.counters.stop();
        for socket in &self.sockets {
            socket.reject_all()?;
        }
        // Wait until every CPU has left the receive path. Frames that passed a filter earlier are
        // then in their ring and counted.
        wait_for_receive_paths();
        Ok(())
    }

    fn missed(&self) -> u64 {
        self.counters.missed_now()
    }

    fn unattributed(&self, lanes: &[ledger::LaneCounts], late_frames: u64) -> Capture {
        self.counters.filtered_and_missed(lanes, late_frames)
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        self.counters.filters = true;
        let placing = Placing { link: change.link, directions: change.directions };
        let mut replaced = placing.replace(change.old, change.new, |split| lanes.place(split))?;
        replaced.userspace_reason =
            replaced.userspace_reason.map(|reason| reason + &self.limit_note(change.snaplen));
        Ok(replaced)
    }

    fn replace_filter(&mut self, old: &Program, new: &Program) -> Result<bool, Error> {
        if let Err(error) = self.attach(new) {
            self.attach(old)?;
            return Err(memory_error(error));
        }
        // A filter that accepts all frames rejects none, but an earlier one may have.
        self.counters.filters |= new.constant().is_none_or(|accepted| accepted == 0);
        Ok(true)
    }

    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error> {
        self.counters.directions = directions;
        Ok(true)
    }
}
