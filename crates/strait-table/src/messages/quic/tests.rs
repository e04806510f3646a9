//! Hellos in Initial packets, which the tests encrypt: rows, and counts of those that are missing.

use ring::aead;

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
    rig.take(reversed(ends()), &packet(1, [CLIENT_ID, b"server"], b"other-id", &crypto(0, &hello)), false);
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
