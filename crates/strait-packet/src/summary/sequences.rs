//! Relative TCP sequence numbers, as tcpdump prints them without `-S`.
//!
//! The first segment with ACK of a connection, or its SYN-ACK, has absolute numbers. They become
//! the origin of later ones. A segment without ACK always has absolute numbers. The table has a
//! fixed size: a connection that is not in it begins again.

use std::net::IpAddr;

use super::internet::Packet;
use crate::tcp::{Tcp, flags};

/// Maximum number of connections.
pub const CONNECTIONS_MAX: usize = SETS * WAYS;

/// Sets of the table. The hash of a connection selects its set.
const SETS: usize = 8192;
/// Connections of a set. A new one replaces the one that had no segment for the longest time.
const WAYS: usize = 8;

/// Table of connections: the sequence numbers to which later ones are relative.
///
/// It takes 4 MiB from the first TCP segment on.
#[derive(Debug, Default)]
pub struct Sequences {
    entries: Vec<Entry>,
    /// Number of segments, which is the time of the last use.
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    connection: Connection,
    origin: Origin,
    used: u64,
}

/// Addresses and ports; the lower port, or with equal ports the lower address, is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    addresses: [u128; 2],
    is_ipv4: bool,
    ports: [u16; 2],
}

/// Sequence numbers of the sender that is first in the connection, and of the other one.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    first: u32,
    second: u32,
}

/// Numbers of a segment for its line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    /// Number to which the edges of selective acknowledgments are relative.
    pub(super) edge: u32,
}

impl Numbers {
    pub(super) fn absolute(segment: &Tcp<'_>) -> Self {
        Self { sequence: segment.sequence(), acknowledgment: segment.acknowledgment(), edge: 0 }
    }
}

impl Sequences {
    /// Returns the numbers of a segment, and stores those of a new connection.
    pub(super) fn numbers(&mut self, packet: &Packet<'_>, segment: &Tcp<'_>) -> Numbers {
        let absolute = Numbers::absolute(segment);
        if segment.flags() & flags::ACK == 0 {
            return absolute;
        }
        let (connection, is_reverse) = Connection::of(packet, segment);
        let Numbers { sequence, acknowledgment, .. } = absolute;
        let before = acknowledgment.wrapping_sub(1);
        let new = if is_reverse {
            Origin { first: before, second: sequence }
        } else {
            Origin { first: sequence, second: before }
        };
        let (origin, is_known) = self.origin(connection, new, segment.flags() & flags::SYN != 0);
        let (own, other) =
            if is_reverse { (origin.second, origin.first) } else { (origin.first, origin.second) };
        if !is_known {
            return Numbers { edge: other, ..absolute };
        }
        Numbers {
            sequence: sequence.wrapping_sub(own),
            acknowledgment: acknowledgment.wrapping_sub(other),
            edge: other,
        }
    }

    /// Returns the origin of a connection, and true if it was known. Stores `new` for an unknown
    /// one, and for one that `begins`.
    fn origin(&mut self, connection: Connection, new: Origin, begins: bool) -> (Origin, bool) {
        if self.entries.is_empty() {
            self.entries =
                vec![Entry { connection: Connection::NONE, origin: new, used: 0 }; CONNECTIONS_MAX];
        }
        self.clock += 1;
        let set = connection.hash() as usize % SETS * WAYS;
        let ways = &mut self.entries[set..set + WAYS];
        let known = ways.iter().position(|entry| entry.connection == connection);
        let oldest = || (0..WAYS).min_by_key(|way| ways[*way].used).unwrap_or(0);
        let way = known.unwrap_or_else(oldest);
        let entry = &mut ways[way];
        entry.used = self.clock;
        if known.is_some() && !begins {
            return (entry.origin, true);
        }
        (entry.connection, entry.origin) = (connection, new);
        (new, false)
    }
}

impl Connection {
    /// Connection that no packet has: the ports are not in order.
    const NONE: Self = Self { addresses: [0; 2], is_ipv4: true, ports: [1, 0] };

    /// Returns the connection of a segment, and true if its sender is the second one.
    fn of(packet: &Packet<'_>, segment: &Tcp<'_>) -> (Self, bool) {
        let number = |address| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        let (source, destination) = (number(packet.source), number(packet.destination));
        let (from, to) = (segment.source_port(), segment.destination_port());
        let is_reverse = (from, source) > (to, destination);
        let (addresses, ports) = if is_reverse {
            ([destination, source], [to, from])
        } else {
            ([source, destination], [from, to])
        };
        (Self { addresses, is_ipv4: packet.source.is_ipv4(), ports }, is_reverse)
    }

    /// Mixes all fields (Fibonacci hashing). A sender who knows it can only make other connections
    /// begin again.
    fn hash(&self) -> u64 {
        let [one, other] = self.addresses;
        let ports = u64::from(self.ports[0]) << 16 | u64::from(self.ports[1]);
        let words = [one as u64, (one >> 64) as u64, other as u64, (other >> 64) as u64, ports];
        let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        words.into_iter().fold(0, mix) >> 32
    }
}
