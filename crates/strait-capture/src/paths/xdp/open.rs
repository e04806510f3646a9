//! Opens AF_XDP sockets in the fastest way that the interface supports.
//!
//! | | program | frames | fragments |
//! |---|---|---|---|
//! | 1 | native | the NIC writes into the UMEM | only if the MTU needs them |
//! | 2 | native | the kernel copies | yes, unless the kernel lacks them |
//! | 3 | generic | the kernel copies | yes, unless the kernel lacks them |
//!
//! Zero-copy saves the copy of each frame. A native program runs before the kernel allocates a
//! socket buffer for the frame, a generic program after that. A generic program works on every
//! interface. `docs/performance.md` has the rates of each way.
//!
//! If the driver or the kernel does not support a way, the next one is tried and the reason becomes
//! a note. An error that would recur in the next way (no privilege, a queue in use, no memory) is
//! returned.
//!
//! For each way the order is: bind the sockets, put them into the XSKMAP, attach the program. From
//! the attachment on, matching frames no longer reach the host, so each of them needs a socket by
//! then.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_filter::translate::MetadataFunctions;
use strait_filter::xdp::{COUNTERS_BYTES, Metadata};
use strait_os::interface::Interface;
use strait_os::netlink::{Netlink, XdpMetadata, XdpMode, xdp_abilities};
use strait_sys::Kind;
use strait_sys::bpf::{self, AttachMode, Link, Map, MappedArray, btf};
use strait_sys::xdp::{Binding, Geometry, Mode, Receiver, SLOTS_MAX, Socket, Umem};

use super::attachment::{Attachment, Template};
use super::bind::{bind, is_unsupported};
use super::engine::{BATCH_MAX, Counts, Engine, Features};
use super::join::Joiner;
use crate::error::Error;
use crate::link;
use crate::paths::stamp::Clock;
use crate::wait::Wait;

/// Ethernet header and two VLAN tags beyond the MTU; XDP sees no frame check sequence.
const LINK_OVERHEAD: u32 = 14 + 8;
/// Minimum number of chunks of a queue.
const CHUNKS_MIN: u32 = 64;
/// Time in microseconds for which a system call polls the driver (`SO_BUSY_POLL`).
const BUSY_POLL_US: u32 = 20;
/// Maximum number of frames of one poll (`SO_BUSY_POLL_BUDGET`).
const BUSY_POLL_BUDGET: u16 = 64;

/// Mode that the user requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Required {
    /// The fastest mode that the interface supports.
    Fastest,
    /// Zero-copy.
    ZeroCopy,
    /// Native program, frames copied.
    NativeCopy,
    /// Generic program.
    Generic,
}

/// Options of the sockets and of the program.
pub(super) struct Options<'a> {
    pub(super) interface: &'a Interface,
    /// The filter, as a packet socket would see the frames; its return value is the snaplen.
    pub(super) program: &'a Program,
    /// Receive queues, one engine each.
    pub(super) queues: &'a [u32],
    /// UMEM bytes for each queue.
    pub(super) ring_bytes: usize,
    pub(super) required: Required,
    /// Let the program timestamp each frame as it arrives.
    pub(super) timestamps: bool,
    pub(super) huge_pages: bool,
    pub(super) wait: Wait,
    pub(super) promiscuous: bool,
    /// Request the flow hash from the driver.
    pub(super) rx_hash: bool,
    /// Request the NIC's receive timestamps from the driver.
    pub(super) hardware_time: bool,
}

/// Open sockets with their program.
pub(super) struct Opened {
    /// Engines of the requested queues, in their order.
    pub(super) engines: Vec<Engine>,
    pub(super) attachment: Attachment,
    /// `zero-copy`, `native copy` or `generic`.
    pub(super) mode: &'static str,
    /// Description of each queue's part of the UMEM, for the user.
    pub(super) ring: String,
    /// Fallbacks and their reasons, for the user.
    pub(super) notes: Vec<String>,
}

/// Combination of program and socket options, a line of the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    attach: AttachMode,
    mode: Mode,
    /// Accept frames of several chunks (`XDP_USE_SG`, `BPF_F_XDP_HAS_FRAGS`).
    multi_buffer: bool,
    chunk_bytes: u32,
}

