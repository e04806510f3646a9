//! HTTP/2 connections to origins, each of which carries many requests.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rapidhash::fast::RandomState;
use rustls::ClientConfig;
use strait_http2::Abuse;
use strait_transfer::descriptors::Share;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::config::edge::OriginHttp2;
use crate::config::server::Server;
use crate::io::buffer::Buffer;
use crate::io::http2::link::Link;
use crate::io::http2::origin_stream::OriginStream;
use crate::io::socket::Socket;
use crate::upstream::error::OriginError;
use crate::upstream::pool::{Connection, Slot, Upstream, may_reach};

/// Servers that are known to choose HTTP/1.1.
const HTTP1_MAX: usize = 1024;

/// Numbers of HTTP/2 connections that were ended because the origin exceeded a limit, by limit.
#[derive(Debug, Default)]
pub(crate) struct Abuses([AtomicU64; Abuse::ALL.len()]);

impl Abuses {
    fn count(&self, abuse: Abuse) {
        self.0[abuse as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, abuse: Abuse) -> u64 {
        self.0[abuse as usize].load(Ordering::Relaxed)
    }
}

/// HTTP/2 connections of a worker, by server.
#[derive(Debug, Default)]
pub(crate) struct Links {
    open: HashMap<Server, Vec<Open>, RandomState>,
    /// Servers that a connection is being opened to. The requests that come meanwhile wait, so that
    /// they share it.
    turns: HashMap<Server, Rc<Mutex<()>>, RandomState>,
    /// Servers with TLS that have chosen HTTP/1.1.
    http1: HashSet<Server, RandomState>,
}

#[derive(Debug)]
struct Open {
    link: Link,
    address: Option<SocketAddr>,
    /// Configuration of TLS that was in force.
    tls: Option<Arc<ClientConfig>>,
}

impl Links {
    /// Takes a connection to `server` that may carry another request.
    fn take(&mut self, upstream: &Upstream<'_>, server: &Server) -> Option<(Link, Option<SocketAddr>)> {
        let links = self.open.get_mut(server)?;
        let tls = tls_of(upstream, server);
        links.retain(|open| {
            let is_same_tls = open.tls.as_ref().map(Arc::as_ptr) == tls.as_ref().map(Arc::as_ptr);
            let is_allowed = open.address.is_none_or(|at| may_reach(upstream.settings, at.ip()));
            if !(is_same_tls && is_allowed) {
                open.link.retire();
            }
            !open.link.is_leaving()
        });
        let free = |open: &&Open| open.link.can_open() && !open.link.opens_by_reset();
        let found = links.iter().find(free).or_else(|| links.iter().find(|open| open.link.can_open()));
        found.map(|open| (open.link.clone(), open.address))
    }

    /// Forgets the connections that have ended, and closes those without requests beyond `idle_max`
    /// to each server. [`Link::drive`] ends the others after a time.
    pub(crate) fn tidy(&mut self, idle_max: usize) {
        self.open.retain(|_, links| {
            links.retain(|open| !open.link.is_leaving());
            let idle = links.iter().filter(|open| open.link.is_unused());
            idle.skip(idle_max).for_each(|open| open.link.retire());
            !links.is_empty()
        });
    }

    /// Closes the connections without requests.
    pub(crate) fn close_idle(&self) {
        let idle = self.open.values().flatten().filter(|open| open.link.is_unused());
        idle.for_each(|open| open.link.retire());
    }

    fn is_http1(&self, server: &Server) -> bool {
        self.http1.contains(server)
    }

    fn set_http1(&mut self, server: &Server) {
        if self.http1.len() >= HTTP1_MAX {
            self.http1.clear();
        }
        self.http1.insert(server.clone());
    }

    fn turn(&mut self, server: &Server) -> Rc<Mutex<()>> {
        // A request that was given up while it waited leaves its entry.
        self.turns.retain(|_, turn| Rc::strong_count(turn) > 1);
        self.turns.entry(server.clone()).or_default().clone()
    }

