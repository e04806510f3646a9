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
mod hooks;
mod selection;
mod users;

use std::collections::HashMap;
use std::sync::Arc;

use strait_filter::owner::Owner as Record;
use strait_packet::protocol::ip;
use strait_packet::{FlowKey, Network, network_on};

use self::cgroups::Cgroups;
pub use self::container::{Container, Pod};
pub(crate) use self::hooks::Hooks;
pub use self::selection::Select;
pub(crate) use self::selection::resolve;
use self::users::Users;
use crate::error::Error;
use crate::frame::Frame;

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
    /// Both ends of a connection are on this host: a flow's other direction has another owner.
    is_loopback: bool,
    flows: Generations<FlowKey, Known>,
    processes: Generations<u32, Arc<Owner>>,
    /// Number of changes at which `processes` were read.
    changes: u64,
    users: Users,
    cgroups: Cgroups,
    evicted: u64,
}

/// Owner of a flow, and the number of changes at which its details were read.
struct Known {
    owner: Arc<Owner>,
    changes: u64,
}

impl Owners {
    pub(crate) fn new(hooks: Arc<Hooks>, link_type: u32, is_loopback: bool) -> Self {
        Self {
            changes: hooks.changes(),
            hooks,
            link_type: u16::try_from(link_type).unwrap_or(u16::MAX),
            is_loopback,
            flows: Generations::default(),
            processes: Generations::default(),
            users: Users::read(),
            cgroups: Cgroups::mounted(),
            evicted: 0,
        }
    }

    /// Returns the owner of a frame of the session; `None` if it is unknown. Frames of a flow must
    /// come in the order of their capture.
    ///
    /// # Errors
    /// The kernel's map cannot be read.
    pub fn of(&mut self, frame: &Frame<'_>) -> Result<Option<Attribution>, Error> {
        let parsed = network_on(self.link_type, frame.bytes).ok();
        let flow = parsed.as_ref().and_then(|(untagged, network)| FlowKey::of_network(untagged, network));
        match (frame.owner, flow) {
            (0, None) => Ok(None),
            (0, Some(flow)) => Ok(self.of_flow(flow, parsed.is_some_and(|(_, network)| is_syn(&network)))),
            (pid, None) => Ok(Some(Attribution { owner: self.process(pid)?, is_first: false })),
            (pid, Some(flow)) => {
                let changes = self.hooks.changes();
                if let Some(known) = self.flows.get(&flow)
                    && (known.owner.pid, known.changes) == (pid, changes)
                {
                    let owner = Arc::clone(&known.owner);
                    return Ok(Some(self.attribution(owner, false)));
                }
                let owner = self.process(pid)?;
                Ok(Some(self.remember(flow, owner)))
            }
        }
    }

    /// Returns the owner of a packet without a socket, from the packets before it. A SYN starts
    /// another connection.
    fn of_flow(&mut self, flow: FlowKey, is_syn: bool) -> Option<Attribution> {
        // Fragments of all connections between two hosts have one flow.
        if flow.protocol != ip::TCP || flow.source.port == 0 || flow.destination.port == 0 {
            return None;
        }
        if is_syn {
            self.flows.remove(&flow);
            self.flows.remove(&reversed(&flow));
            return None;
        }
        let other_end = if self.is_loopback { None } else { self.flows.get(&reversed(&flow)) };
        let owner = Arc::clone(&self.flows.get(&flow).or(other_end)?.owner);
        Some(self.remember(flow, owner))
    }

    /// Returns the numbers of attributions that failed.
    pub fn losses(&self) -> Losses {
        Losses { failures: self.hooks.failures(), evicted: self.evicted }
    }

    /// Stores the owner of a flow.
    fn remember(&mut self, flow: FlowKey, owner: Arc<Owner>) -> Attribution {
        let is_same = |known: Option<&Known>| known.is_some_and(|known| known.owner.pid == owner.pid);
        let is_first = !is_same(self.flows.get(&flow)) && !is_same(self.flows.get(&reversed(&flow)));
        self.flows.insert(flow, Known { owner: Arc::clone(&owner), changes: self.changes });
        self.attribution(owner, is_first)
    }

    fn attribution(&mut self, owner: Arc<Owner>, is_first: bool) -> Attribution {
        self.evicted += u64::from(owner.details.is_none());
        Attribution { owner, is_first }
    }

    /// Returns a process with its details.
    fn process(&mut self, pid: u32) -> Result<Arc<Owner>, Error> {
        // Read before the details: a later change is found by the next frame.
        let changes = self.hooks.changes();
        if changes != self.changes {
            self.changes = changes;
            self.processes = Generations::default();
        }
        if let Some(owner) = self.processes.get(&pid) {
            return Ok(Arc::clone(owner));
        }
        let details = self.hooks.details(pid)?.map(|record| self.details(&record));
        let owner = Arc::new(Owner { pid, details });
        self.processes.insert(pid, Arc::clone(&owner));
        Ok(owner)
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

/// Returns true for the first packet of a TCP connection in its direction.
fn is_syn(network: &Network<'_>) -> bool {
    const FLAGS: usize = 13;
    const SYN: u8 = 1 << 1;
    let payload = match network {
        Network::Ipv4(packet) => packet.payload(),
        Network::Ipv6(_, upper) => upper.payload,
        Network::Arp(_) | Network::Other => return false,
    };
    payload.get(FLAGS).is_some_and(|flags| flags & SYN != 0)
}

fn reversed(flow: &FlowKey) -> FlowKey {
    FlowKey { source: flow.destination, destination: flow.source, ..*flow }
}

/// Bounded map that forgets the entries which were not inserted for the longest time: in halves, so
/// that an entry is found if it was among the last [`GENERATION_MAX`] inserted.
struct Generations<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { newer: HashMap::new(), older: HashMap::new() }
    }
}

impl<K: std::hash::Hash + Eq, V> Generations<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.newer.get(key).or_else(|| self.older.get(key))
    }

    fn insert(&mut self, key: K, value: V) {
        if self.newer.len() >= GENERATION_MAX && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }

    fn remove(&mut self, key: &K) {
        self.newer.remove(key);
        self.older.remove(key);
    }
}
