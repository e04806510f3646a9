//! Tests of messages: complete ones become rows, and all others are counted.

use std::net::IpAddr;

use proptest::prelude::*;
use strait_packet::protocol::ip;

use super::assembly::{BEHIND_MAX, SEGMENT_BYTES_MAX};
use super::rows::{Cell, TEXT_BYTES_MAX, TEXTS_BYTES_MAX};
use super::*;
use crate::extras::Extras;
use crate::headers::{Internet, Tcp};
use crate::rows::Rows;

const ALL: SelectedMessages = SelectedMessages { dns: true, tls: true, http: true };

/// Returns the headers of a segment of `client`'s stream, with `len` bytes of data.
fn headers(protocol: u8, client: u16, sequence: u32, len: usize) -> Headers {
    let address: IpAddr = "10.0.0.1".parse().unwrap();
    let packet = crate::Packet {
        bytes: &[],
        link_type: 1,
        wire_len: 0,
        time_ns: 5,
        interface: 0,
        lane: 0,
        direction: None,
        owner: None,
    };
    let header_length = if protocol == ip::TCP { 20 } else { 8 };
    Headers {
        internet: Some(Internet {
            source: address,
            destination: address,
            protocol,
            ttl: 64,
            identification: None,
            fragment_offset: None,
            length: 0,
            payload_length: (header_length + len) as u32,
        }),
        ports: Some([client, if protocol == ip::TCP { 443 } else { 53 }]),
        tcp: Some(Tcp { sequence, acknowledgment: 0, flags: 0, window: 0, header_length: 20 }),
        ..Headers::of(&packet)
    }
}

/// Stream of a client whose segments go to an assembly.
struct Client {
    assembly: Assembly,
    messages: Vec<Message>,
}

impl Client {
    fn new() -> Self {
        Self { assembly: Assembly::new(ALL), messages: Vec::new() }
    }

    fn send(&mut self, client: u16, sequence: u32, data: &[u8]) {
        let segment = [&[0; 20], data].concat();
        let headers = headers(ip::TCP, client, sequence, data.len());
        self.assembly.take(&headers, &segment, &mut self.messages);
    }

    /// Sends a segment of DNS with `len` bytes, of which the capture has `data`.
    fn send_dns(&mut self, sequence: u32, data: &[u8], len: usize) {
        let headers = Headers {
            ports: Some([4000, 53]),
            time_ns: sequence.into(),
            ..headers(ip::TCP, 4000, sequence, len)
        };
        self.assembly.take(&headers, &[&[0; 20], data].concat(), &mut self.messages);
    }

    fn send_dns_in_segments(&mut self, stream: &[u8], size: usize) {
        for (i, data) in stream.chunks(size).enumerate() {
            self.send_dns((i * size) as u32, data, data.len());
        }
    }

    /// Starts a stream of DNS with data from `sequence` on.
    fn connect_dns(&mut self, sequence: u32) {
        let mut headers = headers(ip::TCP, 4000, sequence.wrapping_sub(1), 0);
        headers.ports = Some([4000, 53]);
        headers.tcp = headers.tcp.map(|tcp| Tcp { flags: 2, ..tcp });
        self.assembly.take(&headers, &[0; 20], &mut self.messages);
    }

    fn rows(&self) -> Vec<MessageRow> {
        self.messages.iter().filter_map(Message::row).collect()
    }
}

/// Returns the text of a column after those of the packet.
fn text(row: &MessageRow, column: usize) -> Option<&str> {
    match &row.cells()[7 + column] {
        Cell::Text(text) => text.as_deref(),
        Cell::Number(number) => panic!("a number: {number:?}"),
    }
}

const REQUEST: &[u8] = b"GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nUser-Agent: x\r\n\r\n";

