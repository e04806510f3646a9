//! Random frames: plain and tagged, whole and cut, with the protocols and addresses of
//! [`super::texts`], and noise.

use super::rng::Rng;

/// Address of the receiving interface.
pub(crate) const DEVICE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Address of another station.
pub(crate) const OTHER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

pub(crate) const IPV4: [[u8; 4]; 4] = [[10, 0, 0, 1], [10, 0, 0, 2], [192, 168, 1, 7], [224, 0, 0, 5]];
pub(crate) const IPV6_TAILS: [u8; 3] = [1, 2, 0x77];
pub(crate) const PORTS: [u16; 6] = [22, 53, 80, 443, 8080, 40_000];
pub(crate) const VLAN_IDS: [u16; 3] = [1, 5, 100];

/// Minimum size of a frame for an XDP program.
const LEN_MIN: usize = 14;

/// Returns a frame of at most `len_max` bytes.
pub(crate) fn frame(rng: &mut Rng, len_max: usize) -> Vec<u8> {
    let mut frame = addresses(rng);
    tags(rng, &mut frame);
    match rng.below(12) {
        0..=5 => ipv4(rng, &mut frame),
        6..=7 => ipv6(rng, &mut frame),
        8 => arp(rng, &mut frame),
        9 => llc(rng, &mut frame),
        _ => noise(rng, &mut frame),
    }
    resize(rng, &mut frame, len_max);
    frame
}

/// Returns an IPv6 packet with extension headers of several lengths, of which the last may be cut,
/// or an IPv4 packet with AH.
pub(crate) fn chained(rng: &mut Rng) -> Vec<u8> {
    let mut frame = addresses(rng);
    let headers: Vec<u8> = (0..rng.below(8)).map(|_| rng.pick(&[0, 43, 44, 60, 51])).collect();
    let last = rng.pick(&[6, 17, 58]);
    let next = |at: usize| headers.get(at).copied().unwrap_or(last);
    if rng.chance(70) {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, next(0), 64]);
        frame.extend(rng.bytes::<32>());
    } else {
        frame.extend([0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, next(0), 0, 0]);
        frame.extend(rng.pick(&IPV4));
        frame.extend(rng.pick(&IPV4));
    }
    for (at, header) in headers.iter().enumerate() {
        let units = rng.below(4);
        // AH counts units of 4 bytes less two, the others units of 8 bytes less one (RFC 4302,
        // RFC 8200).
        let len = if *header == 51 { 4 * (units + 2) } else { 8 * (units + 1) };
        frame.extend([next(at + 1), units as u8]);
        frame.extend((2..len).map(|_| rng.next() as u8));
    }
    transport(rng, &mut frame);
    if rng.chance(20) {
        let len = LEN_MIN + rng.below(frame.len() - LEN_MIN);
        frame.truncate(len);
    }
    frame
}

/// Returns true if the kernel would remove a tag from the frame.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8])
}

fn addresses(rng: &mut Rng) -> Vec<u8> {
    let multicast = [0x01, 0, 0x5e, 0, 0, 5];
    let any = rng.bytes();
    let nearly_broadcast =
        rng.pick(&[[0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], [0xff, 0xff, 0xff, 0xfe, 0xff, 0xff]]);
    let nearly_ours = [0x02, 0, 0, 0, 0, 0x03];
    let destination = rng.pick(&[
        DEVICE_MAC,
        DEVICE_MAC,
        OTHER_MAC,
        [0xff; 6],
        multicast,
        nearly_broadcast,
        nearly_ours,
        any,
    ]);
    let source = rng.pick(&[DEVICE_MAC, OTHER_MAC, any]);
    [destination, source].concat()
}

fn tags(rng: &mut Rng, frame: &mut Vec<u8>) {
    let tags: &[u16] = match rng.below(10) {
        0..=4 => &[],
        5..=6 => &[0x8100],
        7 => &[0x88a8],
        8 => &[0x88a8, 0x8100],
        _ => &[0x8100, 0x8100],
    };
    for tpid in tags {
        let priority = (rng.below(8) as u16) << 13;
        frame.extend(tpid.to_be_bytes());
        frame.extend((rng.pick(&VLAN_IDS) | priority).to_be_bytes());
    }
}

