//! Hellos in QUIC's Initial packets. They are encrypted with keys that everyone can derive: from
//! the version and the connection ID in the first packet of the client (RFC 9001 s5.2). The server
//! uses keys from the same ID, so that its hello is found only if that packet was captured.
//!
//! The frames of a hello come in any order and in several packets. [`Connections`] decrypts the
//! packets of a connection until both sides have sent their hellos.

mod keys;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use strait_packet::quic::{self, CLIENT_ID_LEN_MIN, Crypto, Initial, Packet, Version};

use self::keys::Keys;
use super::message::{Application, MESSAGE_BYTES_MAX, Message, Missed};
use crate::headers::Headers;

/// Sets of connections; a hash selects the set of each.
const SETS: usize = 256;
/// Maximum number of connections in a set.
const SET_LEN_MAX: usize = 4;
/// Maximum number of packets that are read of a datagram. Some devices merge datagrams.
const PACKETS_MAX: usize = 16;
/// Maximum number of CRYPTO frames that are read of a packet. Browsers send about 20.
const FRAMES_MAX: usize = 128;
/// Maximum number of ranges of a hello that are complete, with gaps between them.
const RANGES_MAX: usize = 64;
/// Maximum number of hellos of a side: it sends a second one after a HelloRetryRequest.
const HELLOS_MAX: usize = 2;
/// Maximum number of packets in a second for which keys are derived in vain, which costs
/// microseconds.
const FAILURES_MAX: u32 = 10_000;
/// Bytes of a record's header, which the parser of hellos expects.
const RECORD_HEADER_LEN: usize = 5;
/// Bytes of the header of a handshake message.
const MESSAGE_HEADER_LEN: usize = 4;
const HELLO_BYTES_MAX: usize = MESSAGE_BYTES_MAX - RECORD_HEADER_LEN;

/// The latest connections, with the parts of incomplete hellos.
pub(super) struct Connections {
    sets: Vec<Vec<Entry>>,
    /// Random, so that a sender cannot choose connections that collide.
    random: RandomState,
    /// A second of the packets' time, and the derivations in vain in it.
    failures: (u64, u32),
}

/// Identity of a connection, for both directions. The client's own ID distinguishes the connections
/// of one socket, and does not change during the handshake. VLANs are left out: the directions can
/// have different ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Addresses and ports of client and server.
    ends: [(IpAddr, u16); 2],
    client_id: Vec<u8>,
}

struct Entry {
    key: Key,
    /// None if the first packet of the client is unknown. Its hellos were counted.
    connection: Option<Box<Connection>>,
}

struct Connection {
    version: Version,
    /// Connection IDs of the server: that of the client's first packet, and the server's own.
    first_id: Vec<u8>,
    server_id: Vec<u8>,
    client_keys: Keys,
    server_keys: Keys,
    client: Side,
    server: Side,
    /// True after a Retry, with the ID for the next keys until the client has used it.
    is_retried: bool,
    retry_id: Option<Vec<u8>>,
}

/// Handshake messages of one side.
#[derive(Default)]
struct Side {
    /// Number of its hellos, also of those that were given up.
    hellos: usize,
    /// Bytes of the complete ones, before the next one.
    base: u64,
    incomplete: Option<Box<Incomplete>>,
}

/// Data of a hello.
struct Incomplete {
    /// Headers of its first packet.
    headers: Headers,
    /// Its bytes, with zeros in gaps.
    bytes: Vec<u8>,
    /// Ranges of `bytes` that are complete, sorted, with gaps between them.
    ranges: Vec<(usize, usize)>,
}

/// Where hellos and counts go.
type Found<'a> = (&'a mut Vec<Message>, &'a mut Missed);

impl Connections {
    pub(super) fn new(is_needed: bool) -> Self {
        let sets = if is_needed { SETS } else { 0 };
        Self {
            sets: std::iter::repeat_with(Vec::new).take(sets).collect(),
            random: RandomState::new(),
            failures: (0, 0),
        }
    }

