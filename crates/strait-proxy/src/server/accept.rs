//! Thread of a worker: accepts connections, serves them, and handles reloads and shutdown.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as answers;
use std::time::Duration;

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::io::Errno;
use slab::Slab;
use strait_transfer::descriptors;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

use crate::cache::deferred::Deferred;
use crate::cache::worker::{Shared, Worker};
use crate::config::settings::{Port, Settings};
use crate::observe::Outputs;
use crate::observe::refusals::Refusal;
use crate::server::client_limits::{ClientLimits, Party, Share};
use crate::server::connection::{Client, DRAIN_READ_TIMEOUT, Phase};
use crate::server::current::Current;
use crate::server::listen::Listener;

/// Longest wait before the next accept when no descriptor is left for a client.
const OUT_OF_FILES: Duration = Duration::from_millis(50);
/// Time in which connections that are no longer idle are noticed at a shutdown: their requests have
/// arrived, and are answered.
const DRAIN_ARRIVED: Duration = Duration::from_millis(10);
/// Interval at which a worker drops idle connections and dead objects.
const TIDYING: Duration = Duration::from_secs(1);

/// Message to a worker.
#[derive(Debug)]
pub(crate) enum Control {
    /// Prepare to accept from these sockets, in place of others that were prepared.
    Prepare(Vec<Listener>, answers::Sender<io::Result<()>>),
    /// Use these settings and outputs from the next request on, and accept from the prepared
    /// sockets too; stop accepting on addresses that the settings do not have.
    Adopt(Arc<Settings>, Outputs),
    /// Return duplicates of the listening sockets.
    Lend(answers::Sender<io::Result<Vec<(Port, OwnedFd)>>>),
    /// Store the responses that wait for it, and confirm that.
    Store(answers::Sender<()>),
    /// End after all connections have finished their responses.
    Drain,
    /// Accept nothing more, because another process accepts from the same sockets. End after all
    /// connections have ended.
    HandOver,
}

/// Runs a worker until [`Control::Drain`] or the end of the channel.
pub(crate) fn work(
    (shared, client_limits): (Arc<Shared>, Arc<ClientLimits>),
    (settings, outputs): (Arc<Settings>, Outputs),
    lane: usize,
    controls: mpsc::UnboundedReceiver<Control>,
) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async move {
        let worker = Worker::new(shared, settings, outputs, lane);
        let acceptor = Rc::new(Acceptor::new(&worker, client_limits));
        let watched = worker.clone();
        tokio::task::spawn_local(async move { watched.lines.watch(&watched.counters().log_dropped).await });
        tokio::task::spawn_local(acceptor.clone().tidy());
        let deferred = Deferred::of_thread();
        tokio::task::spawn_local(async move { deferred.run().await });
        acceptor.run(controls).await;
        Deferred::of_thread().store_all();
        worker.lines.close(&worker.counters().log_dropped);
    });
}

/// Connections of a worker.
#[derive(Debug)]
pub(crate) struct Acceptor {
    current: Current,
    connections: RefCell<Slab<Connection>>,
    /// Connections by client, of all workers.
    client_limits: Arc<ClientLimits>,
    ended: Notify,
}

/// Socket that the worker accepts from.
#[derive(Debug)]
struct Accepting {
    port: Port,
    socket: Rc<TcpListener>,
    task: JoinHandle<()>,
    /// Ends the task.
    ends: Rc<End>,
}

/// End of a task that accepts connections.
#[derive(Debug, Default)]
struct End {
    notify: Notify,
    /// True if another process accepts the connections that the kernel holds.
    leaves_queue: Cell<bool>,
}

#[derive(Debug)]
struct Connection {
    phase: Rc<Cell<Phase>>,
    task: AbortHandle,
}

impl Acceptor {
    fn new(worker: &Rc<Worker>, client_limits: Arc<ClientLimits>) -> Self {
        let current = Current::new(worker.clone());
        Self { current, connections: RefCell::default(), client_limits, ended: Notify::new() }
    }

    /// Returns the worker for the next request.
    fn worker(&self) -> Rc<Worker> {
        self.current.worker()
    }

    async fn tidy(self: Rc<Self>) {
        loop {
            tokio::time::sleep(TIDYING).await;
            self.worker().tidy();
        }
    }

    async fn run(self: &Rc<Self>, mut controls: mpsc::UnboundedReceiver<Control>) {
        let mut accepting: Vec<Accepting> = Vec::new();
        let mut prepared = Vec::new();
        let mut hands_over = false;
        // A worker also ends when the proxy is dropped.
        while let Some(control) = controls.recv().await {
            match control {
                Control::Prepare(listeners, answer) => {
                    let prepare = |it: Listener| Ok((TcpListener::from_std(it.socket)?, it.port));
                    let result = listeners.into_iter().map(prepare).collect::<io::Result<Vec<_>>>();
                    let result = result.map(|new| prepared = new);
                    // Without a receiver the request was given up.
                    let _ = answer.send(result);
                }
                Control::Adopt(settings, outputs) => {
                    accepting.retain(|accepting| {
                        let stays = settings.ports.contains(&accepting.port);
                        if !stays {
                            accepting.ends.notify.notify_one();
                        }
                        stays
                    });
                    let worker = self.worker().with(settings, outputs);
                    self.current.set(worker);
                    let listen = |(socket, port)| self.listen(socket, port);
                    accepting.extend(prepared.drain(..).map(listen));
                }
                Control::Lend(answer) => {
                    let duplicate = |it: &Accepting| Ok((it.port, it.socket.as_fd().try_clone_to_owned()?));
                    // Without a receiver the request was given up.
                    let _ = answer.send(accepting.iter().map(duplicate).collect());
                }
                Control::Store(answer) => {
                    Deferred::of_thread().store_all();
                    let _ = answer.send(());
                }
                Control::Drain => break,
                Control::HandOver => {
                    hands_over = true;
                    break;
                }
            }
        }
        let drain = self.worker().settings().timeouts.drain;
        let _ = tokio::time::timeout(drain, self.drain(accepting, hands_over)).await;
    }