#[test]
fn head_in_segments_is_one_row_with_its_fields() {
    for size in [1000, 30, 5] {
        let mut client = Client::new();
        for (i, part) in REQUEST.chunks(size).enumerate() {
            let sequence = u32::MAX.wrapping_add((i * size) as u32);
            client.send(4000, sequence, part);
            client.send(4000, sequence, part);
        }
        let rows = client.rows();
        assert_eq!(rows.len(), 1, "{size}");
        let texts: Vec<_> = [0, 2, 3, 4, 5].iter().map(|column| text(&rows[0], *column)).collect();
        assert_eq!(texts, [Some("request"), Some("GET"), Some("example.org"), Some("/a?b=c"), Some("x")]);
        assert_eq!(*client.assembly.missed(), Missed::default());
    }
}

#[test]
fn message_that_is_sent_again_has_one_row_until_the_stream_begins_again() {
    let mut client = Client::new();
    let length = REQUEST.len() as u32;
    for sequence in [0, 0, length, 0, length] {
        client.send(4000, sequence, REQUEST);
    }
    assert_eq!(client.rows().len(), 2);
    // The first message again, and the start of a third one.
    client.send(4000, length, &[REQUEST, &REQUEST[..9]].concat());
    client.send(4000, 2 * length + 9, &REQUEST[9..]);
    assert_eq!(client.rows().len(), 3);
    // 4 GiB later the numbers are the same, up to the distance of a segment that is sent again.
    client.send(4000, length.wrapping_sub(BEHIND_MAX), REQUEST);
    assert_eq!(client.rows().len(), 4);
    let mut headers = headers(ip::TCP, 4000, 0, 0);
    headers.tcp = headers.tcp.map(|tcp| Tcp { flags: 2, ..tcp });
    client.assembly.take(&headers, &[0; 20], &mut client.messages);
    client.send(4000, 1, REQUEST);
    client.send(4000, 1, REQUEST);
    assert_eq!((client.rows().len(), client.assembly.missed()), (5, &Missed::default()));
}

#[test]
fn connection_that_is_sent_again_has_one_row_and_another_one_its_own() {
    let mut client = Client::new();
    let connect = |client: &mut Client, sequence: u32| {
        let mut headers = headers(ip::TCP, 4000, sequence, 0);
        headers.tcp = headers.tcp.map(|tcp| Tcp { flags: 2, ..tcp });
        client.assembly.take(&headers, &[0; 20], &mut client.messages);
    };
    let length = REQUEST.len() as u32;
    for _ in 0..3 {
        connect(&mut client, u32::MAX);
        client.send(4000, 0, &REQUEST[..9]);
        connect(&mut client, u32::MAX);
        client.send(4000, 9, &REQUEST[9..]);
        client.send(4000, length, REQUEST);
    }
    assert_eq!((client.rows().len(), client.assembly.missed()), (2, &Missed::default()));
    // The numbers of the next connection may begin a little before the end of the last one.
    connect(&mut client, length);
    client.send(4000, length + 1, REQUEST);
    assert_eq!(client.rows().len(), 3);
    // Its SYN ends an incomplete message.
    client.send(4000, 2 * length + 1, &REQUEST[..9]);
    connect(&mut client, 7);
    assert_eq!((client.rows().len(), client.assembly.missed().gaps), (3, 1));
}

#[test]
fn gap_ends_a_message_and_is_counted() {
    let mut client = Client::new();
    client.send(4000, 0, &REQUEST[..20]);
    client.send(4000, 21, &REQUEST[21..]);
    assert_eq!((client.rows().len(), client.assembly.missed().gaps), (0, 1));
    client.send(4000, 500, REQUEST);
    assert_eq!(client.rows().len(), 1);
}

#[test]
fn end_forgets_a_stream_and_counts_an_incomplete_message() {
    let mut client = Client::new();
    for _ in 0..2 {
        client.send(4000, 0, REQUEST);
        client.send(4000, REQUEST.len() as u32, &REQUEST[..9]);
        client.assembly.end();
        client.send(4000, REQUEST.len() as u32 + 9, &REQUEST[9..]);
    }
    assert_eq!(client.rows().len(), 2);
    assert_eq!(*client.assembly.missed(), Missed { gaps: 2, ..Missed::default() });
    // A message that is too long is counted already.
    client.send_dns(0, &[0xff; 100], 100);
    client.assembly.end();
    assert_eq!(*client.assembly.missed(), Missed { gaps: 2, too_long: 1, ..Missed::default() });
    client.send_dns(100, &dns_query(1), dns_query(1).len());
    assert_eq!(client.rows().len(), 3);
}

