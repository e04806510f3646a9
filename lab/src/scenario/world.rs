//! The connections of a scenario, on both sides of the proxy: what came on them and what is still to be sent.
//!
//! Each has a thread that reads and one that writes, so that no step waits for a peer to make room. Steps look at what came under one
//! lock, and are woken whenever something did.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a step waits for what it awaits.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Where a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// A client made it.
    Client,
    /// The proxy made it.
    Origin,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In order.
    Closed,
    /// With an error.
    Reset(String),
}

/// What a writing thread does next.
enum Order {
    Send(Vec<u8>),
    /// The sending half is closed.
    Shut,
    /// Both are.
    Close,
    /// Nothing more is, and the peer is told so with a reset.
    Reset,
}

/// A connection.
pub(super) struct Connection {
    pub(super) side: Side,
    /// What came and no step has taken yet.
    pub(super) came: Vec<u8>,
    /// How the peer has ended it.
    pub(super) end: Option<End>,
    /// Whether this side has closed or reset it.
    pub(super) is_left: bool,
    /// Whether nothing more is read from it.
    pub(super) is_paused: bool,
    /// Bytes that are not sent yet.
    pub(super) unsent: usize,
    /// Orders to end it, or half of it, that are not carried out yet.
    pub(super) unended: usize,
    orders: Sender<Order>,
}

/// All that the threads of a scenario share.
#[derive(Default)]
pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
}

/// What is looked at under the lock.
#[derive(Default)]
pub(super) struct State {
    /// In the order in which they were made.
    pub(super) connections: Vec<Connection>,
    /// Whether the origin refuses connections.
    is_down: bool,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the state, or changes it.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `look` finds something; `None` if it does not in time.
    pub(super) fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let end = Instant::now() + STEP_LIMIT;
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A connection of a client to the proxy; one that is slow reads nothing yet.
    pub(super) fn connect(self: &Arc<Self>, to: SocketAddr, is_slow: bool) -> Result<usize, String> {
        let stream = TcpStream::connect(to).map_err(|error| format!("connect to {to}: {error}"))?;
        Ok(self.add(stream, Side::Client, is_slow))
    }

    /// An origin that takes whatever connections come; where it listens.
    pub(super) fn listen(self: &Arc<Self>) -> Result<SocketAddr, String> {
        let failed = |error: std::io::Error| format!("listen: {error}");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let world = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if world.with(|state| state.is_down) {
                    break;
                }
                world.add(stream, Side::Origin, false);
            }
        });
        Ok(address)
    }

    /// From now on connections to the origin are refused.
    pub(super) fn refuse(&self, origin: SocketAddr) {
        self.with(|state| state.is_down = true);
        // It wakes the thread that listens; once the listener is gone, connections fail.
        while TcpStream::connect(origin).is_ok() {
            thread::yield_now();
        }
    }

    fn add(self: &Arc<Self>, stream: TcpStream, side: Side, is_paused: bool) -> usize {
        // What is sent in steps is to arrive in steps.
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let (orders, taken) = channel();
        let connection = Connection {
            side,
            came: Vec::new(),
            end: None,
            is_left: false,
            is_paused,
            unsent: 0,
            unended: 0,
            orders,
        };
        let id = self.with(|state| {
            state.connections.push(connection);
            state.connections.len() - 1
        });
        let (reader, writer) = (self.clone(), self.clone());
        let to = stream.clone();
        thread::spawn(move || reader.read_all(id, &stream));
        thread::spawn(move || writer.write_all(id, &to, &taken));
        id
    }

    fn read_all(&self, id: usize, mut stream: &TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let mut state = self.lock();
            while state.connections[id].is_paused {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let read = stream.read(&mut buffer);
            let is_over = self.with(|state| {
                let connection = &mut state.connections[id];
                match read {
                    Ok(0) => connection.end = Some(End::Closed),
                    Ok(count) => connection.came.extend_from_slice(&buffer[..count]),
                    Err(error) => connection.end = Some(End::Reset(error.to_string())),
                }
                connection.end.is_some()
            });
            if is_over {
                return;
            }
        }
    }

    /// Until the connection is ended from this side, as all are at last. A peer that takes nothing more is no failure here: what it ought
    /// to have taken is awaited elsewhere.
    fn write_all(&self, id: usize, mut stream: &TcpStream, orders: &Receiver<Order>) {
        for order in orders {
            let is_last = matches!(order, Order::Close | Order::Reset);
            let _ = match order {
                Order::Send(bytes) => {
                    let sent = stream.write_all(&bytes);
                    self.with(|state| state.connections[id].unsent -= bytes.len());
                    sent
                }
                Order::Shut => self.ended(id, stream.shutdown(Shutdown::Write)),
                Order::Close => self.ended(id, stream.shutdown(Shutdown::Both)),
                // Closing would not do it, for the reading thread has the socket too.
                Order::Reset => self.ended(id, rustix::net::connect_unspec(stream).map_err(Into::into)),
            };
            if is_last {
                return;
            }
        }
    }

    /// The connection, or half of it, was ended.
    fn ended(&self, id: usize, done: io::Result<()>) -> io::Result<()> {
        self.with(|state| state.connections[id].unended -= 1);
        done
    }
}

impl Connection {
    /// Sends bytes behind those that were sent before.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.unsent += bytes.len();
        let _ = self.orders.send(Order::Send(bytes));
    }

    /// Closes the sending half behind all that was sent.
    pub(super) fn shut(&mut self) {
        self.end(Order::Shut);
    }

    /// Closes both halves behind all that was sent.
    pub(super) fn close(&mut self) {
        (self.is_left, self.is_paused) = (true, false);
        self.end(Order::Close);
    }

    /// Ends it with a reset behind all that was sent.
    pub(super) fn reset(&mut self) {
        (self.is_left, self.is_paused) = (true, false);
        self.end(Order::Reset);
    }

    fn end(&mut self, order: Order) {
        // One that has ended already ends no more.
        if self.orders.send(order).is_ok() {
            self.unended += 1;
        }
    }
}