/// Name of the mode with a generic program.
pub(super) const GENERIC: &str = "generic";

impl Way {
    fn name(self) -> &'static str {
        match (self.mode, self.attach) {
            (Mode::ZeroCopy, _) => "zero-copy",
            (_, AttachMode::Generic) => GENERIC,
            _ => "native copy",
        }
    }
}

/// Opens the sockets in the fastest way that the interface supports.
///
/// # Errors
/// Another XDP program on the interface, another AF_XDP socket on a queue, no privilege, or a
/// required mode that the interface does not support.
pub(super) fn open(options: &Options<'_>) -> Result<Opened, Error> {
    refuse_other_program(options.interface)?;
    let ways = ways(options);
    let mut notes = Vec::new();
    for (i, way) in ways.iter().enumerate() {
        match try_way(options, *way, &mut notes) {
            Err(Error::System(error)) if i + 1 < ways.len() && is_unsupported(&error) => {
                notes.push(format!("no {}: {}", describe(*way), skip_reason(&error, options.interface)));
            }
            result => return result.map(|opened| with_notes(opened, notes)),
        }
    }
    Err(Error::Usage("there is no way to open AF_XDP".into()))
}

fn with_notes(mut opened: Opened, notes: Vec<String>) -> Opened {
    if let Some(first) = opened.engines.first_mut() {
        first.fallbacks = notes.len() as u64;
    }
    opened.notes = notes;
    opened
}

/// Returns the reason for skipping a way. It leaves out the error's remedy, which would advise
/// against AF_XDP: the user has chosen this path.
fn skip_reason(error: &strait_sys::Error, interface: &Interface) -> String {
    if error.is_one_of(&[Errno::OPNOTSUPP]) {
        format!("the driver of {} does not support it", interface.name)
    } else {
        error.failure()
    }
}

fn describe(way: Way) -> String {
    let fragments = if way.multi_buffer { ", frames in fragments" } else { "" };
    format!("{}{fragments}", way.name())
}

/// Refuses an interface with another XDP program. An interface runs only one program, and replacing
/// it would break the other application.
fn refuse_other_program(interface: &Interface) -> Result<(), Error> {
    let Some(attached) = Netlink::open()?.xdp(interface.index)? else { return Ok(()) };
    let name = bpf::program_info_by_id(attached.program_id).map(|info| info.name).unwrap_or_default();
    let mode = match attached.mode {
        XdpMode::Native => "native",
        XdpMode::Generic => "generic",
        XdpMode::Offloaded => "offloaded",
        XdpMode::Several => "several modes",
    };
    let cause = format!("XDP program {} \"{name}\" ({mode}) is attached there", attached.program_id);
    let error = strait_sys::Error::new(Kind::Refused, "capture with AF_XDP on", &*interface.name, cause);
    // A program of a bpf_link ends with the process that holds the link, others with a command.
    let holder =
        format!("strait doctor {} names its process, or the command that detaches it", interface.name);
    Err(error.remedy(format!("{holder}; or use --path v3")).into())
}

/// Returns the chunk size: 2048 bytes if a frame of `longest` bytes fits, otherwise 4096.
fn chunk_bytes(longest: u32, mode: Mode) -> u32 {
    if fits(longest, 2048, mode) { 2048 } else { 4096 }
}

/// Returns true if a frame fits one chunk. With zero-copy the chunk is a receive buffer of the NIC,
/// and NICs take the size of a buffer in KiB: bytes beyond a whole KiB cannot be used. If they are
/// counted, igb silently splits a frame in two (SRRCTL.BSIZEPKT of the 82576).
fn fits(longest: u32, chunk_bytes: u32, mode: Mode) -> bool {
    const KIB: u32 = 1024;
    let room = Geometry { chunk_bytes, chunks: 1, headroom_bytes: 0 }.frame_bytes();
    longest <= if mode == Mode::ZeroCopy { room / KIB * KIB } else { room }
}

