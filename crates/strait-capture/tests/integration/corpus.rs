//! Frames of many kinds, so that every filter of the tests matches some and rejects others.

/// Returns all frames in the order in which they are sent.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut frames = vec![arp(), llc(), experimental()];
    for (source_port, destination_port) in [(53, 40_000), (40_001, 53), (1024, 2048), (5000, 5060)] {
        frames.push(ether(0x0800, &ipv4(17, 0, &udp(source_port, destination_port, 30))));
        frames.push(ether(0x86dd, &ipv6(17, &udp(source_port, destination_port, 200))));
    }
    for flags in [0x02, 0x12, 0x10, 0x18, 0x11, 0x04] {
        frames.push(ether(0x0800, &ipv4(6, 0, &tcp(40_000 + u16::from(flags), 80, flags, 10))));
        frames.push(ether(0x86dd, &ipv6(6, &tcp(443, 40_000, flags, 1000))));
    }
    frames.push(ether(0x0800, &ipv4(17, 0x2000, &udp(1, 2, 800))));
    frames.push(ether(0x0800, &ipv4(17, 0x0064, &[0xaa; 100])));
    frames.push(ether(0x0800, &ipv4(1, 0, &[8, 0, 0, 0, 0, 1, 0, 1])));
    frames.push(ether(0x86dd, &ipv6(58, &[128, 0, 0, 0, 0, 1, 0, 1])));
    frames.push(ether(0x0800, &ipv4(17, 0, &udp(7, 7, 1460))));
    let tagged: Vec<_> = frames.iter().map(|frame| tag(frame, 0x8100, 0x2005)).collect();
    let service: Vec<_> = frames.iter().step_by(3).map(|frame| tag(frame, 0x88a8, 100)).collect();
    let double: Vec<_> = tagged.iter().step_by(4).map(|frame| tag(frame, 0x88a8, 7)).collect();
    frames.extend(tagged);
    frames.extend(service);
    frames.extend(double);
    frames.push(multicast());
    for frame in &mut frames {
        // Padded as by a driver, so that both ends see equal frames.
        frame.resize(frame.len().max(60), 0);
    }
    frames
}

/// Filters for these frames, including all filters of the documentation.
pub(crate) const FILTERS: [&str; 46] = [
    "",
    "ip",
    "ip6",
    "arp",
    "udp",
    "tcp",
    "icmp",
    "icmp6",
    "vlan",
    "vlan 5",
    "vlan 5 and ip",
    "vlan and vlan",
    "vlan 7 and vlan 5 and udp",
    "not vlan",
    "host 192.0.2.1",
    "src host 192.0.2.1 and dst host 192.0.2.2",
    "net 192.0.2.0/24",
    "dst net 192.0.2.0/28 and udp",
    "ip6 host 2001:db8::1",
    "net 2001:db8::/32",
    "port 53",
    "udp port 53",
    "src port 1024",
    "portrange 5000-5100",
    "tcp dst portrange 79-81",
    "tcp[13] = 24",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[13] & 4 != 0 or udp[4:2] > 100",
    "ip[6:2] & 0x1fff != 0",
    "ip[6:2] & 0x2000 != 0",
    "ip[0] & 0xf > 4",
    "greater 500",
    "less 100",
    "len > 60 and len < 300",
    "ether[0] & 1 != 0",
    "ether multicast",
    "ether broadcast or arp",
    "ether proto 0x88b5",
    "ether dst 02:00:00:00:00:02",
    "not (tcp or udp)",
    "ip and not tcp and not port 53",
    "(tcp port 80 and greater 60) or (udp and less 150) or arp",
    "ip proto 17 and ip[8] = 64",
    "icmp[icmptype] = icmp-echo or icmp6",
    "vlan 5 and (tcp port 443 or arp)",
    "ether[14:2] = 0x4500 and not src port 40000",
];

fn ether(protocol: u16, payload: &[u8]) -> Vec<u8> {
    addressed([2, 0, 0, 0, 0, 2], protocol, payload)
}

fn addressed(destination: [u8; 6], protocol: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = destination.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(protocol.to_be_bytes());
    frame.extend(payload);
    frame
}

fn tag(frame: &[u8], protocol: u16, tci: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend(protocol.to_be_bytes());
    tagged.extend(tci.to_be_bytes());
    tagged.extend(&frame[12..]);
    tagged
}

fn arp() -> Vec<u8> {
    let mut payload = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1];
    payload.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    addressed([0xff; 6], 0x0806, &payload)
}

fn llc() -> Vec<u8> {
    addressed([1, 0x80, 0xc2, 0, 0, 0], 38, &[0x42; 38])
}

fn experimental() -> Vec<u8> {
    ether(0x88b5, &[0x55; 64])
}

fn multicast() -> Vec<u8> {
    addressed([1, 0, 0x5e, 0, 0, 0xfb], 0x0800, &ipv4(17, 0, &udp(5353, 5353, 40)))
}

fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + payload.len() as u16).to_be_bytes());
    header.extend([0x12, 0x34]);
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    header.extend(payload);
    header
}

fn ipv6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((payload.len() as u16).to_be_bytes());
    header.extend([protocol, 64]);
    for last in [1, 2] {
        header.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    header.extend(payload);
    header
}

fn udp(source: u16, destination: u16, payload_len: u16) -> Vec<u8> {
    let mut datagram = [source, destination, 8 + payload_len, 0].map(u16::to_be_bytes).concat();
    datagram.extend((0..payload_len).map(|i| i as u8));
    datagram
}

fn tcp(source: u16, destination: u16, flags: u8, payload_len: usize) -> Vec<u8> {
    let mut segment = [source, destination].map(u16::to_be_bytes).concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    segment.extend(std::iter::repeat_n(0x61, payload_len));
    segment
}
