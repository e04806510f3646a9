//! The broker's side of `broker`: makes memory, loads and attaches programs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use strait_os::interface::Interface;
use strait_sys::bpf::Link;
use strait_sys::socket::namespace_cookie;

use super::attachment::Template;
use super::broker::message::{self, Call, Outcome};
use super::broker::{Options, failed, incomplete};
use super::memory::{LANES_MAX, Memory, sizes};
use crate::error::Error;
use crate::paths::request::frame_bytes_max;

/// Maximum number of taps at a time.
const TAPS_MAX: i64 = 64;

/// Serves the programs that have the other end of `socket`, until all of them have closed it and
/// their taps. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
pub fn serve_broker(socket: &OwnedFd) -> Result<(), Error> {
    let namespace = namespace_cookie(socket.as_fd())?;
    let taps = AtomicI64::new(0);
    thread::scope(|scope| {
        while let Some((_, callers)) = message::receive(socket).map_err(|errno| failed("serve", errno))? {
            for caller in callers {
                // A caller that is not served sees the end of its socket.
                if taps.load(Ordering::Relaxed) >= TAPS_MAX {
                    continue;
                }
                let open = &taps;
                let serving = thread::Builder::new().spawn_scoped(scope, move || {
                    serve_tap(&caller, namespace);
                    open.fetch_sub(1, Ordering::Relaxed);
                });
                taps.fetch_add(i64::from(serving.is_ok()), Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

/// Answers the calls for one tap.
fn serve_tap(caller: &OwnedFd, namespace: u64) {
    let mut template = None;
    while let Ok(Some((bytes, received))) = message::receive(caller) {
        let call = Call::decode(&bytes).ok_or_else(incomplete);
        let done = call.and_then(|call| perform(call, received, namespace, &mut template));
        let (outcome, descriptors) = match done {
            Ok(descriptors) => (Outcome::Done, descriptors),
            Err(error) => (error.into(), Vec::new()),
        };
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if message::send(caller, &outcome.encode(), &descriptors).is_err() {
            return;
        }
    }
}

/// Performs a call, and returns the descriptors of its reply.
fn perform(
    call: Call<'_>,
    received: Vec<OwnedFd>,
    namespace: u64,
    template: &mut Option<Template>,
) -> Result<Vec<OwnedFd>, Error> {
    let replies = match (call, template) {
        (Call::Open { options }, template) if template.is_none() => {
            check_socket(&received, namespace)?;
            template.insert(open(&options)?).memory.descriptors()
        }
        (Call::Attach { hook, filter }, Some(template)) => {
            let program = template.load(&filter, hook)?;
            let link = Link::attach_tcx(&program, template.interface.index, hook)?;
            vec![link.as_fd().try_clone_to_owned()]
        }
        (Call::Replace { hooks, filter }, Some(template)) => {
            let links: Vec<Link> = received.into_iter().map(Link::from_descriptor).collect();
            let programs = hooks.iter().map(|hook| template.load(&filter, *hook));
            let programs = programs.collect::<Result<Vec<_>, _>>()?;
            links.iter().zip(&programs).try_for_each(|(link, program)| link.update(program))?;
            Vec::new()
        }
        _ => return Err(incomplete()),
    };
    let failed = |error: io::Error| strait_sys::Error::from_io("duplicate", "a descriptor", &error).into();
    replies.into_iter().collect::<io::Result<_>>().map_err(failed)
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

fn open(options: &Options<'_>) -> Result<Template, Error> {
    let Options { interface, ring_bytes, lanes, rx_hash } = *options;
    if !(1..=LANES_MAX).contains(&(lanes as usize)) {
        return Err(Error::Usage(format!("{lanes} lanes: give 1 to {LANES_MAX}")));
    }
    let interface = Interface::find(interface)?;
    let cpus = strait_os::process::possible_cpus()?;
    let requested = (ring_bytes > 0).then_some(ring_bytes as usize);
    let sizes = sizes(requested, cpus, frame_bytes_max(&interface) as u32);
    let memory = Memory::new(&sizes, cpus, lanes)?;
    Ok(Template { interface, memory, sizes, rx_hash, attribution: None, broker: None })
}

#[cfg(test)]
mod tests {
    use rustix::net::{SocketType, socket};

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
            let namespace = namespace_cookie(socket.as_fd()).unwrap();
            assert!(check_socket(std::slice::from_ref(&socket), namespace).is_ok());
            assert!(check_socket(&[socket], namespace + 1).is_err(), "another namespace");
        }
    }
}
