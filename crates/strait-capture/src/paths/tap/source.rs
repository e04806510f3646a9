//! Reception of a session on the tap.

use rustix::io::Errno;
use strait_ledger::{self as ledger, Capture};
use strait_os::process::wait_for_receive_paths;

use super::attachment::Attachment;
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::Split;
use crate::paths::spec::{FilterChange, Lanes, Source};
use crate::placing::Replaced;

/// Attached programs, and the interface's counters, from which the number of frames that the filter
/// rejected is computed: a count in the program would cost each rejected frame an access to memory.
pub(super) struct TapSource {
    pub(super) attachment: Attachment,
    pub(super) counters: Counters,
}

impl TapSource {
    /// Sets the programs' filter. A filter that they cannot run, or that cannot be loaded because
    /// the privilege was dropped, runs in this process.
    fn place(&mut self, change: &FilterChange<'_>) -> Result<Split, Error> {
        // Each hook has a program of its own, so no program has to distinguish directions.
        let split = change.link.split(change.new, Directions::Both)?;
        match self.attachment.set_filter(&split.kernels) {
            Err(error) if error.is_one_of(&[Errno::PERM]) => self.place_unprivileged(change, error),
            Err(error) if split.userspace.is_none() && runs_in_process(&error) => {
                let split = change.link.split_to_userspace(change.new, Directions::Both, &error)?;
                self.attachment.set_filter(&split.kernels)?;
                Ok(split)
            }
            placed => placed.map(|()| split),
        }
    }

    /// Runs a filter in this process because of `error`: the privilege to load programs has been
    /// dropped. The attached programs must match all frames.
    fn place_unprivileged(&self, change: &FilterChange<'_>, error: Error) -> Result<Split, Error> {
        let Some(bytes) = self.attachment.accepted_bytes() else { return Err(error) };
        let cut = if bytes < self.attachment.frame_bytes_max() {
            format!("; it sees at most {bytes} bytes of a frame")
        } else {
            String::new()
        };
        let reason = format!("the privilege to load programs was dropped{cut}");
        change.link.split_to_userspace(change.new, Directions::Both, &reason)
    }
}

/// Returns true if the filter of this error can run in this process.
pub(super) fn runs_in_process(error: &Error) -> bool {
    filter::may_be_too_large(error) || error.is_one_of(&[Errno::ACCESS, Errno::TOOBIG])
}

impl Source for TapSource {
    fn stop(&mut self) -> Result<(), Error> {
        self.counters.stop();
        self.attachment.stop();
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
        let split = self.place(change)?;
        // No program with the earlier filter runs after this; its frames are discarded.
        wait_for_receive_paths();
        Ok(Replaced { userspace_reason: lanes.place(split)?, refused: None })
    }

    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error> {
        self.attachment.set_directions(directions)?;
        self.counters.directions = directions;
        Ok(true)
    }
}
