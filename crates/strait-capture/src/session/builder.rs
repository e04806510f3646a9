//! What a user can ask of a session, checked against the interface before anything is opened.

use std::sync::Arc;

use strait_filter::cbpf::Program;
use strait_sys::ethtool::{Ethtool, Offload};
use strait_sys::interface::Interface;
use strait_sys::packet::Fanout;
use strait_sys::packet::v3::{Early, READS_EARLY};

use super::{Counters, Info, PacketSource, Path, Session, Source, XdpSource, ZeroCopySource};
use crate::error::Error;
use crate::filter::{self, SNAPLEN_MAX};
use crate::lane::{Engine, Lane, Shared};
use crate::link::{self, ANY, Link, Split};
use crate::paths::packet::{self, Kind, Shape};
use crate::paths::xdp::Insist;
use crate::paths::xdp::ring_size as xdp_ring;
use crate::paths::{file, xdp, zerocopy};
use crate::queues::Queues;
use crate::wait::{Pacer, Wait};

/// Which frames to capture, seen from this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// Received frames.
    In,
    /// Sent frames.
    Out,
    /// Both; AF_XDP sees received frames only.
    #[default]
    Both,
}

/// The most lanes of a session: the largest fanout group (`PACKET_FANOUT_MAX` of old kernels).
const LANES_MAX: usize = 256;
/// Bytes of the ring of `PF_ZEROCOPY` unless asked otherwise: the most slots that the module has.
const ZEROCOPY_RING_BYTES: usize = 8 << 20;
/// The smallest ring for a lane.
const RING_BYTES_MIN: usize = 256 << 10;
/// The largest ring for a lane; the kernel counts blocks in 32 bits.
const RING_BYTES_MAX: usize = 2 << 30;
/// Link header, two VLAN tags and frame check sequence beyond the MTU.
const LINK_OVERHEAD: u32 = 14 + 8 + 4;
/// What receive offload may hand over at most.
const OFFLOADED_FRAME_BYTES: u32 = 65_536 + LINK_OVERHEAD;

/// Options of a capture. Each has a default; [`Builder::open`] checks them together.
#[derive(Clone, Debug)]
pub struct Builder {
    interface: String,
    path: Path,
    filter: Option<String>,
    program: Option<Program>,
    snaplen: u32,
    queues: Queues,
    fanout: Fanout,
    cpus: Vec<u32>,
    wait: Wait,
    ring_bytes: Option<usize>,
    directions: Directions,
    promiscuous: bool,
    rx_hash: bool,
    hardware_time: bool,
    timestamps: bool,
    huge_pages: bool,
    sends: bool,
}

impl Builder {
    pub(super) fn new(interface: String) -> Self {
        Self {
            interface,
            path: Path::Auto,
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
        }
    }

    /// The kernel path; [`Path::Auto`] unless given.
    #[must_use]
    pub fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// A filter in libpcap's language (pcap-filter(7)); everything unless given.
    #[must_use]
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Bytes kept of each frame, 1 to 262144; frames whole unless given. Packet sockets cut in the
    /// kernel.
    #[must_use]
    pub fn snaplen(mut self, snaplen: u32) -> Self {
        self.snaplen = snaplen;
        self
    }

    /// Which queues, so how many lanes.
    #[must_use]
    pub fn queues(mut self, queues: Queues) -> Self {
        self.queues = queues;
        self
    }

    /// How packet sockets spread frames over several lanes; by symmetric flow hash unless given.
    #[must_use]
    pub fn fanout(mut self, fanout: Fanout) -> Self {
        self.fanout = fanout;
        self
    }

    /// CPUs for the lanes in turn; none pinned unless given.
    #[must_use]
    pub fn cpus(mut self, cpus: Vec<u32>) -> Self {
        self.cpus = cpus;
        self
    }

    /// How to wait for packets; [`Wait::Balanced`] unless given.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Bytes of ring for each lane, 256 KiB to 2 GiB. The default holds 2,000 frames or more, 100
    /// ms at 20,000 a second: 8 MiB for V3, 16 MiB for `recv`, 8 MiB for V2 or 136 MiB where
    /// the interface joins segments, shared by several lanes; for AF_XDP, where each frame
    /// takes 2 KiB, 32 MiB, or 64 MiB where there is one queue. The kernel may have less: see
    /// [`Session::notes`].
    #[must_use]
    pub fn ring(mut self, bytes: usize) -> Self {
        self.ring_bytes = Some(bytes);
        self
    }

