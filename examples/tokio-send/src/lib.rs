//! Strait's senders in a tokio program: an example to copy.
//!
//! A reactor watches two things: room in each socket, and notifications, which arrive on one
//! descriptor for all senders of an engine. Everything stays on one thread, in a current-thread
//! runtime and a `LocalSet`. All waiting is by `await`; callers limit it with
//! `tokio::time::timeout`.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use strait_transfer::{Engine, Options, Plan, Progress, Sender};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

/// Errors of sends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sender or its engine failed.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// A descriptor could not be watched.
    #[error("watch a descriptor with tokio: {0}")]
    Reactor(#[from] io::Error),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Engine shared by the senders of a thread. Clones are handles of one engine.
#[derive(Clone, Debug)]
pub struct AsyncEngine {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: RefCell<Engine>,
    /// None without zero-copy. Tokio watches it edge-triggered, so it is never read.
    notifications: Option<AsyncFd<OwnedFd>>,
    /// Number of senders that wait for notifications.
    waiting: Cell<usize>,
}

impl AsyncEngine {
    /// Creates an engine and has the runtime watch its notifications.
    ///
    /// # Errors
    /// Errors of [`Engine::new`] and epoll_ctl(2).
    ///
    /// # Panics
    /// Panics outside of a runtime with I/O.
    pub fn new(options: Options) -> Result<Self> {
        let engine = Engine::new(options)?;
        let watched = engine.notifications().map(|fd| watch(fd.try_clone_to_owned()?, Interest::READABLE));
        let notifications = watched.transpose()?;
        let engine = RefCell::new(engine);
        Ok(Self { shared: Rc::new(Shared { engine, notifications, waiting: Cell::new(0) }) })
    }

    /// Calls `what` with the engine, to fill buffers and gather pieces. It must not block.
    pub fn with<T>(&self, what: impl FnOnce(&mut Engine) -> T) -> T {
        what(&mut self.shared.engine.borrow_mut())
    }

    /// Waits until there may be notifications. Wakes all waiting senders, because the first one
    /// takes the notifications of all.
    async fn notified(&self) -> Result<()> {
        if let Some(notifications) = &self.shared.notifications {
            notifications.readable().await?.clear_ready();
        }
        Ok(())
    }
}

/// Guard of a sender that waits for notifications. While there is none, sends signal nothing.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.waiting.set(shared.waiting.get() + 1);
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let others = self.0.waiting.get() - 1;
        self.0.waiting.set(others);
        if others == 0 {
            self.0.engine.borrow_mut().quiet();
        }
    }
}

/// Connection for sending plans.
#[derive(Debug)]
pub struct AsyncSender {
    engine: AsyncEngine,
    connection: AsyncFd<Connection>,
}

/// Sender as a type with a descriptor, which tokio requires.
#[derive(Debug)]
struct Connection(Sender);

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket().as_raw_fd()
    }
}

impl AsyncSender {
    /// Creates a sender on a connected stream; convert a stream of tokio with `into_std`.
    ///
    /// # Errors
    /// Errors of [`Sender::new`] and epoll_ctl(2).
    ///
    /// # Panics
    /// Panics outside of a runtime with I/O.
    pub fn new(engine: &AsyncEngine, stream: TcpStream) -> Result<Self> {
        let connection = watch(Connection(Sender::new(stream)?), Interest::WRITABLE)?;
        Ok(Self { engine: engine.clone(), connection })
    }

    /// Sends a plan until the kernel has taken all of it. The kernel may still use its buffers
    /// then. If the future is dropped, the unsent rest precedes the next plan.
    ///
    /// # Errors
    /// Errors of [`Sender::advance`] and epoll_ctl(2).
    pub async fn send(&mut self, plan: Plan) -> Result<()> {
        let sender = &mut self.connection.get_mut().0;
        self.engine.with(|engine| sender.push(engine, plan));
        loop {
            match self.advance()? {
                Progress::Idle => return Ok(()),
                Progress::Yield => yield_now().await,
                // Clear readiness before the next try, so that room that appears later is noticed.
                Progress::Room => self.connection.writable().await?.clear_ready(),
                Progress::Input => self.input().await?,
            }
        }
    }

    /// Waits until the kernel has released every zero-copy buffer, which is when the peer has
    /// acknowledged the bytes.
    ///
    /// # Errors
    /// Errors of io_uring_enter(2) and epoll_wait(2).
    pub async fn finish(&mut self) -> Result<()> {
        let _waiting = Waiting::new(&self.engine.shared);
        loop {
            // Listen first: earlier notifications cause no signal.
            self.engine.with(Engine::listen)?;
            if self.sender().borrowed() == 0 {
                return Ok(());
            }
            self.engine.notified().await?;
        }
    }

    /// Returns the sender, with its account and its peer.
    pub fn sender(&self) -> &Sender {
        &self.connection.get_ref().0
    }

    fn advance(&mut self) -> Result<Progress> {
        let sender = &mut self.connection.get_mut().0;
        Ok(self.engine.with(|engine| sender.advance(engine))?)
    }

    /// Waits for the stream that the plan reads from. It differs between plans, so it is watched
    /// only for this wait.
    async fn input(&self) -> Result<()> {
        if let Some((input, _)) = self.sender().waits_for(Progress::Input) {
            let input = watch(input.try_clone_to_owned()?, Interest::READABLE)?;
            input.readable().await?.retain_ready();
        }
        Ok(())
    }
}

/// Registers a descriptor owned by `it`, which keeps the descriptor open and unchanged while tokio
/// watches it.
#[expect(deprecated, reason = "its replacement is unsafe, for types that do not own their descriptor")]
fn watch<T: AsRawFd>(it: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(it, interest)
}
