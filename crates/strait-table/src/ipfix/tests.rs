//! Tests of the export: a reader that shares nothing with it gets every value back, and every flow
//! is sent or counted as lost.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net;

use super::message::{Builder, Session};
use super::thread::open_with;
use super::transport::Connection;
use super::*;
use crate::export::{Build as _, Exporter, Limits, Message, Record, SinkShare, Writer};
use crate::flows::{EndReason, FlowRow, Side};

/// Values of a record by enterprise and number of the element.
type Values = BTreeMap<(u32, u16), Vec<u8>>;

/// Reader of messages, as a collector has it.
#[derive(Default)]
struct Reader {
    /// Enterprise, number and length of each element.
    templates: BTreeMap<u16, Vec<(u32, u16, u16)>>,
    records: Vec<Values>,
    template_records: usize,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Reader {
    /// Reads a message whose sequence number must be the number of records before it.
    fn read(&mut self, message: &[u8], domain: u32) {
        assert_eq!((be16(message, 0), be16(message, 2) as usize), (10, message.len()));
        assert_eq!(be32(message, 8) as usize, self.records.len(), "sequence number");
        assert_eq!(be32(message, 12), domain);
        let mut at = 16;
        while at < message.len() {
            let (id, length) = (be16(message, at), be16(message, at + 2) as usize);
            let set = &message[at + 4..at + length];
            if id == 2 {
                self.read_templates(set);
            } else {
                self.read_records(id, set);
            }
            at += length;
        }
        assert_eq!(at, message.len());
    }

    fn read_templates(&mut self, mut set: &[u8]) {
        while !set.is_empty() {
            let (id, count) = (be16(set, 0), be16(set, 2));
            assert!(id >= 256 && count > 0);
            set = &set[4..];
            let mut elements = Vec::new();
            for _ in 0..count {
                let (number, length) = (be16(set, 0), be16(set, 2));
                let has_enterprise = number & 0x8000 != 0;
                let enterprise = if has_enterprise { be32(set, 4) } else { 0 };
                set = &set[if has_enterprise { 8 } else { 4 }..];
                elements.push((enterprise, number & 0x7fff, length));
            }
            self.template_records += 1;
            if let Some(known) = self.templates.insert(id, elements.clone()) {
                assert_eq!(known, elements, "a template keeps its number");
            }
        }
    }

    fn read_records(&mut self, id: u16, mut set: &[u8]) {
        let elements = self.templates.get(&id).expect("the template is sent before");
        while !set.is_empty() {
            let mut values = Values::new();
            for (enterprise, number, length) in elements {
                let is_variable = *length == 0xffff;
                let (start, length) = if is_variable { (1, set[0] as usize) } else { (0, *length as usize) };
                let value = set[start..start + length].to_vec();
                assert_eq!(values.insert((*enterprise, *number), value), None, "once each");
                set = &set[start + length..];
            }
            self.records.push(values);
        }
    }
}

const SECOND: u64 = 1_000_000_000;
const REVERSE: u32 = 29305;

fn row(source: &str, destination: &str, protocol: u8) -> FlowRow {
    let side = |packets: u64| Side { packets, octets: packets * 1000, flags: None, ..Side::default() };
    FlowRow {
        start_ns: 1_764_000_000 * SECOND + 123_456_789,
        end_ns: 1_764_000_001 * SECOND + 999_999_999,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        ports: None,
        protocol,
        vlan: None,
        sides: [side(3), side(5 << 32)],
        handshake_ns: None,
        reason: EndReason::Active,
        interface: 0,
        lane: 0,
    }
}

/// Flows with each combination of values that a capture makes.
fn rows() -> Vec<FlowRow> {
    let tcp = FlowRow { ports: Some([40_000, 443]), ..row("192.0.2.1", "198.51.100.7", 6) };
    let mut with_flags = FlowRow { vlan: Some(4094), interface: 1, lane: 3, ..tcp };
    (with_flags.sides[0].flags, with_flags.sides[1].flags) = (Some(0x1db), Some(0x12));
    let mut one_sided = FlowRow { reason: EndReason::LackOfResources, ..with_flags };
    one_sided.sides[1] = Side::default();
    vec![
        tcp,
        with_flags,
        one_sided,
        FlowRow { ports: Some([53, 53]), interface: 1, ..row("2001:db8::1", "2001:db8::2", 17) },
        FlowRow { ports: Some([8, 0]), ..row("192.0.2.1", "192.0.2.2", 1) },
        FlowRow { ports: Some([129, 4]), vlan: Some(0), ..row("fe80::1", "ff02::1", 58) },
        row("192.0.2.9", "192.0.2.8", 50),
    ]
}

fn name_of(row: &FlowRow) -> Option<&'static str> {
    (row.interface == 1).then_some("eth0.4094")
}

