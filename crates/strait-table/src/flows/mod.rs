//! Flows: packets in both directions between two endpoints, with the names of IPFIX (RFC 5102, RFC
//! 5103) in the table.
//!
//! A flow ends when it has been idle, when it has been active for long, when TCP ends it, when the
//! capture ends, or when the table is full: then the flow that has been idle for longest is
//! evicted, with a reason of its own in its row. So the memory has a limit, and no packet is
//! missing in the rows.
//!
//! The table is pure: it reads no clock. Flows are in chunks, so that it grows without copying, and
//! in a list by their last packet, so that ending them costs nothing for the others.

mod batches;
mod flow;
mod id;
mod rows;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

pub use self::batches::FlowBatches;
use self::flow::Flow;
pub use self::flow::{EndReason, FlowRow, Key, Side};
pub use self::id::{FlowIds, flow_id, flow_id_between};
pub use self::rows::FlowRows;
use crate::headers::{Headers, Packet};

/// Flows of a chunk.
const CHUNK: usize = 4096;
/// Maximum number of idle flows that a packet ends: more than one, so that none are left over.
const EXPIRED_MAX: usize = 64;
/// No flow: the end of a list.
const NONE: u32 = u32::MAX;

/// Limits of a table of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Maximum number of flows at a time.
    pub flows_max: u32,
    /// Time without a packet after which a flow ends.
    pub idle_ns: u64,
    /// Time after which an active flow gets a row and starts again.
    pub active_ns: u64,
}

impl FlowLimits {
    /// Returns the limits of each of `tables` tables, which together hold the flows of one.
    #[must_use]
    pub fn shared_by(self, tables: usize) -> Self {
        let tables = u32::try_from(tables).unwrap_or(u32::MAX).max(1);
        Self { flows_max: (self.flows_max / tables).max(1), ..self }
    }
}

impl Default for FlowLimits {
    /// Returns a million flows, which need 250 MB, and the timeouts of most exporters.
    fn default() -> Self {
        Self { flows_max: 1_000_000, idle_ns: 15_000_000_000, active_ns: 60_000_000_000 }
    }
}

/// Returns the community ID of a packet's flow, as in the column `communityId`; none without an IP
/// header.
pub fn community_id_of(packet: &Packet<'_>) -> Option<String> {
    Key::of(&Headers::of(packet)).map(|(key, _)| key.community_id())
}

/// Flows, and beside them the links of the list, which are short and stay in the cache.
#[derive(Debug)]
struct Chunk {
    flows: Vec<Flow>,
    links: Vec<Link>,
}

impl Chunk {
    fn new() -> Self {
        Self { flows: Vec::with_capacity(CHUNK), links: Vec::with_capacity(CHUNK) }
    }
}

/// Neighbours of a flow in the list by the last packet.
#[derive(Debug)]
struct Link {
    /// Flow whose last packet is older.
    older: u32,
    /// Flow whose last packet is newer. A free place has the next free place here.
    newer: u32,
}

/// Flows that have not ended.
#[derive(Debug)]
pub struct FlowTable {
    limits: FlowLimits,
    numbers: HashTable<u32>,
    chunks: Vec<Chunk>,
    free: u32,
    oldest: u32,
    newest: u32,
    seeds: [u64; 2],
    clock: Clock,
}

/// Time of the table, which never decreases. Packet times do: lanes are out of step, clocks are
/// set, and a file may have been merged. Times are in nanoseconds.
#[derive(Debug, Default)]
struct Clock {
    now: u64,
    /// Latest time that has been seen.
    latest: u64,
    /// First time that was too early by the idle timeout, since the latest one has advanced.
    behind: Option<u64>,
}

