//! Hellos in QUIC's Initial packets. They are encrypted with keys that everyone can derive: from
//! the version and the connection ID in the first packet of the client (RFC 9001 s5.2). The server
//! uses keys from the same ID, so that its hello is found only if that packet was captured.
//!
//! The frames of a hello come in any order and in several packets. [`Connections`] decrypts the
//! packets of a connection until both sides have sent their hellos.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::{aead, error::Unspecified};
use strait_packet::quic::{self, CLIENT_ID_LEN_MIN, Crypto, Initial, Packet, Version};

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

/// Connections whose hellos are incomplete, or were complete last.
pub(super) struct Connections {
    sets: Vec<Vec<Entry>>,
    /// Random, so that a sender cannot choose connections that collide.
    random: RandomState,
    /// A second of the packets' time, and the derivations in vain in it.
    failures: (u64, u32),
}

/// What identifies a connection in both directions. The ID that the client has chosen for itself
/// distinguishes the connections of one socket, and does not change during the handshake. Without
/// VLANs: the directions can have different ones.
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
                Ok(Packet::Other) => {}
                Err(_) if is_cut => missed.cut += 1,
                // Another protocol, or a packet that the receiver drops as well.
                Err(_) => {}
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

/// Keys of the Initial packets of one side.
struct Keys {
    payload: aead::LessSafeKey,
    nonce: [u8; aead::NONCE_LEN],
    header: aead::quic::HeaderProtectionKey,
}

/// Length of the bytes that a key derivation returns.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Returns the keys of client and server.
    fn pair(version: Version, first_id: &[u8]) -> Result<[Self; 2], Unspecified> {
        let secret = Salt::new(HKDF_SHA256, salt(version)).extract(first_id);
        let of = |label: &[u8]| {
            let secret: Prk = secret.expand(&[&info(32, label)], HKDF_SHA256)?.into();
            Self::of(version, &secret)
        };
        Ok([of(b"client in")?, of(b"server in")?])
    }

    fn of(version: Version, secret: &Prk) -> Result<Self, Unspecified> {
        let [key, iv, hp]: [&[u8]; 3] = match version {
            Version::V1 => [b"quic key", b"quic iv", b"quic hp"],
            Version::V2 => [b"quicv2 key", b"quicv2 iv", b"quicv2 hp"],
        };
        let payload: aead::UnboundKey = secret.expand(&[&info(16, key)], &aead::AES_128_GCM)?.into();
        let header = secret.expand(&[&info(16, hp)], &aead::quic::AES_128)?.into();
        let mut nonce = [0; aead::NONCE_LEN];
        secret.expand(&[&info(nonce.len(), iv)], Bytes(nonce.len()))?.fill(&mut nonce)?;
        Ok(Self { payload: aead::LessSafeKey::new(payload), nonce, header })
    }

    /// Returns the decrypted payload of a packet, or `None` if it has other keys.
    fn decrypt(&self, initial: &Initial<'_>) -> Option<Vec<u8>> {
        let sample_at = initial.number_offset + quic::SAMPLE_OFFSET;
        let sample = initial.bytes.get(sample_at..sample_at + quic::SAMPLE_LEN)?;
        let [first_mask, number_mask @ ..] = self.header.new_mask(sample).ok()?;
        let mut bytes = initial.bytes.to_vec();
        let first = bytes.first_mut()?;
        *first ^= first_mask & 0x0f;
        let number_len = usize::from(*first & 3) + 1;
        let payload_at = initial.number_offset + number_len;
        let number = bytes.get_mut(initial.number_offset..payload_at)?;
        // The number is the whole one: these packets are the first ones of a connection.
        let mut nonce = self.nonce;
        let places = nonce.iter_mut().skip(aead::NONCE_LEN - number_len);
        for ((byte, mask), place) in number.iter_mut().zip(number_mask).zip(places) {
            *byte ^= mask;
            *place ^= *byte;
        }
        let (head, payload) = bytes.split_at_mut(payload_at);
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let payload = self.payload.open_in_place(nonce, aead::Aad::from(&*head), payload).ok()?;
        Some(payload.to_vec())
    }
}

/// Salts of RFC 9001 s5.2 and RFC 9369 s3.3.1.
fn salt(version: Version) -> &'static [u8; 20] {
    match version {
        Version::V1 => b"\x38\x76\x2c\xf7\xf5\x59\x34\xb3\x4d\x17\x9a\xe6\xa4\xc8\x0c\xad\xcc\xbb\x7f\x0a",
        Version::V2 => b"\x0d\xed\xe3\xde\xf7\x00\xa6\xdb\x81\x93\x81\xbe\x6e\x26\x9d\xcb\xf9\xbd\x2e\xd9",
    }
}

