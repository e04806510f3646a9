//! Options of a session, checked before the interface is opened.

use std::sync::Arc;

use strait_filter::cbpf::Program;
use strait_sys::packet::Fanout;

use super::Session;
use super::info::Info;
use crate::directions::Directions;
use crate::error::Error;
use crate::extra::ExtraBlocks;
use crate::filter::{self, SNAPLEN_MAX};
use crate::lane::{Lane, Shared};
use crate::link::{self, Link};
use crate::owners::{self, Hooks, Select};
use crate::paths::request::{Attribution, Options, Request};
use crate::paths::spec::Opened;
use crate::paths::tap::TapRings;
use crate::paths::tap::broker::Broker;
use crate::paths::{AnyEngine, Path, file};
use crate::queues::Queues;
use crate::wait::{Pacer, Wait};
use crate::watch::LinkWatch;

/// Size in bytes of the smallest ring for a lane.
const RING_BYTES_MIN: usize = 256 << 10;
/// Size in bytes of the largest ring for a lane. A larger request is probably a mistaken unit.
const RING_BYTES_MAX: usize = 2 << 30;

/// Options of a capture. Each has a default; [`Builder::open`] checks them together.
#[derive(Clone, Debug)]
pub struct Builder {
    interface: String,
    path: Path,
    options: Options,
    /// Collects blocks of a file.
    extras: Option<ExtraBlocks>,
}

impl Builder {
    pub(super) fn new(interface: String) -> Self {
        Self { interface, path: Path::Auto, options: Options::default(), extras: None }
    }