#[test]
fn long_messages_and_many_incomplete_ones_are_limited_and_counted() {
    let mut client = Client::new();
    client.send(u16::MAX, 0, b"GET / HTTP/1.1\r\n");
    let mut sequence = 16;
    for _ in 0..20 {
        client.send(u16::MAX, sequence, &[b'a'; 1000]);
        sequence += 1000;
    }
    assert_eq!(client.assembly.missed().too_long, 1);
    for port in 0..u16::MAX {
        client.send(port, 0, b"GET / HTTP/1.1\r\n");
    }
    let evicted = client.assembly.missed().evicted;
    assert!(evicted >= u64::from(u16::MAX) - 4096 && evicted < u64::from(u16::MAX), "{evicted}");
    assert!(client.messages.is_empty());
}

#[test]
fn messages_of_dns_over_tcp_follow_one_another() {
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x1c\0\x01";
    let prefixed = [&(query.len() as u16).to_be_bytes()[..], query].concat();
    let mut client = Client::new();
    let headers =
        |sequence, len| Headers { ports: Some([4000, 53]), ..headers(ip::TCP, 4000, sequence, len) };
    let data = [&prefixed[..], &prefixed, &prefixed[..9]].concat();
    let segment = [&[0; 20], &data[..]].concat();
    client.assembly.take(&headers(0, data.len()), &segment, &mut client.messages);
    let rest = [&[0; 20], &prefixed[9..]].concat();
    client.assembly.take(&headers(data.len() as u32, rest.len() - 20), &rest, &mut client.messages);
    let rows = client.rows();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let texts = [0, 5, 6].map(|column| text(&row, column));
        assert_eq!(texts, [Some("query"), Some("example.org"), Some("AAAA")]);
    }
}

/// Returns a query for the name of a host, after its length.
fn dns_query(number: u16) -> Vec<u8> {
    let name = format!("host{number:04}");
    let head = [&number.to_be_bytes()[..], b"\x01\0\0\x01\0\0\0\0\0\0"].concat();
    let query = [&head[..], &[name.len() as u8], name.as_bytes(), b"\x03org\0\0\x01\0\x01"].concat();
    [&(query.len() as u16).to_be_bytes()[..], &query].concat()
}

/// Sizes of segments: of a byte, of Ethernet, and those that a NIC has merged.
const SEGMENT_SIZES: [usize; 5] = [1, 536, 1448, 40_000, 65_000];

#[test]
fn rows_of_dns_over_tcp_do_not_depend_on_segments() {
    let queries: Vec<Vec<u8>> = (0..2000).map(dns_query).collect();
    let stream = queries.concat();
    for size in SEGMENT_SIZES {
        let mut client = Client::new();
        client.send_dns_in_segments(&stream, size);
        assert_eq!(client.rows().len(), queries.len(), "{size}");
        let mut start = 0;
        for (message, query) in client.messages.iter().zip(&queries) {
            assert_eq!(message.bytes, query[2..], "{size}");
            // Its first packet, not that of a message before it.
            assert_eq!(message.headers.time_ns, (start / size * size) as u64, "{size}");
            start += query.len();
        }
        assert_eq!(*client.assembly.missed(), Missed::default(), "{size}");
    }
}