/// Returns the label of a key of `len` bytes (RFC 8446 s7.1).
fn info(len: usize, label: &[u8]) -> Vec<u8> {
    const PREFIX: &[u8] = b"tls13 ";
    [&[0, len as u8, (PREFIX.len() + label.len()) as u8], PREFIX, label, &[0]].concat()
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

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &[u8] = b"12345678";
    const CLIENT_ID: &[u8] = b"abc";

    type Ends = [(IpAddr, u16); 2];

    fn ends() -> Ends {
        [("10.0.0.1".parse().unwrap(), 4000), ("10.0.0.2".parse().unwrap(), 443)]
    }

    fn reversed([source, destination]: Ends) -> Ends {
        [destination, source]
    }

    /// Connections, and what they have returned.
    struct Rig {
        connections: Connections,
        messages: Vec<Message>,
        missed: Missed,
    }

    impl Rig {
        fn new() -> Self {
            Self { connections: Connections::new(true), messages: Vec::new(), missed: Missed::default() }
        }

        fn take(&mut self, ends: Ends, datagram: &[u8], is_cut: bool) {
            let packet = crate::Packet {
                bytes: &[],
                link_type: 1,
                wire_len: 0,
                time_ns: 0,
                interface: 0,
                lane: 0,
                direction: None,
                owner: None,
            };
            let headers = Headers::of(&packet);
            self.connections.take(&headers, (ends, datagram), is_cut, (&mut self.messages, &mut self.missed));
        }

        fn client(&mut self, payload: &[u8]) {
            self.take(ends(), &packet(0, [ID, CLIENT_ID], ID, payload), false);
        }

        fn server(&mut self, payload: &[u8]) {
            self.take(reversed(ends()), &packet(1, [CLIENT_ID, b"server"], ID, payload), false);
        }

        /// Returns the hellos without their record headers.
        fn hellos(&self) -> Vec<&[u8]> {
            self.messages.iter().map(|message| &message.bytes[RECORD_HEADER_LEN..]).collect()
        }
    }

    /// Returns an Initial packet of a side (0 is the client) that fills a datagram, with keys from
    /// `first_id`.
    fn packet(side: usize, [destination, source]: [&[u8]; 2], first_id: &[u8], payload: &[u8]) -> Vec<u8> {
        let keys = &Keys::pair(Version::V1, first_id).unwrap()[side];
        let mut payload = payload.to_vec();
        let head_len = 1 + 4 + 1 + destination.len() + 1 + source.len() + 1 + 2;
        payload.resize((quic::INITIAL_DATAGRAM_LEN_MIN - head_len - 2 - 16).max(payload.len()), 0);
        let [high, low] = ((2 + payload.len() + 16) as u16 | 0x4000).to_be_bytes();
        let ids = [&[destination.len() as u8][..], destination, &[source.len() as u8], source].concat();
        let head = [&[0xc1, 0, 0, 0, 1][..], &ids, &[0, high, low, 0, 7]].concat();
        let mut nonce = keys.nonce;
        nonce[aead::NONCE_LEN - 1] ^= 7;
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        keys.payload.seal_in_place_append_tag(nonce, aead::Aad::from(&head), &mut payload).unwrap();
        let number_at = head.len() - 2;
        let mut bytes = [head, payload].concat();
        let sample = number_at + quic::SAMPLE_OFFSET;
        let mask = keys.header.new_mask(&bytes[sample..sample + quic::SAMPLE_LEN]).unwrap();
        bytes[0] ^= mask[0] & 0x0f;
        bytes[number_at] ^= mask[1];
        bytes[number_at + 1] ^= mask[2];
        bytes
    }

    /// Returns a CRYPTO frame.
    fn crypto(offset: u16, data: &[u8]) -> Vec<u8> {
        let [a, b] = (offset | 0x4000).to_be_bytes();
        let [c, d] = (data.len() as u16 | 0x4000).to_be_bytes();
        [&[6, a, b, c, d], data].concat()
    }

    /// Returns a message of the type of a client's hello.
    fn hello(len: u16) -> Vec<u8> {
        let [high, low] = len.to_be_bytes();
        let body = (0..len).map(|i| i as u8);
        [1, 0, high, low].into_iter().chain(body).collect()
    }

    #[test]
    fn header_protection_is_that_of_the_specification() {
        // RFC 9001 appendix A.2.
        let keys = Keys::pair(Version::V1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08").unwrap();
        let sample = b"\xd1\xb1\xc9\x8d\xd7\x68\x9f\xb8\xec\x11\xd2\x42\xb1\x23\xdc\x9b";
        assert_eq!(keys[0].header.new_mask(sample).unwrap(), *b"\x43\x7b\x9a\xec\x36");
    }

    #[test]
    fn frames_in_any_order_are_one_hello() {
        let hello = hello(1500);
        let mut rig = Rig::new();
        rig.client(&[crypto(700, &hello[700..]), crypto(300, &hello[300..500])].concat());
        rig.client(&crypto(300, &hello[300..500]));
        assert!(rig.messages.is_empty());
        rig.client(&[crypto(0, &hello[..350]), vec![1], crypto(400, &hello[400..710])].concat());
        assert_eq!(rig.hellos(), [&hello]);
        assert_eq!(rig.messages[0].bytes[..RECORD_HEADER_LEN], [22, 3, 3, 5, 0xe0]);
        // Sent again.
        rig.client(&crypto(0, &hello));
        assert_eq!((rig.messages.len(), rig.missed, rig.connections.end()), (1, Missed::default(), 0));
    }

    #[test]
    fn server_has_the_keys_of_the_clients_first_packet() {
        let (first, second) = (hello(40), hello(50));
        let mut rig = Rig::new();
        rig.server(&crypto(0, &second));
        rig.server(&crypto(0, &second));
        // Once for each direction.
        assert_eq!((rig.messages.len(), rig.missed), (0, Missed { gaps: 1, ..Missed::default() }));
        rig.client(&crypto(0, &first));
        rig.server(&crypto(0, &second));
        assert_eq!(rig.hellos(), [&first, &second]);
        // The client's later packets have the server's ID, and the first keys.
        rig.take(ends(), &packet(0, [b"server", CLIENT_ID], ID, &crypto(0, &first)), false);
        assert_eq!((rig.messages.len(), rig.missed.gaps), (2, 1));
    }

    #[test]
    fn each_side_has_a_second_hello_after_a_retry_request() {
        let hello = hello(40);
        let mut rig = Rig::new();
        for offset in [0, hello.len() as u16, 0] {
            rig.client(&crypto(offset, &hello));
            rig.server(&crypto(offset, &hello));
        }
        rig.client(&crypto(2 * hello.len() as u16, &hello));
        assert_eq!((rig.hellos().len(), rig.missed), (4, Missed::default()));
    }

    #[test]
    fn connections_of_one_socket_are_apart() {
        let (long, short) = (hello(1500), hello(40));
        let ids: [[&[u8]; 2]; 2] = [[b"first-id", b"a"], [b"other-id", b"b"]];
        let mut rig = Rig::new();
        for part in [&crypto(0, &long[..900]), &crypto(900, &long[900..]), &crypto(0, &long[..900])] {
            for [server, client] in ids {
                rig.take(ends(), &packet(0, [server, client], server, part), false);
            }
        }
        for [first, client] in ids {
            let answer = packet(1, [client, b"server"], first, &crypto(0, &short));
            rig.take(reversed(ends()), &answer, false);
        }
        assert_eq!((rig.hellos(), rig.missed), (vec![&long[..], &long, &short, &short], Missed::default()));
        // The other side begins one, too.
        rig.take(reversed(ends()), &packet(0, [b"third-id", b"c"], b"third-id", &crypto(0, &short)), false);
        assert_eq!((rig.hellos().len(), rig.missed), (5, Missed::default()));
    }

    #[test]
    fn next_connection_of_the_same_ports_has_a_hello_of_its_own() {
        let hello = hello(40);
        let mut rig = Rig::new();
        for id in [b"first-id", b"other-id"] {
            rig.take(ends(), &packet(0, [id, b""], id, &crypto(0, &hello)), false);
            rig.take(reversed(ends()), &packet(1, [b"", b"server"], id, &crypto(0, &hello)), false);
        }
        assert_eq!((rig.hellos().len(), rig.missed), (4, Missed::default()));
    }

    #[test]
    fn hello_is_sent_again_after_a_retry() {
        let hello = hello(40);
        let retry = [&[0xf0, 0, 0, 0, 1, 3], CLIENT_ID, &[2, b'r', b's', 9]].concat();
        let mut rig = Rig::new();
        rig.client(&crypto(0, &hello));
        rig.take(reversed(ends()), &retry, false);
        rig.take(reversed(ends()), &retry, false);
        rig.take(ends(), &packet(0, [b"rs", CLIENT_ID], b"rs", &crypto(0, &hello)), false);
        rig.take(reversed(ends()), &packet(1, [CLIENT_ID, b"server"], b"rs", &crypto(0, &hello)), false);
        assert_eq!((rig.hellos().len(), rig.missed), (2, Missed::default()));
        // Without the Retry.
        let mut rig = Rig::new();
        rig.client(&crypto(0, &hello));
        rig.take(ends(), &packet(0, [b"other-id", CLIENT_ID], b"other-id", &crypto(0, &hello)), false);
        rig.take(
            reversed(ends()),
            &packet(1, [CLIENT_ID, b"server"], b"other-id", &crypto(0, &hello)),
            false,
        );
        assert_eq!((rig.hellos().len(), rig.missed), (2, Missed::default()));
    }

    #[test]
    fn hellos_beyond_a_limit_are_counted() {
        let count = |payload: &[u8]| {
            let mut rig = Rig::new();
            rig.client(payload);
            // Given up.
            rig.client(&crypto(0, &hello(40)));
            assert!(rig.messages.is_empty());
            rig.missed
        };
        let too_long = Missed { too_long: 1, ..Missed::default() };
        assert_eq!(count(&crypto((HELLO_BYTES_MAX - 1) as u16, b"ab")), too_long);
        let frames: Vec<_> = (0..=RANGES_MAX as u16).flat_map(|i| crypto(2 * i, b"a")).collect();
        assert_eq!(count(&frames), too_long);
        assert_eq!(count(&crypto(0, b"\x01").repeat(FRAMES_MAX + 1)), too_long);
        let malformed = Missed { malformed: 1, ..Missed::default() };
        assert_eq!(count(&[crypto(0, b"\x01\0\x10"), vec![8]].concat()), malformed);
        let mut rig = Rig::new();
        rig.client(&crypto(0, b"\x01\0\x10"));
        assert_eq!((rig.messages.len(), rig.connections.end()), (0, 1));
    }

    #[test]
    fn empty_frames_are_ignored() {
        let mut rig = Rig::new();
        rig.client(&[&crypto(0, b"")[..], &crypto(16_000, b"")].concat());
        assert_eq!((rig.connections.end(), rig.missed), (0, Missed::default()));
    }

    #[test]
    fn other_datagrams_are_counted_only_if_they_begin_a_connection() {
        let mut rig = Rig::new();
        let whole = packet(0, [ID, b""], ID, &crypto(0, &hello(40)));
        let mut damaged = whole.clone();
        damaged[1199] ^= 1;
        rig.take(ends(), &damaged, false);
        rig.take(ends(), &damaged, false);
        let gap = Missed { gaps: 1, ..Missed::default() };
        assert_eq!(rig.missed, gap);
        rig.take(ends(), &whole[..600], true);
        let expected = Missed { cut: 1, ..gap };
        assert_eq!(rig.missed, expected);
        rig.take(ends(), &whole[..600], false);
        rig.take(ends(), &[0x40; 1200], false);
        // A packet of another kind.
        rig.take(ends(), &[&[0xe0, 0, 0, 0, 1, 0, 0, 0x44, 0], &[0; 300][..]].concat(), true);
        assert_eq!((rig.messages.len(), rig.missed), (0, expected));
        // The client was not known until now.
        rig.take(ends(), &whole, false);
        assert_eq!((rig.messages.len(), rig.missed), (1, expected));
    }

    #[test]
    fn derivations_in_vain_are_bounded() {
        let mut rig = Rig::new();
        rig.connections.failures = (0, FAILURES_MAX);
        rig.client(&crypto(0, &hello(40)));
        assert_eq!((rig.messages.len(), rig.missed.gaps), (0, 1));
        rig.connections.failures = (1, FAILURES_MAX);
        rig.client(&crypto(0, &hello(40)));
        assert_eq!(rig.messages.len(), 1);
    }

    #[test]
    fn connections_are_bounded_and_complete_ones_go_first() {
        let mut rig = Rig::new();
        let all = 3 * (SETS * SET_LEN_MAX) as u16;
        for port in 0..all {
            let [source, destination] = ends();
            let ends = [(source.0, port), destination];
            rig.take(ends, &packet(0, [ID, b""], ID, &crypto(0, b"\x01\0\x10")), false);
        }
        let kept: Vec<_> = rig.connections.sets.iter().map(Vec::len).collect();
        assert!(kept.iter().all(|len| *len <= SET_LEN_MAX));
        let kept = kept.iter().sum::<usize>() as u64;
        // Each without the hellos of client and server.
        assert_eq!(rig.missed, Missed { evicted: 2 * (u64::from(all) - kept), ..Missed::default() });
        assert_eq!(rig.connections.end(), kept);
    }
}
