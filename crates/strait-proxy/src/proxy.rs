//! The proxy as a whole: listeners, and a thread for each worker.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with};
use strait_store::Store;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Client;
use crate::error::{Error, Result};
use crate::fill::Fills;
use crate::settings::Settings;
use crate::worker::{Shared, Worker};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;
/// How long a worker waits before it accepts again where there are no descriptors left.
const OUT_OF_FILES: Duration = Duration::from_millis(50);

/// A proxy that runs.
#[derive(Debug)]
pub struct Proxy {
    addresses: Vec<SocketAddr>,
    workers: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts one.
    ///
    /// # Errors
    /// The configuration is refused, or the system refuses what it asks for.
    pub fn start(config: &Config, clock: Clock) -> Result<Self> {
        let settings = Settings::new(config)?;
        let listeners = Listeners::open(&settings)?;
        let store = config.cache.dir.as_ref().map(|dir| open_store(dir, config, &settings)).transpose()?;
        let shared = Arc::new(Shared { settings, clock, store, fills: Fills::default() });
        let (stop, stopped) = watch::channel(false);
        let mut proxy = Self { addresses: listeners.addresses, workers: Vec::new(), stop, shared };
        for (lane, sockets) in listeners.by_worker.into_iter().enumerate() {
            let (shared, stopped) = (proxy.shared.clone(), stopped.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{lane}"));
            let started = thread.spawn(move || work(shared, lane, sockets, stopped));
            proxy.workers.push(started.map_err(|error| Error::os("start", &"a thread", error))?);
        }
        Ok(proxy)
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// All of them; those where clients begin with TLS come last.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What whoever runs it is to know: what it does without, and what that costs.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.shared.settings.tls.note.as_deref().into_iter()
    }

    /// Waits until all that is stored can be found: whether that was in time. Before, it is fetched again.
    pub fn wait_loaded(&self, limit: Duration) -> bool {
        self.shared.store.as_ref().is_none_or(|store| store.wait_loaded(limit))
    }

    /// Ends it: no more connections, and those that there are may finish what they do.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Without workers nobody listens.
        let _ = self.stop.send(true);
        for worker in self.workers.drain(..) {
            // A worker that has panicked has ended, too.
            let _ = worker.join();
        }
        if let Some(store) = &self.shared.store {
            store.close();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end();
    }
}

fn open_store(dir: &std::path::Path, config: &Config, settings: &Settings) -> Result<Arc<Store>> {
    let sync_every = (config.cache.sync > 0).then(|| Duration::from_secs(config.cache.sync));
    let store = strait_store::Config {
        capacity_bytes: config.cache.size.as_u64(),
        lanes: settings.workers,
        sync_every,
        ..strait_store::Config::new(dir)
    };
    Ok(Store::open(store)?)
}

/// Sockets that listen: each worker has its own on each address, and the kernel spreads connections over them (SO_REUSEPORT, socket(7)).
struct Listeners {
    addresses: Vec<SocketAddr>,
    by_worker: Vec<Vec<Listener>>,
}

/// A socket that listens.
struct Listener {
    socket: std::net::TcpListener,
    /// Clients begin with TLS.
    is_tls: bool,
}

impl Listeners {
    fn open(settings: &Settings) -> Result<Self> {
        let mut addresses = Vec::new();
        let mut by_worker: Vec<Vec<_>> = (0..settings.workers).map(|_| Vec::new()).collect();
        let plain = settings.listen.iter().map(|address| (*address, false));
        for (mut address, is_tls) in plain.chain(settings.tls.listen.iter().map(|address| (*address, true))) {
            for sockets in &mut by_worker {
                let socket = listen_on(address).map_err(|error| Error::os("listen on", &address, error))?;
                // Of port 0 the first has found one for all.
                address = socket.local_addr().map_err(|error| Error::os("listen on", &address, error))?;
                sockets.push(Listener { socket, is_tls });
            }
            addresses.push(address);
        }
        Ok(Self { addresses, by_worker })
    }
}

fn listen_on(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// What a worker's thread does.
fn work(shared: Arc<Shared>, lane: usize, sockets: Vec<Listener>, stop: watch::Receiver<bool>) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let worker = Worker::new(shared, lane);
        let open = Rc::new(Connections::default());
        let mut accepting = Vec::new();
        for socket in sockets {
            accepting.push(tokio::task::spawn_local(accept(worker.clone(), socket, open.clone())));
        }
        let mut stop = stop;
        // The sender gone is a stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
        accepting.iter().for_each(tokio::task::JoinHandle::abort);
        open.stopping.set(true);
        open.told.notify_waiters();
        let _ = tokio::time::timeout(worker.settings().timeouts.drain, open.none()).await;
    });
}

/// The connections of a worker.
#[derive(Debug, Default)]
struct Connections {
    count: Cell<usize>,
    stopping: Cell<bool>,
    ended: Notify,
    told: Notify,
}

impl Connections {
    async fn none(&self) {
        while self.count.get() > 0 {
            self.ended.notified().await;
        }
    }
}

async fn accept(worker: Rc<Worker>, listener: Listener, open: Rc<Connections>) {
    let Listener { socket, is_tls } = listener;
    let Ok(listener) = TcpListener::from_std(socket) else { return };
    let most = worker.settings().connections_max.div_ceil(worker.settings().workers);
    loop {
        if open.count.get() >= most {
            open.ended.notified().await;
            continue;
        }
        let Ok((tcp, peer)) = listener.accept().await else {
            tokio::time::sleep(OUT_OF_FILES).await;
            continue;
        };
        if !worker.settings().access.allows(peer.ip()) {
            continue;
        }
        open.count.set(open.count.get() + 1);
        let (worker, open) = (worker.clone(), open.clone());
        tokio::task::spawn_local(async move {
            Client::new(&worker, tcp, peer).serve(&worker, is_tls).await;
            open.count.set(open.count.get() - 1);
            open.ended.notify_one();
        });
    }
}
