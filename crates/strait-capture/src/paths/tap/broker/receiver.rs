//! Receiver: a process of the broker that takes the descriptors of one caller and checks them.
//!
//! Closing the last copy of a descriptor can take for ever: a TCP socket waits for its peer
//! (SO_LINGER), a file waits for its FUSE server, even at the exit of a process. So the server,
//! which has the privileges and the links, never has a descriptor of a caller. A receiver has no
//! capability and no link, and may never end. Of its caller it then has no socket, so that it keeps
//! no tap open: it closes UNIX sockets first. A signal interrupts each wait for SO_LINGER, and the
//! kernel does not wait for it at the exit of a process.

use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketType, getpeername, getsockname, shutdown};
use strait_os::process::drop_capabilities;
use strait_sys::socket::{is_filter_locked, namespace_cookie};
use strait_sys::{packet, signal};

use super::message::{self, Message, Outcome};
use super::{failed, incomplete, pair};
use crate::error::Error;

/// Time after which the close of a descriptor is interrupted.
const INTERVAL: Duration = Duration::from_millis(10);

/// Receives a request from the socket of all `callers`, and serves its tap by calls to `server`.
/// Its caller must show a packet socket of `namespace`.
pub(crate) fn run([callers, server]: [OwnedFd; 2], namespace: u64) {
    // The server learns of errors by the end of this process.
    if drop_capabilities(false).is_ok() {
        let _ = serve(callers, &server, namespace);
    }
    let _ = shutdown(&server, Shutdown::Both);
}

fn serve(callers: OwnedFd, server: &OwnedFd, namespace: u64) -> rustix::io::Result<()> {
    wait_for_request(&callers, server)?;
    let interrupt_each = |interval| signal::interrupt_each(interval).map_err(|_| Errno::INVAL);
    interrupt_each(INTERVAL)?;
    // The server starts another receiver, because this one may not get further.
    message::send(server, &message::TAKEN, &[])?;
    // Fails if another receiver was faster.
    let request = message::receive(&callers)?;
    drop(callers);
    let opened = open(&request, server, namespace);
    if opened.is_err() {
        // Closing may take long.
        let _ = shutdown(server, Shutdown::Both);
    }
    close_sockets(request.descriptors);
    interrupt_each(Duration::ZERO)?;
    // Its queue can have descriptors, so it is closed by the exit.
    relay(&ManuallyDrop::new(opened?), server)
}

/// Waits for a request, which another receiver may take.
fn wait_for_request(callers: &OwnedFd, server: &OwnedFd) -> rustix::io::Result<()> {
    let states = message::wait(&[callers, server])?;
    if states.into_iter().any(message::is_ended) {
        // The server ends this process.
        message::wait(&[server])?;
        return Err(Errno::PIPE);
    }
    Ok(())
}

/// Closes the UNIX sockets of `descriptors`, and leaves the others to the exit of this process.
fn close_sockets(descriptors: Vec<OwnedFd>) {
    for descriptor in descriptors {
        if socket_domain(&descriptor) == Ok(AddressFamily::UNIX) {
            drop(descriptor);
        } else {
            mem::forget(descriptor);
        }
    }
}

/// Opens the tap of a request. Returns its socket, of which the caller has the other end.
fn open(request: &Message, server: &OwnedFd, namespace: u64) -> rustix::io::Result<OwnedFd> {
    let (true, [caller, proof]) = (request.is_whole, &request.descriptors[..]) else {
        return Err(Errno::PROTO);
    };
    if socket_domain(caller)? != AddressFamily::UNIX || socket_type(caller)? != SocketType::SEQPACKET {
        return Err(Errno::PROTO);
    }
    // Only a pair of sockets has no name at both ends. Another one can lead to a server, for which
    // the reply would come from the broker's user.
    let names = [Some(getsockname(caller)?), getpeername(caller)?];
    if !names.iter().flatten().all(is_unnamed) {
        return Err(Errno::PROTO);
    }
    if let Err(error) = check_socket(proof, namespace) {
        message::send(caller, &Outcome::of(&error).encode(), &[])?;
        return Err(Errno::PERM);
    }
    let reply = call(server, &request.bytes)?;
    if Outcome::decode(&reply.bytes) != Some(Outcome::Done) {
        message::send(caller, &reply.bytes, &[])?;
        return Err(Errno::PROTO);
    }
    // The tap ends when all copies of its caller's socket are closed. None must get into a queue
    // that lives as long as the tap: that of `caller` closes, and this process reads that of the
    // tap.
    shutdown(caller, Shutdown::Read)?;
    let (own, callers_end) = pair()?;
    let made: Vec<BorrowedFd<'_>> =
        [&callers_end].into_iter().chain(&reply.descriptors).map(OwnedFd::as_fd).collect();
    message::send(caller, &reply.bytes, &made)?;
    Ok(own)
}