    /// Received frames, sent frames, or both (the default).
    #[must_use]
    pub fn directions(mut self, directions: Directions) -> Self {
        self.directions = directions;
        self
    }

    /// The filter as a program, for whoever compiled it; it goes before the text, and is for
    /// interfaces only.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.program = Some(program);
        self
    }

    /// Whether to set the interface to promiscuous mode while capturing; yes unless given.
    #[must_use]
    pub fn promiscuous(mut self, promiscuous: bool) -> Self {
        self.promiscuous = promiscuous;
        self
    }

    /// Whether frames carry a flow hash; no unless given. TPACKET_V3 computes one where the NIC
    /// gave none, AF_XDP asks the driver, the other paths have none.
    #[must_use]
    pub fn rx_hash(mut self, rx_hash: bool) -> Self {
        self.rx_hash = rx_hash;
        self
    }

    /// Whether AF_XDP asks the driver when the NIC took each frame, see
    /// [`crate::Frame::hardware_ns`]; no unless given. The NIC must have been told to take
    /// times (`SIOCSHWTSTAMP`).
    #[must_use]
    pub fn hardware_time(mut self, hardware_time: bool) -> Self {
        self.hardware_time = hardware_time;
        self
    }

    /// Whether AF_XDP's program stamps each frame as it comes, for tens of nanoseconds; yes unless
    /// given. Without, a frame has the time at which its batch was read. The kernel stamps what
    /// comes by the other paths anyhow.
    #[must_use]
    pub fn timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Whether AF_XDP's memory lies on huge pages, where some are reserved; no unless given.
    #[must_use]
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether the session is to send as well, see [`Session::take_sender`]; no unless given.
    /// `PF_ZEROCOPY` needs another 128 KiB of locked memory for it, the other paths need
    /// nothing.
    #[must_use]
    pub fn sends(mut self, sends: bool) -> Self {
        self.sends = sends;
        self
    }

    /// Opens the capture; frames arrive from here on.
    ///
    /// # Errors
    /// An unknown interface, an option out of range, a filter that libpcap rejects, a missing
    /// privilege or ability.
    pub fn open(mut self) -> Result<Session, Error> {
        self.check()?;
        let interface = link::find(&self.interface)?;
        let link = Link::of(&interface)?;
        self.directions = once(interface.is_loopback(), self.directions);
        let program = match &self.program {
            Some(program) => filter::cut(program, self.snaplen)?,
            None => filter::live(&self.interface, link, self.filter.as_deref(), self.snaplen)?,
        };
        let target = Target { interface, link, program };
        match self.path {
            Path::Xdp => self.open_xdp(&target, Insist::Nothing),
            Path::XdpZeroCopy => self.open_xdp(&target, Insist::ZeroCopy),
            Path::XdpNative => self.open_xdp(&target, Insist::NativeCopy),
            Path::XdpGeneric => self.open_xdp(&target, Insist::Generic),
            Path::Recv => self.open_packet(&target, Kind::Recv, Vec::new()),
            Path::V2 => self.open_packet(&target, Kind::V2, Vec::new()),
            Path::V3 => self.open_packet(&target, Kind::V3, Vec::new()),
            Path::ZeroCopy => self.open_zero_copy(&target),
            Path::Auto => self.open_auto(&target),
        }
    }

    /// Reads `file` (`-` for standard input) instead of an interface; filter and snaplen apply.
    pub fn open_file(self) -> Result<Session, Error> {
        self.check()?;
        let shared = Arc::<Shared>::default();
        let engine = file::Engine::open(&self.interface, self.filter.as_deref(), self.snaplen)?;
        let info = Info {
            path: "file",
            mode: "read".to_owned(),
            ring: String::new(),
            interface: self.interface.clone(),
            is_loopback: false,
            link: None,
            link_type: engine.link_type(),
            directions: self.directions,
            program: Program::accept_all(self.snaplen),
            snaplen: self.snaplen,
            notes: Vec::new(),
        };
        let pacer = Pacer::new(self.wait, 1);
        let engine = Engine::File(Box::new(engine));
        let lane =
            Lane::new(engine, pacer, self.interface.clone(), self.snaplen, 0, None, Arc::clone(&shared));
        Ok(Session::new(info, vec![lane], Source::File, shared))
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=SNAPLEN_MAX).contains(&self.snaplen) {
            return Err(Error::Usage(format!("snaplen {}: give 1 to {SNAPLEN_MAX} bytes", self.snaplen)));
        }
        self.cpus.iter().try_for_each(|&cpu| strait_sys::process::check_cpu(cpu))?;
        if self.ring_bytes.is_some_and(|bytes| !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)) {
            let (least, most) = (RING_BYTES_MIN >> 10, RING_BYTES_MAX >> 20);
            return Err(Error::Usage(format!("a ring has {least} KiB to {most} MiB")));
        }
        Ok(())
    }

    /// V3 where the kernel has it: the doorbell gives it V2's delay, its blocks the least cost.
    /// Where the open block cannot be read there is no doorbell, and V2 is the prompt one.
    fn open_auto(&self, target: &Target) -> Result<Session, Error> {
        let mut notes = Vec::new();
        let prompt = self.wait == Wait::Latency && !READS_EARLY;
        for kind in if prompt { [Kind::V2, Kind::V3] } else { [Kind::V3, Kind::V2] } {
            match self.open_packet(target, kind, notes.clone()) {
                Err(Error::System(error)) if !is_final(&error) => notes.push(error.to_string()),
                opened => return opened,
            }
        }
        self.open_packet(target, Kind::Recv, notes)
    }

    fn open_packet(&self, target: &Target, kind: Kind, notes: Vec<String>) -> Result<Session, Error> {
        let Target { link, program, .. } = target;
        let split = link.split(program, self.directions)?;
        let in_kernel = split.why_here.is_none() && self.filters();
        match self.open_filtered(target, kind, split, notes.clone()) {
            Err(error) if in_kernel && filter::may_be_too_large(&error) => {
                let here = link.split_here(program, self.directions, &error)?;
                self.open_filtered(target, kind, here, notes).map_err(|_| error)
            }
            opened => opened,
        }
    }

    fn open_filtered(
        &self,
        target: &Target,
        kind: Kind,
        split: Split,
        mut notes: Vec<String>,
    ) -> Result<Session, Error> {
        let Target { interface, link, .. } = target;
        let Split { kernels: program, userspace, why_here } = split;
        filter::note(&mut notes, why_here);
        let numbers = self.lane_numbers(interface)?;
        let mut shape = self.shape(interface, *link, kind, numbers.len());
        if userspace.is_some() {
            // The filter is to see what it would see in the kernel; the snaplen cuts what it matches.
            shape.frame_bytes = frame_bytes_max(interface);
        }
        let shared = Shared::watching(interface)?;
        let mut engines = Vec::with_capacity(numbers.len());
        for _ in &numbers {
            engines.push(packet::Engine::open(interface, &program, &shape)?);
        }
        packet::join_fanout(&mut engines, self.fanout)?;
        let counters = Counters::start(interface, *link, self.directions, self.filters())?;
        engines.iter().try_for_each(|engine| engine.admit(&program))?;
        let smallest = engines.iter().map(packet::Engine::ring_bytes).min().unwrap_or(0);
        // The ring is of whole blocks, so a little smaller than asked for; where memory is short it
        // was halved.
        if smallest <= shape.ring_bytes() / 2 {
            notes.push(format!("the kernel had memory for a ring of {} KiB only", smallest >> 10));
        }
        let ring = engines.first().map(packet::Engine::describe).unwrap_or_default();
        let mut sockets = Vec::with_capacity(engines.len());
        for engine in &engines {
            sockets.push(engine.socket().try_clone()?);
        }
        let engines = engines.into_iter().map(|engine| {
            let pacer = Pacer::new(self.wait, engine.capacity());
            (Engine::Packet(Box::new(engine)), pacer)
        });
        let mut lanes = self.lanes(engines.collect(), &numbers, &shared);
        for lane in &mut lanes {
            lane.start_with(userspace.clone());
        }
        let source = Source::Packet(Box::new(PacketSource { sockets, counters }));
        let info = self.info(target, kind.name(), "copy", ring, notes);
        Ok(Session::new(info, lanes, source, shared))
    }

    fn open_xdp(&self, target: &Target, insist: Insist) -> Result<Session, Error> {
        let Target { interface, link, program } = target;
        if interface.index == 0 {
            return Err(Error::Usage(format!("AF_XDP is for one interface, not for {ANY}: use --path v3")));
        }
        refuse_sent("xdp", self.directions)?;
        filter::refuse_on_xdp(program)?;
        let queues = match &self.queues {
            Queues::These(queues) => queues.clone(),
            Queues::Default | Queues::All => (0..interface.queues()?.rx).collect(),
        };
        let counters = Counters::start(interface, *link, self.directions, self.filters())?;
        let ring_bytes = self.ring_bytes.unwrap_or_else(|| xdp_ring::default_bytes(queues.len()));
        let options = xdp::Options {
            interface,
            program,
            queues: &queues,
            ring_bytes,
            insist,
            timestamps: self.timestamps,
            huge_pages: self.huge_pages,
            wait: self.wait,
            promiscuous: self.promiscuous,
            rx_hash: self.rx_hash,
            hardware_time: self.hardware_time,
        };
        let smaller = xdp_ring::smaller_bytes(self.ring_bytes, ring_bytes);
        let opened = match (xdp::open(&options), smaller) {
            (Err(Error::System(error)), Some(smaller)) if is_memory(&error) => {
                let mut opened = xdp::open(&xdp::Options { ring_bytes: smaller, ..options })?;
                opened.notes.push(xdp_ring::note(ring_bytes, smaller, &error));
                opened
            }
            (opened, _) => opened?,
        };
        let source = XdpSource { intake: opened.intake, counters };
        let shared = Shared::watching(interface)?;
        let engines = opened.engines.into_iter().map(|engine| {
            let pacer = Pacer::new(self.wait, engine.capacity());
            (Engine::Xdp(Box::new(engine)), pacer)
        });
        let lanes = self.lanes(engines.collect(), &queues, &shared);
        let info = self.info(target, "xdp", opened.mode, opened.ring, opened.notes);
        Ok(Session::new(info, lanes, Source::Xdp(Box::new(source)), shared))
    }

    fn open_zero_copy(&self, target: &Target) -> Result<Session, Error> {
        let Target { interface, link, program } = target;
        if !interface.is_ethernet() {
            let name = &interface.name;
            return Err(Error::Usage(format!(
                "{name}: PF_ZEROCOPY is for Ethernet interfaces: use --path v3"
            )));
        }
        refuse_sent("zerocopy", self.directions)?;
        let numbers = self.lane_numbers(interface)?;
        if numbers != [0] {
            return Err(Error::Usage("PF_ZEROCOPY has one queue, number 0".into()));
        }
        let ring_bytes = self.ring_bytes.unwrap_or(ZEROCOPY_RING_BYTES);
        let opened = zerocopy::Engine::open(interface, ring_bytes, self.promiscuous, self.sends)?;
        let zerocopy::Opened { engine, sender } = opened;
        let source = Box::new(ZeroCopySource { counts: engine.counts(), sender });
        let ring = engine.describe();
        let shared = Shared::watching(interface)?;
        let pacer = Pacer::new(self.wait, engine.capacity());
        let mut lanes = self.lanes(vec![(Engine::ZeroCopy(Box::new(engine)), pacer)], &numbers, &shared);
        if self.filters() {
            let Split { userspace, .. } = link.split_here(program, Directions::In, &"")?;
            for lane in &mut lanes {
                lane.start_with(userspace.clone());
            }
        }
        let info = self.info(target, "zerocopy", "zero-copy", ring, Vec::new());
        Ok(Session::new(info, lanes, Source::ZeroCopy(source), shared))
    }

    fn lanes(&self, engines: Vec<(Engine, Pacer)>, numbers: &[u32], shared: &Arc<Shared>) -> Vec<Lane> {
        let cpu = |i: usize| (!self.cpus.is_empty()).then(|| self.cpus[i % self.cpus.len()]);
        let lane = |(i, ((engine, pacer), &number))| {
            Lane::new(engine, pacer, self.interface.clone(), self.snaplen, number, cpu(i), Arc::clone(shared))
        };
        engines.into_iter().zip(numbers).enumerate().map(lane).collect()
    }

    fn info(
        &self,
        target: &Target,
        path: &'static str,
        mode: &str,
        ring: String,
        notes: Vec<String>,
    ) -> Info {
        Info {
            path,
            mode: mode.to_owned(),
            ring,
            interface: self.interface.clone(),
            is_loopback: target.interface.is_loopback(),
            link: Some(target.link),
            link_type: target.link.link_type(),
            directions: self.directions,
            program: target.program.clone(),
            snaplen: self.snaplen,
            notes,
        }
    }

    fn shape(&self, interface: &Interface, link: Link, kind: Kind, lanes: usize) -> Shape {
        let is_busy = self.wait == Wait::Busy;
        Shape {
            kind,
            asked_bytes: self.ring_bytes,
            lanes,
            frame_bytes: frame_bytes_max(interface).min(self.snaplen as usize),
            rx_hash: self.rx_hash,
            promiscuous: self.promiscuous,
            ignore_outgoing: self.directions == Directions::In,
            doorbell: kind == Kind::V3 && !is_busy && self.can_ring(),
            patient: READS_EARLY && (is_busy || self.can_ring()),
            // Whoever wants each frame at once pays for zeroing blocks.
            early: if self.wait == Wait::Balanced { Early::Quiet } else { Early::Always },
            cooked: link.cooked(),
        }
    }

    fn filters(&self) -> bool {
        match &self.program {
            Some(program) => *program != Program::accept_all(SNAPLEN_MAX),
            None => self.filter.as_ref().is_some_and(|text| !text.trim().is_empty()),
        }
    }

    /// Whether a doorbell would do any good. With rollover it would ring the next lane whenever one
    /// is awake.
    fn can_ring(&self) -> bool {
        READS_EARLY && self.fanout != Fanout::Rollover
    }

    /// The numbers of a packet socket's lanes.
    fn lane_numbers(&self, interface: &Interface) -> Result<Vec<u32>, Error> {
        let numbers = match &self.queues {
            Queues::Default => vec![0],
            Queues::All if interface.index == 0 => vec![0],
            Queues::All => (0..interface.queues()?.rx).collect(),
            Queues::These(queues) => queues.clone(),
        };
        match numbers.len() {
            1..=LANES_MAX => Ok(numbers),
            count => Err(Error::Usage(format!("{count} lanes: give 1 to {LANES_MAX}"))),
        }
    }
}

