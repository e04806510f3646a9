//! Opens a session on the tap: rings, doorbell, programs.

use std::sync::Arc;

use rustix::io::Errno;
use strait_filter::tap::layout::{self, Sizes};
use strait_os::ethtool::Ethtool;
use strait_os::process;
use strait_sys::bpf::{Doorbell, Map, RingLayout, RingReader, Rings};
use strait_sys::packet;

use super::PATH;
use super::attachment::{Attachment, Template};
use super::counts::Counts;
use super::engine::{BATCH_MAX, Engine, Rate};
use super::merge::{Cursor, Merge};
use super::source::{TapSource, runs_in_process};
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{self, ANY, Split};
use crate::paths::request::Request;
use crate::paths::spec::Opened;
use crate::paths::stamp::Clock;
use crate::watch::LinkWatch;

/// Default size in bytes of all spill rings together.
const SPILLS_BYTES: u32 = 64 << 20;
/// Default size of a CPU's spill ring: at most 22 ms of full frames at one million a second, and at
/// least one burst of them.
const SPILL_BYTES_MAX: u32 = 32 << 20;
const SPILL_BYTES_MIN: u32 = 1 << 20;
/// Largest spill ring that the program can address.
const SPILL_BYTES_LIMIT: usize = 1 << 30;
/// The first ring has one part in this many of the spill ring's size: 4 MiB by default on two CPUs,
/// which a last-level cache holds.
const FIRST_RING_DIVISOR: u32 = 8;
/// Smallest ring, a page.
const RING_BYTES_MIN: u32 = 4 << 10;

/// Maximum number of lanes. A program can use 64 maps (`MAX_USED_MAPS`): the rings, and a doorbell
/// for each lane.
const LANES_MAX: usize = 63;

/// Opens the capture. A filter that the programs cannot run runs in this process.
pub(super) fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let Request { interface, link, program, .. } = request;
    if interface.index == 0 {
        return Err(Error::Usage(format!(
            "the tap is for one interface, because its programs are attached to one, not for {ANY}: use --path v3"
        )));
    }
    if !interface.is_up() {
        let down = strait_sys::Error::os("capture on", &*interface.name, Errno::NETDOWN.raw_os_error());
        return Err(down.remedy(format!("bring it up: ip link set {} up", interface.name)).into());
    }
    let split = link.split(program, Directions::Both)?;
    let in_kernel = split.userspace.is_none();
    match open_filtered(request, split) {
        Err(error) if in_kernel && request.filters() && is_filters_fault(&error) => {
            let split = link.split_to_userspace(program, Directions::Both, &error)?;
            open_filtered(request, split).map_err(|_| error)
        }
        opened => opened,
    }
}

/// Returns true if the kernel refused the program and not the capture.
fn is_filters_fault(error: &Error) -> bool {
    runs_in_process(error) && error.kind() != strait_sys::Kind::Refused
}

fn open_filtered(request: &Request<'_>, split: Split) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, link, .. } = request;
    let Split { kernels, userspace, userspace_reason } = split;
    let mut notes = Vec::new();
    filter::note(&mut notes, userspace_reason);
    notes.extend(cost_of_a_bridge(&interface.name));
    // A filter in this process, now or later, must see the bytes that it would see in the kernel.
    let frame_bytes_max = request.frame_bytes_max() as u32;
    let cpus = process::possible_cpus()?;
    let sizes = sizes(options.ring_bytes, cpus, frame_bytes_max);
    let map = Map::mappable_array("strait_tap", sizes.value_bytes() as u32, cpus)?;
    let (rings, readers) = Rings::map(&map, &layouts(&sizes))?;
    let numbers = request.lane_numbers()?;
    if numbers.len() > LANES_MAX {
        let count = numbers.len();
        return Err(Error::Usage(format!(
            "{count} lanes: the tap has at most {LANES_MAX}, give fewer --queues"
        )));
    }
    let bell = |_: &u32| Doorbell::new("strait_tap_bell").map(Arc::new);
    let doorbells = numbers.iter().map(bell).collect::<Result<Vec<_>, _>>()?;
    let watch = LinkWatch::open(interface)?;
    let socket = socket(request)?;
    let counters = Counters::start(interface, *link, options.directions, request.filters())?;
    if let Some(attribution) = &request.attribution {
        let counts = Counts { rings: Arc::clone(&rings), lane: 0, lanes: 1 };
        attribution.hooks.watch(Arc::new(counts));
    }
    let lanes = cursors(readers, rings.count(), numbers.len());
    let mut engines = Vec::with_capacity(numbers.len());
    for (lane, (cursors, number)) in lanes.into_iter().zip(&numbers).enumerate() {
        let engine = Engine {
            merge: Merge::new(cursors.len(), BATCH_MAX),
            rate: Rate::new(cursors.len() / 2),
            cursors,
            doorbell: Arc::clone(&doorbells[lane]),
            counts: Arc::new(Counts { rings: Arc::clone(&rings), lane, lanes: numbers.len() }),
            clock: Clock::new(),
            socket: socket.try_clone()?,
            name: interface.name.clone(),
            interface: interface.index,
            owners: request.attribution.is_some(),
            sizes,
            spins: 0,
        };
        engines.push((engine, *number));
    }
    let template = Template {
        interface: interface.clone(),
        rings: map,
        // Lanes beyond the number of CPUs have no ring.
        doorbells: doorbells.into_iter().take(cpus as usize).collect(),
        sizes,
        rx_hash: options.rx_hash,
        attribution: request.attribution.clone(),
    };
    let attachment = Attachment::open(template, kernels, options.directions)?;
    Ok(Opened {
        engines,
        source: Box::new(TapSource { attachment, counters }),
        watch,
        userspace,
        path: PATH,
        mode: "copy",
        ring: describe(&sizes, cpus),
        notes,
    })
}

