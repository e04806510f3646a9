//! A relayed connection: a client, the server that was connected to for it, and the two directions
//! between them.

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

/// Which of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// SendOptions far a connection is after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It waits for one of its sockets.
    Waiting,
    /// More can be moved at once.
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
    /// Which of the server's addresses is tried.
    pub(crate) tried: usize,
    /// Until the server has been reached, and the header that it gets first.
    connecting: Option<Vec<u8>>,
    /// From the client to the server, and back.
    pub(crate) up: Direction,
    pub(crate) down: Direction,
    pub(crate) began: Instant,
    moved: u64,
    active: Instant,
    /// Its descriptors, without those of pipes that it has for a while.
    share: Share,
}

impl Connection {
    /// A connection whose server is being connected to.
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

    /// Whether the server has not been reached yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.is_some()
    }

    /// SendOptions long nothing has moved.
    pub(crate) fn idle(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.active)
    }

    /// Moves what an event on one side allows.
    pub(crate) fn turn(
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
            self.reached()?;
            self.active = now;
            return self.both(pipes, now);
        }
        let gone = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let readable = gone || flags.intersects(EventFlags::IN | EventFlags::RDHUP);
        let writable = flags.contains(EventFlags::OUT);
        // Room matters to the direction that waits for it.
        let (up, down) = match side {
            Side::Client => (readable, gone || writable && self.down.is_held_up()),
            Side::Server => (gone || writable && self.up.is_held_up(), readable),
        };
        if flags.contains(EventFlags::ERR) {
            // Reset: what is still to be read of it is read, and nothing more goes there.
            match side {
                Side::Client => self.down.break_off(Errno::CONNRESET),
                Side::Server => self.up.break_off(Errno::CONNRESET),
            }
        }
        self.turns([up, down], pipes, now)
    }

    /// Moves what can be moved in both directions.
    pub(crate) fn both(&mut self, pipes: &mut Pipes, now: Instant) -> Result<State> {
        self.turns([true, true], pipes, now)
    }

    /// Each has its turn, whatever becomes of the other.
    fn turns(&mut self, [up, down]: [bool; 2], pipes: &mut Pipes, now: Instant) -> Result<State> {
        let up = up.then(|| self.up.turn(&self.client, &self.server, pipes));
        let down = down.then(|| self.down.turn(&self.server, &self.client, pipes));
        let waits = [up.transpose()?, down.transpose()?];
        let moved = self.up.bytes + self.down.bytes;
        if moved != self.moved {
            (self.moved, self.active) = (moved, now);
        }
        if !self.up.is_over() || !self.down.is_over() {
            return Ok(if waits.contains(&Some(Wait::Yield)) { State::Ready } else { State::Waiting });
        }
        match self.up.broken().or(self.down.broken()) {
            Some(errno) => Err(Error::os("relay to", "a connection", errno)),
            None => Ok(State::Over),
        }
    }

    /// Tries another address of the server; the socket of the one before closes.
    pub(crate) fn try_server(&mut self, (server, tried): (OwnedFd, usize)) {
        (self.server, self.tried) = (server, tried);
    }

    /// The server was reached, or not; it gets the header first, which always fits an empty socket
    /// buffer.
    fn reached(&mut self) -> Result<()> {
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

    /// Returns its pipes, its sockets and their descriptors' share. Those reset when they are
    /// closed (`SO_LINGER`), so that nobody takes a part for the whole, unless all ended in
    /// order.
    pub(crate) fn close(mut self, in_order: bool, pipes: &mut Pipes) -> ([OwnedFd; 2], Share) {
        self.up.close(pipes);
        self.down.close(pipes);
        if in_order {
            for socket in [&self.client, &self.server] {
                // A socket that is gone has nothing to end.
                let _ = sockopt::set_socket_linger(socket, None);
            }
        }
        ([self.client, self.server], self.share)
    }
}