    /// Sets the kernel path. Default: [`Path::Auto`].
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Sets a filter in libpcap's language (pcap-filter(7)). Default: all frames.
    #[must_use]
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.options.filter = Some(filter.into());
        self
    }

    /// Sets the maximum number of captured bytes of a frame, 1 to 262144. Default: whole frames. On
    /// packet sockets the kernel cuts the frames.
    #[must_use]
    pub fn snaplen(mut self, snaplen: u32) -> Self {
        self.options.snaplen = snaplen;
        self
    }

    /// Sets the receive queues. Each has a lane.
    #[must_use]
    pub fn queues(mut self, queues: Queues) -> Self {
        self.options.queues = queues;
        self
    }

    /// Sets the rule by which packet sockets spread frames over lanes. Default: symmetric flow
    /// hash.
    #[must_use]
    pub fn fanout(mut self, fanout: Fanout) -> Self {
        self.options.fanout = fanout;
        self
    }

    /// Sets CPUs to which the lanes are pinned in turn. Default: not pinned.
    #[must_use]
    pub fn cpus(mut self, cpus: Vec<u32>) -> Self {
        self.options.cpus = cpus;
        self
    }

    /// Sets the wait policy. Default: [`Wait::Balanced`].
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.wait = wait;
        self
    }

    /// Sets the size of each lane's ring in bytes, 256 KiB to 2 GiB. Defaults: 8 MiB for V3; 16 MiB
    /// for `recv`; 8 MiB for V2, or 136 MiB divided among the lanes if the interface merges
    /// segments (GRO, LRO); 32 MiB for AF_XDP, or 64 MiB for a single queue; 8 MiB for
    /// `PF_ZEROCOPY`, its maximum. Each default holds 2,000 frames or more, which is 100 ms at
    /// 20,000 a second. If the kernel cannot allocate the ring, a smaller one is used, see
    /// [`Session::notes`]. `PF_ZEROCOPY` uses no smaller one; its rings count against the limit of
    /// locked memory.
    #[must_use]
    pub fn ring(mut self, bytes: usize) -> Self {
        self.options.ring_bytes = Some(bytes);
        self
    }

    /// Sets the directions. Default: received and sent frames.
    #[must_use]
    pub fn directions(mut self, directions: Directions) -> Self {
        self.options.directions = directions;
        self
    }

    /// Sets the filter as a compiled program, which overrides [`Builder::filter`]. It is for
    /// interfaces only.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.options.program = Some(program);
        self
    }

    /// Sets promiscuous mode during the capture. Default: on.
    #[must_use]
    pub fn promiscuous(mut self, promiscuous: bool) -> Self {
        self.options.promiscuous = promiscuous;
        self
    }

    /// Provides a flow hash with each frame. Default: off. On TPACKET_V3 the kernel computes the
    /// hash if the NIC did not; on AF_XDP the driver provides it; the other paths have none.
    #[must_use]
    pub fn rx_hash(mut self, rx_hash: bool) -> Self {
        self.options.rx_hash = rx_hash;
        self
    }

    /// Provides the NIC's timestamp of each frame on AF_XDP, see [`crate::Frame::hardware_ns`].
    /// Default: off. Timestamps must be enabled on the NIC (`SIOCSHWTSTAMP`).
    #[must_use]
    pub fn hardware_time(mut self, hardware_time: bool) -> Self {
        self.options.hardware_time = hardware_time;
        self
    }

    /// Lets AF_XDP's program stamp each frame on arrival, at a cost of tens of nanoseconds.
    /// Default: on. Without it a frame has the time at which its batch was read. On the other
    /// paths the kernel always stamps frames.
    #[must_use]
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.options.timestamps = timestamps;
        self
    }

    /// Allocates AF_XDP's memory on huge pages if some are reserved. Default: off.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.options.huge_pages = huge_pages;
        self
    }

    /// Prepares the session to send, see [`Session::take_sender`]. Default: off. `PF_ZEROCOPY`
    /// needs another 128 KiB of locked memory for it; the other paths need nothing.
    #[must_use]
    pub fn sends(mut self, sends: bool) -> Self {
        self.options.sends = sends;
        self
    }

    /// Records the process that owns each frame's socket ([`Frame::owner`](crate::Frame::owner)).
    /// Default: off. It needs the tap, which is then the default path.
    #[must_use]
    pub fn owners(mut self, owners: bool) -> Self {
        self.options.owners = owners;
        self
    }

    /// Captures only frames of selected owners, which implies [`Builder::owners`].
    #[must_use]
    pub fn select(mut self, select: Option<Select>) -> Self {
        self.options.select = select;
        self
    }

    /// Has the tap opened by a broker, for a program without the privilege to load programs. The
    /// other paths do not use it, nor does a tap that records owners.
    #[must_use]
    pub fn broker(mut self, broker: Option<Broker>) -> Self {
        self.options.broker = broker;
        self
    }

    /// Sets the sizes of the tap's rings and the pauses of its reader, for measurements. It
    /// overrides [`Builder::ring`] on the tap. A tap that a [`Builder::broker`] opens has the
    /// default sizes.
    #[must_use]
    pub fn tap_rings(mut self, rings: Option<TapRings>) -> Self {
        self.options.tap_rings = rings;
        self
    }

    /// Has the blocks of a file that a copy has, too, added to `extras`, each before the next
    /// frame. It is for files only.
    #[must_use]
    pub fn extra_blocks(mut self, extras: Option<ExtraBlocks>) -> Self {
        self.extras = extras;
        self
    }

    /// Opens the capture, which receives frames from here on.
    ///
    /// # Errors
    /// An unknown interface, an option out of range, a filter that libpcap rejects, a missing
    /// privilege, or a feature that the kernel or the driver lacks.
    pub fn open(mut self) -> Result<Session, Error> {
        self.check()?;
        let interface = link::find(&self.interface)?;
        let link = Link::of(&interface)?;
        let options = &mut self.options;
        let owners = options.owners || options.select.is_some();
        let path = if owners { self.path.with_owners(&interface)? } else { self.path };
        options.directions = match (options.directions, owners && interface.is_loopback()) {
            // Only a sent frame has its socket with it.
            (Directions::Both, true) => Directions::Out,
            (directions, _) => directions.without_duplicates(interface.is_loopback()),
        };
        let program = match &options.program {
            Some(program) => filter::cut(program, options.snaplen)?,
            None => filter::live(&self.interface, link, options.filter.as_deref(), options.snaplen)?,
        };
        let mut request = Request { options, interface, link, program, attribution: None };
        if owners {
            request.attribution =
                Some(attribution(request.options, request.interface.is_loopback(), request.filters())?);
        }
        let opened = path.open(&request)?;
        Ok(session(&self.interface, request, opened))
    }

    /// Opens the file of this name (`-` for standard input) instead of an interface. Filter and
    /// snaplen apply.
    pub fn open_file(self) -> Result<Session, Error> {
        self.check()?;
        let Options { filter, snaplen, directions, wait, .. } = self.options;
        let engine = file::Engine::open((&self.interface, self.extras), filter.as_deref(), snaplen)?;
        let info = Info {
            path: "file",
            mode: "read".to_owned(),
            ring: String::new(),
            interface: self.interface.clone(),
            is_loopback: false,
            link: None,
            link_type: engine.link_type(),
            directions,
            program: Program::accept_all(snaplen),
            snaplen,
            notes: Vec::new(),
        };
        let shared = Shared::new(LinkWatch::default());
        let (engine, pacer) = (AnyEngine::File(Box::new(engine)), Pacer::new(wait, 1));
        let lane = Lane::new(engine, pacer, self.interface, snaplen, 0, None, shared.clone());
        Ok(Session::new(info, vec![lane], None, shared))
    }

    fn check(&self) -> Result<(), Error> {
        let Options { snaplen, cpus, ring_bytes, .. } = &self.options;
        if !(1..=SNAPLEN_MAX).contains(snaplen) {
            return Err(Error::Usage(format!("snaplen {snaplen}: give 1 to {SNAPLEN_MAX} bytes")));
        }
        cpus.iter().try_for_each(|&cpu| strait_os::process::check_cpu(cpu))?;
        if ring_bytes.is_some_and(|bytes| !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)) {
            let (least, most) = (RING_BYTES_MIN >> 10, RING_BYTES_MAX >> 20);
            return Err(Error::Usage(format!("the ring size must be {least} KiB to {most} MiB")));
        }
        Ok(())
    }
}

