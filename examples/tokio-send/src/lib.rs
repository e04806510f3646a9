//! Strait's senders in a tokio program, to be copied from.
//!
//! A reactor has two things to watch for them: the room in each socket, and the notifications, which come on one descriptor
//! for all senders of an engine. Everything stays on one thread, in a current-thread runtime and a `LocalSet`. Nothing here
//! waits but by `await`; how long that may take is the caller's to say, with `tokio::time::timeout`.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use strait_transfer::{Engine, Options, Plan, Progress, Sender};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

/// Why bytes could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sender or its engine failed.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// A descriptor could not be watched.
    #[error("watch a descriptor with tokio: {0}")]
    Reactor(#[from] io::Error),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An engine that the senders of a thread share. A handle: clones are the same engine.
#[derive(Clone, Debug)]
pub struct AsyncEngine {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: RefCell<Engine>,
    /// `None` where nothing can be lent. Tokio watches it edge-triggered, so that it is never to be read.
    notifications: Option<AsyncFd<OwnedFd>>,
    /// Senders that wait for notifications.
    waiting: Cell<usize>,
}

impl AsyncEngine {
    /// An engine whose notifications the runtime watches.
    ///
    /// # Errors
    /// [`Engine::new`]'s and epoll_ctl(2)'s.
    ///
    /// # Panics
    /// Outside of a runtime with I/O.
    pub fn new(options: Options) -> Result<Self> {
        let engine = Engine::new(options)?;
        let watched = engine.notifications().map(|fd| watch(fd.try_clone_to_owned()?, Interest::READABLE));
        let notifications = watched.transpose()?;
        let engine = RefCell::new(engine);
        Ok(Self { shared: Rc::new(Shared { engine, notifications, waiting: Cell::new(0) }) })
    }

    /// Calls `what` with the engine, for buffers to fill and pieces to gather. It must not wait.
    pub fn with<T>(&self, what: impl FnOnce(&mut Engine) -> T) -> T {
        what(&mut self.shared.engine.borrow_mut())
    }

    /// Comes back when there may be notifications. All who wait do, since whoever is first takes them all.
    async fn notified(&self) -> Result<()> {
        if let Some(notifications) = &self.shared.notifications {
            notifications.readable().await?.clear_ready();
        }
        Ok(())
    }
}

/// One that waits for notifications. While there is none, sends cost no signal.
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

/// A connection that plans are sent on.
#[derive(Debug)]
pub struct AsyncSender {
    engine: AsyncEngine,
    connection: AsyncFd<Connection>,
}

/// A sender as tokio wants it: a thing with a descriptor.
#[derive(Debug)]
struct Connection(Sender);

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket().as_raw_fd()
    }
}

impl AsyncSender {
    /// A sender on a connected stream; of tokio's own, `into_std` makes one.
    ///
    /// # Errors
    /// [`Sender::new`]'s and epoll_ctl(2)'s.
    ///
    /// # Panics
    /// Outside of a runtime with I/O.
    pub fn new(engine: &AsyncEngine, stream: TcpStream) -> Result<Self> {
        let connection = watch(Connection(Sender::new(stream)?), Interest::WRITABLE)?;
        Ok(Self { engine: engine.clone(), connection })
    }

    /// Sends a plan, until the kernel has taken all of it. Buffers may still be lent then. If the future is dropped, what is
    /// not sent goes before the next plan.
    ///
    /// # Errors
    /// [`Sender::advance`]'s and epoll_ctl(2)'s.
    pub async fn send(&mut self, plan: Plan) -> Result<()> {
        let sender = &mut self.connection.get_mut().0;
        self.engine.with(|engine| sender.push(engine, plan));
        loop {
            match self.advance()? {
                Progress::Idle => return Ok(()),
                Progress::More => yield_now().await,
                // Forgotten before the next try, so that room that comes after it is seen.
                Progress::Room => self.connection.writable().await?.clear_ready(),
                Progress::Input => self.input().await?,
            }
        }
    }

    /// Waits until every lent buffer is back, which is when the peer has acknowledged.
    ///
    /// # Errors
    /// io_uring_enter(2)'s and epoll_wait(2)'s.
    pub async fn finish(&mut self) -> Result<()> {
        let _waiting = Waiting::new(&self.engine.shared);
        loop {
            // First: what came before it is not told of.
            self.engine.with(Engine::listen)?;
            if self.sender().lent() == 0 {
                return Ok(());
            }
            self.engine.notified().await?;
        }
    }

    /// The sender: its account, its peer.
    pub fn sender(&self) -> &Sender {
        &self.connection.get_ref().0
    }

    fn advance(&mut self) -> Result<Progress> {
        let sender = &mut self.connection.get_mut().0;
        Ok(self.engine.with(|engine| sender.advance(engine))?)
    }

    /// Waits for the stream that the plan reads from. It is another one in each plan, so it is watched for this once.
    async fn input(&self) -> Result<()> {
        if let Some((input, _)) = self.sender().waits_for(Progress::Input) {
            let input = watch(input.try_clone_to_owned()?, Interest::READABLE)?;
            input.readable().await?.retain_ready();
        }
        Ok(())
    }
}

/// Has tokio watch a descriptor that `it` owns, and so keeps open and the same as long as it is watched.
#[expect(deprecated, reason = "what replaces it is unsafe, for things that do not own their descriptor")]
fn watch<T: AsRawFd>(it: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(it, interest)
}
