//! Traffic of the tests: Ethernet frames in a pcap file.

use std::fs;
use std::path::Path;

/// 2025-11-25 16:00:00 UTC in nanoseconds.
pub(crate) const START_NS: u64 = 1_764_086_400_000_000_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Endpoint: last byte of an address 10.0.0.N, and a port.
pub(crate) type End = (u8, u16);

/// Packets with their times.
#[derive(Default)]
pub(crate) struct Traffic {
    packets: Vec<(u64, Vec<u8>)>,
}

impl Traffic {
    /// Adds a TCP segment `after_ns` after [`START_NS`].
    pub(crate) fn tcp(
        &mut self,
        after_ns: u64,
        ends: [End; 2],
        [sequence, acknowledgment]: [u32; 2],
        flags: u8,
        window: u16,
        bytes: usize,
    ) {
        let mut segment = Vec::new();
        segment.extend(ends[0].1.to_be_bytes());
        segment.extend(ends[1].1.to_be_bytes());
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledgment.to_be_bytes());
        segment.extend([5 << 4, flags]);
        segment.extend(window.to_be_bytes());
        segment.extend([0; 4]);
        segment.resize(segment.len() + bytes, b'x');
        self.ip(after_ns, ends, TCP, &segment);
    }

    /// Adds a UDP datagram.
    pub(crate) fn udp(&mut self, after_ns: u64, ends: [End; 2], payload: &[u8]) {
        let mut datagram = Vec::new();
        datagram.extend(ends[0].1.to_be_bytes());
        datagram.extend(ends[1].1.to_be_bytes());
        datagram.extend((8 + payload.len() as u16).to_be_bytes());
        datagram.extend([0; 2]);
        datagram.extend(payload);
        self.ip(after_ns, ends, UDP, &datagram);
    }

    fn ip(&mut self, after_ns: u64, ends: [End; 2], protocol: u8, payload: &[u8]) {
        let mut frame = vec![2, 0, 0, 0, 0, ends[1].0, 2, 0, 0, 0, 0, ends[0].0, 8, 0];
        frame.extend([0x45, 0]);
        frame.extend((20 + payload.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend([10, 0, 0, ends[0].0, 10, 0, 0, ends[1].0]);
        frame.extend(payload);
        self.packets.push((START_NS + after_ns, frame));
    }

    /// Adds a connection: a handshake of `round_trip_ns`, one segment of `bytes` in each direction,
    /// and its end.
    pub(crate) fn connection(
        &mut self,
        after_ns: u64,
        ends: [End; 2],
        round_trip_ns: u64,
        bytes: [usize; 2],
    ) {
        let [client, server] = ends;
        let back = [server, client];
        self.tcp(after_ns, ends, [100, 0], SYN, 1000, 0);
        self.tcp(after_ns + round_trip_ns / 2, back, [500, 101], SYN | ACK, 1000, 0);
        let open = after_ns + round_trip_ns;
        self.tcp(open, ends, [101, 501], ACK, 1000, 0);
        self.tcp(open + MILLISECOND, ends, [101, 501], ACK, 1000, bytes[0]);
        self.tcp(open + 2 * MILLISECOND, back, [501, 601], ACK, 1000, bytes[1]);
        self.tcp(open + 3 * MILLISECOND, ends, [101 + bytes[0] as u32, 501], FIN | ACK, 1000, 0);
        self.tcp(open + 4 * MILLISECOND, back, [501 + bytes[1] as u32, 101], FIN | ACK, 1000, 0);
        self.tcp(open + 5 * MILLISECOND, ends, [102 + bytes[0] as u32, 501], ACK, 1000, 0);
    }

    /// Returns the bytes of a pcap file with times in nanoseconds.
    pub(crate) fn pcap(&self) -> Vec<u8> {
        let mut packets: Vec<&(u64, Vec<u8>)> = self.packets.iter().collect();
        packets.sort_by_key(|packet| packet.0);
        let mut file = Vec::new();
        file.extend(0xa1b2_3c4d_u32.to_le_bytes());
        file.extend([2, 0, 4, 0]);
        file.extend([0; 8]);
        file.extend(65_535_u32.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for (time_ns, frame) in packets {
            file.extend(((time_ns / SECOND) as u32).to_le_bytes());
            file.extend(((time_ns % SECOND) as u32).to_le_bytes());
            file.extend((frame.len() as u32).to_le_bytes());
            file.extend((frame.len() as u32).to_le_bytes());
            file.extend(frame);
        }
        file
    }

    pub(crate) fn write(&self, path: &Path) {
        fs::write(path, self.pcap()).unwrap();
    }

    /// Returns the number of packets.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }
}

/// Returns a message of DNS about the record A of a name.
pub(crate) fn dns(id: u16, flags: u16, name: &str) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(id.to_be_bytes());
    message.extend(flags.to_be_bytes());
    message.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Flags of a query, and of a response with this code.
pub(crate) const QUERY: u16 = 0x100;
pub(crate) const RESPONSE: u16 = 0x8180;

/// Returns traffic for which every predefined query has a result.
pub(crate) fn scenes() -> Traffic {
    let mut traffic = Traffic::default();
    // Large and small connections, one with a slow handshake.
    traffic.connection(0, [(1, 40_000), (2, 443)], 10 * MILLISECOND, [100, 1400]);
    traffic.connection(SECOND, [(1, 40_001), (2, 443)], 20 * MILLISECOND, [100, 1400]);
    traffic.connection(2 * SECOND, [(3, 40_002), (4, 80)], 900 * MILLISECOND, [50, 60]);
    retransmission(&mut traffic, 3 * SECOND);
    refusals(&mut traffic, 20 * SECOND);
    scans(&mut traffic, 40 * SECOND);
    names(&mut traffic, 60 * SECOND);
    // A beacon each 30 seconds, and a connection without regularity.
    for number in 0..12 {
        let after = 100 * SECOND + number * 30 * SECOND;
        traffic.connection(after, [(30, 50_000 + number as u16), (31, 8443)], 5 * MILLISECOND, [10, 10]);
        let after = 100 * SECOND + number * number * 7 * SECOND;
        traffic.connection(after, [(32, 50_000 + number as u16), (33, 8443)], 5 * MILLISECOND, [10, 10]);
    }
    // A stream that lasts has a row each minute, and is no beacon.
    for number in 0..60 {
        let after = 5000 * SECOND + number * 10 * SECOND;
        traffic.udp(after, [(30, 5000), (2, 4500)], b"");
    }
    // Two hours later a destination that is new.
    traffic.connection(7200 * SECOND, [(1, 40_003), (99, 443)], 10 * MILLISECOND, [20, 20]);
    traffic
}

/// A segment that is sent again after a while, and a receive window of 0.
fn retransmission(traffic: &mut Traffic, after_ns: u64) {
    let ends = [(5, 41_000), (6, 5000)];
    let back = [ends[1], ends[0]];
    traffic.tcp(after_ns, ends, [100, 0], SYN, 1000, 0);
    traffic.tcp(after_ns + MILLISECOND, back, [500, 101], SYN | ACK, 1000, 0);
    traffic.tcp(after_ns + 2 * MILLISECOND, ends, [101, 501], ACK, 1000, 0);
    traffic.tcp(after_ns + 3 * MILLISECOND, ends, [101, 501], ACK, 1000, 500);
    traffic.tcp(after_ns + 4 * MILLISECOND, ends, [601, 501], ACK, 1000, 500);
    traffic.tcp(after_ns + SECOND, ends, [101, 501], ACK, 1000, 500);
    traffic.tcp(after_ns + SECOND + MILLISECOND, back, [501, 601], ACK, 0, 0);
}

/// Connections without an answer, and such that are refused.
fn refusals(traffic: &mut Traffic, after_ns: u64) {
    for port in 42_000..42_003 {
        traffic.tcp(after_ns, [(7, port), (8, 25)], [100, 0], SYN, 1000, 0);
        let refused = [(7, port), (9, 25)];
        traffic.tcp(after_ns, refused, [100, 0], SYN, 1000, 0);
        traffic.tcp(after_ns + MILLISECOND, [refused[1], refused[0]], [0, 101], RST | ACK, 0, 0);
    }
}

/// A scan of ports, and one of hosts.
fn scans(traffic: &mut Traffic, after_ns: u64) {
    for number in 0..25 {
        let after_ns = after_ns + u64::from(number) * MILLISECOND;
        traffic.tcp(after_ns, [(10, 43_000), (11, 1000 + number)], [100, 0], SYN, 1000, 0);
        traffic.tcp(after_ns, [(12, 43_000), (100 + number as u8, 23)], [100, 0], SYN, 1000, 0);
    }
}

/// A name that is found, one that is not, and a query without a response.
fn names(traffic: &mut Traffic, after_ns: u64) {
    let ends = [(20, 44_000), (53, 53)];
    let back = [ends[1], ends[0]];
    for (id, name, code) in [(1, "good.example", 0), (2, "none.example", 3), (3, "none.example", 3)] {
        traffic.udp(after_ns + u64::from(id) * SECOND, ends, &dns(id, QUERY, name));
        traffic.udp(after_ns + u64::from(id) * SECOND + MILLISECOND, back, &dns(id, RESPONSE | code, name));
    }
    traffic.udp(after_ns + 4 * SECOND, ends, &dns(4, QUERY, "lost.example"));
}
