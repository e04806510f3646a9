//! Opens a session on packet sockets.

use std::sync::Arc;

use strait_sys::packet::Fanout;
use strait_sys::packet::v3::{Early, READS_EARLY};

use super::engine::Engine;
use super::fanout;
use super::ring::Ring;
use super::shape::Shape;
use super::source::PacketSource;
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::frame::{FRAME_BYTES_MAX, LINK_OVERHEAD};
use crate::link::Split;
use crate::paths::engine::Engine as _;
use crate::paths::request::Request;
use crate::paths::spec::Opened;
use crate::wait::Wait;
use crate::watch::LinkWatch;

/// Opens packet sockets with rings `R`. A filter that is too large for the kernel runs in this
/// process.
pub(crate) fn open<R: Ring>(request: &Request<'_>) -> Result<Opened<Engine<R>>, Error> {
    let Request { options, link, program, .. } = request;
    let split = link.split(program, options.directions)?;
    let in_kernel = split.userspace_reason.is_none() && request.filters();
    match open_filtered(request, split) {
        Err(error) if in_kernel && filter::may_be_too_large(&error) => {
            let split = link.split_to_userspace(program, options.directions, &error)?;
            open_filtered(request, split).map_err(|_| error)
        }
        opened => opened,
    }
}

fn open_filtered<R: Ring>(request: &Request<'_>, split: Split) -> Result<Opened<Engine<R>>, Error> {
    let Request { options, interface, link, .. } = request;
    let Split { kernels: program, userspace, userspace_reason } = split;
    let mut notes = Vec::new();
    filter::note(&mut notes, userspace_reason);
    let numbers = request.lane_numbers()?;
    let mut shape = shape::<R>(request, numbers.len());
    if userspace.is_some() {
        // The filter must see the bytes that it would see in the kernel. Matched frames are cut to
        // the snaplen after that.
        shape.frame_bytes = frame_bytes_max::<R>(request);
    }
    let watch = LinkWatch::open(interface)?;
    let mut engines = Vec::with_capacity(numbers.len());
    for _ in &numbers {
        engines.push(Engine::<R>::open(interface, &program, &shape)?);
    }
    let longest = engines.first().and_then(Engine::frame_bytes_max).map_or(u32::MAX, |bytes| bytes as u32);
    // Slots that hold the snaplen cut no frame that is not cut in any case.
    if longest < FRAME_BYTES_MAX.min(options.snaplen) {
        watch.set_mtu_max(longest.saturating_sub(LINK_OVERHEAD));
    }
    fanout::join(&mut engines, options.fanout)?;
    let counters = Counters::start(interface, *link, options.directions, request.filters())?;
    engines.iter().try_for_each(|engine| engine.accept_matching(&program))?;
    let smallest = engines.iter().map(Engine::ring_bytes).min().unwrap_or(0);
    // A ring has whole blocks and may be a little smaller than requested. If it has half the size
    // or less, memory was short.
    if smallest <= shape.ring_bytes::<R>() / 2 {
        notes.push(format!("the kernel has memory only for a ring of {} KiB", smallest >> 10));
    }
    let ring = engines.first().map(Engine::describe).unwrap_or_default();
    let mut sockets = Vec::with_capacity(engines.len());
    for engine in &engines {
        sockets.push(engine.socket().try_clone()?);
    }
    let doorbells =
        engines.iter().filter_map(Engine::doorbell).map(|bell| Arc::clone(bell.filter())).collect();
    let source = PacketSource { sockets, doorbells, counters, cuts_at_snaplen: R::CUTS_AT_SNAPLEN };
    Ok(Opened {
        engines: engines.into_iter().zip(numbers).collect(),
        source: Box::new(source),
        watch,
        userspace,
        path: R::PATH,
        mode: "copy",
        ring,
        notes,
    })
}

/// Returns the size of the longest frame for which a ring is made. Slots take memory for each frame
/// in advance.
fn frame_bytes_max<R: Ring>(request: &Request<'_>) -> usize {
    (if R::HAS_SLOTS { request.present_frame_bytes_max() } else { FRAME_BYTES_MAX }) as usize
}

fn shape<R: Ring>(request: &Request<'_>, lanes: usize) -> Shape {
    let Request { options, link, .. } = request;
    let is_busy = options.wait == Wait::Busy;
    // Not with rollover: an awake reader leaves its doorbell full, so the kernel would roll the
    // packet over to the doorbell of the next lane and wake that lane.
    let can_ring = READS_EARLY && options.fanout != Fanout::Rollover;
    Shape {
        requested_bytes: options.ring_bytes,
        lanes,
        frame_bytes: frame_bytes_max::<R>(request).min(options.snaplen as usize),
        rx_hash: options.rx_hash,
        promiscuous: options.promiscuous,
        ignore_outgoing: options.directions == Directions::In,
        doorbell: R::HAS_BLOCKS && !is_busy && can_ring,
        long_retire: READS_EARLY && (is_busy || can_ring),
        // To be read early, blocks must be zeroed, which costs CPU time under load. The policies
        // other than `Balanced` accept that cost for a short delay.
        early: if options.wait == Wait::Balanced { Early::Quiet } else { Early::Always },
        cooked: link.cooked(),
    }
}
