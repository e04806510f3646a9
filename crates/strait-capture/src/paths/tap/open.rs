//! Opens a session on the tap: rings, doorbell, programs.

use std::sync::Arc;

use rustix::io::Errno;
use strait_filter::tap::layout::Sizes;
use strait_os::ethtool::Ethtool;
use strait_os::process::{self, AF_XDP_CAPABILITIES};
use strait_sys::Kind as ErrorKind;
use strait_sys::bpf::{RingReader, Rings};
use strait_sys::packet;

use super::attachment::{Attachment, Template};
use super::broker::Tap;
use super::counts::Counts;
use super::engine::{BATCH_MAX, Engine, PAUSE_DIVISOR, Rate};
use super::memory::{self, LANES_MAX, Memory, TapRings, describe, layouts, sizes};
use super::merge::{Cursor, Merge};
use super::source::{TapSource, runs_in_process};
use super::{PATH, broker};
use crate::counters::Counters;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{self, ANY, Split};
use crate::paths::request::Request;
use crate::paths::spec::Opened;
use crate::paths::stamp::Clock;
use crate::watch::LinkWatch;

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
    let opened = match open_filtered(request, split) {
        Err(error) if in_kernel && request.filters() && is_filters_fault(&error) => {
            let split = link.split_to_userspace(program, Directions::Both, &error)?;
            open_filtered(request, split).map_err(|_| error)
        }
        opened => opened,
    };
    opened.map_err(with_alternative)
}

/// Adds the path that can be used instead to an error, and names the privileges that are missing.
fn with_alternative(error: Error) -> Error {
    let Error::System(error) = error else { return error };
    if error.is_one_of(&[Errno::PERM, Errno::ACCESS]) {
        let missing = AF_XDP_CAPABILITIES
            .into_iter()
            .filter(|(capability, _)| !process::has_capability(*capability).unwrap_or(true));
        let missing: Vec<&str> = missing.map(|(_, name)| name).collect();
        if missing.is_empty() {
            return error.into();
        }
        let remedy = format!(
            "the tap needs {}: run as root, or setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep PROGRAM; \
             --path v3 needs CAP_NET_RAW only",
            missing.join(" and ")
        );
        return error.with_kind(ErrorKind::Refused).remedy(remedy).into();
    }
    let advice = error.advice().map(|advice| format!("{advice}, or use --path v3"));
    match advice.filter(|_| error.kind() == ErrorKind::Refused) {
        Some(advice) => error.remedy(advice).into(),
        None => error.into(),
    }
}

/// Returns true if the kernel refused the program and not the capture.
fn is_filters_fault(error: &Error) -> bool {
    runs_in_process(error) && error.kind() != strait_sys::Kind::Refused
}

/// Returns the numbers of the lanes, at most [`LANES_MAX`].
fn lane_numbers(request: &Request<'_>) -> Result<Vec<u32>, Error> {
    let numbers = request.lane_numbers()?;
    match numbers.len() {
        count if count > LANES_MAX => {
            Err(Error::Usage(format!("{count} lanes: the tap has at most {LANES_MAX}, give fewer --queues")))
        }
        _ => Ok(numbers),
    }
}

fn open_filtered(request: &Request<'_>, split: Split) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, link, .. } = request;
    let Split { kernels, userspace, userspace_reason } = split;
    let mut notes = Vec::new();
    filter::note(&mut notes, userspace_reason);
    notes.extend(cost_of_a_bridge(&interface.name));
    notes.extend(memory::note(options.ring_bytes));
    let cpus = process::possible_cpus()?;
    let mut sizes = sizes(options.ring_bytes, cpus);
    if let Some(TapRings { first_bytes, spill_bytes, .. }) = options.tap_rings {
        (sizes.ring_bytes, sizes.spill_bytes) = (first_bytes, spill_bytes);
    }
    let numbers = lane_numbers(request)?;
    let watch = LinkWatch::open(interface)?;
    let socket = socket(request)?;
    let lanes = numbers.len() as u32;
    let (broker, memory) = memory(request, &socket, &sizes, (cpus, lanes))?;
    let (rings, readers) = Rings::map(&memory.rings, &layouts(&sizes))?;
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
            doorbell: Arc::clone(&memory.doorbells[lane]),
            counts: Arc::new(Counts { rings: Arc::clone(&rings), lane, lanes: numbers.len() }),
            clock: Clock::new(),
            socket: socket.try_clone()?,
            name: interface.name.clone(),
            interface: interface.index,
            owners: request.attribution.is_some(),
            sizes,
            pause_divisor: options.tap_rings.map_or(PAUSE_DIVISOR, |rings| rings.pause_divisor),
            spins: 0,
        };
        engines.push((engine, *number));
    }
    let template = Template {
        interface: interface.clone(),
        memory,
        sizes,
        rx_hash: options.rx_hash,
        attribution: request.attribution.clone(),
        confinement: None,
        broker,
    };
    let attachment = Attachment::open(template, kernels, options.directions)?;
    // Now, as the kernel takes milliseconds to check the programs: packets of that time are none
    // that the filter rejected.
    let counters = Counters::start(interface, *link, options.directions, request.filters())?;
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

/// Makes the rings and doorbells: by the broker if there is one, else with this process's
/// privilege.
fn memory(
    request: &Request<'_>,
    socket: &packet::Socket,
    sizes: &Sizes,
    (cpus, lanes): (u32, u32),
) -> Result<(Option<Tap>, Memory), Error> {
    let Request { options, interface, attribution, .. } = request;
    // A program with a broker has no use for owners.
    let brokered = options.broker.as_ref().filter(|_| attribution.is_none()).map(|broker| {
        let options = broker::Options {
            interface: &interface.name,
            ring_bytes: options.ring_bytes.map_or(0, |bytes| bytes as u32),
            lanes,
            rx_hash: options.rx_hash,
        };
        broker.open(&options, socket, sizes, cpus)
    });
    match brokered {
        Some(Ok((tap, memory))) => Ok((Some(tap), memory)),
        Some(Err(error)) => Memory::new(sizes, cpus, lanes).map_or(Err(error), |memory| Ok((None, memory))),
        None => Ok((None, Memory::new(sizes, cpus, lanes)?)),
    }
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
