//! The `zerocopy` path: a `PF_ZEROCOPY` socket for each queue, with a ring that the NIC fills
//! itself.
//!
//! The host receives nothing on the interface. The module runs the filter, before a frame uses a
//! slot. `docs/internals/pf-zerocopy.md` draws the ring.

mod batch;
mod engine;

use strait_filter::cbpf::Program;
use strait_sys::packet;

use self::engine::Counts;
pub(crate) use self::engine::Engine;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{self, Split};
use crate::paths::request::Request;
use crate::paths::spec::{About, FilterChange, Interfaces, Lanes, Opened, Source, Spec};
use crate::placing::{Placing, Replaced};
use crate::sender::Sender;
use crate::watch::LinkWatch;

/// Name of the path.
const PATH: &str = "zerocopy";
/// Default size of a queue's ring in bytes: the module's maximum number of slots.
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

/// Accepts every filter: one that is too large for the kernel runs in this process.
#[allow(clippy::unnecessary_wraps, reason = "paths may refuse filters")]
fn any_filter(_: &Program) -> Result<(), Error> {
    Ok(())
}

/// Opens a socket for each queue of the request. A filter that is too large for the kernel runs in
/// this process.
fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, link, program } = request;
    if !interface.is_ethernet() {
        let name = &interface.name;
        return Err(Error::Usage(format!("{name}: PF_ZEROCOPY is for Ethernet interfaces: use --path v3")));
    }
    options.directions.refuse_sent(PATH)?;
    let split = link.split(program, Directions::In)?;
    let in_kernel = split.userspace_reason.is_none() && request.filters();
    match open_filtered(request, split) {
        Err(error) if in_kernel && filter::may_be_too_large(&error) => {
            let split = link.split_to_userspace(program, Directions::In, &error)?;
            open_filtered(request, split).map_err(|_| error)
        }
        opened => opened,
    }
}

fn open_filtered(request: &Request<'_>, split: Split) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, .. } = request;
    let Split { kernels: program, userspace, userspace_reason } = split;
    let mut notes = Vec::new();
    filter::note(&mut notes, userspace_reason);
    let queues = request.receive_queues()?;
    let ring_bytes = options.ring_bytes.unwrap_or(RING_BYTES);
    let mut engines = Vec::with_capacity(queues.len());
    let mut sender = None;
    for queue in queues {
        // One queue is enough to send.
        let sends = options.sends && engines.is_empty();
        let opened = Engine::open(interface, ring_bytes, &program, options.wait, sends)?;
        sender = sender.or(opened.sender);
        engines.push((opened.engine, queue));
    }
    let promiscuous = options.promiscuous.then(|| link::promiscuous(interface)).transpose()?;
    engines.iter().try_for_each(|(engine, queue)| engine.bind(interface, *queue))?;
    let counts = engines.iter().map(|(engine, _)| engine.counts()).collect();
    let ring = engines.first().map(|(engine, _)| engine.describe()).unwrap_or_default();
    Ok(Opened {
        source: Box::new(ZeroCopySource { counts, sender, _promiscuous: promiscuous }),
        watch: LinkWatch::open(interface)?,
        userspace,
        path: PATH,
        mode: "zero-copy",
        ring,
        notes,
        engines,
    })
}

/// Sockets, to stop reception, and the sender on the first one.
struct ZeroCopySource {
    counts: Vec<Counts>,
    sender: Option<Result<Sender, Error>>,
    /// Keeps the interface promiscuous while the capture runs.
    _promiscuous: Option<packet::Socket>,
}

impl Source for ZeroCopySource {
    fn stop(&mut self) -> Result<(), Error> {
        self.counts.iter().try_for_each(Counts::stop)
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        let placing = Placing { link: change.link, directions: Directions::In };
        placing.replace(change.old, change.new, |split| lanes.place(split))
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