/// Returns the values that a record of the row must have, by RFC 5103, RFC 7011 and IANA's list.
fn values_of(row: &FlowRow) -> Values {
    let ntp = |time_ns: u64| {
        let fraction = (f64::from((time_ns % SECOND) as u32) / 1e9 * 2f64.powi(32)).ceil() as u64;
        ((time_ns / SECOND + 2_208_988_800) << 32 | fraction).to_be_bytes().to_vec()
    };
    let [to, back] = &row.sides;
    let mut values = Values::from([
        ((0, 156), ntp(row.start_ns)),
        ((0, 157), ntp(row.end_ns)),
        ((0, 152), (row.start_ns / 1_000_000).to_be_bytes().to_vec()),
        ((0, 153), (row.end_ns / 1_000_000).to_be_bytes().to_vec()),
        ((0, 136), vec![row.reason as u8]),
        ((0, 4), vec![row.protocol]),
        ((0, 239), vec![1]),
        ((0, 2), to.packets.to_be_bytes().to_vec()),
        ((0, 1), to.octets.to_be_bytes().to_vec()),
        ((REVERSE, 2), back.packets.to_be_bytes().to_vec()),
        ((REVERSE, 1), back.octets.to_be_bytes().to_vec()),
    ]);
    for (address, ipv4, ipv6) in [(row.source, 8, 27), (row.destination, 12, 28)] {
        match address {
            IpAddr::V4(address) => values.insert((0, ipv4), address.octets().to_vec()),
            IpAddr::V6(address) => values.insert((0, ipv6), address.octets().to_vec()),
        };
    }
    let mut short = |number, value: Option<u16>| {
        values.extend(value.map(|value| (number, value.to_be_bytes().to_vec())));
    };
    let [first, second] = row.ports.map_or([None; 2], |ports| ports.map(Some));
    match row.protocol {
        1 => short((0, 32), first.zip(second).map(|(kind, code)| kind * 256 + code)),
        58 => short((0, 139), first.zip(second).map(|(kind, code)| kind * 256 + code)),
        _ => {
            short((0, 7), first);
            short((0, 11), second);
        }
    }
    short((0, 58), row.vlan);
    short((0, 6), to.flags);
    short((REVERSE, 6), to.flags.map(|_| back.flags.unwrap_or(0)));
    values.extend(name_of(row).map(|name| ((0, 82), name.as_bytes().to_vec())));
    values
}

/// Returns the messages of rows.
fn messages(rows: &[FlowRow], bytes_max: usize) -> Vec<Message> {
    let mut builder = Builder::new();
    let push = |row| builder.push(&Record { row, interface: name_of(row) }, bytes_max);
    let mut messages: Vec<Message> = rows.iter().filter_map(push).collect();
    messages.extend(builder.finish());
    messages
}

#[test]
fn every_value_of_a_flow_is_read_back() {
    let (rows, now) = (rows(), Instant::now());
    let mut session = Session::new(7, None, now);
    let mut reader = Reader::default();
    for mut message in messages(&rows, 16 << 10) {
        session.announce(&message, 16 << 10, (now, 5)).iter().for_each(|bytes| reader.read(bytes, 7));
        let bytes = session.bytes(&mut message, 0x0102_0304);
        assert_eq!(be32(bytes, 4), 0x0102_0304, "export time");
        reader.read(bytes, 7);
        session.sent(&message);
    }
    assert_eq!(reader.records, rows.iter().map(values_of).collect::<Vec<_>>());
}

