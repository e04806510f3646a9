//! Tests of flows: directions, timeouts, eviction, and TCP's sequence numbers.

use strait_packet::tcp::flags::{ACK, FIN, PSH, RST, SYN};

use super::*;
use crate::headers::{Internet, Tcp};

const MS: u64 = 1_000_000;
const CLIENT: u8 = 2;
const SERVER: u8 = 1;

fn headers(
    time_ns: u64,
    from: u8,
    to: u8,
    ports: [u16; 2],
    payload_length: u32,
    tcp: Option<Tcp>,
) -> Headers {
    let address = |last: u8| std::net::IpAddr::from([10, 0, 0, last]);
    Headers {
        time_ns,
        length: payload_length + 34,
        captured_length: payload_length + 34,
        interface: 0,
        lane: 0,
        direction: None,
        frame_at: 0,
        owner: None,
        macs: None,
        ether_type: Some(0x0800),
        vlan: None,
        inner_vlan: None,
        internet: Some(Internet {
            source: address(from),
            destination: address(to),
            protocol: if tcp.is_some() { 6 } else { 17 },
            ttl: 64,
            identification: None,
            fragment_offset: None,
            length: payload_length + 20,
            payload_length,
        }),
        ports: Some(ports),
        tcp,
        icmp: None,
    }
}

fn udp(time_ns: u64, from: u8, to: u8, ports: [u16; 2]) -> Headers {
    headers(time_ns, from, to, ports, 108, None)
}

/// Returns a segment of the connection between port 40000 of the client and port 80 of the server.
fn segment(
    time_ns: u64,
    from: u8,
    flags: u16,
    [sequence, acknowledgment]: [u32; 2],
    data: u32,
    window: u16,
) -> Headers {
    let (to, ports) = if from == CLIENT { (SERVER, [40000, 80]) } else { (CLIENT, [80, 40000]) };
    let tcp = Tcp { sequence, acknowledgment, flags, window, header_length: 20 };
    headers(time_ns, from, to, ports, data + 20, Some(tcp))
}

fn run(limits: FlowLimits, packets: &[Headers]) -> Vec<FlowRow> {
    let mut table = FlowTable::new(limits);
    let mut ended = Vec::new();
    for packet in packets {
        table.take(packet, &mut ended);
    }
    while table.drain(100, &mut ended) {}
    assert!(table.is_empty());
    ended
}

fn reasons(rows: &[FlowRow]) -> Vec<u8> {
    rows.iter().map(|row| row.reason as u8).collect()
}

#[test]
fn both_directions_are_in_one_row_from_the_first_sender() {
    let packets = [
        udp(5, CLIENT, SERVER, [5000, 53]),
        udp(7, SERVER, CLIENT, [53, 5000]),
        udp(8, CLIENT, SERVER, [5000, 53]),
        udp(9, CLIENT, SERVER, [5001, 53]),
    ];
    let rows = run(FlowLimits::default(), &packets);
    assert_eq!(reasons(&rows), [4, 4]);
    let row = rows[0];
    assert_eq!(
        (row.source.to_string(), row.ports, row.start_ns, row.end_ns),
        ("10.0.0.2".into(), Some([5000, 53]), 5, 8)
    );
    assert_eq!(row.sides.map(|side| (side.packets, side.octets)), [(2, 256), (1, 128)]);
}

#[test]
fn idle_and_active_flows_end_at_their_timeouts() {
    let limits = FlowLimits { idle_ns: 100, active_ns: 250, ..FlowLimits::default() };
    let idle = [udp(0, 1, 2, [1, 2]), udp(99, 1, 2, [1, 2]), udp(199, 3, 4, [1, 2])];
    assert_eq!(reasons(&run(limits, &idle)), [1, 4]);
    let active: Vec<Headers> = (0..8).map(|i| udp(i * 90, 1, 2, [1, 2])).collect();
    let rows = run(limits, &active);
    assert_eq!(reasons(&rows), [2, 2, 4]);
    assert_eq!(rows.iter().map(|row| row.sides[0].packets).collect::<Vec<_>>(), [3, 3, 2]);
    assert_eq!(rows.iter().map(|row| row.start_ns).collect::<Vec<_>>(), [0, 270, 540]);
}

#[test]
fn full_table_evicts_the_flow_that_was_idle_for_longest() {
    let limits = FlowLimits { flows_max: 3, ..FlowLimits::default() };
    let packets = [
        udp(1, 1, 2, [1, 1]),
        udp(2, 1, 2, [2, 1]),
        udp(3, 1, 2, [3, 1]),
        udp(4, 1, 2, [1, 1]),
        udp(5, 1, 2, [4, 1]),
        udp(6, 1, 2, [5, 1]),
    ];
    let rows = run(limits, &packets);
    assert_eq!(reasons(&rows), [5, 5, 4, 4, 4]);
    assert_eq!(rows.iter().map(|row| row.ports.unwrap()[0]).collect::<Vec<_>>(), [2, 3, 1, 4, 5]);
    assert_eq!(rows.iter().map(|row| row.sides[0].packets).sum::<u64>(), 6);
}

