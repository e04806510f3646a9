//! Connections to origins, and the pool of idle ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rapidhash::fast::RandomState;
use rustix::io::Errno;
use strait_http2::ErrorCode;
use strait_ledger::SingleWriterCounter;
use strait_transfer::descriptors::{Budget, Share};
use strait_transfer::pipe::Pipes;
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use crate::config::edge::OriginHttp2;
use crate::config::member::Load;
use crate::config::route_limits::RouteLimits;
use crate::config::server::Server;
use crate::config::settings::Settings;
use crate::io::buffer::Buffer;
use crate::io::clock::Clock;
use crate::io::gate::{Client, Gates, Key, Permit};
use crate::io::head::Heads;
use crate::io::http2::slot::StreamFailure;
use crate::io::socket::{Socket, SocketError};
use crate::io::splice::Splicing;
use crate::io::{tls, unix};
use crate::upstream::background::{Background, Fetch};
use crate::upstream::dns::Dns;
use crate::upstream::error::{FetchError, OriginError, of_connection};
use crate::upstream::links::{self, Abuses, Links};

/// A worker's connections to origins, with the settings of the current request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upstream<'a> {
    pub(crate) settings: &'a Settings,
    /// Limits of the request's route.
    pub(crate) limits: RouteLimits,
    pub(crate) clock: &'a Clock,
    /// Idle connections.
    pub(crate) pool: &'a RefCell<Pool>,
    /// HTTP/2 connections.
    pub(crate) links: &'a RefCell<Links>,
    pub(crate) dns: &'a Dns,
    pub(crate) pipes: &'a RefCell<Pipes>,
    pub(crate) heads: &'a Heads,
    /// Connections in use and request bodies that are read ahead, of all workers.
    pub(crate) gates: &'a Arc<Gates>,
    /// Fetches without a waiting client, of all workers.
    pub(crate) background: &'a Arc<Background>,
    /// Files that connections and pipes of all workers may have open.
    pub(crate) descriptors: &'a Arc<Budget>,
    /// Number of opened connections.
    pub(crate) opened: &'a SingleWriterCounter,
    /// Number of requests on connections that were idle.
    pub(crate) reused: &'a SingleWriterCounter,
    /// HTTP/2 connections that exceeded a limit, of all workers.
    pub(crate) http2_abuses: &'a Arc<Abuses>,
}

impl<'a> Upstream<'a> {
    /// Returns the same view for a request with limits of its route.
    pub(crate) fn with_limits(self, limits: RouteLimits) -> Self {
        Self { limits, ..self }
    }

    /// Returns the time limit of connecting to a server.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.limits.connect.unwrap_or(self.settings.timeouts.connect)
    }

    /// Returns the time limit of a server that sends nothing.
    pub(crate) fn origin_timeout(&self) -> Duration {
        self.limits.origin.unwrap_or(self.settings.timeouts.origin)
    }

    /// Returns the time limit of a stream of messages without traffic.
    pub(crate) fn tunnel_timeout(&self) -> Duration {
        self.limits.tunnel.unwrap_or(self.settings.timeouts.tunnel)
    }

    pub(crate) fn splicing(&self) -> Splicing<'a> {
        Splicing { pipes: self.pipes, transfer: &self.settings.transfer }
    }

    /// Counts the file descriptor of a connection. If the budget is used up, closes idle pipes;
    /// `None` if none was idle: the connection is not counted, and no pipe opens until some close.
    pub(crate) fn count_connection(&self) -> Option<Share> {
        let take = || self.descriptors.take_for_connection(1);
        take().or_else(|| {
            self.pipes.borrow_mut().clear();
            take()
        })
    }

    /// Closes idle connections and pipes: the process has no descriptor left.
    pub(crate) fn close_idle(&self) {
        self.pool.borrow_mut().tidy(Duration::ZERO);
        self.links.borrow().close_idle();
        self.pipes.borrow_mut().clear();
    }
}