/// What is opened: where, what packets begin with, and the filter for them.
struct Target {
    interface: Interface,
    link: Link,
    program: Program,
}

/// AF_XDP and PF_ZEROCOPY see received frames only.
pub(crate) fn refuse_sent(path: &str, directions: Directions) -> Result<(), Error> {
    match directions {
        Directions::Out => {
            Err(Error::Usage(format!("{path} sees received frames only: use --path v3 for sent ones")))
        }
        Directions::In | Directions::Both => Ok(()),
    }
}

/// On the loopback each frame goes out and comes in: once is enough, as libpcap sees it.
pub(crate) fn once(is_loopback: bool, directions: Directions) -> Directions {
    match directions {
        Directions::Both if is_loopback => Directions::In,
        directions => directions,
    }
}

/// Bytes of the longest frame that the kernel may hand over.
fn frame_bytes_max(interface: &Interface) -> usize {
    let bytes = if joins_segments(interface) { OFFLOADED_FRAME_BYTES } else { interface.mtu + LINK_OVERHEAD };
    bytes as usize
}

/// Whether frames may be longer than the MTU: segments joined on receipt, or not yet cut on
/// sending. Where the driver does not say, expect it.
fn joins_segments(interface: &Interface) -> bool {
    let Ok(ethtool) = Ethtool::open(&interface.name) else { return true };
    [Offload::Gro, Offload::Gso, Offload::Tso]
        .into_iter()
        .any(|offload| ethtool.offload(offload).unwrap_or(true))
}

/// Returns true if the error is about locked memory, so that less might do (`ulimit -l`).
fn is_memory(error: &strait_sys::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENOBUFS: i32 = 105;
    matches!(error.errno(), Some(ENOMEM | ENOBUFS))
}

/// Whether another packet-socket path would fail with the same error.
fn is_final(error: &strait_sys::Error) -> bool {
    const EINVAL: i32 = 22;
    const ENOPROTOOPT: i32 = 92;
    !matches!(error.errno(), Some(EINVAL | ENOPROTOOPT))
}
