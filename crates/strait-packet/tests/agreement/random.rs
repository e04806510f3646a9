//! No input makes a parser panic, and a summary is always written.

use proptest::prelude::*;
use strait_packet::summary::{self, Options};
use strait_packet::vlan::Tag;
use strait_packet::{FlowKey, dns, network_on, probe, tls};

use crate::frames::frame;

/// Supported link types, and an unsupported one.
const LINK_TYPES: [u16; 9] = [0, 1, 101, 108, 113, 228, 229, 276, 147];

/// Parses `bytes` in all ways.
fn read_all(bytes: &[u8], wire_len: u32) {
    for link_type in LINK_TYPES {
        let mut line = String::new();
        let options = Options { link_type, tag: Some(Tag { tpid: 0x8100, tci: 5 }) };
        summary::write(&mut line, bytes, wire_len, &options).unwrap();
        let _ = network_on(link_type, bytes);
        assert!(!line.is_empty() && line.chars().all(|c| (' '..='~').contains(&c)), "{line:?}");
    }
    let _ = FlowKey::of(bytes);
    let _ = probe::read(bytes);
    if let Ok(Some(hello)) = tls::hello(bytes, &mut Vec::new()) {
        let _ = (hello.server_name(), hello.protocols().count(), hello.versions().count());
    }
    if let Ok(message) = dns::Dns::parse(bytes) {
        let _ = message.answers().map(|answers| answers.for_each(|answer| drop(format!("{answer:?}"))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), wire_len: u32) {
        read_all(&bytes, wire_len);
    }

    #[test]
    fn damaged_frames_do_not_panic(mut frame in frame(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), len: prop::sample::Index) {
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let len = len.index(frame.len() + 1);
        read_all(&frame[..len], frame.len() as u32);
    }

    /// An IP packet of any protocol, so that the layers above IP see random bytes.
    #[test]
    fn random_upper_layers_do_not_panic(protocol: u8, v6: bool, port in prop::sample::select(vec![53u16, 80]), rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = vec![2; 12];
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, rest.len() as u8, protocol, 64]);
            bytes.extend([1; 32]);
        } else {
            bytes.extend([0x08, 0, 0x45, 0, 0, 20 + rest.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0]);
            bytes.extend([1; 8]);
        }
        bytes.extend(port.to_be_bytes());
        bytes.extend(&rest);
        read_all(&bytes, bytes.len() as u32);
    }
}

#[test]
fn dns_name_that_points_to_itself_is_refused() {
    let mut message = vec![0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend([0xc0, 12, 0, 1, 0, 1]);
    let message = dns::Dns::parse(&message).unwrap();
    assert_eq!(
        message.question().unwrap().unwrap_err().to_string(),
        "domain: name pointer is 12, expected an earlier offset"
    );
}

/// Returns a message with a question for the root and one for each of `pointers`, which lead from
/// one name to the one before, and with an answer.
fn chain(pointers: u16) -> Vec<u8> {
    let mut message = vec![0, 1, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    message.extend([0, 0, 1, 0, 1]);
    let mut name = 12_u16;
    for _ in 0..pointers {
        let next = message.len() as u16;
        message.extend((0xc000 | name).to_be_bytes());
        message.extend([0, 1, 0, 1]);
        name = next;
    }
    message[4..6].copy_from_slice(&(pointers + 1).to_be_bytes());
    message.extend((0xc000 | name).to_be_bytes());
    message.extend([0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1]);
    message
}

#[test]
fn pointers_of_a_dns_name_are_limited() {
    let answer = |pointers| {
        let message = chain(pointers);
        let message = dns::Dns::parse(&message).unwrap();
        let answer = message.answers().unwrap().next().unwrap();
        answer.map(|answer| answer.ttl).map_err(|error| error.to_string())
    };
    assert_eq!(answer(31), Ok(9));
    for pointers in [32, 2000] {
        assert_eq!(answer(pointers), Err("domain: number of pointers is 33, expected at most 32".into()));
    }
}

#[test]
fn pointers_of_dns_questions_are_not_followed_to_the_answers() {
    let mut message = chain(1);
    // The pointer of the second question points forward.
    message[17..19].copy_from_slice(&[0xff, 0xff]);
    message[23..25].copy_from_slice(&[0xc0, 12]);
    let message = dns::Dns::parse(&message).unwrap();
    assert_eq!(message.answers().unwrap().map(|answer| answer.unwrap().ttl).collect::<Vec<_>>(), [9]);
}