/// Connection to an origin.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) buffer: Buffer,
    pub(crate) server: Server,
    /// Its address; kept here because a closed socket has none. `None` for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// True if it has carried a request before: the origin may be about to close it.
    pub(crate) is_used: bool,
    /// Fetch of a fill, which may continue without a waiting client.
    pub(crate) background: Option<Fetch>,
    /// Request in progress at a server of a pool.
    pub(crate) load: Option<Load>,
    /// Right to use the connection; `None` while it is idle.
    pub(super) slot: Option<Slot>,
    pub(super) _descriptor: Option<Share>,
}

/// Right to use one connection to an origin.
#[derive(Debug)]
pub(crate) struct Slot {
    client: Client,
    /// Permits of the origin's gate and of the client's.
    _permits: [Permit; 2],
}

/// Idle connections of a worker, by server.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: HashMap<Server, Vec<(Box<Connection>, Instant)>, RandomState>,
    each_max: usize,
    count: usize,
}

/// Maximum of a worker's idle connections.
const IDLE_MAX: usize = 1024;
/// Minimum time for an attempt at one of several addresses, unless less is left.
const ADDRESS_LEAST: Duration = Duration::from_millis(250);

impl Pool {
    pub(crate) fn new(each_max: usize) -> Self {
        Self { idle: HashMap::default(), each_max, count: 0 }
    }

    /// Sets the maximum of idle connections to one server.
    pub(crate) fn limit(&mut self, each_max: usize) {
        self.each_max = each_max;
    }

    /// Closes connections that were idle for `idle_timeout`.
    pub(crate) fn tidy(&mut self, idle_timeout: Duration) {
        self.idle.retain(|_, connections| {
            connections.retain(|(_, since)| since.elapsed() < idle_timeout);
            !connections.is_empty()
        });
        self.count = self.idle.values().map(Vec::len).sum();
    }