/// Returns the ways to try, the fastest first. With copies, fragments are enabled: they cost
/// nothing until one arrives, and without them frames that receive offload has joined are lost.
/// With zero-copy they are enabled only if a frame of the MTU needs them, because some drivers
/// support zero-copy but not fragments.
fn ways(options: &Options<'_>) -> Vec<Way> {
    let longest = options.interface.mtu + LINK_OVERHEAD;
    let way = |attach, mode, multi_buffer| Way {
        attach,
        mode,
        multi_buffer,
        chunk_bytes: chunk_bytes(longest, mode),
    };
    let is_whole = |mode| fits(longest, chunk_bytes(longest, mode), mode);
    let zero_copy = way(AttachMode::Native, Mode::ZeroCopy, !is_whole(Mode::ZeroCopy));
    let (mut ways, attachments) = match options.required {
        Required::Fastest => (vec![zero_copy], vec![AttachMode::Native, AttachMode::Generic]),
        Required::ZeroCopy => (vec![zero_copy], vec![]),
        Required::NativeCopy => (vec![], vec![AttachMode::Native]),
        Required::Generic => (vec![], vec![AttachMode::Generic]),
    };
    for attach in attachments {
        ways.push(way(attach, Mode::Copy, true));
        if is_whole(Mode::Copy) {
            ways.push(way(attach, Mode::Copy, false));
        }
    }
    ways
}

fn try_way(options: &Options<'_>, way: Way, notes: &mut Vec<String>) -> Result<Opened, Error> {
    let mut attempt_notes = Vec::new();
    let ports = open_ports(options, way, &mut attempt_notes)?;
    let queues = options.interface.queues()?.rx;
    let sockets = Map::xskmap("strait_sockets", queues)?;
    for (port, &queue) in ports.iter().zip(options.queues) {
        sockets.set_socket(queue, port.socket.as_fd())?;
    }
    let counters = Map::mappable_array("strait_counts", queues * COUNTERS_BYTES, 1)?;
    let promiscuous = if options.promiscuous { Some(link::promiscuous(options.interface)?) } else { None };
    let mapped = Arc::new(counters.mapped()?);
    let mut template = Template {
        interface: options.interface.clone(),
        attach: way.attach,
        fragments: way.multi_buffer,
        functions: driver_functions(options, way),
        timestamps: options.timestamps,
        sockets,
        counters,
        queues,
    };
    let link = attach(options, &mut template, &mut attempt_notes)?;
    let provided =
        Provided { metadata: template.has_metadata(), tags: template.functions.rx_vlan_tag.is_some() };
    let engines = ports.into_iter().zip(options.queues);
    let engines = engines.map(|(port, &queue)| port.engine(options, way, queue, provided, &mapped)).collect();
    notes.append(&mut attempt_notes);
    let attachment = Attachment::new(link, template, promiscuous);
    let ring = format!("{} chunks of {} KiB", chunks(options, way.chunk_bytes), way.chunk_bytes / 1024);
    Ok(Opened { engines, attachment, mode: way.name(), ring, notes: Vec::new() })
}

/// Loads and attaches the program. If the kernel refuses the driver's metadata functions it
/// attaches a program without them, and removes them from the template.
fn attach(options: &Options<'_>, template: &mut Template, notes: &mut Vec<String>) -> Result<Link, Error> {
    if template.functions == MetadataFunctions::default() {
        return template.attach(options.program);
    }
    match template.attach(options.program) {
        Err(Error::System(error)) if is_unsupported(&error) => {
            notes.push(format!("no VLAN tags, flow hash or timestamps from the driver: {error}"));
            template.functions = MetadataFunctions::default();
            template.attach(options.program)
        }
        attached => attached,
    }
}

/// Returns the driver functions that the program calls: for VLAN tags that the device removes, and
/// for hash and time if they were requested. The kernel must have them (Linux 6.3; tags 6.8), and
/// the driver must not report that it lacks them. Generic programs have no driver.
fn driver_functions(options: &Options<'_>, way: Way) -> MetadataFunctions {
    if way.attach != AttachMode::Native {
        return MetadataFunctions::default();
    }
    let names = ["bpf_xdp_metadata_rx_vlan_tag", "bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_timestamp"];
    let Ok([rx_vlan_tag, rx_hash, rx_timestamp]) =
        btf::Types::of_kernel().and_then(|types| types.functions(names))
    else {
        return MetadataFunctions::default();
    };
    let reported = xdp_abilities(options.interface.index).ok().and_then(|features| features.metadata);
    let supported = reported.unwrap_or(XdpMetadata { timestamp: true, hash: true, vlan_tag: true });
    MetadataFunctions {
        rx_vlan_tag: rx_vlan_tag.filter(|_| supported.vlan_tag),
        rx_hash: rx_hash.filter(|_| options.rx_hash && supported.hash),
        rx_timestamp: rx_timestamp.filter(|_| options.hardware_time && supported.timestamp),
    }
}