#[test]
fn long_message_of_dns_is_counted_once_and_passed() {
    let inside = (0..1800).map(dns_query).collect::<Vec<_>>().concat();
    for len in [MESSAGE_BYTES_MAX + 1, 40_000] {
        let long = [&(len as u16).to_be_bytes()[..], &inside[..len]].concat();
        let stream = [&dns_query(1)[..], &long, &dns_query(2)].concat();
        for size in SEGMENT_SIZES {
            let mut client = Client::new();
            client.send_dns_in_segments(&stream, size);
            let ids: Vec<_> = client.rows().iter().map(|row| row.cells()[8].clone()).collect();
            assert_eq!(ids, [Cell::number(1_u16), Cell::number(2_u16)], "{size}");
            assert_eq!(*client.assembly.missed(), Missed { too_long: 1, ..Missed::default() }, "{size}");
        }
    }
    let mut client = Client::new();
    let longest = [&(MESSAGE_BYTES_MAX as u16).to_be_bytes()[..], &inside[..MESSAGE_BYTES_MAX]].concat();
    client.send_dns_in_segments(&longest, 1448);
    assert_eq!((client.messages.len(), client.assembly.missed().too_long), (1, 0));
}

#[test]
fn gap_in_a_stream_of_dns_ends_it_until_a_syn() {
    let query = dns_query(1);
    let len = query.len() as u32;
    // The gap is in a message, between messages, and in one that is too long.
    for start in [&query[..9], &query, &[0xff; 100]] {
        let mut client = Client::new();
        client.connect_dns(0);
        client.send_dns(0, start, start.len());
        let before = client.messages.len();
        let missed = *client.assembly.missed();
        for sequence in [1000, 1000 + len, 10] {
            client.send_dns(sequence, &query, query.len());
        }
        assert_eq!(client.messages.len(), before);
        assert_eq!(*client.assembly.missed(), Missed { gaps: 1, ..missed });
        client.connect_dns(5000);
        client.send_dns(5000, &query, query.len());
        client.send_dns(5000 + len, &query, query.len());
        assert_eq!(client.messages.len(), before + 2);
        assert_eq!(*client.assembly.missed(), Missed { gaps: 1, ..missed });
    }
}

#[test]
fn cut_in_a_stream_of_dns_ends_it_until_a_syn() {
    let query = dns_query(1);
    // The cut is in a message, and between messages.
    for len in [query.len() + 9, query.len()] {
        let mut client = Client::new();
        let data = query.repeat(3);
        client.send_dns(0, &data[..len], data.len());
        client.send_dns(len as u32, &query, query.len());
        client.send_dns(data.len() as u32, &query, query.len());
        assert_eq!(client.rows().len(), 1, "{len}");
        assert_eq!(*client.assembly.missed(), Missed { cut: 1, ..Missed::default() }, "{len}");
        client.connect_dns(5000);
        client.send_dns(5000, &query, query.len());
        assert_eq!(client.rows().len(), 2, "{len}");
    }
}

#[test]
fn long_segment_of_dns_is_limited() {
    let mut client = Client::new();
    let stream = (0..4000).map(dns_query).collect::<Vec<_>>().concat();
    client.send_dns_in_segments(&stream, stream.len());
    client.send_dns(stream.len() as u32, &dns_query(1), dns_query(1).len());
    assert_eq!(client.rows().len(), SEGMENT_BYTES_MAX / dns_query(1).len());
    assert_eq!(*client.assembly.missed(), Missed { too_long: 1, ..Missed::default() });
    // The shortest messages: a block of the queue has them beyond its limit.
    let mut client = Client::new();
    client.send_dns_in_segments(&[&[0, 12][..], &[0; 12]].concat().repeat(5000), 70_000);
    let memory: usize = client.messages.iter().map(Message::memory_bytes).sum();
    assert_eq!(client.messages.len(), SEGMENT_BYTES_MAX / 14);
    assert!(memory <= 900 << 10, "{memory}");
}

#[test]
fn messages_of_dns_without_a_header_are_malformed_at_once() {
    let mut assembly = Assembly::new(ALL);
    let mut messages = Vec::new();
    let tcp = |sequence, len| Headers { ports: Some([4000, 53]), ..headers(ip::TCP, 4000, sequence, len) };
    let shortest = [&[0, 12][..], &[0; 12], &[0, 11], &[0; 11]].concat();
    assembly.take(&tcp(0, 27), &[&[0; 20], &shortest[..]].concat(), &mut messages);
    assert_eq!((messages.len(), assembly.missed().malformed), (1, 1));
    assembly.take(&tcp(27, 1460), &[0; 1480], &mut messages);
    assembly.take(&headers(ip::UDP, 4000, 0, 11), &[0; 19], &mut messages);
    assert_eq!((messages.len(), assembly.missed().malformed), (1, 1 + 730 + 1));
}