    /// Takes an idle connection that is still open, to an address that is still allowed.
    pub(super) fn take(&mut self, upstream: &Upstream<'_>, server: &Server) -> Option<Box<Connection>> {
        let connections = self.idle.get_mut(server)?;
        let settings = upstream.settings;
        let idle_timeout = settings.timeouts.origin_idle;
        while let Some((mut connection, since)) = connections.pop() {
            self.count -= 1;
            let is_allowed = connection.address.is_none_or(|address| may_reach(settings, address.ip()));
            if is_allowed && since.elapsed() < idle_timeout && connection.socket.is_quiet() {
                connection.socket.idle_timeout = upstream.origin_timeout();
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection after a complete response.
    fn keep(&mut self, connection: Box<Connection>) {
        if self.count >= IDLE_MAX {
            self.idle.clear();
            self.count = 0;
        }
        let connections = self.idle.entry(connection.server.clone()).or_default();
        if connections.len() < self.each_max {
            connections.push((connection, Instant::now()));
            self.count += 1;
        }
    }
}

impl Connection {
    /// Returns an idle or a new connection to `server`, for which `slot` is.
    pub(crate) async fn to(
        upstream: &Upstream<'_>,
        server: &Server,
        slot: Slot,
        http2: OriginHttp2,
    ) -> Result<Box<Self>, OriginError> {
        if http2 == OriginHttp2::On || (http2 == OriginHttp2::Auto && server.is_tls()) {
            return Box::pin(links::connection(upstream, server, slot, http2)).await;
        }
        let idle = upstream.pool.borrow_mut().take(upstream, server);
        match idle {
            Some(mut connection) => {
                upstream.reused.add(1);
                connection.slot = Some(slot);
                Ok(connection)
            }
            None => Box::pin(Self::open_with(upstream, server, slot, OriginHttp2::Off)).await,
        }
    }

    /// Opens a new connection on behalf of `client`.
    pub(crate) async fn open(
        upstream: &Upstream<'_>,
        server: &Server,
        client: Client,
    ) -> Result<Box<Self>, OriginError> {
        let slot = enter(upstream, server, client, (None, None)).await?;
        Box::pin(Self::open_with(upstream, server, slot, OriginHttp2::Off)).await
    }

    /// Opens a new connection with the right to one.
    pub(crate) async fn open_with(
        upstream: &Upstream<'_>,
        server: &Server,
        slot: Slot,
        http2: OriginHttp2,
    ) -> Result<Box<Self>, OriginError> {
        // Before it has a descriptor: one that is still connecting counts too.
        let descriptor = upstream.count_connection();
        let tcp = connect(upstream, server).await?;
        upstream.opened.add(1);
        let address = tcp.peer_addr().ok();
        let mut socket = Socket::new(tcp, upstream.origin_timeout());
        let is_http2 = match server {
            Server::Tcp { host, is_tls: true, .. } => {
                Box::pin(shake_hands(upstream, host, &mut socket, http2)).await?
            }
            _ => http2 == OriginHttp2::On,
        };
        if http2 == OriginHttp2::On && !is_http2 {
            return Err(OriginError::Http2("the server has not chosen it in the TLS handshake (ALPN)"));
        }
        if is_http2 {
            return links::begin(upstream, server, (socket, address, descriptor), slot);
        }
        let (buffer, server) = (Buffer::default(), server.clone());
        let (background, slot, is_used) = (None, Some(slot), false);
        Ok(Box::new(Self {
            address,
            socket,
            buffer,
            server,
            is_used,
            background,
            load: None,
            slot,
            _descriptor: descriptor,
        }))
    }

    /// Returns true if it is no stream of HTTP/2.
    pub(crate) fn is_http1(&self) -> bool {
        !self.socket.is_origin_stream()
    }

    /// Returns the code for the client's stream after its own was reset.
    pub(crate) fn reset_code(&mut self) -> Option<u32> {
        match self.socket.origin_stream()?.failure()? {
            StreamFailure::Reset(code) => Some(code_for_client(code)),
            _ => None,
        }
    }

    /// Returns the error for an error of its socket.
    pub(crate) fn failure(&mut self, error: SocketError) -> FetchError {
        let stream = self.socket.origin_stream();
        if error == SocketError::TimedOut {
            // The origin may be gone without a word: the next request gets another connection.
            stream.inspect(|stream| stream.retire_connection());
            return of_connection(error);
        }
        let failure = stream.and_then(|stream| stream.failure());
        failure.map_or_else(|| of_connection(error), |failure| OriginError::from(failure).into())
    }

    /// Makes the connection a fill's: its fetch counts while no client waits, from [`Fetch::begin`]
    /// on.
    pub(crate) fn watch(&mut self, upstream: &Upstream<'_>) {
        let Some(slot) = &self.slot else { return };
        self.background = Some(Fetch::new(upstream.background, &self.server, slot.client));
    }

    /// Keeps the connection for the next request, unless the origin has sent more than its
    /// response, or its server gets no more requests.
    pub(crate) fn keep(mut self: Box<Self>, upstream: &Upstream<'_>) {
        let is_last = self.load.as_ref().is_some_and(Load::is_last);
        if !is_last && self.buffer.is_empty() && self.socket.is_quiet() {
            self.is_used = true;
            self.slot = None;
            self.background = None;
            self.load = None;
            upstream.pool.borrow_mut().keep(self);
        }
    }
}

/// Returns the code for a client after an origin has reset a stream by `code`. Only those about the
/// request pass: the client has not violated the protocol, and its response is not complete.
pub(crate) fn code_for_client(code: u32) -> u32 {
    let passed = [ErrorCode::Cancel, ErrorCode::EnhanceYourCalm];
    if passed.iter().any(|own| *own as u32 == code) { code } else { ErrorCode::Internal as u32 }
}

/// Waits for a permit at the client's gate, then at the origin's, unless they were taken before.
pub(crate) async fn enter(
    upstream: &Upstream<'_>,
    server: &Server,
    client: Client,
    (client_permit, origin_permit): (Option<Permit>, Option<Permit>),
) -> Result<Slot, OriginError> {
    let own = upstream.gates.patience(server);
    let deadline = tokio::time::Instant::now() + own.unwrap_or(upstream.connect_timeout());
    let client_permit = match client_permit {
        Some(permit) => permit,
        None => enter_as_client_until(upstream, server, client, deadline).await?,
    };
    let origin_permit = match origin_permit {
        Some(permit) => Some(permit),
        None => upstream.gates.enter_after(&client_permit, Key::Origin(server.clone()), deadline).await,
    };
    let full = || if own.is_some() { OriginError::Busy } else { OriginError::Full };
    Ok(Slot { client, _permits: [origin_permit.ok_or_else(full)?, client_permit] })
}

/// Waits for a permit at a client's gate to an origin.
pub(crate) async fn enter_as_client(
    upstream: &Upstream<'_>,
    server: &Server,
    client: Client,
) -> Result<Permit, OriginError> {
    let patience = upstream.gates.patience(server).unwrap_or(upstream.connect_timeout());
    let deadline = tokio::time::Instant::now() + patience;
    enter_as_client_until(upstream, server, client, deadline).await
}

async fn enter_as_client_until(
    upstream: &Upstream<'_>,
    server: &Server,
    client: Client,
    deadline: tokio::time::Instant,
) -> Result<Permit, OriginError> {
    let key = Key::OriginOf(server.clone(), client);
    upstream.gates.enter(key, deadline).await.ok_or(OriginError::FullForClient)
}

async fn shake_hands(
    upstream: &Upstream<'_>,
    host: &Arc<str>,
    socket: &mut Socket,
    http2: OriginHttp2,
) -> Result<bool, OriginError> {
    let failed = |error| OriginError::Tls { host: host.clone(), error };
    let settings = upstream.settings;
    let tls = tls::connect(&settings.tls, host, http2).map_err(|error| failed(io::Error::other(error)))?;
    socket.secure(tls, upstream.connect_timeout()).await.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => OriginError::ConnectTimedOut,
        _ => failed(error),
    })
}

/// Connects to a server.
async fn connect(upstream: &Upstream<'_>, server: &Server) -> Result<TcpStream, OriginError> {
    let deadline = tokio::time::Instant::now() + upstream.connect_timeout();
    match server {
        Server::Tcp { port, address: Some(address), .. } => {
            connect_to_address(upstream, SocketAddr::new(*address, *port), deadline).await
        }
        Server::Tcp { host, port, address: None, .. } => {
            connect_to_host(upstream, host, *port, deadline).await
        }
        Server::Service(service) => Err(OriginError::Name {
            host: service.name.clone(),
            error: io::Error::other("no SRV record leads to an address"),
        }),
        Server::Unix(path) => {
            let connected = timeout_at(deadline, opened(upstream, || unix::connect(path))).await;
            let connected = connected.map_err(|_| OriginError::ConnectTimedOut)?;
            connected.map_err(|error| OriginError::of_connect(server, error))
        }
    }
}

/// Connects to one address of a name that is followed.
async fn connect_to_address(
    upstream: &Upstream<'_>,
    address: SocketAddr,
    deadline: tokio::time::Instant,
) -> Result<TcpStream, OriginError> {
    if !may_reach(upstream.settings, address.ip()) {
        return Err(OriginError::Forbidden { address: address.ip() });
    }
    let connected = timeout_at(deadline, opened(upstream, || TcpStream::connect(address))).await;
    let connected = connected.map_err(|_| OriginError::TimedOut)?;
    connected.map_err(|error| OriginError::of_connect(&address, error))
}

/// Connects to one of a host's addresses that the proxy may reach.
async fn connect_to_host(
    upstream: &Upstream<'_>,
    host: &Arc<str>,
    port: u16,
    deadline: tokio::time::Instant,
) -> Result<TcpStream, OriginError> {
    let addresses = timeout_at(deadline, upstream.dns.addresses(host)).await;
    let name = |error| OriginError::Name { host: host.clone(), error };
    let addresses = addresses.map_err(|_| OriginError::ConnectTimedOut)?.map_err(name)?;
    let (allowed, forbidden) = split(upstream, &addresses);
    if allowed.is_empty() {
        let forbidden = forbidden.map(|address| OriginError::Forbidden { address });
        return Err(forbidden.unwrap_or_else(|| name(io::ErrorKind::NotFound.into())));
    }
    let connect = async |ip| {
        let address = SocketAddr::new(ip, port);
        let connected = opened(upstream, || TcpStream::connect(address)).await;
        connected.map_err(|error| OriginError::of_connect(&address, error))
    };
    let connected = first(&allowed, deadline, || OriginError::ConnectTimedOut, connect).await;
    match &connected {
        Err(_) => upstream.dns.doubt(host),
        Ok(tcp) => match tcp.peer_addr() {
            Ok(address) if address.ip() != addresses[0] => upstream.dns.prefer(host, address.ip()),
            _ => {}
        },
    }
    connected
}

/// Returns the first successful result of `connect`, or the last error; `timed_out` makes that of
/// an address without an answer.
pub(crate) async fn first<T, E>(
    addresses: &[IpAddr],
    deadline: tokio::time::Instant,
    timed_out: impl Fn() -> E,
    connect: impl AsyncFn(IpAddr) -> Result<T, E>,
) -> Result<T, E> {
    let mut failure = timed_out();
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        let limit = share(left, addresses.len() - index);
        failure = match timeout(limit, connect(*address)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(failure)) => failure,
            Err(_) => timed_out(),
        };
    }
    Err(failure)
}