#[test]
fn messages_have_a_limited_length_and_each_flow_once() {
    let rows: Vec<FlowRow> = rows().into_iter().cycle().take(1000).collect();
    let now = Instant::now();
    let mut session = Session::new(0, None, now);
    let mut reader = Reader::default();
    let messages = messages(&rows, 512);
    assert!(messages.len() < rows.len() / 2, "several flows in a message");
    assert_eq!(
        messages.iter().flat_map(|message| &message.flows).map(|(_, packets)| packets).sum::<u64>(),
        { rows.iter().map(FlowRow::packets).sum::<u64>() }
    );
    for mut message in messages {
        let templates = session.announce(&message, 512, (now, 5));
        assert!(templates.iter().all(|bytes| bytes.len() <= 512));
        for bytes in &templates {
            reader.read(bytes, 0);
        }
        let bytes = session.bytes(&mut message, 5);
        assert!(bytes.len() <= 512, "{}", bytes.len());
        reader.read(bytes, 0);
        session.sent(&message);
    }
    assert_eq!(reader.records, rows.iter().map(values_of).collect::<Vec<_>>());
    assert_eq!(reader.template_records, reader.templates.len(), "once each");
}

#[test]
fn templates_are_sent_again_after_the_interval_if_the_transport_can_lose_them() {
    let now = Instant::now();
    let count = |again_every: Option<Duration>, after: Duration| {
        let mut session = Session::new(0, again_every, now);
        let all = messages(&rows(), 16 << 10).pop().unwrap();
        let mut reader = Reader::default();
        session.announce(&all, 512, (now, 5)).iter().for_each(|bytes| reader.read(bytes, 0));
        let first = std::mem::take(&mut reader.template_records);
        let one = messages(&rows()[..1], 512).pop().unwrap();
        session.announce(&one, 512, (now + after, 5)).iter().for_each(|bytes| reader.read(bytes, 0));
        (first, reader.template_records)
    };
    let minute = Duration::from_mins(1);
    let second = Duration::from_secs(1);
    assert_eq!(count(Some(minute), minute), (6, 6));
    assert_eq!(count(Some(minute), minute.saturating_sub(second)), (6, 0));
    assert_eq!(count(None, minute * 100), (6, 0));
}

/// Templates take two messages, and are sent again between those of the flows.
#[test]
fn flows_are_read_while_templates_are_sent_again() {
    const BYTES_MAX: usize = 400;
    let rows: Vec<FlowRow> = rows().into_iter().cycle().take(1000).collect();
    let messages = messages(&rows, BYTES_MAX);
    let (now, step, count) = (Instant::now(), Duration::from_secs(25), messages.len());
    let mut session = Session::new(0, Some(Duration::from_mins(1)), now);
    // The late one starts when the templates are sent again, and has no earlier message.
    let (mut reader, mut late, mut resent) = (Reader::default(), Reader::default(), 0);
    for (at, mut message) in messages.into_iter().enumerate() {
        let (before, known) = (reader.template_records, reader.templates.len());
        let templates = session.announce(&message, BYTES_MAX, (now + step * at as u32, 5));
        let bytes = session.bytes(&mut message, 5).to_vec();
        for bytes in templates.iter().chain([&bytes]) {
            assert!(bytes.len() <= BYTES_MAX, "{}", bytes.len());
            reader.read(bytes, 0);
            if at >= 30 {
                let mut bytes = bytes.clone();
                bytes[8..12].copy_from_slice(&(late.records.len() as u32).to_be_bytes());
                late.read(&bytes, 0);
            }
        }
        session.sent(&message);
        // After each third message a minute is over.
        let is_due = at > 0 && at % 3 == 0;
        let sent = reader.template_records - before;
        assert_eq!(sent, reader.templates.len() - known + if is_due { known } else { 0 }, "{at}");
        resent += usize::from(is_due && templates.len() > 1);
    }
    let expected: Vec<_> = rows.iter().map(values_of).collect();
    assert!(count > 100 && resent > 30, "{count} {resent}");
    assert_eq!(reader.records, expected);
    assert!(!late.records.is_empty() && expected.ends_with(&late.records));
}

