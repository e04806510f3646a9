//! Options of a capture and the interface that it opens, as the paths receive them.

use std::sync::Arc;

use strait_filter::cbpf::Program;
use strait_filter::owner::Selection;
use strait_os::ethtool::{Ethtool, Offload};
use strait_os::interface::Interface;
use strait_sys::packet::Fanout;

use crate::directions::Directions;
use crate::error::Error;
use crate::filter::SNAPLEN_MAX;
use crate::frame::{FRAME_BYTES_MAX, LINK_OVERHEAD};
use crate::link::Link;
use crate::owners::{Hooks, Select};
use crate::paths::tap::broker::Broker;
use crate::paths::tap::memory::TapRings;
use crate::queues::Queues;
use crate::wait::Wait;

/// Maximum number of lanes: the largest fanout group (`PACKET_FANOUT_MAX` of old kernels).
const LANES_MAX: usize = 256;

/// Options of a capture, see [`crate::Builder`].
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) filter: Option<String>,
    pub(crate) program: Option<Program>,
    pub(crate) snaplen: u32,
    pub(crate) queues: Queues,
    pub(crate) fanout: Fanout,
    pub(crate) cpus: Vec<u32>,
    pub(crate) wait: Wait,
    pub(crate) ring_bytes: Option<usize>,
    pub(crate) directions: Directions,
    pub(crate) promiscuous: bool,
    pub(crate) rx_hash: bool,
    pub(crate) hardware_time: bool,
    pub(crate) timestamps: bool,
    pub(crate) huge_pages: bool,
    pub(crate) sends: bool,
    pub(crate) owners: bool,
    pub(crate) select: Option<Select>,
    pub(crate) broker: Option<Broker>,
    pub(crate) tap_rings: Option<TapRings>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter: None,
            program: None,
            snaplen: SNAPLEN_MAX,
            queues: Queues::Default,
            fanout: Fanout::Hash,
            cpus: Vec::new(),
            wait: Wait::Balanced,
            ring_bytes: None,
            directions: Directions::Both,
            promiscuous: true,
            rx_hash: false,
            hardware_time: false,
            timestamps: true,
            huge_pages: false,
            sends: false,
            owners: false,
            select: None,
            broker: None,
            tap_rings: None,
        }
    }
}

/// Capture to open: options, interface, link and compiled filter.
pub(crate) struct Request<'a> {
    pub(crate) options: &'a Options,
    pub(crate) interface: Interface,
    pub(crate) link: Link,
    pub(crate) program: Program,
    /// Recording of owners, if it was requested.
    pub(crate) attribution: Option<Attribution>,
}

/// Recording of the owners of packets, for the tap.
#[derive(Clone)]
pub(crate) struct Attribution {
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) selection: Option<Selection>,
    /// The capture has all packets in both directions, except those that a later filter rejects.
    pub(crate) sees_all: bool,
}

impl Request<'_> {
    /// Returns true if there is a filter that rejects any frame.
    pub(crate) fn filters(&self) -> bool {
        match &self.options.program {
            Some(program) => *program != Program::accept_all(SNAPLEN_MAX),
            None => self.options.filter.as_ref().is_some_and(|text| !text.trim().is_empty()),
        }
    }

    /// Returns the numbers of the lanes on a path without receive queues of its own.
    pub(crate) fn lane_numbers(&self) -> Result<Vec<u32>, Error> {
        let numbers = match &self.options.queues {
            Queues::Default => vec![0],
            Queues::All if self.interface.index == 0 => vec![0],
            Queues::All => (0..self.interface.queues()?.rx).collect(),
            Queues::These(queues) => queues.clone(),
        };
        match numbers.len() {
            1..=LANES_MAX => Ok(numbers),
            count => Err(Error::Usage(format!("{count} lanes: give 1 to {LANES_MAX}"))),
        }
    }

    /// Returns the receive queues of a path with a socket for each queue: by default all, because a
    /// socket receives the frames of its own queue only.
    ///
    /// # Errors
    /// A queue that does not exist or is given twice, or no queue.
    pub(crate) fn receive_queues(&self) -> Result<Vec<u32>, Error> {
        let Interface { name, .. } = &self.interface;
        let available = self.interface.queues()?.rx;
        let queues = match &self.options.queues {
            Queues::These(queues) => queues.clone(),
            Queues::Default | Queues::All => (0..available).collect(),
        };
        let mut seen = vec![false; available as usize];
        for &queue in &queues {
            let Some(seen) = seen.get_mut(queue as usize) else {
                let last = available - 1;
                return Err(Error::Usage(format!("queue {queue}: {name} has receive queues 0 to {last}")));
            };
            if std::mem::replace(seen, true) {
                return Err(Error::Usage(format!("queue {queue} is given twice")));
            }
        }
        if queues.is_empty() {
            return Err(Error::Usage(format!("{name}: give at least one receive queue")));
        }
        Ok(queues)
    }

    /// Returns the size of the longest frame that the kernel delivers until a larger MTU is set or
    /// an offload is turned on, for slots of a fixed size.
    pub(crate) fn present_frame_bytes_max(&self) -> u32 {
        let joined = joins_segments(&self.interface);
        if joined { FRAME_BYTES_MAX } else { self.interface.mtu + LINK_OVERHEAD }
    }
}

/// Returns true if frames may be longer than the MTU: segments joined by receive offload, or sent
/// frames that segmentation offload has not cut yet. Also true if the driver does not report its
/// offloads.
fn joins_segments(interface: &Interface) -> bool {
    let Ok(ethtool) = Ethtool::open(&interface.name) else { return true };
    [Offload::Gro, Offload::Gso, Offload::Tso]
        .into_iter()
        .any(|offload| ethtool.offload(offload).unwrap_or(true))
}