    fn end_turn(&mut self, server: &Server) {
        // Others that wait keep theirs.
        if self.turns.get(server).is_some_and(|turn| Rc::strong_count(turn) <= 2) {
            self.turns.remove(server);
        }
    }
}

fn tls_of(upstream: &Upstream<'_>, server: &Server) -> Option<Arc<ClientConfig>> {
    let tls = upstream.settings.tls.client.as_ref().filter(|_| server.is_tls())?;
    Some(tls.announcing(OriginHttp2::On).clone())
}

/// Returns a connection to a server of a pool with HTTP/2, for which `slot` is: a stream of an open
/// connection or of a new one, or a connection of HTTP/1.1 if the server has chosen that.
pub(super) async fn connection(
    upstream: &Upstream<'_>,
    server: &Server,
    slot: Slot,
    http2: OriginHttp2,
) -> Result<Box<Connection>, OriginError> {
    if let Some(found) = upstream.links.borrow_mut().take(upstream, server) {
        return Ok(stream_of(upstream, server, found, slot));
    }
    if http2 == OriginHttp2::Auto && upstream.links.borrow().is_http1(server) {
        if let Some(mut connection) = upstream.pool.borrow_mut().take(upstream, server) {
            upstream.reused.add(1);
            connection.slot = Some(slot);
            return Ok(connection);
        }
        return open(upstream, server, slot, http2).await;
    }
    let turn = upstream.links.borrow_mut().turn(server);
    let waited = timeout(upstream.connect_timeout(), turn.lock()).await;
    let found = upstream.links.borrow_mut().take(upstream, server);
    let is_http1 = http2 == OriginHttp2::Auto && upstream.links.borrow().is_http1(server);
    let connected = match (waited, found) {
        (_, Some(found)) => Ok(stream_of(upstream, server, found, slot)),
        (Ok(own), None) if is_http1 => {
            // Each request needs a connection, and the others need not wait for this one.
            drop(own);
            open(upstream, server, slot, http2).await
        }
        (Ok(_own), None) => open(upstream, server, slot, http2).await,
        (Err(_), None) => Err(OriginError::ConnectTimedOut),
    };
    upstream.links.borrow_mut().end_turn(server);
    connected
}

/// Connection that has no SETTINGS yet. Retired if the request that opens it is given up.
struct Unready(Option<Link>);

impl Drop for Unready {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            link.retire();
        }
    }
}

async fn open(
    upstream: &Upstream<'_>,
    server: &Server,
    slot: Slot,
    http2: OriginHttp2,
) -> Result<Box<Connection>, OriginError> {
    let connection = Connection::open_with(upstream, server, slot, http2).await;
    if let Ok(connection) = &connection
        && let Some(link) = connection.socket.link_to_origin()
    {
        let mut unready = Unready(Some(link.clone()));
        let settings = timeout(upstream.connect_timeout(), link.settings()).await;
        settings
            .map_err(|_| OriginError::ConnectTimedOut)?
            .map_err(|violation| violation.map_or(OriginError::Closed, OriginError::Http2))?;
        unready.0 = None;
    }
    if connection.as_ref().is_ok_and(|connection| connection.is_http1()) {
        upstream.links.borrow_mut().set_http1(server);
    }
    connection
}

/// Begins HTTP/2 on a new connection, and returns its first stream.
pub(super) fn begin(
    upstream: &Upstream<'_>,
    server: &Server,
    (socket, address, descriptor): (Socket, Option<SocketAddr>, Option<Share>),
    slot: Slot,
) -> Result<Box<Connection>, OriginError> {
    let Some(stream) = socket.into_connection() else { return Err(OriginError::Closed) };
    let link = Link::to_origin(stream);
    let open = Open { link: link.clone(), address, tls: tls_of(upstream, server) };
    let links = &mut *upstream.links.borrow_mut();
    links.http1.remove(server);
    links.open.entry(server.clone()).or_default().push(open);
    let (driven, timeouts) = (link.clone(), &upstream.settings.timeouts);
    let (idle, patience) = (timeouts.origin_idle, timeouts.origin);
    let abuses = upstream.http2_abuses.clone();
    tokio::task::spawn_local(async move {
        if let Some(abuse) = driven.drive(idle, patience).await {
            abuses.count(abuse);
        }
        drop(descriptor);
    });
    let mut connection = of_stream(upstream, server, (link, address), slot);
    connection.is_used = false;
    Ok(connection)
}

fn stream_of(
    upstream: &Upstream<'_>,
    server: &Server,
    found: (Link, Option<SocketAddr>),
    slot: Slot,
) -> Box<Connection> {
    upstream.reused.add(1);
    of_stream(upstream, server, found, slot)
}

fn of_stream(
    upstream: &Upstream<'_>,
    server: &Server,
    (link, address): (Link, Option<SocketAddr>),
    slot: Slot,
) -> Box<Connection> {
    let socket = Socket::of_origin(OriginStream::new(link), upstream.origin_timeout());
    Box::new(Connection {
        socket,
        buffer: Buffer::default(),
        server: server.clone(),
        address,
        is_used: true,
        background: None,
        load: None,
        slot: Some(slot),
        _descriptor: None,
    })
}

/// Place of a worker's connections.
pub(crate) type OfWorker = RefCell<Links>;
