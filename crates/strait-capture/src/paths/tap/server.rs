//! The broker's server: makes memory, loads and attaches programs.
//!
//! It has one thread, the privileges and the links. It waits for no caller: a
//! [process](super::broker::receiver) speaks with each of them, and passes on the bytes of calls
//! but no descriptor.

mod held;
mod namespace;

use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use strait_filter::cbpf::Program;
use strait_os::interface::Interface;
use strait_sys::bpf::{Link, TcxHook};
use strait_sys::fork::fork;
use strait_sys::syscall::wait4_no_hang;

use self::held::Held;
use self::namespace::Namespace;
use super::attachment::Template;
use super::broker::message::{self, Call, Outcome};
use super::broker::{Options, failed, incomplete, pair, receiver, unmade};
use super::memory::{LANES_MAX, Memory, sizes};
use crate::error::Error;

/// Maximum number of taps at a time.
const TAPS_MAX: usize = 16;
/// Maximum number of bytes of the maps of all taps, open or closed, that any process has.
const MAPS_BYTES_MAX: usize = 1 << 30;
/// Bytes that a doorbell counts for: more than its memory, so that their number is limited too.
const DOORBELL_BYTES: usize = 256 << 10;
/// Maximum number of receivers that run. More than those of the taps do not end, because their
/// callers sent descriptors that cannot be closed.
const RECEIVERS_MAX: usize = 256;
/// Time until the next attempt to start a receiver.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves the programs that have the other end of `callers`, until all of them have closed it and
/// their taps. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and starts child processes, so the
/// process should have one thread.
///
/// A tap ends when its caller has closed the socket that it got for it.
pub fn serve_broker(callers: OwnedFd) -> Result<(), Error> {
    serve(callers, MAPS_BYTES_MAX)
}

fn serve(callers: OwnedFd, maps_bytes_max: usize) -> Result<(), Error> {
    let server = Server {
        namespace: Namespace::own()?,
        held: Held::new()?,
        maps_bytes_max,
        callers: Some(callers),
        receivers: Vec::new(),
        processes: Vec::new(),
    };
    server.serve()
}

struct Server {
    namespace: Namespace,
    /// Maps of the taps.
    held: Held,
    maps_bytes_max: usize,
    /// Socket of the requests. Only receivers read it. `None` when there are no more requests.
    callers: Option<OwnedFd>,
    receivers: Vec<Receiver>,
    /// Receivers that may run.
    processes: Vec<u32>,
}

/// Process that speaks with a caller.
struct Receiver {
    socket: OwnedFd,
    /// It has taken no request yet.
    is_waiting: bool,
    tap: Option<Served>,
}

/// Tap of a caller. Its programs are detached when it is dropped.
struct Served {
    template: Template,
    /// At most one for each hook.
    links: Vec<(TcxHook, Link)>,
    /// The hooks have different filters.
    is_torn: bool,
}

impl Server {
    fn serve(mut self) -> Result<(), Error> {
        loop {
            self.processes.retain(|process| matches!(wait4_no_hang(*process), Ok(None)));
            let started = self.keep_a_receiver_waiting();
            if self.receivers.is_empty() {
                return started;
            }
            let (ready, is_ended) = self.wait().map_err(|errno| failed("serve", errno))?;
            // From the end, so that the numbers of the others stay.
            for number in ready.into_iter().rev() {
                if !self.answer(number) {
                    self.receivers.remove(number);
                }
            }
            if is_ended {
                self.refuse_callers();
            }
        }
    }

    /// Starts a receiver if none waits for a request.
    fn keep_a_receiver_waiting(&mut self) -> Result<(), Error> {
        if self.processes.len() >= RECEIVERS_MAX {
            self.refuse_callers();
        }
        let Some(callers) = self.callers.as_ref() else { return Ok(()) };
        if self.receivers.iter().any(|receiver| receiver.is_waiting) {
            return Ok(());
        }
        let namespace = self.namespace.cookie;
        let (socket, process) = start(callers, |kept| receiver::run(kept, namespace))?;
        self.receivers.push(Receiver { socket, is_waiting: true, tap: None });
        self.processes.push(process);
        Ok(())
    }

    /// Waits for a receiver's message or end. Returns the receivers' numbers, and true if all
    /// callers have closed the socket of requests.
    fn wait(&self) -> rustix::io::Result<(Vec<usize>, bool)> {
        let receivers = self.receivers.iter().map(|receiver| (&receiver.socket, PollFlags::IN));
        // A receiver reads the requests.
        let callers = self.callers.iter().map(|callers| (callers, PollFlags::RDHUP));
        let mut polled: Vec<PollFd<'_>> =
            receivers.chain(callers).map(|(socket, flags)| PollFd::new(socket, flags)).collect();
        let is_complete = self.callers.is_none() || self.receivers.iter().any(|receiver| receiver.is_waiting);
        let pause = Timespec { tv_sec: PAUSE.as_secs() as i64, tv_nsec: 0 };
        retry_on_intr(|| poll(&mut polled, (!is_complete).then_some(&pause)))?;
        let mut ready: Vec<usize> =
            (0..polled.len()).filter(|number| !polled[*number].revents().is_empty()).collect();
        let is_ended = ready.pop_if(|number| *number == self.receivers.len()).is_some();
        Ok((ready, is_ended))
    }