/// Metadata that the program provides with a frame.
#[derive(Clone, Copy)]
struct Provided {
    /// True for any metadata.
    metadata: bool,
    /// VLAN tags that the device removed.
    tags: bool,
}

/// Bound socket before its program is attached.
struct Port {
    socket: Socket,
    receiver: Receiver,
    chunk_bytes: u32,
    rx_slots: u32,
    busy_poll: bool,
}

impl Port {
    fn engine(
        mut self,
        options: &Options<'_>,
        way: Way,
        queue: u32,
        provided: Provided,
        counters: &Arc<MappedArray>,
    ) -> Engine {
        if provided.metadata {
            self.receiver.set_metadata_bytes(Metadata::BYTES as u32);
        }
        let socket = Arc::new(self.socket);
        let (received, counters) = (self.receiver.count(), Arc::clone(counters));
        let counts = Counts { socket: Arc::clone(&socket), received, counters, queue };
        Engine {
            receiver: self.receiver,
            socket,
            counts: Arc::new(counts),
            joiner: Joiner::new(BATCH_MAX, self.chunk_bytes as usize),
            clock: Clock::new(),
            interface: options.interface.index,
            rx_slots: self.rx_slots,
            features: Features {
                multi_buffer: way.multi_buffer,
                metadata: provided.metadata,
                reads_tags: provided.tags,
                busy_poll: self.busy_poll,
                zero_copy: way.mode == Mode::ZeroCopy,
            },
            fallbacks: 0,
            spins: 0,
            taken: 0,
        }
    }
}

/// Opens and binds a socket for each queue, all on one UMEM.
fn open_ports(options: &Options<'_>, way: Way, notes: &mut Vec<String>) -> Result<Vec<Port>, Error> {
    let Way { mode, multi_buffer, chunk_bytes, .. } = way;
    let chunks = chunks(options, chunk_bytes);
    let geometry = Geometry { chunk_bytes, chunks: chunks * options.queues.len() as u32, headroom_bytes: 0 };
    let mut umem = Umem::new(geometry, options.huge_pages, options.interface.numa_node())?;
    notes.extend(umem.fallbacks().iter().map(ToString::to_string));
    let mut ports: Vec<Port> = Vec::with_capacity(options.queues.len());
    for &queue in options.queues {
        let mut socket = Socket::open(&options.interface.name)?;
        let first = ports.first().map(|port| &port.socket);
        if first.is_none() {
            socket.register(&umem)?;
        }
        let receiver = socket.receiver(chunks, umem.share(chunks)?)?;
        let binding = Binding { ifindex: options.interface.index, queue, mode, multi_buffer };
        bind(&mut socket, &binding, first)?;
        socket.wake_rx()?;
        let busy_poll = options.wait == Wait::Busy && try_busy_poll(&socket, notes);
        ports.push(Port { socket, receiver, chunk_bytes, rx_slots: chunks, busy_poll });
    }
    Ok(ports)
}

/// Returns the number of chunks of a queue and of slots of its RX ring. The kernel requires a power
/// of two for the ring; the same number of chunks leaves no slot without a chunk.
fn chunks(options: &Options<'_>, chunk_bytes: u32) -> u32 {
    let chunks_max = SLOTS_MAX / (options.queues.len() as u32).next_power_of_two();
    let requested = u32::try_from(options.ring_bytes / chunk_bytes as usize).unwrap_or(SLOTS_MAX);
    (1 << requested.max(1).ilog2()).clamp(CHUNKS_MIN.min(chunks_max), chunks_max)
}

fn try_busy_poll(socket: &Socket, notes: &mut Vec<String>) -> bool {
    match socket.set_busy_poll(BUSY_POLL_US, BUSY_POLL_BUDGET) {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!("{error}: polling the ring without busy polling"));
            false
        }
    }
}
