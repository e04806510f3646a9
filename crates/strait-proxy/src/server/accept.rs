//! What a worker's thread does: it accepts connections, serves them, and does what it is told
//! meanwhile.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use strait_transfer::descriptors;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

use crate::cache::worker::{Shared, Worker};
use crate::config::settings::{Port, Settings};
use crate::observe::log::Log;
use crate::server::client_limits::{ClientLimits, Party, Share};
use crate::server::connection::Client;
use crate::server::current::Current;
use crate::server::listen::Listener;

/// How long a worker waits before it accepts again where there are no descriptors left.
const OUT_OF_FILES: Duration = Duration::from_millis(50);
/// How often a worker lets go of what it keeps and nobody will ask for.
const TIDYING: Duration = Duration::from_secs(1);

/// What a worker is told.
#[derive(Debug)]
pub(crate) enum Control {
    /// To go by these settings from the next request on, and to listen on these sockets too; on
    /// what is not asked for any more no longer.
    Adopt(Arc<Settings>, Option<Log>, Vec<Listener>),
    /// To end once all connections have done what they do.
    Drain,
}

/// Runs a worker until it is told to end.
pub(crate) fn work(
    (shared, client_limits): (Arc<Shared>, Arc<ClientLimits>),
    (settings, log): (Arc<Settings>, Option<Log>),
    lane: usize,
    listeners: Vec<Listener>,
    controls: mpsc::UnboundedReceiver<Control>,
) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let worker = Worker::new(shared, settings, log, lane);
        let acceptor = Rc::new(Acceptor::new(&worker, client_limits));
        let watched = worker.clone();
        tokio::task::spawn_local(async move { watched.lines.watch(&watched.counters().log_dropped).await });
        tokio::task::spawn_local(acceptor.clone().tidy());
        acceptor.run(listeners, controls).await;
        worker.lines.close(&worker.counters().log_dropped);
    });
}

/// A worker's connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    current: Current,
    connections: RefCell<Slab<Connection>>,
    /// Connections by client, of all workers.
    client_limits: Arc<ClientLimits>,
    ended: Notify,
}

/// A socket that connections are accepted from.
#[derive(Debug)]
struct Accepting {
    port: Port,
    task: JoinHandle<()>,
    /// Tells it to end.
    ends: Rc<Notify>,
}

#[derive(Debug)]
struct Connection {
    /// It waits for a request of which nothing has come.
    is_idle: Rc<Cell<bool>>,
    task: AbortHandle,
}

impl Acceptor {
    fn new(worker: &Rc<Worker>, client_limits: Arc<ClientLimits>) -> Self {
        let current = Current::new(worker.clone());
        Self { current, connections: RefCell::default(), client_limits, ended: Notify::new() }
    }

    /// The worker for the next request.
    fn worker(&self) -> Rc<Worker> {
        self.current.worker()
    }

    async fn tidy(self: Rc<Self>) {
        loop {
            tokio::time::sleep(TIDYING).await;
            self.worker().tidy();
        }
    }

    async fn run(self: &Rc<Self>, listeners: Vec<Listener>, mut controls: mpsc::UnboundedReceiver<Control>) {
        let mut accepting: Vec<_> = listeners.into_iter().map(|listener| self.listen(listener)).collect();
        // Without anybody to tell it more a worker ends, too.
        while let Some(control) = controls.recv().await {
            match control {
                Control::Adopt(settings, log, listeners) => {
                    accepting.retain(|accepting| {
                        let stays = settings.ports.contains(&accepting.port);
                        if !stays {
                            accepting.ends.notify_one();
                        }
                        stays
                    });
                    let worker = self.worker().with(settings, log);
                    self.current.set(worker);
                    accepting.extend(listeners.into_iter().map(|listener| self.listen(listener)));
                }
                Control::Drain => break,
            }
        }
        let drain = self.worker().settings().timeouts.drain;
        let _ = tokio::time::timeout(drain, self.drain(accepting)).await;
    }

