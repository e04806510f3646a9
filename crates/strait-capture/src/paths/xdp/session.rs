//! Opens a session on `AF_XDP`, and stops it.

use rustix::io::Errno;
use strait_ledger::{self as ledger, Capture};
use strait_os::ethtool::Ethtool;

use super::attachment::Attachment;
use super::engine::Engine;
use super::open::{self, Required};
use super::ring_size;
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::ANY;
use crate::paths::request::Request;
use crate::paths::spec::{FilterChange, Lanes, Opened, Source};
use crate::placing::Replaced;
use crate::watch::LinkWatch;

/// Name in reports.
const PATH: &str = "xdp";

/// Opens the queues of the request.
pub(super) fn open(request: &Request<'_>, required: Required) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, link, program, .. } = request;
    if interface.index == 0 {
        return Err(Error::Usage(format!("AF_XDP is for one interface, not for {ANY}: use --path v3")));
    }
    if !interface.is_ethernet() {
        let name = &interface.name;
        return Err(Error::Usage(format!("{name}: AF_XDP is for Ethernet interfaces: use --path v3")));
    }
    options.directions.refuse_sent(PATH)?;
    filter::refuse_on_xdp(program)?;
    let queues = request.receive_queues()?;
    let counters = Counters::start(interface, *link, options.directions, request.filters())?;
    let ring_bytes = options.ring_bytes.unwrap_or_else(|| ring_size::default_bytes(queues.len()));
    let requested = open::Options {
        interface,
        program,
        queues: &queues,
        ring_bytes,
        required,
        timestamps: options.timestamps,
        huge_pages: options.huge_pages,
        wait: options.wait,
        promiscuous: options.promiscuous,
        rx_hash: options.rx_hash,
        hardware_time: options.hardware_time,
    };
    let smaller = ring_size::smaller_bytes(options.ring_bytes, ring_bytes);
    let mut opened = match (open::open(&requested), smaller) {
        (Err(Error::System(error)), Some(smaller)) if is_out_of_memory(&error) => {
            let mut opened = open::open(&open::Options { ring_bytes: smaller, ..requested })?;
            opened.notes.push(ring_size::note(ring_bytes, smaller, &error));
            opened
        }
        (opened, _) => opened?,
    };
    opened.notes.extend(cost_to_the_host(&interface.name, opened.mode));
    Ok(Opened {
        source: Box::new(XdpSource { attachment: opened.attachment, counters }),
        watch: LinkWatch::open(interface)?,
        userspace: None,
        path: PATH,
        mode: opened.mode,
        ring: opened.ring,
        notes: opened.notes,
        engines: opened.engines.into_iter().zip(queues).collect(),
    })
}

/// Returns a note if the program slows down traffic that it lets pass: a veth with a native program
/// makes a new socket buffer of each packet, without the segments that the sender had left together
/// (`veth_xdp_rcv_skb` in drivers/net/veth.c).
fn cost_to_the_host(name: &str, mode: &str) -> Option<String> {
    let driver = Ethtool::open(name).and_then(|ethtool| ethtool.driver()).ok()?.name;
    (driver == "veth" && mode != open::GENERIC).then(|| {
        format!(
            "{name} is a veth: with a native XDP program the host's own TCP has about a quarter of its throughput, \
             whatever the filter is; --path tap leaves it alone"
        )
    })
}

/// Returns true if the kernel refused the memory, so that a smaller size may succeed (`ulimit -l`).
fn is_out_of_memory(error: &strait_sys::Error) -> bool {
    error.is_one_of(&[Errno::NOMEM, Errno::NOBUFS])
}

/// Attached program, and the interface's counters, which give the number of frames that the NIC
/// missed.
struct XdpSource {
    attachment: Attachment,
    counters: Counters,
}

impl Source for XdpSource {
    fn stop(&mut self) -> Result<(), Error> {
        self.attachment.stop();
        self.counters.stop();
        Ok(())
    }

    fn missed(&self) -> u64 {
        self.counters.missed_now()
    }

    fn unattributed(&self, _lanes: &[ledger::LaneCounts], _late_frames: u64) -> Capture {
        self.counters.missed()
    }

    /// Replaces the XDP program between two frames.
    ///
    /// # Errors
    /// EPERM if the privilege to load a program has been dropped; the old filter stays.
    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        let replaced = Replaced { userspace_reason: None, refused: None };
        if change.new == change.old {
            return Ok(replaced);
        }
        filter::refuse_on_xdp(change.new)?;
        self.attachment.set_filter(change.new)?;
        lanes.discard_waiting()?;
        Ok(replaced)
    }

    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error> {
        directions.refuse_sent(PATH)?;
        Ok(false)
    }
}
