//! The broker's side of `broker`: makes memory, loads and attaches programs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, Shutdown, SocketType, shutdown, socket};
use strait_filter::cbpf::Program;
use strait_os::interface::Interface;
use strait_sys::bpf::{Link, TcxHook};
use strait_sys::socket::namespace_cookie;

use super::attachment::Template;
use super::broker::message::{self, Call, Outcome};
use super::broker::{Options, failed, incomplete, pair};
use super::memory::{LANES_MAX, Memory, sizes};
use crate::error::Error;
use crate::paths::request::frame_bytes_max;

/// Maximum number of taps at a time.
const TAPS_MAX: usize = 16;
/// Maximum number of bytes of the rings of all taps.
const RINGS_BYTES_MAX: usize = 1 << 30;

/// Serves the programs that have the other end of `socket`, until all of them have closed it and
/// their taps. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
///
/// No descriptor is taken from `socket`: a caller gets a socket for its tap that was made here. A
/// tap ends when its caller has closed this socket.
pub fn serve_broker(socket: &OwnedFd) -> Result<(), Error> {
    let budget =
        Budget { namespace: own_namespace()?, taps: AtomicUsize::new(0), bytes: AtomicUsize::new(0) };
    thread::scope(|scope| {
        let served = answer_callers(scope, socket, &budget);
        // Callers must not wait for an answer while the last taps are served.
        let _ = shutdown(socket, Shutdown::Both);
        discard_messages(socket, &budget);
        served.map_err(|errno| failed("serve", errno))
    })
}

/// Discards the messages of a socket that was shut down, until no tap is left. They can carry the
/// callers' ends of taps, which would then never end.
fn discard_messages(socket: &OwnedFd, budget: &Budget) {
    const PAUSE: Duration = Duration::from_millis(100);
    const MESSAGES: usize = 4096;
    while budget.taps.load(Ordering::Relaxed) > 0 {
        // An empty message looks like an empty queue, so their number decides.
        for _ in 0..MESSAGES {
            let _ = message::receive_request(socket);
        }
        strait_sys::wait::sleep(PAUSE);
    }
}

/// Answers each caller with the socket of a tap, until all other ends of `socket` are closed.
fn answer_callers<'scope>(
    scope: &'scope Scope<'scope, '_>,
    socket: &OwnedFd,
    budget: &'scope Budget,
) -> rustix::io::Result<()> {
    while message::is_connected(socket)? {
        let request = match message::receive_request(socket) {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            Err(Errno::CONNRESET) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let tap = if request == message::VERSION { start_tap(scope, budget) } else { Err(incomplete()) };
        // A caller that does not read its answers gets none.
        let _ = match &tap {
            Ok(callers) => message::reply(socket, &Outcome::Done, &[callers.as_fd()]),
            Err(error) => message::reply(socket, &Outcome::of(error), &[]),
        };
    }
    Ok(())
}

/// Starts to serve one tap. Returns the caller's end of its socket.
fn start_tap<'scope>(scope: &'scope Scope<'scope, '_>, budget: &'scope Budget) -> Result<OwnedFd, Error> {
    let share = Share::take(&budget.taps, 1, TAPS_MAX).ok_or_else(|| {
        Error::Usage(format!("strait run opens at most {TAPS_MAX} taps at a time: close one"))
    })?;
    let (own, callers) = pair()?;
    let serving = thread::Builder::new().spawn_scoped(scope, move || {
        serve_tap(&own, budget);
        drop(share);
    });
    let failed =
        |error: std::io::Error| strait_sys::Error::from_io("start", "a thread for a tap", &error).into();
    serving.map(|_| callers).map_err(failed)
}

/// What the taps share.
struct Budget {
    /// Number of the network namespace.
    namespace: u64,
    taps: AtomicUsize,
    /// Bytes of rings.
    bytes: AtomicUsize,
}

/// Part of a limited total, until it is dropped.
struct Share<'a> {
    total: &'a AtomicUsize,
    amount: usize,
}

impl<'a> Share<'a> {
    /// Returns a share of `amount`; `None` if the total would be larger than `max`.
    fn take(total: &'a AtomicUsize, amount: usize, max: usize) -> Option<Self> {
        let add = |used: usize| used.checked_add(amount).filter(|used| *used <= max);
        total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self { total, amount })
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.total.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// Tap of a caller. Its programs are detached when it is dropped.
struct Served<'a> {
    template: Template,
    /// At most one for each hook.
    links: Vec<(TcxHook, Link)>,
    _bytes: Share<'a>,
}