    /// Waits until there are no connections any more. Those that are idle end at once.
    async fn drain(&self, accepting: Vec<Accepting>) {
        for (_, connection) in &*self.connections.borrow() {
            if connection.is_idle.get() {
                connection.task.abort();
            }
        }
        for Accepting { ends, task, .. } in accepting {
            ends.notify_one();
            // It does not panic; if it did, it would accept nothing more.
            let _ = task.await;
        }
        self.none().await;
    }

    fn listen(self: &Rc<Self>, listener: Listener) -> Accepting {
        let Listener { socket, port } = listener;
        let ends = Rc::new(Notify::new());
        let task = tokio::task::spawn_local(self.clone().accept(socket, port, ends.clone()));
        Accepting { port, task, ends }
    }

    async fn none(&self) {
        while !self.connections.borrow().is_empty() {
            self.ended.notified().await;
        }
    }

    /// Accepts connections until it is told to end; those that the kernel holds by then are served
    /// still.
    async fn accept(self: Rc<Self>, socket: std::net::TcpListener, port: Port, ends: Rc<Notify>) {
        let Ok(listener) = TcpListener::from_std(socket) else { return };
        let mut ends = std::pin::pin!(ends.notified());
        let mut is_ending = false;
        loop {
            let worker = self.worker();
            let settings = worker.settings();
            if worker.shared.connections() >= settings.connections_max {
                // Those of another worker end without a word here.
                let next = tokio::time::timeout(OUT_OF_FILES, self.ended.notified());
                tokio::select! {
                    _ = next => continue,
                    () = ends.as_mut() => return,
                }
            }
            let accepted = poll_fn(|context| {
                is_ending = is_ending || ends.as_mut().poll(context).is_ready();
                match listener.poll_accept(context) {
                    std::task::Poll::Pending if is_ending => std::task::Poll::Ready(None),
                    accepted => accepted.map(Some),
                }
            });
            match accepted.await {
                Some(Ok((tcp, peer))) => self.admit(tcp, peer, port),
                Some(Err(_)) => {
                    worker.upstream().let_go();
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
                None => return,
            }
        }
    }

    /// Serves a connection, if it may be.
    fn admit(self: &Rc<Self>, tcp: TcpStream, peer: SocketAddr, port: Port) {
        let worker = self.worker();
        let access = &worker.settings().access;
        let is_allowed =
            if port.is_proxied { access.allows_proxied(peer.ip()) } else { access.allows(peer.ip()) };
        let party = if port.is_proxied { Party::Unnamed } else { Party::client(peer.ip()) };
        let share = if is_allowed { Share::of(&self.client_limits, worker.settings(), party) } else { None };
        let Some(share) = share else {
            worker.counters().refused.add(1);
            return;
        };
        worker.counters().accepted.add(1);
        worker.counters().open.add(1);
        let is_idle = Rc::new(Cell::new(false));
        let mut connections = self.connections.borrow_mut();
        let entry = connections.vacant_entry();
        let descriptor = worker.upstream().count_connection();
        let mut open = Open { acceptor: self.clone(), key: entry.key(), share, _descriptor: descriptor };
        let (acceptor, idle) = (self.clone(), is_idle.clone());
        let task = tokio::task::spawn_local(async move {
            Client::new(&worker, tcp, peer).serve(&acceptor.current, port, &idle, &mut open.share).await;
        });
        entry.insert(Connection { is_idle, task: task.abort_handle() });
    }
}

/// A connection that is open, until it is dropped.
struct Open {
    acceptor: Rc<Acceptor>,
    key: usize,
    share: Share,
    _descriptor: Option<descriptors::Share>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.acceptor.connections.borrow_mut().try_remove(self.key);
        self.acceptor.worker().counters().open.sub(1);
        self.acceptor.ended.notify_waiters();
    }
}
