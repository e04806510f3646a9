//! Hellos in QUIC's Initial packets. They are encrypted with keys that everyone can derive: from
//! the version and the connection ID in the first packet of the client (RFC 9001 s5.2). The server
//! uses keys from the same ID, so that its hello is found only if that packet was captured.
//!
//! The frames of a hello come in any order and in several packets. [`Connections`] decrypts the
//! packets of a connection until both hellos are complete.

use std::hash::{BuildHasher, RandomState};

use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::{aead, error::Unspecified};
use strait_packet::quic::{self, CLIENT_ID_LEN_MIN, Crypto, Initial, Packet, Version};
use strait_packet::udp;

use super::assembly::Stream;
use super::message::{Application, MESSAGE_BYTES_MAX, Message, Missed};
use crate::headers::Headers;

/// Maximum number of connections with a state. One takes the place of another with the same hash.
const SLOTS: usize = 1024;
/// Maximum number of packets that are read of a datagram. Some devices merge datagrams.
const PACKETS_MAX: usize = 16;
/// Maximum number of ranges of a hello that are complete, with gaps between them.
const RANGES_MAX: usize = 64;
/// Bytes of a record's header, which the parser of hellos expects.
const RECORD_HEADER_LEN: usize = 5;
/// Bytes of the header of a handshake message.
const MESSAGE_HEADER_LEN: usize = 4;
const HELLO_BYTES_MAX: usize = MESSAGE_BYTES_MAX - RECORD_HEADER_LEN;

/// Connections whose hellos are incomplete, or were complete last.
pub(super) struct Connections {
    slots: Vec<Option<Box<Connection>>>,
    /// Random, so that a sender cannot choose connections that collide.
    random: RandomState,
}

/// Connection of which the first packet is known.
struct Connection {
    /// The direction from client to server.
    stream: Stream,
    version: Version,
    /// Connection IDs that the client uses: of its first packet, and the server's.
    first_id: Vec<u8>,
    server_id: Vec<u8>,
    client_keys: Keys,
    server_keys: Keys,
    client: Hello,
    server: Hello,
    /// True if the server has asked for the Initial packets again, with another connection ID.
    is_retried: bool,
}

/// Data of a hello.
#[derive(Default)]
enum Hello {
    #[default]
    Missing,
    Incomplete(Box<Incomplete>),
    /// Complete, or given up.
    Done,
}

struct Incomplete {
    /// Headers of its first packet.
    headers: Headers,
    /// Its bytes, with zeros in gaps.
    bytes: Vec<u8>,
    /// Ranges of `bytes` that are complete, sorted, with gaps between them.
    ranges: Vec<(usize, usize)>,
}

impl Connections {
    pub(super) fn new(is_needed: bool) -> Self {
        let slots = if is_needed { SLOTS } else { 0 };
        Self { slots: std::iter::repeat_with(|| None).take(slots).collect(), random: RandomState::new() }
    }

    /// Takes a datagram, of which the snaplen may have cut the end. Complete hellos are added to
    /// `messages`.
    pub(super) fn take(
        &mut self,
        headers: &Headers,
        (stream, data): (Stream, &[u8]),
        is_cut: bool,
        (messages, missed): (&mut Vec<Message>, &mut Missed),
    ) {
        if self.slots.is_empty() || !quic::has_long_header(data) {
            return;
        }
        let length = headers.internet.map_or(0, |internet| internet.payload_length as usize);
        let mut may_begin = length >= udp::HEADER_LEN + quic::INITIAL_DATAGRAM_LEN_MIN;
        for packet in quic::packets(data).take(PACKETS_MAX) {
            match packet {
                Ok(Packet::Initial(initial)) => {
                    self.take_initial(headers, (stream, may_begin), &initial, (messages, missed));
                    may_begin = false;
                }
                Ok(Packet::Retry) => {
                    if let Some(connection) = self.find(&stream.reversed()) {
                        connection.is_retried = true;
                    }
                }
                Ok(Packet::Other) => {}
                Err(_) if is_cut => missed.cut += 1,
                // Another protocol, or a packet that the receiver drops as well.
                Err(_) => {}
            }
        }
    }

    /// Forgets all connections, and counts those with an incomplete hello.
    pub(super) fn end(&mut self) -> u64 {
        self.slots.iter_mut().filter_map(Option::take).map(|connection| connection.incomplete()).sum()
    }

