//! Active checks of servers, on a thread that they share with [`crate::server::names`]: a server
//! that fails them gets no requests until it passes them again.
//!
//! A check is a connection, or a GET and a response with the expected status. A connection of
//! HTTP/2 includes the server's SETTINGS: requests need them. Each server is checked by a task of
//! its own, so that one that hangs does not delay the others.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use strait_http::head;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::config::edge::{Check, OriginHttp2};
use crate::config::member::Member;
use crate::config::pool::ServerPool;
use crate::config::server::Server;
use crate::config::settings::Settings;
use crate::io::buffer::Buffer;
use crate::io::clock::Clock;
use crate::io::gate::Gates;
use crate::io::http2::link::Link;
use crate::io::http2::origin_stream::OriginStream;
use crate::io::socket::{Socket, SocketError};
use crate::io::{tls, unix};
use crate::server::names::Names;
use crate::upstream::dns::Dns;
use crate::upstream::pool::first;

/// Follows the names of servers, and checks the servers of all pools, until the channel of settings
/// ends.
pub(crate) fn run(mut settings: watch::Receiver<Arc<Settings>>, gates: &Arc<Gates>, clock: &Clock) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let dns = Rc::new(Dns::new(settings.borrow().dns.clone()));
        loop {
            // Dropped at the end of the block, which ends the tasks.
            let mut tasks = JoinSet::new();
            let current = settings.borrow_and_update().clone();
            dns.adopt(&current.dns);
            // A task may have set the limits of the settings before.
            gates.limit_servers(current.server_limits());
            Names::new(&current, gates, clock, dns.resolver()).follow_all(&mut tasks);
            begin(&current, &dns, clock, &mut tasks);
            if settings.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Begins a task for each pool with active checks.
fn begin(settings: &Arc<Settings>, dns: &Rc<Dns>, clock: &Clock, tasks: &mut JoinSet<()>) {
    for pool in settings.sites.iter().flat_map(|sites| &sites.pools) {
        let Some(check) = &pool.check else { continue };
        let checker = Checker { settings: settings.clone(), dns: dns.clone(), clock: clock.clone() };
        let (pool, check) = (pool.clone(), check.clone());
        tasks.spawn_local(async move { checker.check_all(&pool, &check).await });
    }
}

/// State of the checks of a pool.
#[derive(Clone)]
struct Checker {
    settings: Arc<Settings>,
    dns: Rc<Dns>,
    clock: Clock,
}

impl Checker {
    /// Checks the present servers of a pool, each by a task of its own.
    async fn check_all(&self, pool: &Arc<ServerPool>, check: &Check) {
        let mut tasks: JoinSet<()> = JoinSet::new();
        let mut known: Vec<(Arc<Member>, AbortHandle)> = Vec::new();
        loop {
            let members = pool.members();
            known.retain(|(member, task)| {
                let is_present = members.iter().any(|other| other.is_same(member));
                if !is_present {
                    task.abort();
                }
                is_present
            });
            for member in members.iter() {
                if known.iter().any(|(other, _)| other.is_same(member)) {
                    continue;
                }
                let (checker, pool, check) = (self.clone(), pool.clone(), check.clone());
                let checked = member.clone();
                let task = tasks.spawn_local(async move { checker.check(&pool, &checked, &check).await });
                known.push((member.clone(), task));
            }
            while tasks.try_join_next().is_some() {}
            pool.changed().await;
        }
    }

    /// Checks a server at an interval, and notes the results.
    async fn check(&self, pool: &ServerPool, member: &Member, check: &Check) {
        loop {
            let result = passes_in_time(&self.settings, &self.dns, &member.server, (check, pool.http2)).await;
            let outcome = result.as_ref().err().map_or(Ok(()), |why| Err(&**why));
            pool.note_check(member, self.clock.now(), outcome);
            if result.is_err() {
                // Its name may have another address: no request that connects shows it.
                member.entry.doubt();
            }
            sleep(Duration::from_secs(check.interval)).await;
        }
    }
}

/// Reason why a check failed.
type Failure = Cow<'static, str>;

fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refused".into(),
        ErrorKind::TimedOut => "timed out".into(),
        _ => error.to_string().into(),
    }
}

/// Returns the reason for an error of a connection.
fn of_socket(error: SocketError) -> Failure {
    match error {
        SocketError::Closed | SocketError::Answered => "closed".into(),
        SocketError::TimedOut => "timed out".into(),
    }
}