    /// Takes a datagram, of which the snaplen may have cut the end. Returns false if it is another
    /// protocol's. Complete hellos are added to `messages`.
    pub(super) fn take(
        &mut self,
        headers: &Headers,
        (ends, data): ([(IpAddr, u16); 2], &[u8]),
        is_cut: bool,
        (messages, missed): Found<'_>,
    ) -> bool {
        if self.sets.is_empty() || !quic::has_long_header(data) {
            return false;
        }
        let mut may_begin = data.len() >= quic::INITIAL_DATAGRAM_LEN_MIN;
        for packet in quic::packets(data).take(PACKETS_MAX) {
            match packet {
                Ok(Packet::Initial(initial)) => {
                    self.take_initial(headers, (ends, may_begin), &initial, (messages, missed));
                    may_begin = false;
                }
                Ok(Packet::Retry { destination_id, source_id }) => {
                    let [source, destination] = ends;
                    let key = Key { ends: [destination, source], client_id: destination_id.to_vec() };
                    if let Some(connection) = self.find(&key)
                        && !connection.is_retried
                        && connection.server_id.is_empty()
                    {
                        connection.is_retried = true;
                        connection.retry_id = Some(source_id.to_vec());
                    }
                }
                Err(_) if is_cut => missed.cut += 1,
                // Without a hello, of another protocol, or one that the receiver drops as well.
                Ok(Packet::Other) | Err(_) => {}
            }
        }
        true
    }

    /// Forgets all connections, and counts the incomplete hellos.
    pub(super) fn end(&mut self) -> u64 {
        let entries = self.sets.iter_mut().flat_map(|set| set.drain(..));
        entries.filter_map(|entry| entry.connection).map(|connection| connection.incomplete()).sum()
    }

    /// Takes an Initial packet. Keys are derived only if it may begin a connection: that costs
    /// microseconds, and the rest of the datagram has the same connection ID (RFC 9000 s12.2).
    fn take_initial(
        &mut self,
        headers: &Headers,
        (ends, may_begin): ([(IpAddr, u16); 2], bool),
        initial: &Initial<'_>,
        (messages, missed): Found<'_>,
    ) {
        let [source, destination] = ends;
        let reversed = Key { ends: [destination, source], client_id: initial.destination_id.to_vec() };
        if let Some(connection) = self.find(&reversed)
            && connection.version == initial.version
        {
            if connection.server.is_done() {
                return;
            }
            if let Some(payload) = connection.server_keys.decrypt(initial) {
                connection.server_id = initial.source_id.to_vec();
                connection.server.take(headers, &payload, (messages, missed));
                return;
            }
        }
        let key = Key { ends, client_id: initial.source_id.to_vec() };
        if let Some(connection) = self.find(&key)
            && connection.take_from_client(headers, initial, (messages, missed))
        {
            return;
        }
        let Some((payload, [client_keys, server_keys])) = self.begin(headers, may_begin, initial) else {
            self.count_unknown(key, may_begin, missed);
            return;
        };
        if let Some(connection) = self.find(&key)
            && !key.client_id.is_empty()
            && connection.server_id.is_empty()
        {
            // After a Retry that was not captured.
            connection.renew(initial, [client_keys, server_keys]);
            connection.client.take(headers, &payload, (messages, missed));
            return;
        }
        let mut connection = Box::new(Connection {
            version: initial.version,
            first_id: initial.destination_id.to_vec(),
            server_id: Vec::new(),
            client_keys,
            server_keys,
            client: Side::default(),
            server: Side::default(),
            is_retried: false,
            retry_id: None,
        });
        connection.client.take(headers, &payload, (messages, missed));
        self.insert(key, connection, missed);
    }

