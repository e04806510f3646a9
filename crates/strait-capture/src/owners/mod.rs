//! Owners of packets: the process that uses the socket, its user, cgroup and container.
//!
//! ```text
//!   process ─▶ bind, connect, accept, send ─▶ programs ─▶ storage of the socket ─▶ tap program
//!                                                │                                     │
//!                                                ▼                                     ▼
//!                                        owners by process ──────────▶ Owners ◀── Frame::owner
//! ```
//!
//! The tap's programs record the process of each packet ([`Frame::owner`]). They take it from the
//! packet's socket and never from a table of addresses. [`Owners`] adds the details of the process,
//! and the owner of the last packets of a TCP connection, which the kernel sends and receives after
//! the socket is gone. It is used by one thread, and reads `/proc` and the cgroup file system.

mod cgroups;
mod container;
mod flows;
mod hooks;
mod selection;
mod users;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use rapidhash::fast::RandomState;
use strait_filter::owner::Owner as Record;
use strait_packet::protocol::ip;
use strait_packet::{FlowKey, Network, network_on};

use self::cgroups::Cgroups;
pub use self::container::{Container, Pod};
use self::flows::{Flows, Packet};
pub(crate) use self::hooks::Hooks;
pub use self::selection::Select;
pub(crate) use self::selection::{note, resolve};
use self::users::Users;
use crate::error::Error;
use crate::frame::{Direction, Frame};

/// Maximum number of flows and of processes that are remembered in a generation. At most two
/// generations are kept.
const GENERATION_MAX: usize = 1 << 15;

/// Process that owns a packet's socket, as of its last use of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifier in the initial namespace of processes.
    pub pid: u32,
    /// Details of the process; `None` if too many other processes used sockets since.
    pub details: Option<Details>,
}

/// Details of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Name of the process, at most 15 bytes: that of its program, unless it changed it.
    pub command: String,
    /// Effective user.
    pub uid: u32,
    /// Name of the user in `/etc/passwd`.
    pub user: Option<Arc<str>>,
    /// Path of the cgroup of version 2; `None` if the cgroup was removed or is outside of the
    /// mounted hierarchy.
    pub cgroup: Option<Arc<str>>,
    /// Container that the cgroup's path names.
    pub container: Option<Arc<Container>>,
}

/// Owner of a packet.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// The owner.
    pub owner: Arc<Owner>,
    /// True for the first packet of a flow with this owner.
    pub is_first: bool,
}

/// Numbers of attributions that failed or were forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Sockets and processes for which the kernel had no memory.
    pub failures: u64,
    /// Packets of processes with forgotten details.
    pub evicted: u64,
}

/// Details of the owners of a session's packets.
pub struct Owners {
    hooks: Arc<Hooks>,
    link_type: u16,
    flows: Flows,
    /// Number of lost packets at which `flows` were last valid.
    drops: u64,
    processes: Processes,
    evicted: u64,
}

impl Owners {
    pub(crate) fn new(hooks: Arc<Hooks>, link_type: u32, is_loopback: bool) -> Self {
        let processes = Processes {
            hooks: Arc::clone(&hooks),
            known: Generations::default(),
            changes: hooks.changes(),
            users: Users::read(),
            cgroups: Cgroups::mounted(),
        };
        Self {
            hooks,
            link_type: u16::try_from(link_type).unwrap_or(u16::MAX),
            flows: Flows::new(is_loopback),
            drops: 0,
            processes,
            evicted: 0,
        }
    }

    /// Returns the owner of a frame of the session; `None` if it is unknown. Frames of a flow must
    /// come in the order of their capture.
    ///
    /// # Errors
    /// The kernel's map cannot be read.
    pub fn of(&mut self, frame: &Frame<'_>) -> Result<Option<Attribution>, Error> {
        if frame.owner == 0 && self.flows.is_empty() {
            // As on a bridge or a router: nothing can be inferred.
            return Ok(None);
        }
        let parsed = network_on(self.link_type, frame.bytes).ok();
        let packet = parsed.and_then(|(untagged, network)| {
            Some(Packet {
                flow: FlowKey::of_network(&untagged, &network)?,
                sent: frame.direction == Direction::Out,
                flags: tcp_flags(&network),
                timestamp_ns: frame.timestamp_ns,
            })
        });
        match (frame.owner, packet) {
            (0, None) => Ok(None),
            (0, Some(packet)) => self.inferred(&packet),
            (pid, None) => Ok(Some(Attribution { owner: self.processes.find(pid)?.0, is_first: false })),
            (pid, Some(packet)) => {
                if self.flows.is_empty() {
                    self.drops = self.hooks.drops()?;
                }
                let Self { flows, processes, .. } = self;
                let changes = processes.hooks.changes();
                let (owner, is_first) = flows.own(&packet, (pid, changes), || processes.find(pid))?;
                Ok(Some(self.attribution(owner, is_first)))
            }
        }
    }

