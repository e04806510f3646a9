//! Connections of a scenario on both sides of the proxy, with received and unsent bytes.
//!
//! Each has a reading and a writing thread, so that no step blocks on a peer. Steps inspect
//! received bytes under one lock, and are woken by every event.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

/// Time limit of a waiting step.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Opened by a client.
    Client,
    /// Opened by the proxy.
    Origin,
}

/// End of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Closed in order.
    Closed,
    /// Ended with an error.
    Reset(String),
}

/// Command to a writing thread.
enum WriterCommand {
    Send(Vec<u8>),
    /// Close the sending half.
    Shut,
    /// Close both halves.
    Close,
    /// Reset the connection.
    Reset,
}

/// Connection between the scenario and the proxy, as client or as origin.
pub(super) struct Connection {
    pub(super) side: Side,
    /// Received bytes that no step has taken.
    pub(super) received: Vec<u8>,
    /// End by the peer.
    pub(super) end: Option<End>,
    /// True if this side has closed or reset it.
    pub(super) is_closed_here: bool,
    /// True if reading is paused.
    pub(super) is_paused: bool,
    /// Number of unsent bytes.
    pub(super) unsent: usize,
    /// Close, shutdown and reset commands that the writing thread has not executed.
    pub(super) pending_closes: usize,
    commands: Sender<WriterCommand>,
}

/// State shared by all threads of a scenario.
#[derive(Default)]
pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
}

/// State under the lock.
#[derive(Default)]
pub(super) struct State {
    /// Connections in the order of their creation.
    pub(super) connections: Vec<Connection>,
    /// True if the origin refuses connections.
    is_down: bool,
    /// Socket that keeps the port of such an origin from other programs. It does not listen.
    reserved: Option<OwnedFd>,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the state. Wakes all waiting steps.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let result = action(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `condition` returns a value; None on timeout.
    pub(super) fn wait<T>(&self, mut condition: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let end = Instant::now() + STEP_LIMIT;
        let mut state = self.lock();
        loop {
            if let Some(found) = condition(&mut state) {
                return Some(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Connects a client to the proxy; a slow one does not read yet. Returns the index in
    /// [`State::connections`]. The error says which address failed.
    pub(super) fn connect(self: &Arc<Self>, to: SocketAddr, is_slow: bool) -> Result<usize, String> {
        let stream = TcpStream::connect(to).map_err(|error| format!("connect to {to}: {error}"))?;
        Ok(self.add(stream, Side::Client, is_slow))
    }

    /// Starts an origin that accepts all connections; returns its address.
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

    /// Refuses connections to the origin from now on, and keeps its port.
    pub(super) fn refuse(&self, origin: SocketAddr) -> Result<(), String> {
        self.close(origin);
        let keep = || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &origin)?;
            Ok::<_, Errno>(socket)
        };
        let socket = keep().map_err(|error| format!("keep the port of {origin}: {error}"))?;
        self.with(|state| state.reserved = Some(socket));
        Ok(())
    }

    /// Closes the listener of the origin.
    pub(super) fn close(&self, origin: SocketAddr) {
        self.with(|state| state.is_down = true);
        // Wakes the listening thread; after the listener is closed, connections fail.
        while TcpStream::connect(origin).is_ok() {
            thread::yield_now();
        }
    }

    fn add(self: &Arc<Self>, stream: TcpStream, side: Side, is_paused: bool) -> usize {
        // Send the bytes of each step at once.
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let (commands, taken) = channel();
        let connection = Connection {
            side,
            received: Vec::new(),
            end: None,
            is_closed_here: false,
            is_paused,
            unsent: 0,
            pending_closes: 0,
            commands,
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
                    Ok(count) => connection.received.extend_from_slice(&buffer[..count]),
                    Err(error) => connection.end = Some(End::Reset(error.to_string())),
                }
                connection.end.is_some()
            });
            if is_over {
                return;
            }
        }
    }

    /// Executes commands until one closes or resets the connection. Every scenario ends with a
    /// close of each connection. A peer that stops reading is not a failure here: other steps check
    /// the received bytes.
    fn write_all(&self, id: usize, mut stream: &TcpStream, commands: &Receiver<WriterCommand>) {
        for command in commands {
            let is_last = matches!(command, WriterCommand::Close | WriterCommand::Reset);
            let _ = match command {
                WriterCommand::Send(bytes) => {
                    let sent = stream.write_all(&bytes);
                    self.with(|state| state.connections[id].unsent -= bytes.len());
                    sent
                }
                WriterCommand::Shut => self.ended(id, stream.shutdown(Shutdown::Write)),
                WriterCommand::Close => self.ended(id, stream.shutdown(Shutdown::Both)),
                // Closing is not enough, because the reading thread also holds the socket.
                WriterCommand::Reset => {
                    self.ended(id, rustix::net::connect_unspec(stream).map_err(Into::into))
                }
            };
            if is_last {
                return;
            }
        }
    }

    /// Records that a close, shutdown or reset was executed.
    fn ended(&self, id: usize, done: io::Result<()>) -> io::Result<()> {
        self.with(|state| state.connections[id].pending_closes -= 1);
        done
    }
}

impl Connection {
    /// Sends bytes after all earlier ones.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.unsent += bytes.len();
        let _ = self.commands.send(WriterCommand::Send(bytes));
    }

    /// Closes the sending half after all earlier bytes.
    pub(super) fn shut(&mut self) {
        self.end(WriterCommand::Shut);
    }

    /// Closes both halves after all earlier bytes.
    pub(super) fn close(&mut self) {
        (self.is_closed_here, self.is_paused) = (true, false);
        self.end(WriterCommand::Close);
    }

    /// Resets the connection after all earlier bytes.
    pub(super) fn reset(&mut self) {
        (self.is_closed_here, self.is_paused) = (true, false);
        self.end(WriterCommand::Reset);
    }

    fn end(&mut self, command: WriterCommand) {
        // A connection that has ended takes no more commands.
        if self.commands.send(command).is_ok() {
            self.pending_closes += 1;
        }
    }
}