/// Returns the addresses that the proxy may connect to, and one of the others. Each connection
/// checks this: the addresses of a name change.
fn split(upstream: &Upstream<'_>, addresses: &[IpAddr]) -> (Vec<IpAddr>, Option<IpAddr>) {
    let is_allowed = |address: &IpAddr| may_reach(upstream.settings, *address);
    let (allowed, forbidden): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_allowed);
    (allowed, forbidden.first().copied())
}

/// Returns true if the proxy may connect to an address. The operator names the origin of a reverse
/// proxy; clients name all others.
pub(super) fn may_reach(settings: &Settings, address: IpAddr) -> bool {
    settings.is_reverse() || settings.access.reaches(address)
}

/// Returns the time for one of `addresses` attempts that share `left`.
fn share(left: Duration, addresses: usize) -> Duration {
    (left / u32::try_from(addresses).unwrap_or(u32::MAX)).max(ADDRESS_LEAST).min(left)
}

/// Opens a connection. If no descriptor is free, closes idle connections and pipes and tries again.
async fn opened(
    upstream: &Upstream<'_>,
    connect: impl AsyncFn() -> io::Result<TcpStream>,
) -> io::Result<TcpStream> {
    match connect().await {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => {
            upstream.close_idle();
            connect().await
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_share_the_remaining_time() {
        let ms = Duration::from_millis;
        for (left, addresses, expected) in
            [(10_000, 1, 10_000), (10_000, 4, 2500), (600, 4, 250), (100, 4, 100), (0, 1, 0)]
        {
            assert_eq!(share(ms(left), addresses), ms(expected), "{left} {addresses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_leaves_time_for_the_next() {
        let addresses = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let begun = tokio::time::Instant::now();
        let deadline = begun + Duration::from_secs(9);
        let answers = |is_answered: fn(IpAddr) -> bool| {
            async move |address| {
                if !is_answered(address) {
                    std::future::pending::<()>().await;
                }
                Ok(address)
            }
        };
        let timed_out = || OriginError::TimedOut;
        let last = answers(|it| it == IpAddr::from([192, 0, 2, 3]));
        let connected = first(&addresses, deadline, timed_out, last).await;
        assert_eq!((connected.unwrap(), begun.elapsed()), (addresses[2], Duration::from_secs(6)));
        let none = first(&addresses, deadline, timed_out, answers(|_| false)).await;
        assert!(matches!(none, Err(OriginError::TimedOut)) && begun.elapsed() < Duration::from_secs(10));
    }
}