/// Returns a writer to a collector.
fn writer(address: SocketAddr, transport: Transport) -> Writer {
    writer_with(address, transport, Duration::from_secs(1)).0
}

fn writer_with(address: SocketAddr, transport: Transport, retry_for: Duration) -> (Writer, Arc<Exporter>) {
    let collector = Collector { name: address.to_string(), addresses: vec![address], transport, domain: 9 };
    let limits = Limits { retry_for, write: Duration::from_secs(1), end: Duration::ZERO };
    let exporter = Arc::new(open_with(collector, limits).unwrap());
    exporter.start().unwrap();
    let names = |index| (index == 1).then(|| "eth0.4094".to_owned());
    (Writer::new(Arc::clone(&exporter), Arc::new(names)), exporter)
}

/// Reads one message.
fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(Duration::from_secs(100)))?;
    let mut message = vec![0; 16];
    stream.read_exact(&mut message)?;
    message.resize(be16(&message, 2) as usize, 0);
    stream.read_exact(&mut message[16..])?;
    Ok(message)
}

/// Reads the messages of a connection to its end.
fn read_stream(stream: &mut TcpStream, domain: u32) -> Reader {
    let mut reader = Reader::default();
    while let Ok(message) = read_message(stream) {
        reader.read(&message, domain);
    }
    reader
}

/// Returns a bound socket, which refuses connections until it listens.
fn closed_port() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

#[test]
fn flows_are_lost_when_the_time_after_the_end_is_over() {
    let (_socket, address) = closed_port();
    // Without the end, the flows would wait for the collector.
    let (mut writer, exporter) = writer_with(address, Transport::Tcp, Duration::MAX);
    drop(SinkShare::new(exporter));
    writer.write(&rows(), true).unwrap();
    writer.settle().unwrap();
    assert_eq!((writer.exported().flows, writer.exported().lost), (0, 7));
}

#[test]
fn message_to_a_slow_collector_ends_between_two_writes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector =
        Collector { name: "slow".into(), addresses: vec![address], transport: Transport::Tcp, domain: 1 };
    let mut connection = Connection::open(&collector, Duration::from_millis(50)).unwrap();
    let calls = std::cell::Cell::new(0);
    let is_over = || calls.replace(calls.get() + 1) == 1;
    // More than the buffers of both sockets have, of which the collector reads nothing.
    let error = connection.send(&vec![0; 64 << 20], is_over).unwrap_err();
    assert_eq!((error.to_string(), calls.get()), ("it takes bytes too slowly".into(), 2));
}

#[test]
fn failure_to_connect_is_known_before_the_first_flow() {
    let (socket, address) = closed_port();
    let (mut writer, exporter) = writer_with(address, Transport::Tcp, Duration::from_secs(100));
    let deadline = Instant::now() + Duration::from_secs(100);
    while exporter.failure().is_none() {
        assert!(Instant::now() < deadline, "no attempt to connect");
        std::thread::yield_now();
    }
    assert!(exporter.failure().unwrap().contains("refused"), "{:?}", exporter.failure());
    net::listen(&socket, 1).unwrap();
    writer.write(&rows(), true).unwrap();
    writer.settle().unwrap();
    assert_eq!((writer.exported().flows, writer.exported().lost, exporter.failure()), (7, 0, None));
}

#[test]
fn flows_wait_for_a_collector_that_starts_later() {
    let (socket, address) = closed_port();
    let (mut writer, exporter) = writer_with(address, Transport::Tcp, Duration::from_secs(100));
    writer.write(&rows(), false).unwrap();
    writer.flush(false).unwrap();
    while exporter.failure().is_none() {
        std::thread::yield_now();
    }
    net::listen(&socket, 1).unwrap();
    writer.settle().unwrap();
    assert_eq!((writer.exported().flows, writer.exported().lost, exporter.failure()), (7, 0, None));
    drop((writer, exporter));
    let mut stream = TcpListener::from(socket).accept().unwrap().0;
    assert_eq!(read_stream(&mut stream, 9).records, rows().iter().map(values_of).collect::<Vec<_>>());
}

