//! Active checks of servers, on a thread that they share with [`crate::server::names`]: a server
//! that fails them gets no requests until it passes them again.
//!
//! A check is a connection, or a GET and a response with the expected status. A connection of
//! HTTP/2 includes the server's SETTINGS: requests need them. Each server is checked by a task of
//! its own, so that one that hangs does not delay the others.

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
use crate::io::socket::Socket;
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
            let has_passed =
                passes_in_time(&self.settings, &self.dns, &member.server, (check, pool.http2)).await;
            pool.note_check(member, self.clock.now(), has_passed);
            if !has_passed {
                // Its name may have another address: no request that connects shows it.
                member.entry.doubt();
            }
            sleep(Duration::from_secs(check.interval)).await;
        }
    }
}

/// Checks a server once; returns true if it passes in time.
async fn passes_in_time(
    settings: &Settings,
    dns: &Dns,
    server: &Server,
    (check, http2): (&Check, OriginHttp2),
) -> bool {
    let limit = Duration::from_secs(check.timeout);
    let passed = timeout(limit, passes(settings, dns, server, (check, http2))).await;
    passed.ok().flatten().is_some()
}

/// Checks a server once, at its addresses in order until it passes at one; `None` if it fails.
async fn passes(
    settings: &Settings,
    dns: &Dns,
    server: &Server,
    (check, http2): (&Check, OriginHttp2),
) -> Option<()> {
    let (host, port) = match server {
        Server::Tcp { port, address: Some(address), .. } => {
            let connected = TcpStream::connect(SocketAddr::new(*address, *port)).await.ok()?;
            return passes_on(settings, server, connected, (check, http2)).await;
        }
        Server::Tcp { host, port, address: None, .. } => (host, *port),
        // It has no server yet.
        Server::Service(_) => return Some(()),
        Server::Unix(path) => {
            return passes_on(settings, server, unix::connect(path).await.ok()?, (check, http2)).await;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(check.timeout);
    let addresses = dns.addresses(host).await.ok()?;
    let passes = async |address| {
        let connected = TcpStream::connect(SocketAddr::new(address, port)).await.map_err(drop)?;
        passes_on(settings, server, connected, (check, http2)).await.ok_or(())
    };
    first(&addresses, deadline, || (), passes).await.ok()
}

async fn passes_on(
    settings: &Settings,
    server: &Server,
    connected: TcpStream,
    (check, http2): (&Check, OriginHttp2),
) -> Option<()> {
    let limit = Duration::from_secs(check.timeout);
    let mut socket = Socket::new(connected, limit);
    let is_http2 = match server {
        Server::Tcp { host, is_tls: true, .. } => {
            socket.secure(tls::connect(&settings.tls, host, http2).ok()?, limit).await.ok()?
        }
        _ => http2 == OriginHttp2::On,
    };
    if !is_http2 {
        return match &check.path {
            // Requests would fail.
            _ if http2 == OriginHttp2::On => None,
            Some(path) => answers(&mut socket, server, path, check).await,
            None => Some(()),
        };
    }
    let link = Link::to_origin(socket.into_connection()?);
    let driven = link.clone();
    let passes = async {
        link.settings().await.ok()?;
        let Some(path) = &check.path else { return Some(()) };
        let mut socket = Socket::of_origin(OriginStream::new(link.clone()), limit);
        answers(&mut socket, server, path, check).await
    };
    tokio::select! {
        biased;
        passed = passes => passed,
        _ = driven.drive(limit, limit) => None,
    }
}

/// Returns `None` unless the server answers a GET of the path with the expected status.
async fn answers(socket: &mut Socket, server: &Server, path: &str, check: &Check) -> Option<()> {
    let host = check.host.clone().unwrap_or_else(|| server.authority().to_string());
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: strait\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes(), &[]).await.ok()?;
    let mut buffer = Buffer::default();
    loop {
        let read = head::response(buffer.filled()).ok()?.map(|(response, len)| (response.status, len));
        match read {
            Some((100..=199, len)) => buffer.consume(len),
            Some((status, _)) => return is_expected(check, status).then_some(()),
            None if socket.read(&mut buffer).await.ok()? == 0 => return None,
            None => {}
        }
    }
}

fn is_expected(check: &Check, status: u16) -> bool {
    check.status.map_or((200..400).contains(&status), |expected| status == expected)
}
