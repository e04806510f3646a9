//! Fuzzes packet summaries: every frame gives one printable line, at any level of detail, and no
//! reader of headers, flows, DNS messages or dumps panics.
//!
//! Input: a byte for the link type, one for the detail and the VLAN tag, two for bytes that the
//! wire had beyond the frame; the rest is the frame.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_packet::summary::{self, Detail, Dump, Options, link_type};
use strait_packet::vlan::Tag;
use strait_packet::{FlowKey, dns, network_on, probe};

/// Link types with a reader, and one without.
const LINK_TYPES: [u16; 9] = [
    link_type::ETHERNET,
    link_type::NULL,
    link_type::RAW,
    link_type::LOOP,
    link_type::LINUX_SLL,
    link_type::IPV4,
    link_type::IPV6,
    link_type::LINUX_SLL2,
    147,
];

fuzz_target!(|data: &[u8]| {
    let [choice, detail, low, high, frame @ ..] = data else { return };
    let link_type = LINK_TYPES[usize::from(*choice) % LINK_TYPES.len()];
    let more = u32::from(u16::from_le_bytes([*low, *high]));
    let is = |bit: u8| detail & (1 << bit) != 0;
    let tag = is(3).then_some(Tag { tpid: 0x8100, tci: u16::from(*low) });
    let level = Detail { link: is(0), verbose: is(1), quick: is(2) };
    let options = Options { link_type, tag };
    let mut line = String::new();
    let written = summary::write_detailed(&mut line, frame, frame.len() as u32 + more, &options, level);
    written.expect("a string takes every line");
    let is_printable = |c: char| matches!(c, ' '..='~') || level.verbose && c == '\n';
    assert!(!line.is_empty() && line.chars().all(is_printable), "{line:?}");
    read(link_type, frame);
});

/// Calls the other readers of a frame.
fn read(link_type: u16, frame: &[u8]) {
    assert!(summary::link_header_len(link_type, frame) <= frame.len());
    let _ = (network_on(link_type, frame), FlowKey::of(frame), probe::read(frame));
    for form in [Dump::Hex, Dump::HexAscii, Dump::Ascii] {
        let mut text = String::new();
        summary::write_dump(&mut text, frame, form).expect("a string takes every dump");
        assert!(text.chars().all(|c| matches!(c, ' '..='~' | '\n' | '\t')), "{text:?}");
    }
    if let Ok(message) = dns::Dns::parse(frame)
        && let Ok(answers) = message.answers()
    {
        answers.for_each(|answer| drop(format!("{answer:?}")));
    }
}