/// Divides the rings of `cpus` processors between the lanes. The first rings come first in
/// `readers`.
fn cursors(mut readers: Vec<RingReader>, cpus: usize, lanes: usize) -> Vec<Vec<Cursor>> {
    let mut cursors: Vec<Vec<Cursor>> = (0..lanes).map(|_| Vec::new()).collect();
    // The spill rings of a lane come before its first rings, as `Merge` requires.
    let spill = readers.split_off(cpus);
    for reader in spill.into_iter().chain(readers) {
        cursors[reader.value() % lanes].push(Cursor::new(reader));
    }
    cursors
}

/// Returns a note for a bridge: it passes each packet that it forwards to the host's stack too
/// while it is promiscuous.
fn cost_of_a_bridge(name: &str) -> Option<String> {
    let driver = Ethtool::open(name).and_then(|ethtool| ethtool.driver()).ok()?.name;
    (driver == "bridge").then(|| {
        format!(
            "{name} is a bridge: a capture on its ports (bridge link) costs packets that it forwards less"
        )
    })
}

/// Returns a socket that receives nothing, in the interface's namespace. It keeps the interface
/// promiscuous if that was requested.
fn socket(request: &Request<'_>) -> Result<packet::Socket, Error> {
    if request.options.promiscuous {
        return link::promiscuous(&request.interface);
    }
    Ok(packet::Socket::open(&request.interface.name)?)
}

/// Returns the sizes of a CPU's rings, which are powers of two.
fn sizes(requested: Option<usize>, cpus: u32, frame_bytes_max: u32) -> Sizes {
    let spill_bytes = match requested {
        Some(bytes) => bytes.min(SPILL_BYTES_LIMIT) as u32,
        None => (SPILLS_BYTES / cpus).clamp(SPILL_BYTES_MIN, SPILL_BYTES_MAX),
    };
    let spill_bytes = 1 << spill_bytes.max(RING_BYTES_MIN).ilog2();
    let ring_bytes = (spill_bytes / FIRST_RING_DIVISOR).max(RING_BYTES_MIN);
    Sizes { ring_bytes, spill_bytes, frame_bytes_max }
}

fn describe(sizes: &Sizes, cpus: u32) -> String {
    let (ring, spill) = (sizes.ring_bytes >> 10, sizes.spill_bytes >> 10);
    format!("{cpus} rings of {ring} KiB with {spill} KiB to spill, one for each CPU")
}

/// Returns the layouts of a CPU's first ring and of its spill ring.
fn layouts(sizes: &Sizes) -> [RingLayout; 2] {
    let wakeup = layout::WAKEUP;
    let first = RingLayout {
        producer: layout::PRODUCER,
        consumer: layout::CONSUMER,
        wakeup,
        data: layout::DATA,
        ring_bytes: sizes.ring_bytes as usize,
        end: sizes.spill(),
    };
    let spill = RingLayout {
        producer: layout::SPILL_PRODUCER,
        consumer: layout::SPILL_CONSUMER,
        wakeup,
        data: sizes.spill(),
        ring_bytes: sizes.spill_bytes as usize,
        end: sizes.value_bytes(),
    };
    [first, spill]
}
