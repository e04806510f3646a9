//! The `zerocopy` path: a `PF_ZEROCOPY` socket for each queue, with a ring that the NIC fills
//! itself.
//!
//! The host receives nothing on the interface. The module runs the filter, before a frame uses a
//! slot. `docs/internals/pf-zerocopy.md` draws the ring.

mod batch;
mod engine;

use strait_filter::cbpf::{Program, opcode as op};
use strait_sys::packet;
use strait_sys::pf_zerocopy::SLOT_BYTES;

use self::engine::Counts;
pub(crate) use self::engine::Engine;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::link::{self, Link, Split};
use crate::paths::engine::Engine as _;
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

/// Accepts every filter: one that the module does not run runs in this process.
#[allow(clippy::unnecessary_wraps, reason = "paths may refuse filters")]
fn any_filter(_: &Program) -> Result<(), Error> {
    Ok(())
}

/// Opens a socket for each queue of the request.
fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let Request { options, interface, .. } = request;
    if !interface.is_ethernet() {
        let name = &interface.name;
        return Err(Error::Usage(format!("{name}: PF_ZEROCOPY is for Ethernet interfaces: use --path v3")));
    }
    options.directions.refuse_sent(PATH)?;
    let queues = request.receive_queues()?;
    let ring_bytes = options.ring_bytes.unwrap_or(RING_BYTES);
    let mut engines = Vec::with_capacity(queues.len());
    let mut sender = None;
    for queue in queues {
        // One queue is enough to send.
        let sends = options.sends && engines.is_empty();
        let opened = Engine::open(interface, ring_bytes, options.wait, sends)?;
        sender = sender.or(opened.sender);
        engines.push((opened.engine, queue));
    }
    let Split { userspace, userspace_reason, .. } = set_filter(request, &engines)?;
    let mut notes = Vec::new();
    filter::note(&mut notes, userspace_reason);
    let unread = interface.queues()?.rx.saturating_sub(engines.len() as u32);
    notes.extend(note_on_unread(unread, &interface.name));
    let promiscuous = options.promiscuous.then(|| link::promiscuous(interface)).transpose()?;
    engines.iter().try_for_each(|(engine, queue)| engine.bind(interface, *queue))?;
    let counts = engines.iter().map(|(engine, _)| engine.counts()).collect();
    let ring = engines.first().map(|(engine, _)| engine.describe()).unwrap_or_default();
    let snaplen = options.snaplen;
    Ok(Opened {
        source: Box::new(ZeroCopySource { counts, sender, snaplen, _promiscuous: promiscuous }),
        watch: LinkWatch::open(interface)?,
        userspace,
        path: PATH,
        mode: "zero-copy",
        ring,
        notes,
        engines,
    })
}

/// Returns the note on the `unread` receive queues of `interface` that the capture leaves out.
fn note_on_unread(unread: u32, interface: &str) -> Option<String> {
    let queues = if unread == 1 { "1 queue" } else { &*format!("{unread} queues") };
    (unread > 0).then(|| {
        format!(
            "the NIC drops the frames of {queues} of {interface} that this capture does not read, without a count: \
             leave out --queues, or set fewer queues with `ethtool -L {interface} combined N`"
        )
    })
}

/// Sets the first filter of all sockets, in this process if it is too large for the kernel.
fn set_filter(request: &Request<'_>, engines: &[(Engine, u32)]) -> Result<Split, Error> {
    let Request { options, link, program, .. } = request;
    let attach =
        |split: &Split| engines.iter().try_for_each(|(engine, _)| engine.accept_matching(&split.kernels));
    let split = for_module(link.split(program, Directions::In)?, *link, options.snaplen)?;
    match attach(&split) {
        Err(error) if split.userspace.is_none() && filter::may_be_too_large(&error) => {
            let split = link.split_to_userspace(program, Directions::In, &error)?;
            attach(&split).map_err(|_| error)?;
            Ok(split)
        }
        attached => attached.map(|()| split),
    }
}

/// Moves a program that the module would not run as packet sockets do to this process.
fn for_module(split: Split, link: Link, snaplen: u32) -> Result<Split, Error> {
    match obstacle(&split.kernels, snaplen) {
        Some(obstacle) if split.userspace.is_none() => {
            link.split_to_userspace(&split.kernels, Directions::In, &obstacle)
        }
        _ => Ok(split),
    }
}

/// Returns what the module does not do for `program`: it passes frames on whole, and does not
/// search them (`zc_needs()` in kmod/pf_zerocopy/filter.c).
fn obstacle(program: &Program, snaplen: u32) -> Option<&'static str> {
    let searches = [op::SKF_AD_PAY_OFFSET, op::SKF_AD_NLATTR, op::SKF_AD_NLATTR_NEST];
    if searches.iter().any(|&offset| program.loads_ancillary(offset)) {
        return Some("it searches the frame, which the module does not");
    }
    let cuts = program.cuts_below(snaplen.min(SLOT_BYTES as u32));
    cuts.then_some("it cuts frames, which the module does not")
}

/// Sockets, to stop reception, and the sender on the first one.
struct ZeroCopySource {
    counts: Vec<Counts>,
    sender: Option<Result<Sender, Error>>,
    snaplen: u32,
    /// Keeps the interface promiscuous while the capture runs.
    _promiscuous: Option<packet::Socket>,
}

impl Source for ZeroCopySource {
    fn stop(&mut self) -> Result<(), Error> {
        self.counts.iter().try_for_each(Counts::stop)
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        let placing = Placing { link: change.link, directions: Directions::In };
        placing.replace(change.old, change.new, |split| {
            lanes.place(for_module(split, change.link, self.snaplen)?)
        })
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

#[cfg(test)]
mod tests {
    use strait_filter::cbpf::Instruction;

    use super::*;

    const RET_K: u16 = op::RET | op::K;

    fn returning(instructions: &[Instruction], bytes: u32) -> Program {
        let end = Instruction::statement(RET_K, bytes);
        Program::check([instructions, &[end]].concat()).unwrap()
    }

    #[test]
    fn note_counts_the_queues_without_a_reader() {
        assert_eq!(note_on_unread(0, "zc0"), None);
        let note = note_on_unread(1, "zc0").unwrap();
        assert!(note.contains("the frames of 1 queue of zc0"), "{note}");
        let note = note_on_unread(7, "zc0").unwrap();
        assert!(note.contains("the frames of 7 queues of zc0"), "{note}");
    }

    #[test]
    fn programs_that_the_module_runs_otherwise_run_in_this_process() {
        let computed =
            vec![Instruction::statement(op::LD | op::LEN, 0), Instruction::statement(op::RET | op::A, 0)];
        let cuts = [returning(&[], 96), Program::check(computed).unwrap()];
        for program in cuts {
            assert_eq!(obstacle(&program, 65_535), Some("it cuts frames, which the module does not"));
        }
        for bytes in [0, 96, SLOT_BYTES as u32, 65_535] {
            assert_eq!(obstacle(&returning(&[], bytes), 96), None, "{bytes}");
        }
        let vlan = [Instruction::ancillary(op::SKF_AD_VLAN_TAG)];
        assert_eq!(obstacle(&returning(&vlan, 262_144), 262_144), None);
        for offset in [op::SKF_AD_PAY_OFFSET, op::SKF_AD_NLATTR, op::SKF_AD_NLATTR_NEST] {
            let program = returning(&[Instruction::ancillary(offset)], 262_144);
            assert_eq!(obstacle(&program, 262_144), Some("it searches the frame, which the module does not"));
        }
    }
}