/// Returns true for the address of a UNIX socket without a name, which has only a family (unix(7)).
fn is_unnamed(address: &SocketAddrAny) -> bool {
    address.addr_len() as usize == size_of::<u16>()
}

/// Passes the calls for a tap to the server, until one of both ends.
fn relay(tap: &OwnedFd, server: &OwnedFd) -> rustix::io::Result<()> {
    while !message::wait(&[tap, server])?.into_iter().any(message::is_ended) {
        let reply = match message::receive_bytes(tap) {
            Ok(bytes) if !bytes.is_empty() => call(server, &bytes)?.bytes,
            // The server takes an empty message for the end.
            Ok(_) | Err(Errno::MSGSIZE) => Outcome::of(&incomplete()).encode(),
            Err(Errno::AGAIN) => continue,
            Err(errno) => return Err(errno),
        };
        message::send(tap, &reply, &[])?;
    }
    Ok(())
}

/// Has the server perform a call.
fn call(server: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<Message> {
    message::send(server, bytes, &[])?;
    message::wait(&[server])?;
    let reply = message::receive(server)?;
    if reply.bytes.is_empty() || !reply.is_whole { Err(Errno::PIPE) } else { Ok(reply) }
}

/// Refuses a caller that cannot capture in the broker's network namespace by a packet socket.
fn check_socket(socket: &OwnedFd, namespace: u64) -> Result<(), Error> {
    if socket_domain(socket) != Ok(AddressFamily::PACKET) {
        return Err(failed("be served by", Errno::PERM));
    }
    if namespace_cookie(socket.as_fd())? != namespace {
        return Err(Error::Usage(
            "the program is in another network namespace than strait run: start strait run in it, as in \
             ip netns exec NAME strait run"
                .into(),
        ));
    }
    // Its holder cannot receive what the filter rejects.
    if is_filter_locked(socket.as_fd())? {
        return Err(failed("be served by", Errno::PERM));
    }
    // Its holder cannot receive from another interface if it is a member of a fanout group.
    packet::bind_again(socket.as_fd()).map_err(|_| failed("be served by", Errno::PERM))
}

#[cfg(test)]
mod tests {
    use rustix::net::socket;
    use strait_os::interface::Interface;
    use strait_os::netlink::Netlink;

    use super::*;

    #[test]
    fn only_a_packet_socket_shows_that_the_caller_may_capture() {
        let of_family = |family| socket(family, SocketType::DGRAM, None);
        for family in [AddressFamily::INET, AddressFamily::UNIX] {
            let socket = of_family(family).unwrap();
            let namespace = namespace_cookie(socket.as_fd()).unwrap();
            let error = check_socket(&socket, namespace).unwrap_err();
            assert!(error.is_one_of(&[Errno::PERM]), "{family:?}: {error}");
        }
        if let Ok(socket) = of_family(AddressFamily::PACKET) {
            let namespace = namespace_cookie(socket.as_fd()).unwrap();
            assert!(check_socket(&socket, namespace).is_ok());
            assert!(check_socket(&socket, namespace + 1).is_err(), "another namespace");
        }
    }

    #[test]
    fn socket_that_must_stay_at_its_interface_shows_nothing() {
        if !lab::root_or_skip() {
            return;
        }
        let checked = std::thread::spawn(|| {
            strait_sys::syscall::unshare_network().unwrap();
            let lo = Interface::find("lo").unwrap().index;
            Netlink::open().unwrap().set_up(lo, true).unwrap();
            let socket = packet::Socket::open("lo").unwrap();
            socket.bind(lo).unwrap();
            let namespace = namespace_cookie(socket.as_fd()).unwrap();
            let check = || check_socket(&socket.as_fd().try_clone_to_owned().unwrap(), namespace);
            assert!(check().is_ok(), "it is bound");
            // Group 0, whose number PACKET_FANOUT returns for no group too.
            socket.join_fanout(0, packet::Fanout::Hash).unwrap();
            assert!(check().unwrap_err().is_one_of(&[Errno::PERM]), "a fanout group");
        });
        checked.join().unwrap();
    }
}
