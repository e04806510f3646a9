//! The sockets that listen: each worker has its own on each address, and the kernel spreads
//! connections over them (SO_REUSEPORT, socket(7)).

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

use crate::config::error::{Error, Result};
use crate::config::settings::{Port, Settings};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) port: Port,
}

/// Sockets on the same addresses for each worker.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// What was asked for, and what it came to.
    pub(crate) addresses: Vec<(Port, SocketAddr)>,
    pub(crate) by_worker: Vec<Vec<Listener>>,
}

impl Listeners {
    /// Opens those that there are not yet.
    pub(crate) fn open(settings: &Settings, have: &[(Port, SocketAddr)]) -> Result<Self> {
        let mut opened = Self::none(settings.workers);
        let new = settings.ports.iter().filter(|port| !have.iter().any(|(own, _)| own == *port));
        for port in new.clone() {
            // Else another program's connections and these would be shared out among both.
            let taken = bound(port.address, false);
            taken.map_err(|error| Error::os("listen on", &port.address, error))?;
        }
        for port in new {
            let mut address = port.address;
            for listeners in &mut opened.by_worker {
                let failed = |error| Error::os("listen on", &address, error);
                let socket = listen_on(address).map_err(failed)?;
                // Of port 0 the first has found one for all.
                address = socket.local_addr().map_err(failed)?;
                listeners.push(Listener { socket, port: *port });
            }
            opened.addresses.push((*port, address));
        }
        Ok(opened)
    }

    /// Takes sockets that somebody else has opened, in place of those that the settings ask for:
    /// what these say of their addresses holds. All workers accept from the same.
    pub(crate) fn inherit(settings: &Settings, sockets: Vec<TcpListener>) -> Result<Self> {
        let mut taken = Self::none(settings.workers);
        for socket in sockets {
            let failed = |error| Error::os("take over", &"a socket that listens", error);
            let address = socket.local_addr().map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let known = settings.ports.iter().find(|port| port.address == address);
            let port = known.copied().unwrap_or(Port { address, is_proxied: false, is_tls: false });
            for listeners in &mut taken.by_worker {
                listeners.push(Listener { socket: socket.try_clone().map_err(failed)?, port });
            }
            taken.addresses.push((port, address));
        }
        Ok(taken)
    }

    fn none(workers: usize) -> Self {
        Self { addresses: Vec::new(), by_worker: (0..workers).map(|_| Vec::new()).collect() }
    }
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address, true)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// A socket at an address; one that others share if they allow it, or one that nobody else has.
fn bound(address: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, is_shared)?;
    bind(&socket, &address)?;
    Ok(socket)
}
