//! Listening sockets: each worker has its own for each address, and the kernel distributes
//! connections over them (SO_REUSEPORT, socket(7)).

use std::io;
use std::net::{SocketAddr, TcpListener};

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};

use crate::config::error::{Error, Result};
use crate::config::settings::{Port, Settings};

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 4096;

/// Listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) port: Port,
}

/// Listening sockets of all workers, for the same addresses.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Configured and actual addresses.
    pub(crate) addresses: Vec<(Port, SocketAddr)>,
    pub(crate) by_worker: Vec<Vec<Listener>>,
}

impl Listeners {
    /// Opens the addresses that are not in `have`.
    pub(crate) fn open(settings: &Settings, have: &[(Port, SocketAddr)]) -> Result<Self> {
        let mut opened = Self::none(settings.workers);
        let new = settings.ports.iter().filter(|port| !have.iter().any(|(own, _)| own == *port));
        for port in new.clone() {
            // Otherwise the kernel would share connections between this proxy and another program.
            let taken = bound(port.address, false);
            taken.map_err(|error| Error::os("listen on", &port.address, error))?;
        }
        for port in new {
            let mut address = port.address;
            for listeners in &mut opened.by_worker {
                let failed = |error| Error::os("listen on", &address, error);
                let socket = listen_on(address).map_err(failed)?;
                // For port 0 the first socket has found the port for all.
                address = socket.local_addr().map_err(failed)?;
                listeners.push(Listener { socket, port: *port });
            }
            opened.addresses.push((*port, address));
        }
        Ok(opened)
    }

    /// Takes inherited sockets in place of the configured ones; the settings of their addresses
    /// apply. All workers accept from the same sockets.
    pub(crate) fn inherit(settings: &Settings, sockets: Vec<TcpListener>) -> Result<Self> {
        let mut taken = Self::none(settings.workers);
        for socket in sockets {
            let failed = |error| Error::os("take over", &"a socket that listens", error);
            let address = socket.local_addr().map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let known = settings.ports.iter().find(|port| port.address == address);
            let port = known.copied().unwrap_or(Port { address, has_proxy_header: false, is_tls: false });
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

/// Binds a socket to an address, exclusively unless `is_shared`.
fn bound(address: SocketAddr, is_shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, is_shared)?;
    bind(&socket, &address)?;
    Ok(socket)
}