    /// Waits until all connections have ended. Idle ones of HTTP/1.1 end at once, and new ones
    /// without a request soon, unless another process takes over: see
    /// [`crate::config::settings::Closing`]. Those of HTTP/2 announce their end.
    async fn drain(&self, accepting: Vec<Accepting>, hands_over: bool) {
        self.current.close();
        for Accepting { ends, task, .. } in accepting {
            ends.leaves_queue.set(hands_over);
            ends.notify.notify_one();
            // It does not panic; if it did, it would accept nothing more.
            let _ = task.await;
        }
        if !hands_over {
            tokio::time::sleep(DRAIN_ARRIVED).await;
            self.abort(Phase::Idle);
            let _ = tokio::time::timeout(DRAIN_READ_TIMEOUT, self.none()).await;
            self.abort(Phase::New);
        }
        self.none().await;
    }

    /// Ends the connections in a phase.
    fn abort(&self, phase: Phase) {
        for (_, connection) in &*self.connections.borrow() {
            if connection.phase.get() == phase {
                connection.task.abort();
            }
        }
    }

    fn listen(self: &Rc<Self>, socket: TcpListener, port: Port) -> Accepting {
        let socket = Rc::new(socket);
        let ends: Rc<End> = Rc::default();
        let task = tokio::task::spawn_local(self.clone().accept(socket.clone(), port, ends.clone()));
        Accepting { port, socket, task, ends }
    }

    async fn none(&self) {
        while !self.connections.borrow().is_empty() {
            self.ended.notified().await;
        }
    }

    /// Accepts connections until `end`; connections that the kernel holds by then are still served,
    /// here or by the process that takes over.
    async fn accept(self: Rc<Self>, listener: Rc<TcpListener>, port: Port, end: Rc<End>) {
        let mut ends = std::pin::pin!(end.notify.notified());
        let mut is_ending = false;
        loop {
            let worker = self.worker();
            let settings = worker.settings();
            let has_descriptors = worker.shared.descriptors.has_room_for_client();
            if !has_descriptors {
                worker.upstream().close_idle();
            }
            if !has_descriptors || worker.shared.connections() >= settings.connections_max {
                // Connections of other workers end without a notification here.
                let next = tokio::time::timeout(OUT_OF_FILES, self.ended.notified());
                tokio::select! {
                    _ = next => continue,
                    () = ends.as_mut() => return,
                }
            }
            let accepted = poll_fn(|context| {
                is_ending = is_ending || ends.as_mut().poll(context).is_ready();
                if is_ending && end.leaves_queue.get() {
                    return std::task::Poll::Ready(None);
                }
                match listener.poll_accept(context) {
                    std::task::Poll::Pending if is_ending => std::task::Poll::Ready(None),
                    accepted => accepted.map(Some),
                }
            });
            match accepted.await {
                Some(Ok((tcp, peer))) => self.admit(tcp, peer, port),
                Some(Err(error)) => {
                    // Otherwise all descriptors would go to clients again, and none to origins.
                    if Errno::from_io_error(&error) == Some(Errno::MFILE) {
                        worker.shared.descriptors.note_exhausted();
                    }
                    worker.upstream().close_idle();
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
                None => return,
            }
        }
    }

    /// Serves a connection, if access and limits allow it.
    fn admit(self: &Rc<Self>, tcp: TcpStream, peer: SocketAddr, port: Port) {
        let worker = self.worker();
        let access = &worker.settings().access;
        let is_allowed =
            if port.has_proxy_header { access.allows_proxied(peer.ip()) } else { access.allows(peer.ip()) };
        let party = if port.has_proxy_header { Party::Unnamed } else { Party::client(peer.ip()) };
        let share = if is_allowed {
            Share::of(&self.client_limits, worker.settings(), party).ok_or(party.refusal())
        } else {
            Err(Refusal::Access)
        };
        let share = match share {
            Ok(share) => share,
            Err(refusal) => return worker.note_refusal(refusal, peer.ip(), false),
        };
        worker.counters().accepted.add(1);
        worker.counters().open.add(1);
        let phase = Rc::<Cell<Phase>>::default();
        let mut connections = self.connections.borrow_mut();
        let entry = connections.vacant_entry();
        let descriptor = worker.upstream().count_connection();
        let mut open = Open { acceptor: self.clone(), key: entry.key(), share, _descriptor: descriptor };
        let (acceptor, of_task) = (self.clone(), phase.clone());
        let task = tokio::task::spawn_local(async move {
            Client::new(&worker, tcp, peer).serve(&acceptor.current, port, &of_task, &mut open.share).await;
        });
        entry.insert(Connection { phase, task: task.abort_handle() });
    }
}

/// Open connection, counted until it is dropped.
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