/// Answers the calls for one tap, until its caller closes the socket or reads no answers.
fn serve_tap(socket: &OwnedFd, budget: &Budget) {
    let mut served = None;
    while message::is_connected(socket) == Ok(true) {
        let received = message::receive(socket).map_err(|errno| failed("read a message for", errno));
        let replied =
            match received.and_then(|(bytes, received)| perform(&bytes, &received, budget, &mut served)) {
                Ok(descriptors) => message::reply(socket, &Outcome::Done, &descriptors),
                Err(error) => message::reply(socket, &Outcome::of(&error), &[]),
            };
        if replied.is_err() {
            return;
        }
    }
}

/// Performs a call, and returns the descriptors of its reply.
fn perform<'a, 'b>(
    bytes: &[u8],
    received: &[OwnedFd],
    budget: &'b Budget,
    served: &'a mut Option<Served<'b>>,
) -> Result<Vec<BorrowedFd<'a>>, Error> {
    match (Call::decode(bytes), served) {
        (Some(Call::Open { options }), served) if served.is_none() => {
            check_socket(received, budget.namespace)?;
            Ok(served.insert(open(&options, budget)?).template.memory.descriptors())
        }
        (Some(Call::Attach { hooks, filter }), Some(served)) => {
            served.attach(&hooks, &filter)?;
            Ok(Vec::new())
        }
        _ => Err(incomplete()),
    }
}

impl Served<'_> {
    /// Attaches programs with `filter` to `hooks` and detaches those of other hooks. After an error
    /// no program has been added or detached.
    fn attach(&mut self, hooks: &[TcxHook], filter: &Program) -> Result<(), Error> {
        let Self { template, links, .. } = self;
        let mut added = Vec::new();
        let mut replaced = Vec::new();
        for hook in hooks {
            let program = template.load(filter, *hook)?;
            match links.iter().find(|(attached, _)| attached == hook) {
                Some((_, link)) => replaced.push((link, program)),
                None => added.push((*hook, Link::attach_tcx(&program, template.interface.index, *hook)?)),
            }
        }
        replaced.iter().try_for_each(|(link, program)| link.update(program))?;
        links.append(&mut added);
        links.retain(|(hook, _)| hooks.contains(hook));
        Ok(())
    }
}

/// Returns the number of this thread's network namespace.
fn own_namespace() -> Result<u64, Error> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    Ok(namespace_cookie(socket.map_err(|errno| failed("make a socket for", errno))?.as_fd())?)
}

/// Refuses a caller that cannot capture in this process's network namespace by a packet socket.
fn check_socket(received: &[OwnedFd], namespace: u64) -> Result<(), Error> {
    let [socket] = received else { return Err(incomplete()) };
    let is_packet_socket = socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::PACKET);
    if !is_packet_socket {
        return Err(failed("be served by", Errno::PERM));
    }
    if namespace_cookie(socket.as_fd())? != namespace {
        return Err(Error::Usage(
            "the program is in another network namespace than strait run: start strait run in it, as in \
             ip netns exec NAME strait run"
                .into(),
        ));
    }
    Ok(())
}