#[test]
fn texts_end_a_batch_by_their_bytes() {
    // Each byte becomes a replacement character of 3 bytes.
    let value = |row: usize| [row.to_string().as_bytes(), &[0x80; 1000]].concat();
    let mut rows = MessageRows::new(Application::Http);
    let (mut count, mut bytes) = (0, 0);
    while !rows.is_full() {
        let value = value(count);
        let head =
            [b"GET / HTTP/1.1\r\nHost: ", &value[..], b"\r\nUser-Agent: ", &value, b"\r\n\r\n"].concat();
        let message =
            Message { application: Application::Http, headers: headers(ip::TCP, 4000, 0, 0), bytes: head };
        let row = message.row().unwrap();
        let lengths = row.cells().iter().map(|cell| match cell {
            Cell::Text(text) => text.as_ref().map_or(0, String::len),
            Cell::Number(_) => 0,
        });
        assert!(lengths.clone().all(|length| length <= TEXT_BYTES_MAX), "{row:?}");
        bytes += lengths.sum::<usize>();
        rows.append(&[row], &Extras::default());
        count += 1;
        assert!(bytes < TEXTS_BYTES_MAX + 4 * TEXT_BYTES_MAX, "{count} rows with {bytes} bytes");
    }
    assert!(bytes >= TEXTS_BYTES_MAX);
    assert_eq!((rows.finish().unwrap().num_rows(), rows.is_full()), (count, false));
}

#[test]
fn text_is_cut_between_characters_and_an_address_is_not_cut() {
    let text = |bytes: &[u8]| match Cell::bytes(Some(bytes)) {
        Cell::Text(Some(text)) => text,
        other => panic!("{other:?}"),
    };
    let euros = text("\u{20ac}".repeat(400).as_bytes());
    assert_eq!(euros, "\u{20ac}".repeat(341));
    assert_eq!(text(&[0xff; 400]), "\u{fffd}".repeat(341));
    let mut response = b"\x12\x34\x81\0\0\0\0\x40\0\0\0\0".to_vec();
    for last in 0..64 {
        response.extend(b"\0\0\x1c\0\x01\0\0\0\x05\0\x10");
        response.extend([0xfe, 0x80, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, last]);
    }
    let message =
        Message { application: Application::Dns, headers: headers(ip::UDP, 4000, 0, 0), bytes: response };
    let row = message.row().unwrap();
    let Cell::Text(Some(answers)) = &row.cells()[16] else { panic!("{row:?}") };
    let addresses: Vec<IpAddr> = answers.split(' ').map(|address| address.parse().unwrap()).collect();
    assert!(answers.len() <= TEXT_BYTES_MAX && answers.len() > TEXT_BYTES_MAX - 50, "{}", answers.len());
    assert!(addresses.len() < 64);
}

#[test]
fn cut_datagram_is_counted() {
    let mut assembly = Assembly::new(ALL);
    let mut messages = Vec::new();
    assembly.take(&headers(ip::UDP, 4000, 0, 30), &[0; 20], &mut messages);
    assert_eq!((messages.len(), assembly.missed().cut), (0, 1));
}

