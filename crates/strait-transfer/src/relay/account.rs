//! Account of a relay: its totals, and the access record of each closed connection.

use std::net::SocketAddr;
use std::time::Duration;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Both sides ended their streams.
    Closed,
    /// One side reset the connection, or could not be reached any more.
    Reset,
    /// The server could not be reached.
    Unreached,
    /// There was no progress for too long.
    Idle,
    /// The connection was still open at the end of the drain time.
    Drained,
}

impl Cause {
    /// Returns a word for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Unreached => "unreached",
            Self::Idle => "idle",
            Self::Drained => "drained",
        }
    }
}

/// Access record of a closed connection.
#[derive(Clone, Debug)]
pub struct ClosedConnection {
    /// Number of the connection, from 1.
    pub number: u64,
    /// Address of the client.
    pub client: SocketAddr,
    /// Bytes to the server.
    pub up: u64,
    /// Bytes to the client.
    pub down: u64,
    /// Bytes of both directions that were copied, because there was no pipe.
    pub copied: u64,
    /// Bytes that were also written to files.
    pub teed: u64,
    /// Error of writing to the files, if any.
    pub tee_failure: Option<String>,
    /// Duration of the connection.
    pub lasted: Duration,
    /// Reason for its end.
    pub cause: Cause,
    /// Error message, if there was an error.
    pub failure: Option<String>,
}

/// Totals of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Accepted connections.
    pub connections: u64,
    /// Connections that did not end normally.
    pub failed: u64,
    /// Relayed bytes in both directions.
    pub bytes: u64,
    /// Relayed bytes that were copied, because there was no pipe.
    pub copied: u64,
    /// Bytes that were also written to files.
    pub teed: u64,
    /// Pauses of the listener because the limit of connections or descriptors was reached.
    pub full: u64,
    /// Largest number of simultaneous connections.
    pub connections_max: u64,
}

impl Account {
    /// Adds the totals of a concurrent relay. `connections_max` is then an upper bound, because the
    /// two maxima may have been at different times.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.copied += other.copied;
        self.teed += other.teed;
        self.full += other.full;
        self.connections_max += other.connections_max;
    }
}