    /// Takes an Initial packet. Keys are derived only if it may begin a connection: that costs
    /// microseconds, and the rest of the datagram has the same connection ID (RFC 9000 s12.2).
    fn take_initial(
        &mut self,
        headers: &Headers,
        (stream, may_begin): (Stream, bool),
        initial: &Initial<'_>,
        (messages, missed): (&mut Vec<Message>, &mut Missed),
    ) {
        if let Some(connection) = self.find(&stream.reversed()) {
            if matches!(connection.server, Hello::Done) || connection.version != initial.version {
                return;
            }
            let Some(payload) = connection.server_keys.decrypt(initial) else { return };
            connection.server_id = initial.source_id.to_vec();
            connection.server.take(headers, &payload, (messages, missed));
            return;
        }
        let mut known = self.find(&stream);
        if let Some(connection) = &mut known
            && connection.version == initial.version
        {
            let is_own =
                [&connection.first_id, &connection.server_id].contains(&&initial.destination_id.to_vec());
            if is_own && matches!(connection.client, Hello::Done) {
                return;
            }
            if let Some(payload) = connection.client_keys.decrypt(initial) {
                connection.client.take(headers, &payload, (messages, missed));
                return;
            }
        }
        if !may_begin || initial.destination_id.len() < CLIENT_ID_LEN_MIN {
            return;
        }
        let keys = Keys::pair(initial.version, initial.destination_id).ok();
        let opened = keys.and_then(|[client, server]| Some((client.decrypt(initial)?, client, server)));
        match (opened, known) {
            (Some((payload, client_keys, server_keys)), Some(connection)) if connection.is_retried => {
                connection.is_retried = false;
                connection.first_id = initial.destination_id.to_vec();
                (connection.client_keys, connection.server_keys) = (client_keys, server_keys);
                connection.client.take(headers, &payload, (messages, missed));
            }
            (Some((payload, client_keys, server_keys)), _) => {
                let mut connection = Box::new(Connection {
                    stream,
                    version: initial.version,
                    first_id: initial.destination_id.to_vec(),
                    server_id: Vec::new(),
                    client_keys,
                    server_keys,
                    client: Hello::Missing,
                    server: Hello::Missing,
                    is_retried: false,
                });
                connection.client.take(headers, &payload, (messages, missed));
                let at = self.slot(&stream);
                let replaced = self.slots.get_mut(at).and_then(|slot| slot.replace(connection));
                missed.evicted += replaced.map_or(0, |other| other.incomplete());
            }
            // Of a known connection, it is damaged.
            (None, Some(_)) => {}
            (None, None) => missed.gaps += 1,
        }
    }

    fn slot(&self, stream: &Stream) -> usize {
        self.random.hash_one(stream) as usize % SLOTS
    }

    fn find(&mut self, stream: &Stream) -> Option<&mut Connection> {
        let at = self.slot(stream);
        self.slots.get_mut(at)?.as_deref_mut().filter(|connection| connection.stream == *stream)
    }
}

impl Connection {
    /// Returns the number of incomplete hellos.
    fn incomplete(&self) -> u64 {
        [&self.client, &self.server].into_iter().filter(|hello| matches!(hello, Hello::Incomplete(_))).count()
            as u64
    }
}

impl Hello {
    /// Takes the payload of a packet. A complete hello is added to `messages`, as a record.
    fn take(
        &mut self,
        headers: &Headers,
        payload: &[u8],
        (messages, missed): (&mut Vec<Message>, &mut Missed),
    ) {
        for frame in Crypto::new(payload) {
            if matches!(self, Self::Missing) {
                let (bytes, ranges) = (Vec::new(), Vec::new());
                *self = Self::Incomplete(Box::new(Incomplete { headers: *headers, bytes, ranges }));
            }
            let Self::Incomplete(incomplete) = self else { return };
            let Ok((offset, data)) = frame else {
                missed.malformed += 1;
                *self = Self::Done;
                return;
            };
            if !incomplete.add(offset, data) {
                missed.too_long += 1;
                *self = Self::Done;
                return;
            }
            if let Some(record) = incomplete.record() {
                let headers = incomplete.headers;
                messages.push(Message { application: Application::Tls, headers, bytes: record });
                *self = Self::Done;
                return;
            }
        }
    }
}