fn open<'a>(options: &Options<'_>, budget: &'a Budget) -> Result<Served<'a>, Error> {
    let Options { interface, ring_bytes, lanes, rx_hash } = *options;
    if !(1..=LANES_MAX).contains(&(lanes as usize)) {
        return Err(Error::Usage(format!("{lanes} lanes: give 1 to {LANES_MAX}")));
    }
    let interface = Interface::find(interface)?;
    let cpus = strait_os::process::possible_cpus()?;
    let requested = (ring_bytes > 0).then_some(ring_bytes as usize);
    let sizes = sizes(requested, cpus, frame_bytes_max(&interface) as u32);
    let bytes = sizes.value_bytes().saturating_mul(cpus as usize);
    let share = Share::take(&budget.bytes, bytes, RINGS_BYTES_MAX).ok_or_else(|| {
        let (mib, max) = (bytes >> 20, RINGS_BYTES_MAX >> 20);
        Error::Usage(format!(
            "rings of {mib} MiB: all taps of strait run have at most {max} MiB, make the ring smaller or close a tap"
        ))
    })?;
    let memory = Memory::new(&sizes, cpus, lanes)?;
    let template = Template { interface, memory, sizes, rx_hash, attribution: None, broker: None };
    Ok(Served { template, links: Vec::new(), _bytes: share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_packet_socket_shows_that_the_caller_may_capture() {
        let of_family = |family| socket(family, SocketType::DGRAM, None).unwrap();
        for family in [AddressFamily::INET, AddressFamily::UNIX] {
            let socket = of_family(family);
            let namespace = namespace_cookie(socket.as_fd()).unwrap();
            let error = check_socket(&[socket], namespace).unwrap_err();
            assert!(error.is_one_of(&[Errno::PERM]), "{family:?}: {error}");
        }
        assert!(check_socket(&[], 0).is_err());
        if let Ok(socket) = socket(AddressFamily::PACKET, SocketType::DGRAM, None) {
            let namespace = own_namespace().unwrap();
            assert!(check_socket(std::slice::from_ref(&socket), namespace).is_ok());
            assert!(check_socket(&[socket], namespace + 1).is_err(), "another namespace");
        }
    }

    #[test]
    fn shares_are_limited_and_returned() {
        let total = AtomicUsize::new(0);
        let share = Share::take(&total, 3, 4).unwrap();
        assert!(Share::take(&total, 2, 4).is_none());
        assert!(Share::take(&total, usize::MAX, 4).is_none(), "no overflow");
        drop(share);
        assert!(Share::take(&total, 4, 4).is_some());
    }

    /// Has a caller of a broker on its own thread.
    fn with_broker(call: impl FnOnce(OwnedFd)) {
        let (callers, brokers) = pair().unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| serve_broker(&brokers));
            call(callers);
            assert!(serving.join().unwrap().is_ok(), "it ends with its callers");
        });
    }

    /// Asks for a tap, and returns its socket if there is one.
    fn request(callers: &OwnedFd) -> Option<OwnedFd> {
        message::send(callers, &[message::VERSION], &[]).unwrap();
        message::receive(callers).unwrap().1.pop()
    }

    #[test]
    fn broker_ends_even_if_it_was_sent_the_callers_ends_of_its_sockets() {
        with_broker(|callers| {
            let tap = request(&callers).unwrap();
            // More than the broker reads before it sees the end.
            for _ in 0..100 {
                message::send(&callers, &[message::VERSION], &[callers.as_fd(), tap.as_fd()]).unwrap();
                message::send(&tap, &[message::VERSION], &[callers.as_fd(), tap.as_fd()]).unwrap();
            }
        });
    }

    #[test]
    fn caller_that_reads_no_answers_does_not_keep_its_own_socket_open() {
        with_broker(|callers| {
            let tap = request(&callers).unwrap();
            // A failing message shows the end of the tap, or that the kernel holds no more of them.
            while message::reply(&tap, &Outcome::Done, &[tap.as_fd(), callers.as_fd()]).is_ok() {}
            for _ in 0..1000 {
                let _ = message::reply(&callers, &Outcome::Done, &[callers.as_fd()]);
            }
        });
    }

    #[test]
    fn malformed_messages_end_neither_the_service_nor_a_tap() {
        with_broker(|callers| {
            let tap = request(&callers).unwrap();
            let long = vec![message::VERSION; 50_000];
            for bytes in [&[][..], &long, &[message::VERSION; 2]] {
                message::send(&callers, bytes, &[]).unwrap();
                message::send(&tap, bytes, &[]).unwrap();
                let (bytes, _) = message::receive(&tap).unwrap();
                assert!(!matches!(Outcome::decode(&bytes), None | Some(Outcome::Done)));
            }
            message::send(&callers, &[message::VERSION + 1], &[]).unwrap();
            let (bytes, _) = message::receive(&callers).unwrap();
            assert!(matches!(Outcome::decode(&bytes), Some(Outcome::Usage(_))), "another version");
            assert!(request(&callers).is_some());
        });
    }

    #[test]
    fn taps_are_limited_until_one_is_closed() {
        with_broker(|callers| {
            let mut taps: Vec<OwnedFd> = (0..TAPS_MAX).map(|_| request(&callers).unwrap()).collect();
            assert!(request(&callers).is_none());
            taps.pop();
            // The broker sees the end a little later.
            while request(&callers).is_none() {
                thread::yield_now();
            }
        });
    }
}