/// Starts to record the owners of sockets.
fn attribution(options: &Options, is_loopback: bool, filters: bool) -> Result<Attribution, Error> {
    let selection = options.select.as_ref().map(owners::resolve).transpose()?;
    let sees_all = (options.directions == Directions::Both || is_loopback) && !filters;
    Ok(Attribution { hooks: Arc::new(Hooks::attach()?), selection, sees_all })
}

/// Makes a session of an open path on `interface`.
fn session(interface: &str, request: Request<'_>, opened: Opened<AnyEngine>) -> Session {
    let Request { options, link, program, attribution, .. } = request;
    let Opened { engines, source, watch, userspace, path, mode, ring, mut notes } = opened;
    notes.extend(options.select.as_ref().and_then(owners::note));
    let shared = Shared::new(watch);
    let cpu = |i: usize| (!options.cpus.is_empty()).then(|| options.cpus[i % options.cpus.len()]);
    let lane = |(i, (engine, number)): (usize, (AnyEngine, u32))| {
        let pacer = Pacer::new(options.wait, engine.capacity());
        let interface = interface.to_owned();
        let mut lane = Lane::new(engine, pacer, interface, options.snaplen, number, cpu(i), shared.clone());
        lane.set_userspace_filter(userspace.clone());
        lane
    };
    let lanes = engines.into_iter().enumerate().map(lane).collect();
    let info = Info {
        path,
        mode: mode.to_owned(),
        ring,
        interface: interface.to_owned(),
        is_loopback: request.interface.is_loopback(),
        link: Some(link),
        link_type: link.link_type(),
        directions: options.directions,
        program,
        snaplen: options.snaplen,
        notes,
    };
    let hooks = attribution.map(|attribution| attribution.hooks);
    Session { hooks, ..Session::new(info, lanes, Some(source), shared) }
}