#[test]
fn each_connection_has_its_own_session() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = writer(listener.local_addr().unwrap(), Transport::Tcp);
    let rows = rows();
    for round in 1..=3 {
        writer.write(&rows, true).unwrap();
        writer.settle().unwrap();
        assert_eq!((writer.exported().flows, writer.exported().lost), (7 * round, 0));
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = Reader::default();
        while reader.records.len() < rows.len() {
            reader.read(&read_message(&mut stream).unwrap(), 9);
        }
        assert_eq!(reader.records, rows.iter().map(values_of).collect::<Vec<_>>());
    }
}

#[test]
fn flows_of_a_collector_that_is_down_are_lost_and_counted_by_lane() {
    for transport in [Transport::Tcp, Transport::Udp] {
        // The port is free again, and nothing listens.
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut writer = writer(address, transport);
        let rows = rows();
        for _ in 0..50 {
            writer.write(&rows, true).unwrap();
        }
        writer.settle().unwrap();
        let exported = writer.exported();
        assert_eq!((exported.flows, exported.messages, exported.bytes, exported.lost), (0, 0, 0, 350));
        assert!(exported.failure.as_ref().unwrap().contains("refused"), "{exported:?}");
        let of_lane_3 = 50 * rows.iter().filter(|row| row.lane == 3).map(FlowRow::packets).sum::<u64>();
        let all = 50 * rows.iter().map(FlowRow::packets).sum::<u64>();
        assert_eq!((writer.lost().of(3), writer.lost().total()), (of_lane_3, all));
    }
}

#[test]
fn templates_are_sent_again_to_a_collector_that_is_up_again() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut writer = writer(address, Transport::Udp);
    drop(socket);
    writer.write(&rows(), true).unwrap();
    writer.settle().unwrap();
    assert_eq!((writer.exported().flows, writer.exported().lost), (0, 7));
    // Counters do not decrease when a refusal is reported.
    let sent_bytes = writer.exported().sent_bytes();
    assert!(writer.exported().sent_flows() == 7 && sent_bytes > 0);
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    writer.write(&rows(), true).unwrap();
    writer.settle().unwrap();
    assert_eq!((writer.exported().flows, writer.exported().lost), (7, 7));
    assert!(writer.exported().sent_flows() == 14 && writer.exported().sent_bytes() > sent_bytes);
    let (mut bytes, mut reader) = ([0; 2048], Reader::default());
    while reader.records.len() < 7 {
        let length = socket.recv(&mut bytes).unwrap();
        // The refused flows had numbers too.
        bytes[8..12].copy_from_slice(&(reader.records.len() as u32).to_be_bytes());
        reader.read(&bytes[..length], 9);
    }
    assert_eq!(reader.records, rows().iter().map(values_of).collect::<Vec<_>>());
}

#[test]
fn messages_over_udp_fit_into_a_packet_of_ethernet() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    let mut writer = writer(socket.local_addr().unwrap(), Transport::Udp);
    writer.write(&rows().into_iter().cycle().take(70).collect::<Vec<_>>(), true).unwrap();
    writer.settle().unwrap();
    let (mut bytes, mut reader, mut longest) = (vec![0; 1 << 16], Reader::default(), 0);
    while reader.records.len() < 70 {
        let length = socket.recv(&mut bytes).unwrap();
        reader.read(&bytes[..length], 9);
        longest = longest.max(length);
    }
    // The loopback would take 65,507 bytes.
    assert!(longest > 1200 && longest <= 1500 - 28, "{longest}");
}

#[test]
fn full_queue_of_a_live_capture_loses_flows_and_counts_them() {
    // Connections are accepted by the kernel, and nothing is read.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = writer(listener.local_addr().unwrap(), Transport::Tcp);
    let rows: Vec<FlowRow> = rows().into_iter().cycle().take(70_000).collect();
    let mut written = 0;
    while writer.exported().lost == 0 {
        writer.write(&rows, false).unwrap();
        written += rows.len() as u64;
    }
    drop(listener);
    writer.settle().unwrap();
    let exported = writer.exported();
    assert_eq!(exported.flows + exported.lost, written);
}