    /// Decrypts the first packet of a client. Returns its keys and those of the server.
    fn begin(
        &mut self,
        headers: &Headers,
        may_begin: bool,
        initial: &Initial<'_>,
    ) -> Option<(Vec<u8>, [Keys; 2])> {
        if !may_begin || initial.destination_id.len() < CLIENT_ID_LEN_MIN {
            return None;
        }
        let second = headers.time_ns / 1_000_000_000;
        if self.failures.0 != second {
            self.failures = (second, 0);
        }
        if self.failures.1 >= FAILURES_MAX {
            return None;
        }
        let opened = Keys::pair(initial.version, initial.destination_id).ok().and_then(|keys| {
            let payload = keys[0].decrypt(initial)?;
            Some((payload, keys))
        });
        self.failures.1 += u32::from(opened.is_none());
        opened
    }

    /// Counts the hello in a packet without known keys, once for each direction of a connection.
    fn count_unknown(&mut self, key: Key, may_begin: bool, missed: &mut Missed) {
        let Some(set) = self.set(&key).filter(|_| may_begin) else { return };
        if set.iter().any(|entry| entry.key == key) {
            return;
        }
        missed.gaps += 1;
        if set.len() == SET_LEN_MAX {
            let Some(at) = set.iter().position(Entry::is_done) else { return };
            set.remove(at);
        }
        set.push(Entry { key, connection: None });
    }

    /// Adds a connection in place of one with the same key, a complete one, or the oldest one.
    fn insert(&mut self, key: Key, connection: Box<Connection>, missed: &mut Missed) {
        let Some(set) = self.set(&key) else { return };
        let same = set.iter().position(|entry| entry.key == key);
        if same.is_some() || set.len() == SET_LEN_MAX {
            let at = same.or_else(|| set.iter().position(Entry::is_done)).unwrap_or(0);
            let replaced = set.remove(at).connection;
            missed.evicted += replaced.map_or(0, |other| other.missing());
        }
        set.push(Entry { key, connection: Some(connection) });
    }

    fn set(&mut self, key: &Key) -> Option<&mut Vec<Entry>> {
        let at = self.random.hash_one(key) as usize % SETS;
        self.sets.get_mut(at)
    }

    fn find(&mut self, key: &Key) -> Option<&mut Connection> {
        self.set(key)?.iter_mut().find(|entry| entry.key == *key)?.connection.as_deref_mut()
    }
}

impl Entry {
    /// Returns true if both sides have sent a hello, or nothing more can be known.
    fn is_done(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.missing() == 0)
    }
}

impl Connection {
    /// Takes a packet of the client. Returns false if it has other keys.
    fn take_from_client(
        &mut self,
        headers: &Headers,
        initial: &Initial<'_>,
        (messages, missed): Found<'_>,
    ) -> bool {
        if self.version != initial.version {
            return false;
        }
        let id = initial.destination_id;
        if self.client.is_done() && (self.first_id == id || self.server_id == id) {
            return true;
        }
        if self.retry_id.as_deref() == Some(id) {
            let Ok(keys) = Keys::pair(initial.version, id) else { return false };
            self.renew(initial, keys);
        }
        let Some(payload) = self.client_keys.decrypt(initial) else { return false };
        self.client.take(headers, &payload, (messages, missed));
        true
    }

    /// Goes on with the keys of another first packet.
    fn renew(&mut self, initial: &Initial<'_>, [client_keys, server_keys]: [Keys; 2]) {
        self.first_id = initial.destination_id.to_vec();
        (self.client_keys, self.server_keys) = (client_keys, server_keys);
        self.is_retried = true;
        self.retry_id = None;
    }

    /// Returns the number of incomplete hellos.
    fn incomplete(&self) -> u64 {
        [&self.client, &self.server].into_iter().filter(|side| side.incomplete.is_some()).count() as u64
    }

    /// Returns the number of sides without a hello, or with an incomplete one.
    fn missing(&self) -> u64 {
        let is_missing = |side: &&Side| side.hellos == 0 || side.incomplete.is_some();
        [&self.client, &self.server].into_iter().filter(is_missing).count() as u64
    }
}

