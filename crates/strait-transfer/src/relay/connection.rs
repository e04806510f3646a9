//! Relayed connection: a client, the server connected for it, and the two directions between them.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};

use super::direction::{Direction, Wait};
use crate::descriptors::Share;
use crate::error::{Error, Result};
use crate::pipe::Pipes;

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// State of a connection after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The connection waits for one of its sockets.
    Waiting,
    /// More bytes can be moved at once.
    Ready,
    /// Both streams have ended.
    Over,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    client: OwnedFd,
    server: OwnedFd,
    /// Index of the current server address.
    pub(crate) tried: usize,
    /// Header to send first; `Some` until the server is connected.
    connecting: Option<Vec<u8>>,
    /// From the client to the server, and back.
    pub(crate) up: Direction,
    pub(crate) down: Direction,
    pub(crate) began: Instant,
    moved: u64,
    active: Instant,
    /// Descriptors, without those of temporary pipes.
    share: Share,
}

impl Connection {
    /// Makes a connection to a server that is not yet connected.
    pub(crate) fn new(
        number: u64,
        (client, peer): (OwnedFd, SocketAddr),
        (server, tried): (OwnedFd, usize),
        header: Vec<u8>,
        directions: (Direction, Direction),
        share: Share,
        now: Instant,
    ) -> Self {
        let (up, down) = directions;
        Self {
            number,
            peer,
            client,
            server,
            tried,
            connecting: Some(header),
            up,
            down,
            began: now,
            moved: 0,
            active: now,
            share,
        }
    }

    pub(crate) fn socket(&self, side: Side) -> BorrowedFd<'_> {
        match side {
            Side::Client => self.client.as_fd(),
            Side::Server => self.server.as_fd(),
        }
    }

    /// Returns true until the server is connected.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.is_some()
    }

    /// Returns the time since the last progress.
    pub(crate) fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.active)
    }

    /// Handles an event on one side.
    pub(crate) fn handle_event(
        &mut self,
        side: Side,
        flags: EventFlags,
        pipes: &mut Pipes,
        now: Instant,
    ) -> Result<State> {
        if self.connecting.is_some() {
            let reached =
                side == Side::Server && flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP);
            if !reached {
                return Ok(State::Waiting);
            }
            self.server_connected()?;
            self.active = now;
            return self.advance(pipes, now);
        }
        let is_closed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let readable = is_closed || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        let writable = flags.contains(EventFlags::OUT);
        // A writable socket matters only to the direction that waits for it.
        let (up, down) = match side {
            Side::Client => (readable, is_closed || writable && self.down.is_blocked()),
            Side::Server => (is_closed || writable && self.up.is_blocked(), readable),
        };
        if flags.contains(EventFlags::ERR) {
            // After a reset the received bytes are still read, but nothing more can be sent to that
            // side.
            match side {
                Side::Client => self.down.fail(Errno::CONNRESET),
                Side::Server => self.up.fail(Errno::CONNRESET),
            }
        }
        self.advance_directions([up, down], pipes, now)
    }

    /// Moves bytes in both directions as far as possible without waiting.
    pub(crate) fn advance(&mut self, pipes: &mut Pipes, now: Instant) -> Result<State> {
        self.advance_directions([true, true], pipes, now)
    }

    /// Advances the given directions. An error in one does not keep the other from its step.
    fn advance_directions(
        &mut self,
        [up, down]: [bool; 2],
        pipes: &mut Pipes,
        now: Instant,
    ) -> Result<State> {
        let up = up.then(|| self.up.advance(&self.client, &self.server, pipes));
        let down = down.then(|| self.down.advance(&self.server, &self.client, pipes));
        let waits = [up.transpose()?, down.transpose()?];
        let moved = self.up.bytes + self.down.bytes;
        if moved != self.moved {
            (self.moved, self.active) = (moved, now);
        }
        if !self.up.is_over() || !self.down.is_over() {
            return Ok(if waits.contains(&Some(Wait::Yield)) { State::Ready } else { State::Waiting });
        }
        match self.up.error().or(self.down.error()) {
            Some(errno) => Err(Error::os("relay to", "a connection", errno)),
            None => Ok(State::Over),
        }
    }

    /// Switches to another address of the server; the previous socket closes.
    pub(crate) fn try_server(&mut self, (server, tried): (OwnedFd, usize)) {
        (self.server, self.tried) = (server, tried);
    }

    /// Handles the result of connect(2), and sends the header, which always fits an empty socket
    /// buffer.
    fn server_connected(&mut self) -> Result<()> {
        let failed = |error: Errno| Error::os("connect to", "the server", error);
        sockopt::socket_error(&self.server).map_err(failed)?.map_err(failed)?;
        let header = self.connecting.take().unwrap_or_default();
        if header.is_empty() {
            return Ok(());
        }
        match send(&self.server, &header, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == header.len() => Ok(()),
            Ok(_) => Err(failed(Errno::NOBUFS)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Releases the pipes, and returns the sockets and their descriptors. Unless both streams ended
    /// in order, the sockets reset on close (`SO_LINGER`), so that a receiver does not take a part
    /// for the whole.
    pub(crate) fn close(mut self, in_order: bool, pipes: &mut Pipes) -> ([OwnedFd; 2], Share) {
        self.up.close(pipes);
        self.down.close(pipes);
        if in_order {
            for socket in [&self.client, &self.server] {
                // A reset socket has no stream to end.
                let _ = sockopt::set_socket_linger(socket, None);
            }
        }
        ([self.client, self.server], self.share)
    }
}
