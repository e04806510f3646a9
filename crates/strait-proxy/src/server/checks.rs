//! Active checks of servers, on a thread of their own: a server that fails them gets no requests
//! until it passes them again.
//!
//! A check is a connection, or a GET and a response with the expected status. Each server is
//! checked by a task of its own, so that one that hangs does not delay the others.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use strait_http::head;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::config::edge::Check;
use crate::config::pool::ServerPool;
use crate::config::server::Server;
use crate::config::settings::Settings;
use crate::io::buffer::Buffer;
use crate::io::clock::Clock;
use crate::io::socket::Socket;
use crate::io::{tls, unix};
use crate::upstream::dns::Dns;
use crate::upstream::pool::first;

/// Checks the servers of all pools, until the channel of settings ends.
pub(crate) fn run(mut settings: watch::Receiver<Arc<Settings>>, clock: &Clock) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let dns = Rc::new(Dns::default());
        loop {
            // Dropped at the end of the block, which ends the tasks.
            let _tasks = begin(&settings.borrow_and_update(), &dns, clock);
            if settings.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Begins a task for each server that is checked: at an interval, it notes the results.
fn begin(settings: &Arc<Settings>, dns: &Rc<Dns>, clock: &Clock) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for pool in settings.sites.iter().flat_map(|sites| &sites.pools) {
        let Some(check) = &pool.check else { continue };
        for index in 0..pool.members.len() {
            let (settings, dns, pool, check) = (settings.clone(), dns.clone(), pool.clone(), check.clone());
            let clock = clock.clone();
            tasks.spawn_local(async move {
                loop {
                    let has_passed = passes_in_time(&settings, &dns, &pool, index, &check).await;
                    pool.note_check(index, clock.now(), has_passed);
                    sleep(Duration::from_secs(check.interval)).await;
                }
            });
        }
    }
    tasks
}

/// Checks a server once; returns true if it passes in time.
async fn passes_in_time(
    settings: &Settings,
    dns: &Dns,
    pool: &ServerPool,
    index: usize,
    check: &Check,
) -> bool {
    let limit = Duration::from_secs(check.timeout);
    let passed = timeout(limit, passes(settings, dns, pool, index, check)).await;
    passed.ok().flatten().is_some()
}

/// Checks a server once, at its addresses in order until it passes at one; `None` if it fails.
async fn passes(
    settings: &Settings,
    dns: &Dns,
    pool: &ServerPool,
    index: usize,
    check: &Check,
) -> Option<()> {
    let server = &pool.members.get(index)?.server;
    let (host, port) = match server {
        Server::Tcp { host, port, .. } => (host, *port),
        Server::Unix(path) => {
            return passes_on(settings, server, unix::connect(path).await.ok()?, check).await;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(check.timeout);
    let addresses = dns.addresses(host).await.ok()?;
    let passes = async |address| {
        let connected = TcpStream::connect(SocketAddr::new(address, port)).await.map_err(drop)?;
        passes_on(settings, server, connected, check).await.ok_or(())
    };
    first(&addresses, deadline, || (), passes).await.ok()
}

async fn passes_on(settings: &Settings, server: &Server, connected: TcpStream, check: &Check) -> Option<()> {
    let limit = Duration::from_secs(check.timeout);
    let mut socket = Socket::new(connected, limit);
    if let Server::Tcp { host, is_tls: true, .. } = server {
        socket.secure(tls::connect(&settings.tls, host).ok()?, limit).await.ok()?;
    }
    let Some(path) = &check.path else { return Some(()) };
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
