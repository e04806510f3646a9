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
/// Names of the sockets of a proxy in an upgrade. Those of a service manager keep their names.
pub(crate) const OWN: &str = "strait.listen";
pub(crate) const ADMIN: &str = "strait.admin";

/// Listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) port: Port,
}

/// Address that clients connect to.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// As it is configured.
    pub(crate) port: Port,
    pub(crate) actual: SocketAddr,
    /// Name of its socket, if the service manager has opened it.
    pub(crate) name: Option<String>,
}

/// Listening sockets that another process has opened: the service manager, or the proxy that this
/// one replaces.
#[derive(Debug, Default)]
pub struct Inherited {
    activated: Vec<(String, TcpListener)>,
    own: Vec<TcpListener>,
    admin: Option<TcpListener>,
}

impl Inherited {
    /// Sorts sockets by their names (sd_listen_fds_with_names(3)).
    pub fn new(named: Vec<(String, TcpListener)>) -> Self {
        let mut sorted = Self::default();
        for (name, socket) in named {
            match &*name {
                OWN => sorted.own.push(socket),
                ADMIN => sorted.admin = Some(socket),
                _ => sorted.activated.push((name, socket)),
            }
        }
        sorted
    }

    /// Returns true if the service manager opened the addresses, in place of the configured ones.
    pub(crate) fn is_activated(&self) -> bool {
        !self.activated.is_empty()
    }

    /// Takes the socket of the admin page if it has this address; closes it otherwise.
    pub(crate) fn take_admin(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let socket = self.admin.take()?;
        socket.local_addr().is_ok_and(|actual| is_for(address, actual)).then_some(socket)
    }
}

/// Listening sockets of all workers, for the same addresses.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) addresses: Vec<Address>,
    pub(crate) by_worker: Vec<Vec<Listener>>,
}

impl Listeners {
    /// Opens the addresses that are not in `have`.
    pub(crate) fn open(settings: &Settings, have: &[Address]) -> Result<Self> {
        let mut opened = Self::none(settings.workers);
        let new = settings.ports.iter().filter(|port| !have.iter().any(|own| own.port == **port));
        for port in new.clone() {
            // Otherwise the kernel would share connections between this proxy and another program.
            let taken = bound(port.address, false);
            taken.map_err(|error| Error::os("listen on", &port.address, error))?;
        }
        for port in new {
            let mut actual = port.address;
            for listeners in &mut opened.by_worker {
                let failed = |error| Error::os("listen on", &actual, error);
                let socket = listen_on(actual).map_err(failed)?;
                // For port 0 the first socket has found the port for all.
                actual = socket.local_addr().map_err(failed)?;
                listeners.push(Listener { socket, port: *port });
            }
            opened.addresses.push(Address { port: *port, actual, name: None });
        }
        Ok(opened)
    }

    /// Takes inherited sockets. Those of the service manager replace the configured addresses, and
    /// the settings of their addresses apply. Those of the replaced proxy are taken if their
    /// address is configured, and closed otherwise; other addresses are opened.
    pub(crate) fn inherit(settings: &Settings, inherited: Inherited) -> Result<Self> {
        let mut taken = Self::none(settings.workers);
        if !inherited.is_activated() {
            taken.take_over(settings, inherited.own)?;
            let opened = Self::open(settings, &taken.addresses)?;
            taken.addresses.extend(opened.addresses);
            for (listeners, opened) in taken.by_worker.iter_mut().zip(opened.by_worker) {
                listeners.extend(opened);
            }
            return Ok(taken);
        }
        for (name, socket) in inherited.activated {
            let address = socket.local_addr().map_err(not_taken)?;
            let known = settings.ports.iter().find(|port| port.address == address);
            let port = known.copied().unwrap_or(Port { address, has_proxy_header: false, is_tls: false });
            taken.share(port, &[socket])?;
            taken.addresses.push(Address { port, actual: address, name: Some(name) });
        }
        Ok(taken)
    }