impl Side {
    fn is_done(&self) -> bool {
        self.hellos >= HELLOS_MAX
    }

    /// Takes the payload of a packet. Complete hellos are added to `messages`, each as a record.
    fn take(&mut self, headers: &Headers, payload: &[u8], (messages, missed): Found<'_>) {
        for (place, frame) in Crypto::new(payload).enumerate() {
            if self.is_done() {
                return;
            }
            let Ok((offset, data)) = frame else {
                missed.malformed += 1;
                self.give_up();
                return;
            };
            // Sent again.
            let behind = self.base.saturating_sub(offset);
            let data = usize::try_from(behind).ok().and_then(|behind| data.get(behind..)).unwrap_or_default();
            if data.is_empty() {
                continue;
            }
            let offset = offset.saturating_sub(self.base);
            let incomplete = self.incomplete.get_or_insert_with(|| Box::new(Incomplete::new(headers)));
            if place >= FRAMES_MAX || !incomplete.add(offset, data) {
                missed.too_long += 1;
                self.give_up();
                return;
            }
            if let Some(record) = incomplete.record() {
                let headers = incomplete.headers;
                let rest = incomplete.bytes.len() + RECORD_HEADER_LEN - record.len();
                self.base += (record.len() - RECORD_HEADER_LEN) as u64;
                messages.push(Message { application: Application::Tls, headers, bytes: record });
                self.incomplete = None;
                self.hellos += 1;
                if rest > 0 {
                    // No side sends a second hello before it has received an answer.
                    self.give_up();
                }
            }
        }
    }

    fn give_up(&mut self) {
        self.incomplete = None;
        self.hellos = HELLOS_MAX;
    }
}

impl Incomplete {
    fn new(headers: &Headers) -> Self {
        Self { headers: *headers, bytes: Vec::new(), ranges: Vec::new() }
    }

    /// Adds data of the hello. Returns false if the hello is too long, or in too many pieces.
    fn add(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some(start) = usize::try_from(offset).ok().filter(|start| *start <= HELLO_BYTES_MAX) else {
            return false;
        };
        let end = start + data.len();
        if end > HELLO_BYTES_MAX {
            return false;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[start..end].copy_from_slice(data);
        // The ranges that it touches.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let after = self.ranges.partition_point(|range| range.0 <= end);
        let touched = &self.ranges[first..after];
        let joined = (
            touched.first().map_or(start, |range| range.0.min(start)),
            touched.last().map_or(end, |range| range.1.max(end)),
        );
        self.ranges.splice(first..after, [joined]);
        self.ranges.len() <= RANGES_MAX
    }

    /// Returns the hello in a record, if it is complete.
    fn record(&self) -> Option<Vec<u8>> {
        let &(0, complete) = self.ranges.first()? else { return None };
        let &[_, a, b, c] = self.bytes.first_chunk::<MESSAGE_HEADER_LEN>()?;
        let len = MESSAGE_HEADER_LEN + u32::from_be_bytes([0, a, b, c]) as usize;
        let hello = self.bytes.get(..len).filter(|_| len <= complete)?;
        let [high, low] = u16::try_from(len).ok()?.to_be_bytes();
        Some([&[22, 3, 3, high, low], hello].concat())
    }
}

/// Parses bytes as a datagram of a client, and as a decrypted payload: for a fuzzer. Returns the
/// hellos in the payload.
pub(super) fn parse_all(headers: &Headers, bytes: &[u8]) -> Vec<Message> {
    let (mut messages, mut missed) = (Vec::new(), Missed::default());
    if let (Some(internet), Some([source, destination])) = (&headers.internet, headers.ports) {
        let ends = [(internet.source, source), (internet.destination, destination)];
        let mut connections = Connections::new(true);
        connections.take(headers, (ends, bytes), false, (&mut messages, &mut missed));
    }
    Side::default().take(headers, bytes, (&mut messages, &mut missed));
    messages
}