#[test]
fn ten_million_flows_need_less_than_2_5_gigabytes() {
    // The index has 4 bytes and 1 byte for each place, of which it uses at least 7 in 16.
    let flow = size_of::<Flow>() + size_of::<Link>();
    assert!(flow + 5 * 16 / 7 <= 250, "{flow}");
}

#[test]
fn many_flows_use_each_place_again() {
    let limits = FlowLimits { idle_ns: 50, flows_max: 10_000, ..FlowLimits::default() };
    let mut table = FlowTable::new(limits);
    let mut ended = Vec::new();
    for i in 0..50_000_u64 {
        table.take(&udp(i, (i % 200) as u8, 201, [(i % 60_000) as u16, 9]), &mut ended);
    }
    assert_eq!((table.len(), table.chunks.len()), (50, 1));
    while table.drain(7, &mut ended) {}
    assert_eq!(ended.iter().map(|row| row.sides[0].packets).sum::<u64>(), 50_000);
}

/// Returns a handshake with a round trip of 10 ms.
fn handshake() -> Vec<Headers> {
    vec![
        segment(0, CLIENT, SYN, [100, 0], 0, 65535),
        segment(6 * MS, SERVER, SYN | ACK, [500, 101], 0, 65535),
        segment(10 * MS, CLIENT, ACK, [101, 501], 0, 1000),
    ]
}

#[test]
fn connection_ends_with_the_acknowledgment_of_the_last_fin() {
    let mut packets = handshake();
    packets.extend([
        segment(11 * MS, CLIENT, ACK | PSH, [101, 501], 50, 1000),
        segment(20 * MS, SERVER, ACK | FIN, [501, 151], 200, 0),
        segment(21 * MS, CLIENT, ACK | FIN, [151, 702], 0, 0),
        segment(22 * MS, SERVER, ACK, [702, 152], 0, 0),
        segment(23 * MS, CLIENT, SYN, [9000, 0], 0, 65535),
        segment(24 * MS, SERVER, RST | ACK, [0, 9001], 0, 0),
    ]);
    let rows = run(FlowLimits::default(), &packets);
    assert_eq!(reasons(&rows), [3, 3]);
    let [client, server] = rows[0].sides;
    assert_eq!((client.packets, client.flags, server.packets, server.flags), (4, Some(0x1b), 3, Some(0x13)));
    assert_eq!(rows[0].handshake_ns, Some(10 * MS));
    assert_eq!((client.zero_windows, server.zero_windows), (0, 1), "not those of a FIN");
    assert_eq!((rows[1].sides[0].packets, rows[1].handshake_ns), (1, None));
}

#[test]
fn second_connection_with_the_same_ports_is_another_flow() {
    let mut packets = handshake();
    packets.push(segment(11 * MS, CLIENT, SYN, [100, 0], 0, 65535));
    packets.push(segment(12 * MS, CLIENT, SYN, [7000, 0], 0, 65535));
    let rows = run(FlowLimits::default(), &packets);
    assert_eq!((reasons(&rows), rows[0].sides[0].packets), (vec![3, 4], 3));
}

#[test]
fn first_captured_response_names_the_client_as_the_source() {
    let rows = run(FlowLimits::default(), &handshake()[1..]);
    assert_eq!((rows[0].source.to_string(), rows[0].ports), ("10.0.0.2".into(), Some([40000, 80])));
    assert_eq!(rows[0].sides.map(|side| side.packets), [1, 1]);
}

#[test]
fn segments_sent_again_and_out_of_order_are_told_apart_by_their_time() {
    let mut packets = handshake();
    packets.extend([
        segment(11 * MS, SERVER, ACK, [501, 101], 100, 1000),
        // A gap of 100 bytes, which is filled 2 ms later.
        segment(12 * MS, SERVER, ACK, [701, 101], 100, 1000),
        segment(14 * MS, SERVER, ACK, [601, 101], 100, 1000),
        // Sent again after more than a round trip.
        segment(40 * MS, SERVER, ACK, [501, 101], 100, 1000),
        // Keep-alive.
        segment(60 * MS, SERVER, ACK, [800, 101], 0, 1000),
    ]);
    let [client, server] = run(FlowLimits::default(), &packets)[0].sides;
    assert_eq!((server.out_of_order, server.retransmitted), (1, 1));
    assert_eq!((client.out_of_order, client.retransmitted), (0, 0));
}