/// Checks a server once, within its time limit.
async fn passes_in_time(
    settings: &Settings,
    dns: &Dns,
    server: &Server,
    (check, http2): (&Check, OriginHttp2),
) -> Result<(), Failure> {
    let limit = Duration::from_secs(check.timeout);
    let passed = timeout(limit, passes(settings, dns, server, (check, http2))).await;
    passed.unwrap_or(Err("timed out".into()))
}

/// Checks a server once, at its addresses in order until it passes at one.
async fn passes(
    settings: &Settings,
    dns: &Dns,
    server: &Server,
    (check, http2): (&Check, OriginHttp2),
) -> Result<(), Failure> {
    let failed = |error: io::Error| failure(&error);
    let (host, port) = match server {
        Server::Tcp { port, address: Some(address), .. } => {
            let connected = TcpStream::connect(SocketAddr::new(*address, *port)).await.map_err(failed)?;
            return passes_on(settings, server, connected, (check, http2)).await;
        }
        Server::Tcp { host, port, address: None, .. } => (host, *port),
        // It has no server yet.
        Server::Service(_) => return Ok(()),
        Server::Unix(path) => {
            let connected = unix::connect(path).await.map_err(failed)?;
            return passes_on(settings, server, connected, (check, http2)).await;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(check.timeout);
    let addresses =
        dns.addresses(host).await.map_err(|error| Failure::from(format!("look up {host}: {error}")))?;
    let passes = async |address| {
        let connected = TcpStream::connect(SocketAddr::new(address, port)).await.map_err(failed)?;
        passes_on(settings, server, connected, (check, http2)).await
    };
    first(&addresses, deadline, || "timed out".into(), passes).await
}

async fn passes_on(
    settings: &Settings,
    server: &Server,
    connected: TcpStream,
    (check, http2): (&Check, OriginHttp2),
) -> Result<(), Failure> {
    let limit = Duration::from_secs(check.timeout);
    let mut socket = Socket::new(connected, limit);
    let is_http2 = match server {
        Server::Tcp { host, is_tls: true, .. } => {
            let tls = tls::connect(&settings.tls, host, http2).map_err(|error| error.to_string())?;
            let shaken = socket.secure(tls, limit).await;
            shaken.map_err(|error| Failure::from(format!("TLS: {}", failure(&error))))?
        }
        _ => http2 == OriginHttp2::On,
    };
    if !is_http2 {
        return match &check.path {
            // Requests would fail.
            _ if http2 == OriginHttp2::On => Err("no HTTP/2 (ALPN)".into()),
            Some(path) => answers(&mut socket, server, path, check).await,
            None => Ok(()),
        };
    }
    let connection = socket.into_connection().ok_or("closed")?;
    let link = Link::to_origin(connection);
    let driven = link.clone();
    let passes = async {
        link.settings().await.map_err(|_| "no SETTINGS of HTTP/2")?;
        let Some(path) = &check.path else { return Ok(()) };
        let mut socket = Socket::of_origin(OriginStream::new(link.clone()), limit);
        answers(&mut socket, server, path, check).await
    };
    tokio::select! {
        biased;
        passed = passes => passed,
        _ = driven.drive(limit, limit) => Err("the HTTP/2 connection has ended".into()),
    }
}

/// Returns an error unless the server answers a GET of the path with the expected status.
async fn answers(socket: &mut Socket, server: &Server, path: &str, check: &Check) -> Result<(), Failure> {
    let host = check.host.clone().unwrap_or_else(|| server.authority().to_string());
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: strait\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes(), &[]).await.map_err(of_socket)?;
    let mut buffer = Buffer::default();
    loop {
        let read = head::response(buffer.filled()).map_err(|error| error.to_string())?;
        let read = read.map(|(response, len)| (response.status, len));
        match read {
            Some((100..=199, len)) => buffer.consume(len),
            Some((status, _)) if is_expected(check, status) => return Ok(()),
            Some((status, _)) => return Err(format!("status {status}").into()),
            None if socket.read(&mut buffer).await.map_err(of_socket)? == 0 => return Err("closed".into()),
            None => {}
        }
    }
}

fn is_expected(check: &Check, status: u16) -> bool {
    check.status.map_or((200..400).contains(&status), |expected| status == expected)
}
