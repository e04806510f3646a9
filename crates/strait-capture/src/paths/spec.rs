//! Description of a capture path and contract of its opening. Each path's folder has one [`Spec`]
//! for every name that users can give; the table in `paths/mod.rs` lists them.

use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture};

use crate::directions::Directions;
use crate::error::Error;
use crate::link::{Link, Split};
use crate::placing::Replaced;
use crate::sender::Sender;
use crate::userspace_filter::UserspaceFilter;
use crate::watch::LinkWatch;

use super::request::Request;

/// Path under one of its names, with engines of type `E`.
pub(crate) struct Spec<E> {
    pub(crate) about: About,
    /// Opens a capture on it.
    pub(crate) open: fn(&Request<'_>) -> Result<Opened<E>, Error>,
}

/// Name and properties of a path.
#[derive(Clone, Copy)]
pub(crate) struct About {
    /// Name that users give.
    pub(crate) name: &'static str,
    /// Name in reports; names of one path with different modes share it.
    pub(crate) path: &'static str,
    pub(crate) interfaces: Interfaces,
    /// True if the captured frames reach neither the host nor another capture.
    pub(crate) takes_frames: bool,
    /// True if the path does not see frames that this host sends.
    pub(crate) received_only: bool,
    /// Refuses filters that the path cannot run.
    pub(crate) check_filter: fn(&Program) -> Result<(), Error>,
}

/// Interfaces that a path can capture on. Whether the driver supports it is known only when the
/// path is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interfaces {
    /// Ethernet interfaces.
    Ethernet,
    /// Interfaces with a known link type.
    Any,
}

/// Open capture path.
pub(crate) struct Opened<E> {
    /// Engines, one a lane, with their queue numbers.
    pub(crate) engines: Vec<(E, u32)>,
    pub(crate) source: Box<dyn Source>,
    pub(crate) watch: LinkWatch,
    /// Filter that runs in this process from the first frame on.
    pub(crate) userspace: Option<UserspaceFilter>,
    /// Name in reports, see [`About::path`].
    pub(crate) path: &'static str,
    /// Mode in reports: `copy`, `zero-copy`, `native copy` or `generic`.
    pub(crate) mode: &'static str,
    /// Description of each lane's ring, for the user.
    pub(crate) ring: String,
    /// Fallbacks and their reasons, for the user.
    pub(crate) notes: Vec<String>,
}

impl<E> Opened<E> {
    /// Converts the engines.
    pub(crate) fn map<F>(self, convert: impl Fn(E) -> F) -> Opened<F> {
        let Self { engines, source, watch, userspace, path, mode, ring, notes } = self;
        let engines = engines.into_iter().map(|(engine, queue)| (convert(engine), queue)).collect();
        Opened { engines, source, watch, userspace, path, mode, ring, notes }
    }
}

/// Reception of a session: the attached filter or program, and the counters that no lane has.
pub(crate) trait Source: Send + Sync {
    /// Stops reception on all lanes: frames in the rings can still be read, no more arrive.
    fn stop(&mut self) -> Result<(), Error>;

    /// Returns the frames that the NIC has missed so far, if the lanes do not count them. It makes
    /// a system call.
    fn missed(&self) -> u64 {
        0
    }

    /// Returns the frames that no lane counted. `late_frames` frames matched after the program had
    /// stopped reading.
    fn unattributed(&self, _lanes: &[ledger::LaneCounts], _late_frames: u64) -> Capture {
        Capture::default()
    }

    /// Replaces the filter on all lanes.
    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error>;

    /// Replaces the kernel's program on all lanes while other threads read them, without a gap.
    /// Returns false if the path cannot. After an error `old` is in place.
    fn replace_filter(&mut self, _old: &Program, _new: &Program) -> Result<bool, Error> {
        Ok(false)
    }

    /// Sets the directions to capture. Returns true if the filter has to be set again for it, false
    /// if nothing changes.
    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error>;

    /// Returns a sender of single frames on `interface`.
    fn take_sender(&mut self, interface: &str) -> Result<Sender, Error> {
        Sender::open(interface)
    }
}

/// Replacement of a session's filter.
pub(crate) struct FilterChange<'a> {
    pub(crate) link: Link,
    pub(crate) directions: Directions,
    pub(crate) snaplen: u32,
    pub(crate) old: &'a Program,
    pub(crate) new: &'a Program,
}

/// All lanes of a session, for a [`Source`] that replaces the filter.
pub(crate) trait Lanes {
    /// Gives all lanes the kernel's program and the filter that runs in this process. Returns the
    /// reason for the latter. Frames of earlier filters are discarded.
    fn place(&mut self, split: Split) -> Result<Option<String>, Error>;

    /// Discards the frames in the rings: an earlier filter matched them.
    fn discard_waiting(&mut self) -> Result<(), Error>;
}