#[test]
fn sequence_numbers_wrap_around() {
    let start = u32::MAX - 50;
    let packets = [
        segment(0, CLIENT, ACK, [start, 1], 100, 1000),
        segment(MS, CLIENT, ACK, [start.wrapping_add(100), 1], 100, 1000),
        segment(50 * MS, CLIENT, ACK, [start, 1], 100, 1000),
    ];
    let [client, _] = run(FlowLimits::default(), &packets)[0].sides;
    assert_eq!((client.out_of_order, client.retransmitted), (0, 1));
}

/// Returns a whole packet as the first fragment of one.
fn fragment(mut packet: Headers) -> Headers {
    let internet = packet.internet.as_mut().unwrap();
    internet.fragment_offset = Some(0);
    packet
}

#[test]
fn first_fragments_have_no_state_of_tcp() {
    let packets = [
        fragment(segment(0, CLIENT, SYN, [100, 0], 0, 65535)),
        fragment(segment(1, CLIENT, SYN, [900, 0], 0, 65535)),
        fragment(segment(2, SERVER, RST, [5, 0], 0, 0)),
        fragment(segment(3, SERVER, ACK, [5, 0], 10, 0)),
    ];
    let rows = run(FlowLimits::default(), &packets);
    assert_eq!(reasons(&rows), [4]);
    let sides = rows[0].sides.map(|side| (side.packets, side.flags, side.zero_windows));
    assert_eq!(sides, [(2, None, 0), (2, None, 0)]);
}

#[test]
fn response_captured_before_its_syn_is_of_the_same_connection() {
    let mut packets = handshake();
    packets.swap(0, 1);
    let rows = run(FlowLimits::default(), &packets);
    assert_eq!((reasons(&rows), rows[0].source.to_string()), (vec![4], "10.0.0.2".into()));
    assert_eq!(rows[0].sides.map(|side| (side.packets, side.retransmitted)), [(2, 0), (1, 0)]);
    let times = packets.iter().map(|packet| packet.time_ns);
    assert_eq!((Some(rows[0].start_ns), Some(rows[0].end_ns)), (times.clone().min(), times.max()));
    packets[1] = segment(MS, CLIENT, SYN, [99, 0], 0, 65535);
    assert_eq!(reasons(&run(FlowLimits::default(), &packets)), [3, 4], "the SYN of another one");
}

#[test]
fn packet_from_the_future_does_not_stop_the_idle_timeout() {
    let limits = FlowLimits { idle_ns: 100, ..FlowLimits::default() };
    let mut packets = vec![udp(1_000_000, 9, 9, [1, 1])];
    packets.extend((0..50).map(|i| udp(1000 + i * 10, 1, 2, [1, 2])));
    packets.insert(5, udp(1041, 7, 8, [1, 2]));
    let rows = run(limits, &packets);
    let ended = |last| rows.iter().find(|row| row.destination.to_string().ends_with(last)).unwrap();
    assert_eq!((ended(".8").reason, ended(".9").reason), (EndReason::Idle, EndReason::Idle));
    assert_eq!(ended(".2").sides[0].packets, 50);

    let jumps = [udp(0, 1, 2, [1, 2]), udp(5000, 1, 2, [1, 2]), udp(10, 1, 2, [1, 2]), udp(20, 1, 2, [1, 2])];
    let rows = run(limits, &jumps);
    assert_eq!(reasons(&rows), [1, 1, 4]);
    assert_eq!((rows[2].start_ns, rows[2].end_ns, rows[2].sides[0].packets), (10, 20, 2));
}

#[test]
fn flows_that_are_idle_at_once_end_in_parts() {
    let mut table = FlowTable::new(FlowLimits { idle_ns: 100, ..FlowLimits::default() });
    let mut ended = Vec::new();
    for port in 0..1000 {
        table.take(&udp(1, 1, 2, [port, 2]), &mut ended);
    }
    table.take(&udp(500, 3, 4, [1, 2]), &mut ended);
    assert_eq!(ended.len(), EXPIRED_MAX);
    assert!(table.expire(500, 100, &mut ended));
    assert_eq!(ended.len(), EXPIRED_MAX + 100);
    assert!(!table.expire(500, 1000, &mut ended));
    assert_eq!((ended.len(), table.len()), (1000, 1));
    assert!(ended.iter().all(|row| row.reason == EndReason::Idle));
}

#[test]
fn tables_of_several_workers_share_the_maximum() {
    let limits = FlowLimits { flows_max: 10, ..FlowLimits::default() };
    assert_eq!([1, 4, 100].map(|tables| limits.shared_by(tables).flows_max), [10, 2, 1]);
}