impl Clock {
    /// Advances to a packet's time, by at most the idle timeout, which ends all flows.
    ///
    /// A single packet may have a time far in the future. If no other packet reaches it for the
    /// idle timeout, the clock continues from the time of the other packets.
    fn advance(&mut self, time_ns: u64, idle_ns: u64) {
        if time_ns >= self.latest {
            self.now = self.now.saturating_add((time_ns - self.latest).min(idle_ns));
            (self.latest, self.behind) = (time_ns, None);
        } else if self.latest - time_ns >= idle_ns {
            let behind = *self.behind.get_or_insert(time_ns);
            if time_ns.saturating_sub(behind) >= idle_ns {
                (self.latest, self.behind) = (time_ns, None);
            }
        }
    }
}

impl FlowTable {
    /// Creates an empty table.
    pub fn new(limits: FlowLimits) -> Self {
        // Random, so that a sender cannot choose flows that collide.
        let random = RandomState::new();
        let seeds = [random.hash_one(0), random.hash_one(1)];
        let limits = FlowLimits { flows_max: limits.flows_max.clamp(1, NONE - 1), ..limits };
        Self {
            limits,
            numbers: HashTable::new(),
            chunks: Vec::new(),
            free: NONE,
            oldest: NONE,
            newest: NONE,
            seeds,
            clock: Clock::default(),
        }
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if there is no flow.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Counts a packet in its flow. Flows that end are added to `ended`. A packet without an IP
    /// header has no flow.
    pub fn take(&mut self, headers: &Headers, ended: &mut Vec<FlowRow>) {
        self.expire(headers.time_ns, EXPIRED_MAX, ended);
        let Some((key, is_swapped)) = Key::of(headers) else { return };
        let hash = key.hash(self.seeds);
        let found = self
            .numbers
            .find(hash, |number| flow_in(&self.chunks, *number).is_some_and(|flow| flow.key == key));
        let number = match found.copied() {
            Some(number) => {
                if let Some(reason) = self.end_before(number, headers) {
                    self.end(number, reason, ended);
                    self.insert(key, hash, is_swapped, headers, ended)
                } else {
                    self.make_newest(number);
                    number
                }
            }
            None => self.insert(key, hash, is_swapped, headers, ended),
        };
        let (active_ns, now_ns) = (self.limits.active_ns, self.clock.now);
        let Some(flow) = self.flow_mut(number) else { return };
        flow.seen_ns = now_ns;
        if headers.time_ns.saturating_sub(flow.start_ns) >= active_ns && flow.has_packets() {
            ended.push(flow.row(EndReason::Active));
            flow.restart(headers);
        }
        if flow.take(headers, is_swapped) {
            self.end(number, EndReason::Detected, ended);
        }
    }

    /// Ends at most `count` flows without a packet for the idle timeout, longest idle first.
    /// Returns true if there may be more.
    pub fn expire(&mut self, now_ns: u64, count: usize, ended: &mut Vec<FlowRow>) -> bool {
        self.clock.advance(now_ns, self.limits.idle_ns);
        for _ in 0..count {
            if !self.is_oldest_idle() {
                return false;
            }
            self.end(self.oldest, EndReason::Idle, ended);
        }
        true
    }

    fn is_oldest_idle(&self) -> bool {
        let is_idle = |flow: &Flow| self.clock.now.saturating_sub(flow.seen_ns) >= self.limits.idle_ns;
        flow_in(&self.chunks, self.oldest).is_some_and(is_idle)
    }

    /// Ends the oldest flow; `reason` if it is not idle.
    fn end_oldest(&mut self, reason: EndReason, ended: &mut Vec<FlowRow>) {
        let reason = if self.is_oldest_idle() { EndReason::Idle } else { reason };
        self.end(self.oldest, reason, ended);
    }

    /// Ends at most `count` flows, oldest first. Returns false if there are none left: time starts
    /// again then, as the next packets are those of another file.
    pub fn drain(&mut self, count: usize, ended: &mut Vec<FlowRow>) -> bool {
        for _ in 0..count {
            if self.oldest == NONE {
                break;
            }
            self.end_oldest(EndReason::Forced, ended);
        }
        if self.oldest == NONE {
            self.clock = Clock::default();
        }
        self.oldest != NONE
    }

    /// Returns the reason for which the flow has ended before this packet of its endpoints.
    fn end_before(&self, number: u32, headers: &Headers) -> Option<EndReason> {
        let flow = flow_in(&self.chunks, number)?;
        // The time of one of both packets may be far in the future.
        if flow.has_packets() && headers.time_ns.abs_diff(flow.last_ns) >= self.limits.idle_ns {
            return Some(EndReason::Idle);
        }
        flow.is_other_connection(headers).then_some(EndReason::Detected)
    }

    fn insert(
        &mut self,
        key: Key,
        hash: u64,
        is_swapped: bool,
        headers: &Headers,
        ended: &mut Vec<FlowRow>,
    ) -> u32 {
        if self.numbers.len() >= self.limits.flows_max as usize {
            self.end_oldest(EndReason::LackOfResources, ended);
        }
        let number = self.store(Flow::new(key, is_swapped, headers));
        let Self { numbers, chunks, seeds, .. } = self;
        let key_hash = |number: &u32| flow_in(chunks, *number).map_or(0, |flow| flow.key.hash(*seeds));
        numbers.insert_unique(hash, number, key_hash);
        self.link_newest(number);
        number
    }

    /// Stores a flow in a free place or in a new one.
    fn store(&mut self, flow: Flow) -> u32 {
        let free = self.free;
        if let Some(stored) = self.flow_mut(free) {
            *stored = flow;
            self.free = self.link_of(free).map_or(NONE, |link| link.newer);
            return free;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.flows.len() == CHUNK) {
            self.chunks.push(Chunk::new());
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        match self.chunks.last_mut() {
            Some(chunk) => {
                chunk.flows.push(flow);
                chunk.links.push(Link { older: NONE, newer: NONE });
                (before + chunk.flows.len() - 1) as u32
            }
            None => NONE,
        }
    }

    /// Removes a flow from the table and adds its row.
    fn end(&mut self, number: u32, reason: EndReason, ended: &mut Vec<FlowRow>) {
        let Some(flow) = flow_in(&self.chunks, number) else { return };
        let hash = flow.key.hash(self.seeds);
        if flow.has_packets() {
            ended.push(flow.row(reason));
        }
        if let Ok(entry) = self.numbers.find_entry(hash, |other| *other == number) {
            let _ = entry.remove();
        }
        self.unlink(number);
        let free = std::mem::replace(&mut self.free, number);
        if let Some(link) = self.link_mut(number) {
            link.newer = free;
        }
    }

    /// Moves a flow to the end of the list. Packets of a flow often follow one another.
    fn make_newest(&mut self, number: u32) {
        if self.newest != number {
            self.unlink(number);
            self.link_newest(number);
        }
    }

    fn unlink(&mut self, number: u32) {
        let Some(&Link { older, newer }) = self.link_of(number) else { return };
        match self.link_mut(older) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.link_mut(newer) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, number: u32) {
        let newest = std::mem::replace(&mut self.newest, number);
        match self.link_mut(newest) {
            Some(link) => link.newer = number,
            None => self.oldest = number,
        }
        if let Some(link) = self.link_mut(number) {
            *link = Link { older: newest, newer: NONE };
        }
    }

    fn flow_mut(&mut self, number: u32) -> Option<&mut Flow> {
        self.chunks.get_mut(number as usize / CHUNK)?.flows.get_mut(number as usize % CHUNK)
    }

    fn link_of(&self, number: u32) -> Option<&Link> {
        self.chunks.get(number as usize / CHUNK)?.links.get(number as usize % CHUNK)
    }

    fn link_mut(&mut self, number: u32) -> Option<&mut Link> {
        self.chunks.get_mut(number as usize / CHUNK)?.links.get_mut(number as usize % CHUNK)
    }
}

fn flow_in(chunks: &[Chunk], number: u32) -> Option<&Flow> {
    chunks.get(number as usize / CHUNK)?.flows.get(number as usize % CHUNK)
}
