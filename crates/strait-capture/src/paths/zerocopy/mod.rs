//! The `zerocopy` path: one `PF_ZEROCOPY` socket with a ring that the NIC fills itself.
//!
//! The capture uses the interface exclusively: the driver has no other queue, so the host receives
//! nothing on it. Filters run in this process. `docs/internals/pf-zerocopy.md` draws the ring.

mod batch;
mod engine;

use strait_filter::cbpf::Program;

use self::engine::Counts;
pub(crate) use self::engine::Engine;
use crate::directions::Directions;
use crate::error::Error;
use crate::link::Split;
use crate::paths::request::Request;
use crate::paths::spec::{About, FilterChange, Interfaces, Lanes, Opened, Source, Spec};
use crate::placing::Replaced;
use crate::sender::Sender;
use crate::watch::LinkWatch;

/// Name of the path.
const PATH: &str = "zerocopy";
/// Default size of the ring in bytes: the module's maximum number of slots.
const RING_BYTES: usize = 8 << 20;

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> = Spec {
    about: About {
        name: PATH,
        path: PATH,
        interfaces: Interfaces::Ethernet,
        takes_frames: true,
        received_only: true,
        check_filter: any_filter,
    },
    open,
};

/// Accepts every filter: all of them run in this process.
#[allow(clippy::unnecessary_wraps, reason = "paths may refuse filters")]
fn any_filter(_: &Program) -> Result<(), Error> {
    Ok(())
}

fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, link, program } = request;
    if !interface.is_ethernet() {
        let name = &interface.name;
        return Err(Error::Usage(format!("{name}: PF_ZEROCOPY is for Ethernet interfaces: use --path v3")));
    }
    options.directions.refuse_sent(PATH)?;
    let numbers = request.lane_numbers()?;
    if numbers != [0] {
        return Err(Error::Usage("PF_ZEROCOPY has one queue, number 0".into()));
    }
    let ring_bytes = options.ring_bytes.unwrap_or(RING_BYTES);
    let opened = Engine::open(interface, ring_bytes, options.promiscuous, options.sends)?;
    let engine::Opened { engine, sender } = opened;
    let userspace = if request.filters() {
        link.split_to_userspace(program, Directions::In, &"")?.userspace
    } else {
        None
    };
    Ok(Opened {
        source: Box::new(ZeroCopySource { counts: engine.counts(), sender }),
        watch: LinkWatch::open(interface)?,
        userspace,
        path: PATH,
        mode: "zero-copy",
        ring: engine.describe(),
        notes: Vec::new(),
        engines: vec![(engine, 0)],
    })
}

/// Socket, to stop reception, and the sender on it.
struct ZeroCopySource {
    counts: Counts,
    sender: Option<Result<Sender, Error>>,
}

impl Source for ZeroCopySource {
    fn stop(&mut self) -> Result<(), Error> {
        self.counts.stop()
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        let split: Split = change.link.split_to_userspace(change.new, Directions::In, &"")?;
        lanes.place(split)?;
        // No note: filters never run in the kernel on this path.
        Ok(Replaced { userspace_reason: None, refused: None })
    }

    fn set_directions(&mut self, directions: Directions) -> Result<bool, Error> {
        directions.refuse_sent(PATH)?;
        Ok(false)
    }

    /// # Errors
    /// The session was not opened to send, or the memory for it could not be locked.
    fn take_sender(&mut self, _interface: &str) -> Result<Sender, Error> {
        let closed = || Err(Error::Usage("the session was not opened to send".into()));
        self.sender.take().unwrap_or_else(closed)
    }
}
