//! Fuzzes the messages of the tables `dns`, `tls` and `http`: any bytes become a row of bounded
//! texts or none, and a hello of TLS has the same fields in any number of records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_packet::summary::link_type;
use strait_packet::tls;
use strait_table::{Headers, Packet, messages};

/// Ethernet, IPv4 and TCP headers.
const FRAME: [u8; 54] = {
    let mut frame = [0; 54];
    (frame[12], frame[14], frame[17], frame[23], frame[46]) = (8, 0x45, 40, 6, 0x50);
    frame
};

fuzz_target!(|data: &[u8]| {
    let headers = Headers::of(&Packet {
        bytes: &FRAME,
        link_type: link_type::ETHERNET,
        wire_len: 54,
        time_ns: 1,
        interface: 0,
        lane: 0,
        direction: None,
        owner: None,
    });
    assert!(headers.ports.is_some());
    let _ = messages::parse_all(&headers, data);
    check_hello(data);
});

/// Puts the message of a hello in records of one byte each.
fn check_hello(data: &[u8]) {
    let Some((&[1 | 2, a, b, c], body)) = data.split_first_chunk() else { return };
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    let Some(message) = data.get(..4 + len).filter(|_| body.len() >= len && len < 1 << 12) else { return };
    let records = |size: usize| -> Vec<u8> {
        let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        message.chunks(size).flat_map(record).collect()
    };
    let (whole, parts) = (records(1 << 14), records(1));
    let (mut buffer, mut other) = (Vec::new(), Vec::new());
    let (one, many) = (tls::hello(&whole, &mut buffer), tls::hello(&parts, &mut other));
    assert_eq!(one, many);
    assert!(!matches!(one, Ok(None)), "the message is complete");
}