impl Incomplete {
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
        self.ranges.push((start, end));
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, range| {
            let joins = next.0 <= range.1;
            if joins {
                range.1 = range.1.max(next.1);
            }
            joins
        });
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
/// hello in the payload.
pub(super) fn parse_all(headers: &Headers, bytes: &[u8]) -> Vec<Message> {
    let (mut messages, mut missed) = (Vec::new(), Missed::default());
    if let (Some(internet), Some(ports)) = (&headers.internet, headers.ports) {
        let stream = Stream { addresses: [internet.source, internet.destination], ports, vlan: headers.vlan };
        let mut connections = Connections::new(true);
        connections.take(headers, (stream, bytes), false, (&mut messages, &mut missed));
    }
    Hello::default().take(headers, bytes, (&mut messages, &mut missed));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Internet;

    const ID: &[u8] = b"12345678";
    const SERVER_ID: &[u8] = b"abc";

    fn stream() -> Stream {
        Stream {
            addresses: ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap()),
            ports: [4000, 443],
            vlan: None,
        }
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

        fn take(&mut self, stream: Stream, datagram: &[u8], is_cut: bool) {
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
            let mut headers = Headers::of(&packet);
            headers.internet = Some(Internet {
                source: stream.addresses[0],
                destination: stream.addresses[1],
                protocol: 17,
                ttl: 64,
                identification: None,
                fragment_offset: None,
                length: 0,
                payload_length: (udp::HEADER_LEN + datagram.len()) as u32,
            });
            self.connections.take(
                &headers,
                (stream, datagram),
                is_cut,
                (&mut self.messages, &mut self.missed),
            );
        }

        fn client(&mut self, payload: &[u8]) {
            self.take(stream(), &packet(0, [ID, SERVER_ID], ID, payload), false);
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
        // Sent again, and what follows.
        rig.client(&crypto(0, &hello));
        rig.client(&crypto(1504, &hello));
        assert_eq!((rig.messages.len(), rig.missed, rig.connections.end()), (1, Missed::default(), 0));
    }

    #[test]
    fn server_has_the_keys_of_the_clients_first_packet() {
        let (first, second) = (hello(40), hello(50));
        let mut rig = Rig::new();
        let answer = packet(1, [SERVER_ID, b"server"], ID, &crypto(0, &second));
        rig.take(stream().reversed(), &answer, false);
        assert!(rig.messages.is_empty());
        // The connection ID is too short for that of a client.
        assert_eq!(rig.missed, Missed::default());
        rig.client(&crypto(0, &first));
        rig.take(stream().reversed(), &answer, false);
        assert_eq!(rig.hellos(), [&first, &second]);
        // The client's later packets have the server's ID, and the first keys.
        rig.take(stream(), &packet(0, [b"server", SERVER_ID], ID, &crypto(0, &first)), false);
        assert_eq!((rig.messages.len(), rig.missed), (2, Missed::default()));
    }

    #[test]
    fn next_connection_of_the_same_ports_has_a_hello_of_its_own() {
        let hello = hello(40);
        let mut rig = Rig::new();
        rig.client(&crypto(0, &hello));
        rig.take(stream(), &packet(0, [b"87654321", b""], b"87654321", &crypto(0, &hello)), false);
        assert_eq!((rig.hellos().len(), rig.missed), (2, Missed::default()));
    }

    #[test]
    fn hello_is_sent_again_after_a_retry() {
        let hello = hello(40);
        let mut rig = Rig::new();
        rig.client(&crypto(0, &hello));
        rig.take(stream().reversed(), &[0xf0, 0, 0, 0, 1, 0, 0, 9], false);
        rig.take(stream(), &packet(0, [b"87654321", b""], b"87654321", &crypto(0, &hello)), false);
        let answer = packet(1, [b"", b"server"], b"87654321", &crypto(0, &hello));
        rig.take(stream().reversed(), &answer, false);
        assert_eq!((rig.hellos().len(), rig.missed), (2, Missed::default()));
    }

    #[test]
    fn hellos_beyond_a_limit_are_counted() {
        let mut rig = Rig::new();
        rig.client(&crypto((HELLO_BYTES_MAX - 1) as u16, b"ab"));
        assert_eq!(rig.missed, Missed { too_long: 1, ..Missed::default() });
        let mut rig = Rig::new();
        let frames: Vec<_> = (0..=RANGES_MAX as u16).flat_map(|i| crypto(2 * i, b"a")).collect();
        rig.client(&frames);
        assert_eq!(rig.missed, Missed { too_long: 1, ..Missed::default() });
        let mut rig = Rig::new();
        rig.client(&[crypto(0, b"\x01\0\x10"), vec![8]].concat());
        assert_eq!(rig.missed, Missed { malformed: 1, ..Missed::default() });
        let mut rig = Rig::new();
        rig.client(&crypto(0, b"\x01\0\x10"));
        assert_eq!(rig.connections.end(), 1);
        assert!(rig.messages.is_empty());
    }

    #[test]
    fn other_datagrams_are_counted_only_if_they_begin_a_connection() {
        let mut rig = Rig::new();
        let whole = packet(0, [ID, b""], ID, &crypto(0, &hello(40)));
        let mut damaged = whole.clone();
        damaged[1199] ^= 1;
        rig.take(stream(), &damaged, false);
        assert_eq!(rig.missed, Missed { gaps: 1, ..Missed::default() });
        rig.take(stream(), &whole[..600], true);
        assert_eq!(rig.missed, Missed { gaps: 1, cut: 1, ..Missed::default() });
        rig.take(stream(), &whole[..600], false);
        rig.take(stream(), &[0x40; 1200], false);
        assert_eq!(rig.missed, Missed { gaps: 1, cut: 1, ..Missed::default() });
        assert!(rig.messages.is_empty());
    }

    #[test]
    fn connections_are_bounded() {
        let mut rig = Rig::new();
        for port in 0..2 * SLOTS as u16 {
            let stream = Stream { ports: [port, 443], ..stream() };
            rig.take(stream, &packet(0, [ID, b""], ID, &crypto(0, b"\x01\0\x10")), false);
        }
        let kept = rig.connections.end();
        assert!(kept <= SLOTS as u64);
        assert_eq!(rig.missed, Missed { evicted: 2 * SLOTS as u64 - kept, ..Missed::default() });
    }
}