#[test]
fn ja4_is_that_of_its_specification() {
    // The example of the specification, with the lists that it gives (technical_details/JA4.md).
    let ciphers = "130113021303c02bc02fc02cc030cca9cca8c013c014009c009d002f0035";
    let ciphers: Vec<u8> = unhex(ciphers);
    let algorithms = unhex("04030804040105030805050108060601");
    let mut extensions: Vec<(u16, Vec<u8>)> =
        [0x1b, 0x33, 0xff01, 0x4469, 0x17, 0x12, 0x05, 0x2d, 0x0b, 0x23, 0x15, 0x0a]
            .into_iter()
            .map(|kind| (kind, Vec::new()))
            .collect();
    extensions.push((0, b"\0\x04\0\0\x01a".to_vec()));
    extensions.push((0x10, b"\0\x03\x02h2".to_vec()));
    extensions.push((0x2b, vec![4, 3, 4, 3, 3]));
    extensions.push((0x0d, [&[0, algorithms.len() as u8][..], &algorithms].concat()));
    // Reserved values do not count.
    extensions.push((0x3a3a, Vec::new()));
    let mut list = Vec::new();
    for (kind, content) in &extensions {
        list.extend(kind.to_be_bytes());
        list.extend((content.len() as u16).to_be_bytes());
        list.extend(content);
    }
    let ciphers = [&[0x2a, 0x2a][..], &ciphers].concat();
    let mut body =
        [&[3, 3][..], &[0; 32], &[0], &(ciphers.len() as u16).to_be_bytes(), &ciphers, &[1, 0]].concat();
    body.extend((list.len() as u16).to_be_bytes());
    body.extend(list);
    let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    let record = [&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat();
    let mut client = Client::new();
    client.send(4000, 0, &record);
    let rows = client.rows();
    assert_eq!(text(&rows[0], 6), Some("t13d1516h2_8daaf6152771_e5627efa2ab1"));
    assert_eq!([1, 2, 3].map(|column| text(&rows[0], column)), [Some("1.3"), Some("a"), Some("h2")]);
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

proptest! {
    #[test]
    fn any_messages_of_dns_do_not_depend_on_segments(
        lengths in prop::collection::vec(prop_oneof![0..80_u16, 16_300..16_500_u16, any::<u16>()], 1..12),
        sizes in prop::collection::vec(1..=SEGMENT_BYTES_MAX, 1..8),
    ) {
        let message = |len: &u16| [&len.to_be_bytes()[..], &vec![len.to_be_bytes()[1]; usize::from(*len)]].concat();
        let stream: Vec<u8> = lengths.iter().flat_map(message).collect();
        let mut client = Client::new();
        let (mut at, mut sizes) = (0, sizes.iter().cycle());
        while at < stream.len() {
            let data = &stream[at..stream.len().min(at + sizes.next().unwrap())];
            client.send_dns(at as u32, data, data.len());
            at += data.len();
        }
        let is_short = |len: &&u16| **len < 12;
        let is_long = |len: &&u16| usize::from(**len) > MESSAGE_BYTES_MAX;
        let expected = lengths.iter().filter(|len| !is_short(len) && !is_long(len));
        let lens = client.messages.iter().map(|message| message.bytes.len());
        prop_assert!(lens.eq(expected.map(|len| usize::from(*len))));
        let malformed = lengths.iter().filter(is_short).count() as u64;
        let too_long = lengths.iter().filter(is_long).count() as u64;
        prop_assert_eq!(*client.assembly.missed(), Missed { too_long, malformed, ..Missed::default() });
    }

    #[test]
    fn any_segments_are_within_the_limits(segments in prop::collection::vec((0..3_u16, any::<u8>(), 0..4_usize, prop::collection::vec(any::<u8>(), 0..60)), 0..50)) {
        let mut client = Client::new();
        let starts: [&[u8]; 4] = [b"\x16\x03\x01\x00\x40\x01", b"GET ", b"HTTP/1.1 ", b""];
        for (port, sequence, start, data) in segments {
            client.send(port, u32::from(sequence), &[starts[start], &data].concat());
        }
        prop_assert!(client.messages.iter().all(|message| message.bytes.len() <= 2 * MESSAGE_BYTES_MAX));
        for message in &client.messages {
            let mut rows = MessageRows::new(message.application);
            if let Some(row) = message.row() {
                rows.append(&[row], &Extras::default());
                prop_assert_eq!(rows.finish().unwrap().num_rows(), 1);
            }
        }
    }
}