    /// Answers a receiver's message. Returns false if the receiver has ended, or has no usable tap
    /// after its call.
    fn answer(&mut self, number: usize) -> bool {
        let taps = self.receivers.iter().filter(|receiver| receiver.tap.is_some()).count();
        let Some(receiver) = self.receivers.get_mut(number) else { return false };
        let bytes = match message::receive_bytes(&receiver.socket) {
            Ok(bytes) if !bytes.is_empty() => bytes,
            _ => return false,
        };
        if mem::replace(&mut receiver.is_waiting, false) {
            return bytes == message::TAKEN;
        }
        let budget = Budget {
            taps: TAPS_MAX - taps,
            bytes: self.maps_bytes_max,
            held: &self.held,
            namespace: &self.namespace,
        };
        let replied = match perform(&bytes, &budget, &mut receiver.tap) {
            Ok(made) => message::send(&receiver.socket, &Outcome::Done.encode(), &made),
            Err(error) => message::send(&receiver.socket, &Outcome::of(&error).encode(), &[]),
        };
        replied.is_ok() && receiver.tap.as_ref().is_some_and(|tap| !tap.is_torn)
    }

    /// Ends the service for new callers. Requests that no receiver has taken can have descriptors,
    /// and the caller's ends of taps, which would then never end. So they are closed, by the exit
    /// of another process, see [`receiver`].
    fn refuse_callers(&mut self) {
        let Some(callers) = self.callers.take() else { return };
        self.receivers.retain(|receiver| !receiver.is_waiting);
        let wait = |kept: [OwnedFd; 2]| {
            let [_, server] = &kept;
            let _ = message::wait(&[server]);
            kept
        };
        match start(&callers, wait) {
            // It exits when its socket here is closed, after the copy of `callers`.
            Ok((socket, process)) => {
                self.processes.push(process);
                drop((callers, socket));
            }
            Err(_) => mem::forget(callers),
        }
    }
}

/// Starts a process with the socket of the callers and one that is connected with the returned one.
fn start<T>(callers: &OwnedFd, body: impl FnOnce([OwnedFd; 2]) -> T) -> Result<(OwnedFd, u32), Error> {
    let (own, theirs) = pair().map_err(unmade)?;
    let callers = callers.try_clone();
    let callers = callers.map_err(|error| strait_sys::Error::from_io("duplicate", "a socket", &error))?;
    Ok((own, fork([callers, theirs], body)?))
}

/// Limits of another tap, and the namespace of its packets.
struct Budget<'a> {
    taps: usize,
    /// Maximum number of bytes that are held.
    bytes: usize,
    held: &'a Held,
    /// Namespace of the packets.
    namespace: &'a Namespace,
}

/// Performs a call, and returns the descriptors of its reply.
fn perform<'a>(
    bytes: &[u8],
    budget: &Budget<'_>,
    tap: &'a mut Option<Served>,
) -> Result<Vec<BorrowedFd<'a>>, Error> {
    match (Call::decode(bytes), tap) {
        (Some(Call::Open { options }), tap) if tap.is_none() => {
            Ok(tap.insert(open(&options, budget)?).template.memory.descriptors())
        }
        (Some(Call::Attach { hooks, filter }), Some(tap)) => {
            tap.attach(&hooks, &filter)?;
            Ok(Vec::new())
        }
        _ => Err(incomplete()),
    }
}

fn open(options: &Options<'_>, budget: &Budget<'_>) -> Result<Served, Error> {
    if budget.taps == 0 {
        return Err(Error::Usage(format!("strait run opens at most {TAPS_MAX} taps at a time: close one")));
    }
    let Options { interface, ring_bytes, lanes, rx_hash } = *options;
    if !(1..=LANES_MAX).contains(&(lanes as usize)) {
        return Err(Error::Usage(format!("{lanes} lanes: give 1 to {LANES_MAX}")));
    }
    let interface = Interface::find(interface)?;
    let cpus = strait_os::process::possible_cpus()?;
    let requested = (ring_bytes > 0).then_some(ring_bytes as usize);
    let sizes = sizes(requested, cpus);
    let bytes = sizes.value_bytes().saturating_mul(cpus as usize);
    let needed = bytes.saturating_add(DOORBELL_BYTES * lanes as usize);
    let held = budget.held.bytes(Instant::now())?;
    if held.saturating_add(needed) > budget.bytes {
        let (mib, held, max) = (needed >> 20, held >> 20, budget.bytes >> 20);
        return Err(Error::Usage(format!(
            "rings of {mib} MiB: the taps of strait run have {held} MiB and may have {max} MiB, make the ring smaller \
             or close a tap"
        )));
    }
    let memory = Memory::new(&sizes, cpus, lanes)?;
    let counts = std::iter::once(bytes).chain(std::iter::repeat(DOORBELL_BYTES));
    for (map, bytes) in memory.descriptors().into_iter().zip(counts) {
        budget.held.add(map, bytes)?;
    }
    let confinement = Some(budget.namespace.confinement()?);
    let template =
        Template { interface, memory, sizes, rx_hash, attribution: None, confinement, broker: None };
    Ok(Served { template, links: Vec::new(), is_torn: false })
}

impl Served {
    /// Attaches programs with `filter` to `hooks` and detaches those of other hooks. After an error
    /// no program has been added, replaced or detached, unless the tap is torn.
    fn attach(&mut self, hooks: &[TcxHook], filter: &Program) -> Result<(), Error> {
        let Self { template, links, is_torn } = self;
        let mut added = Vec::new();
        let mut replaced = Vec::new();
        for hook in hooks {
            let program = template.load(filter, *hook)?;
            match links.iter().find(|(attached, _)| attached == hook) {
                Some((_, link)) => replaced.push((link, program)),
                None => added.push((*hook, Link::attach_tcx(&program, template.interface.index, *hook)?)),
            }
        }
        for (number, (link, program)) in replaced.iter().enumerate() {
            link.update(program).inspect_err(|_| *is_torn = number > 0)?;
        }
        links.append(&mut added);
        links.retain(|(hook, _)| hooks.contains(hook));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