    /// Returns the owner of a packet without a socket, from the packets before it. If the start of
    /// another connection may be missing, they may belong to an earlier one.
    fn inferred(&mut self, packet: &Packet) -> Result<Option<Attribution>, Error> {
        let drops = self.hooks.drops()?;
        if drops != self.drops || !self.hooks.sees_connections() {
            self.drops = drops;
            self.flows.clear();
        }
        let owner = self.flows.infer(packet);
        Ok(owner.map(|owner| self.attribution(owner, false)))
    }

    /// Returns the numbers of attributions that failed.
    pub fn losses(&self) -> Losses {
        Losses { failures: self.hooks.failures(), evicted: self.evicted }
    }

    fn attribution(&mut self, owner: Arc<Owner>, is_first: bool) -> Attribution {
        self.evicted += u64::from(owner.details.is_none());
        Attribution { owner, is_first }
    }
}

/// Processes with their details.
struct Processes {
    hooks: Arc<Hooks>,
    known: Generations<u32, Arc<Owner>>,
    /// Number of changes at which `known` was read.
    changes: u64,
    users: Users,
    cgroups: Cgroups,
}

impl Processes {
    /// Returns a process with its details, and the number of changes at which they were read.
    fn find(&mut self, pid: u32) -> Result<(Arc<Owner>, u64), Error> {
        // Read before the details: a later change is found by the next frame.
        let changes = self.hooks.changes();
        if changes != self.changes {
            self.changes = changes;
            self.known = Generations::default();
        }
        if let Some(owner) = self.known.get_mut(&pid) {
            return Ok((Arc::clone(owner), changes));
        }
        let details = self.hooks.details(pid)?.map(|record| self.details(&record));
        let owner = Arc::new(Owner { pid, details });
        self.known.insert(pid, Arc::clone(&owner));
        Ok((owner, changes))
    }

    fn details(&mut self, record: &Record) -> Details {
        let name: Vec<u8> = record.command.into_iter().take_while(|byte| *byte != 0).collect();
        let (cgroup, container) = self.cgroups.find(record.cgroup, record.pid);
        Details {
            command: String::from_utf8_lossy(&name).into_owned(),
            uid: record.uid,
            user: self.users.name(record.uid),
            cgroup,
            container,
        }
    }
}

/// Returns the flags of a packet of TCP, 0 of another one; none if the snaplen has cut them.
fn tcp_flags(network: &Network<'_>) -> Option<u8> {
    const FLAGS: usize = 13;
    let (protocol, payload) = match network {
        Network::Ipv4(packet) => (packet.protocol(), packet.payload()),
        Network::Ipv6(_, upper) => (upper.protocol, upper.payload),
        Network::Arp(_) | Network::Other => return Some(0),
    };
    if protocol == ip::TCP { payload.get(FLAGS).copied() } else { Some(0) }
}

/// Bounded map that forgets the entries which were not inserted for the longest time: in halves, so
/// that an entry is found if it was among the last [`GENERATION_MAX`] inserted.
struct Generations<K, V> {
    newer: HashMap<K, V, RandomState>,
    older: HashMap<K, V, RandomState>,
}

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { newer: HashMap::default(), older: HashMap::default() }
    }
}

impl<K: Hash + Eq, V> Generations<K, V> {
    /// Returns an entry, which counts as inserted.
    fn get_mut(&mut self, key: &K) -> Option<&mut V>
    where
        K: Copy,
    {
        if !self.older.is_empty()
            && let Some(value) = self.older.remove(key)
        {
            self.insert(*key, value);
        }
        self.newer.get_mut(key)
    }

    /// Returns an entry, a new one if there is none.
    fn entry(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.make_room();
        let older = if self.older.is_empty() { None } else { self.older.remove(&key) };
        self.newer.entry(key).or_insert_with(|| older.unwrap_or_default())
    }

    fn insert(&mut self, key: K, value: V) {
        self.make_room();
        self.older.remove(&key);
        self.newer.insert(key, value);
    }

    fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    fn remove(&mut self, key: &K) {
        self.older.remove(key);
        self.newer.remove(key);
    }

    fn make_room(&mut self) {
        if self.newer.len() >= GENERATION_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_entries_are_kept_in_both_generations() {
        let mut entries = Generations::<usize, usize>::default();
        for key in 0..GENERATION_MAX + 10 {
            *entries.entry(key) += key;
            // An entry that is used stays, also when a generation is full.
            *entries.entry(7) += 1;
        }
        assert_eq!(entries.get_mut(&7), Some(&mut (7 + GENERATION_MAX + 10)));
        assert!(
            (GENERATION_MAX / 2..GENERATION_MAX + 10)
                .all(|key| entries.get_mut(&key) == Some(&mut key.clone()))
        );
        entries.remove(&20);
        assert_eq!(entries.get_mut(&20), None);
        assert_eq!(*entries.entry(20), 0);
        assert!(entries.newer.len() + entries.older.len() <= 2 * GENERATION_MAX);
    }
}