    /// Takes the sockets of the configured addresses. Port 0 takes the first port of its IP address
    /// that no other address has: several such addresses keep theirs, because the order is kept.
    fn take_over(&mut self, settings: &Settings, sockets: Vec<TcpListener>) -> Result<()> {
        let mut groups: Vec<(SocketAddr, Vec<TcpListener>)> = Vec::new();
        for socket in sockets {
            let actual = socket.local_addr().map_err(not_taken)?;
            match groups.iter_mut().find(|(address, _)| *address == actual) {
                Some((_, group)) => group.push(socket),
                None => groups.push((actual, vec![socket])),
            }
        }
        let (any, fixed): (Vec<&Port>, Vec<&Port>) =
            settings.ports.iter().partition(|port| port.address.port() == 0);
        for port in fixed.into_iter().chain(any) {
            if let Some(at) = groups.iter().position(|(actual, _)| is_for(port.address, *actual)) {
                let (actual, sockets) = groups.remove(at);
                self.share(*port, &sockets)?;
                self.addresses.push(Address { port: *port, actual, name: None });
            }
        }
        Ok(())
    }

    /// Gives each worker at least one of these sockets, and each socket to at least one worker: the
    /// kernel has queued connections on each. If there are fewer sockets than workers, some accept
    /// from the same one.
    fn share(&mut self, port: Port, sockets: &[TcpListener]) -> Result<()> {
        let workers = self.by_worker.len();
        for index in 0..workers.max(sockets.len()) {
            let socket = sockets[index % sockets.len()].try_clone().map_err(not_taken)?;
            socket.set_nonblocking(true).map_err(not_taken)?;
            self.by_worker[index % workers].push(Listener { socket, port });
        }
        Ok(())
    }

    fn none(workers: usize) -> Self {
        Self { addresses: Vec::new(), by_worker: (0..workers).map(|_| Vec::new()).collect() }
    }
}

/// Returns true if a socket with the address `actual` can serve a configured address.
fn is_for(configured: SocketAddr, actual: SocketAddr) -> bool {
    configured == actual || configured.port() == 0 && configured.ip() == actual.ip()
}

fn not_taken(error: io::Error) -> Error {
    Error::os("take over", &"a socket that listens", error)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::Config;

    fn settings(toml: &str) -> Settings {
        Settings::new(&Config::from_toml(toml).unwrap()).unwrap()
    }

    /// Sockets by worker, as the inodes of their numbers in `all`.
    fn inherit(toml: &str, sockets: &[TcpListener]) -> Vec<Vec<SocketAddr>> {
        let named = sockets.iter().map(|socket| (OWN.to_owned(), socket.try_clone().unwrap())).collect();
        let taken = Listeners::inherit(&settings(toml), Inherited::new(named)).unwrap();
        let addresses = |listeners: &Vec<Listener>| {
            listeners.iter().map(|listener| listener.socket.local_addr().unwrap()).collect()
        };
        taken.by_worker.iter().map(addresses).collect()
    }

    #[test]
    fn every_socket_is_taken_whatever_the_number_of_workers() {
        let first = listen_on(([127, 0, 0, 1], 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let sockets = [first, listen_on(address).unwrap(), listen_on(address).unwrap()];
        for (workers, counts) in [(1, &[3][..]), (2, &[2, 1]), (3, &[1, 1, 1]), (4, &[1, 1, 1, 1])] {
            let toml = format!("listen = [\"{address}\"]\nworkers = {workers}");
            let taken: Vec<_> = inherit(&toml, &sockets).iter().map(Vec::len).collect();
            assert_eq!(taken, counts);
        }
    }

    #[test]
    fn sockets_of_other_addresses_are_closed_and_missing_ones_opened() {
        let sockets = [0; 2].map(|port| listen_on(([127, 0, 0, 1], port).into()).unwrap());
        let [kept, closed] = [0, 1].map(|index| sockets[index].local_addr().unwrap());
        let taken = inherit(&format!("listen = [\"[::1]:0\", \"{kept}\"]\nworkers = 1"), &sockets);
        assert_eq!(taken[0].len(), 2);
        assert!(taken[0].contains(&kept) && !taken[0].contains(&closed), "{taken:?}");
        // Port 0 takes one that no other address has.
        let taken = inherit(&format!("listen = [\"127.0.0.1:0\", \"{kept}\"]\nworkers = 1"), &sockets);
        assert_eq!(taken, [[kept, closed]]);
        let taken = inherit("listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nworkers = 1", &sockets);
        assert_eq!(taken, [[kept, closed]]);
    }
}
