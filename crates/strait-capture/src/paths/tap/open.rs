//! Opens a session on the tap: rings, doorbell, programs.

use std::sync::Arc;

use strait_filter::tap::layout;
use strait_os::ethtool::{Ethtool, Offload};
use strait_os::interface::Interface;
use strait_os::process;
use strait_sys::bpf::{Doorbell, Map, RingLayout, Rings};
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

/// Default size in bytes of all rings together.
const RINGS_BYTES: u32 = 64 << 20;
/// Default size in bytes of a CPU's ring: at most 11 ms of full frames at one million a second, and
/// at least one burst of them.
const RING_BYTES_MAX: u32 = 16 << 20;
const RING_BYTES_MIN: u32 = 1 << 20;
/// Largest ring that the program can address.
const RING_BYTES_LIMIT: usize = 1 << 30;

/// Opens the capture. A filter that the programs cannot run runs in this process.
pub(super) fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let Request { interface, link, program, .. } = request;
    if interface.index == 0 {
        return Err(Error::Usage(format!(
            "the tap is for one interface, because its programs are attached to one, not for {ANY}: use --path v3"
        )));
    }
    if request.lane_numbers()?.len() != 1 {
        return Err(Error::Usage("the tap has one lane: leave out --queues, or use --path v3".into()));
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
    notes.extend(note_on_segments(interface, options.directions));
    // A filter in this process, now or later, must see the bytes that it would see in the kernel.
    let frame_bytes_max = request.frame_bytes_max() as u32;
    let cpus = process::possible_cpus()?;
    let ring_bytes = ring_bytes(options.ring_bytes, cpus);
    let value_bytes = layout::value_bytes(ring_bytes, frame_bytes_max);
    let map = Map::mappable_array("strait_tap", value_bytes as u32, cpus)?;
    let (rings, readers) = Rings::map(&map, ring_layout(ring_bytes, value_bytes))?;
    let doorbell = Arc::new(Doorbell::new("strait_tap_bell")?);
    let watch = LinkWatch::open(interface)?;
    let socket = socket(request)?;
    let counters = Counters::start(interface, *link, options.directions, request.filters())?;
    let template = Template {
        interface: interface.clone(),
        rings: map,
        doorbell: Arc::clone(&doorbell),
        ring_bytes,
        frame_bytes_max,
        rx_hash: options.rx_hash,
    };
    let attachment = Attachment::open(template, kernels, options.directions)?;
    let engine = Engine {
        merge: Merge::new(readers.len(), BATCH_MAX),
        rate: Rate::new(readers.len()),
        cursors: readers.into_iter().map(Cursor::new).collect(),
        doorbell,
        counts: Arc::new(Counts { rings }),
        clock: Clock::new(),
        socket,
        name: interface.name.clone(),
        interface: interface.index,
        ring_bytes: ring_bytes as usize,
        frame_bytes_max,
        spins: 0,
    };
    Ok(Opened {
        engines: vec![(engine, 0)],
        source: Box::new(TapSource { attachment, counters }),
        watch,
        userspace,
        path: PATH,
        mode: "copy",
        ring: format!("{cpus} rings of {} KiB, one for each CPU", ring_bytes >> 10),
        notes,
    })
}

/// Returns the note on sent frames of an interface that does not cut them itself.
fn note_on_segments(interface: &Interface, directions: Directions) -> Option<String> {
    let cuts = Ethtool::open(&interface.name).and_then(|ethtool| ethtool.offload(Offload::Tso));
    let differs = directions != Directions::In && matches!(cuts, Ok(false));
    differs.then(|| {
        format!(
            "{} does not segment: the tap captures sent frames before the kernel cuts them and computes their checksums",
            interface.name
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

/// Returns the size of a CPU's ring, a power of two.
fn ring_bytes(requested: Option<usize>, cpus: u32) -> u32 {
    let bytes = match requested {
        Some(bytes) => bytes.min(RING_BYTES_LIMIT) as u32,
        None => (RINGS_BYTES / cpus).clamp(RING_BYTES_MIN, RING_BYTES_MAX),
    };
    1 << bytes.max(1).ilog2()
}

fn ring_layout(ring_bytes: u32, value_bytes: usize) -> RingLayout {
    RingLayout {
        producer: layout::PRODUCER,
        consumer: layout::CONSUMER,
        wakeup: layout::WAKEUP,
        data: layout::DATA,
        ring_bytes: ring_bytes as usize,
        value_bytes,
    }
}