fn ipv4(rng: &mut Rng, frame: &mut Vec<u8>) {
    let options = if rng.chance(25) { 1 + rng.below(10) } else { 0 };
    let any = rng.next() as u8;
    let protocol = rng.pick(&[6, 6, 17, 17, 1, 2, 47, any]);
    let fragment = rng.pick(&[0, 0, 0, 0x4000, 0x2000, 0x00b9]);
    frame.extend([0x08, 0x00, 0x45 + options as u8, rng.next() as u8, 0, rng.next() as u8]);
    frame.extend(rng.bytes::<2>());
    frame.extend(u16::to_be_bytes(fragment));
    frame.extend([64, protocol, 0, 0]);
    frame.extend(rng.pick(&IPV4));
    frame.extend(rng.pick(&IPV4));
    (0..options).for_each(|_| frame.extend([1; 4]));
    transport(rng, frame);
}

fn ipv6(rng: &mut Rng, frame: &mut Vec<u8>) {
    let next_header = rng.pick(&[6, 17, 58, 0, 44, 60]);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, next_header, 64]);
    for _ in 0..2 {
        frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame.push(rng.pick(&IPV6_TAILS));
    }
    if [0, 44, 60].contains(&next_header) {
        frame.extend([rng.pick(&[6, 17]), 0, 0, 0, 0, 0, 0, 0]);
    }
    transport(rng, frame);
}

/// Returns fields of TCP, UDP and ICMP: ports, numbers, flags.
fn transport(rng: &mut Rng, frame: &mut Vec<u8>) {
    frame.extend(rng.pick(&PORTS).to_be_bytes());
    frame.extend(rng.pick(&PORTS).to_be_bytes());
    frame.extend(rng.bytes::<8>());
    let any = rng.next() as u8;
    frame.extend([0x50, rng.pick(&[0x02, 0x10, 0x12, 0x18, 0x04, any])]);
    frame.extend(rng.bytes::<24>());
}

fn arp(rng: &mut Rng, frame: &mut Vec<u8>) {
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, rng.pick(&[1, 2])]);
    frame.extend(OTHER_MAC);
    frame.extend(rng.pick(&IPV4));
    frame.extend([0; 6]);
    frame.extend(rng.pick(&IPV4));
}

/// Writes a length instead of a type: LLC, SNAP, or the 0xffff of raw 802.3.
fn llc(rng: &mut Rng, frame: &mut Vec<u8>) {
    frame.extend([0x00, 0x26 + rng.below(4) as u8]);
    frame.extend(rng.pick(&[[0x42, 0x42, 0x03], [0xaa, 0xaa, 0x03], [0xff, 0xff, 0x00], [0xe0, 0xe0, 0x03]]));
    frame.extend(rng.bytes::<32>());
    if rng.chance(40) {
        // No byte, one byte, or a few bytes after the length.
        let len = frame.len() - 35 + rng.below(4);
        frame.truncate(len);
    }
}

fn noise(rng: &mut Rng, frame: &mut Vec<u8>) {
    let len = 2 + rng.below(80);
    frame.extend((0..len).map(|_| rng.next() as u8));
}

/// Cuts one frame in four, some of them to the minimum, and makes some long.
fn resize(rng: &mut Rng, frame: &mut Vec<u8>, len_max: usize) {
    let len = match rng.below(16) {
        0..=1 => LEN_MIN + rng.below(12),
        2..=3 => LEN_MIN + rng.below(frame.len() - LEN_MIN + 1),
        4..=5 => 60.max(frame.len()),
        6 => len_max - rng.below(len_max / 2),
        _ => frame.len(),
    };
    let len = len.clamp(LEN_MIN, len_max);
    while frame.len() < len {
        frame.push(rng.next() as u8);
    }
    frame.truncate(len);
}
