//! Summaries: as documented, and as tcpdump writes them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use etherparse::{PacketBuilder, TcpOptionElement};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use strait_packet::summary::{self, CONNECTIONS_MAX, Detail, Options, Sequences, link_type};
use strait_packet::vlan::Tag;

use crate::frames::{MACS, frame};

fn line(frame: &[u8]) -> String {
    let mut line = String::new();
    summary::write(&mut line, frame, frame.len() as u32, &Options::default()).unwrap();
    line
}

fn v4() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
}

fn v6() -> etherparse::PacketBuilderStep<etherparse::IpHeaders> {
    let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    PacketBuilder::ethernet2(MACS.0, MACS.1).ipv6(address(1), address(2), 64)
}

fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    v4().udp(source, destination).write(&mut frame, payload).unwrap();
    frame
}

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [MACS.1, MACS.0].concat();
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

fn ipv4_of(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 20 + payload.len() as u8, 0x12, 0x34, 0, 0, 64, protocol, 0, 0];
    packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(payload);
    ethernet(0x0800, &packet)
}

fn tcp_syn() -> Vec<u8> {
    let options = [
        TcpOptionElement::MaximumSegmentSize(1460),
        TcpOptionElement::SelectiveAcknowledgementPermitted,
        TcpOptionElement::Timestamp(100, 0),
        TcpOptionElement::Noop,
        TcpOptionElement::WindowScale(7),
    ];
    let mut frame = Vec::new();
    let segment = v4().tcp(4242, 443, 1000, 64240).syn().ack(77).options(&options).unwrap();
    segment.write(&mut frame, &[]).unwrap();
    frame
}

fn arp(operation: u8) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
    packet.extend(MACS.0);
    packet.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    ethernet(0x0806, &packet)
}

fn dns_query() -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(b"\x07example\x03net\x00\x00\x01\x00\x01");
    message
}

fn dns_response() -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 0x81, 0x80, 0, 1, 0, 3, 0, 0, 0, 0];
    message.extend(b"\x07example\x03net\x00\x00\x01\x00\x01");
    message.extend(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x0e\x10\x00\x06\x03www\xc0\x0c");
    message.extend(b"\xc0\x29\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04\xc0\x00\x02\x01");
    message.extend(b"\xc0\x29\x00\x1c\x00\x01\x00\x00\x0e\x10\x00\x10");
    message.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    message
}

fn port_unreachable() -> Vec<u8> {
    let quoted = &udp(4242, 9, &[0; 4])[14..];
    ipv4_of(1, &[&[3, 3, 0, 0, 0, 0, 0, 0], quoted].concat())
}

fn neighbor_solicitation() -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let mut frame = Vec::new();
    v6().icmpv6_raw(135, 0, [0; 4]).write(&mut frame, &body[4..]).unwrap();
    frame
}

/// Returns frames with a summary that equals the line of tcpdump.
fn shared_cases() -> Vec<(Vec<u8>, &'static str)> {
    let mut echo = Vec::new();
    v4().icmpv4_echo_request(7, 1).write(&mut echo, &[0; 56]).unwrap();
    let mut echo6 = Vec::new();
    v6().icmpv6_echo_reply(7, 2).write(&mut echo6, &[0; 56]).unwrap();
    let mut tcp6 = Vec::new();
    v6().tcp(4242, 4343, 5, 512).ack(9).psh().write(&mut tcp6, b"hello").unwrap();
    let mut reset = Vec::new();
    v4().tcp(4242, 4343, 5, 0).rst().write(&mut reset, &[]).unwrap();
    vec![
        (udp(4343, 4242, &[0; 30]), "IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 30"),
        (
            tcp_syn(),
            "IP 10.0.0.1.4242 > 10.0.0.2.443: Flags [S.], seq 1000, ack 77, win 64240, \
             options [mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7], length 0",
        ),
        (tcp6, "IP6 fd00::1.4242 > fd00::2.4343: Flags [P.], seq 5:10, ack 9, win 512, length 5"),
        (reset, "IP 10.0.0.1.4242 > 10.0.0.2.4343: Flags [R], seq 5, win 0, length 0"),
        (echo, "IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 7, seq 1, length 64"),
        (echo6, "IP6 fd00::1 > fd00::2: ICMP6, echo reply, id 7, seq 2, length 64"),
        (arp(1), "ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 28"),
        (arp(2), "ARP, Reply 10.0.0.1 is-at 02:00:00:00:00:01, length 28"),
        (udp(4242, 53, &dns_query()), "IP 10.0.0.1.4242 > 10.0.0.2.53: 4660+ A? example.net. (29)"),
        (
            udp(53, 4242, &dns_response()),
            "IP 10.0.0.1.53 > 10.0.0.2.4242: 4660 3/0/0 CNAME www.example.net., A 192.0.2.1, \
             AAAA 2001:db8::1 (91)",
        ),
        (port_unreachable(), "IP 10.0.0.1 > 10.0.0.2: ICMP 10.0.0.2 udp port 9 unreachable, length 40"),
        (
            neighbor_solicitation(),
            "IP6 fd00::1 > fd00::2: ICMP6, neighbor solicitation, who has fe80::9, length 24",
        ),
        (
            ipv4_of(4, &udp(4343, 4242, &[0; 3])[14..]),
            "IP 10.0.0.1 > 10.0.0.2: IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 3",
        ),
    ]
}

#[test]
fn summaries_are_as_documented() {
    for (frame, expected) in shared_cases() {
        assert_eq!(line(&frame), expected);
    }
}

#[test]
fn summaries_that_differ_from_tcpdump_are_as_documented() {
    let fragment = |flags: u8, offset: u8| {
        let mut frame = udp(4343, 4242, &[0; 24]);
        frame[18..22].copy_from_slice(&[0x12, 0x34, flags, offset]);
        line(&frame)
    };
    assert_eq!(fragment(0x20, 0), "IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 24 (frag 4660:32@0+)");
    assert_eq!(fragment(0, 4), "IP 10.0.0.1 > 10.0.0.2: udp (frag 4660:32@32)");
    let mut tagged = udp(4343, 4242, &[0; 30]);
    tagged.splice(12..12, [0x81, 0, 0x20, 5]);
    assert_eq!(line(&tagged), "vlan 5, p 1, IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 30");
    tagged.splice(12..12, [0x88, 0xa8, 0x10, 9]);
    assert!(line(&tagged).starts_with("vlan 9, p 0, DEI, vlan 5, p 1, IP 10.0.0.1.4343 > "));
    let unknown = "02:00:00:00:00:01 > 02:00:00:00:00:02, ";
    assert_eq!(line(&ethernet(0x88b5, &[0; 46])), format!("{unknown}ethertype 0x88b5, length 60"));
    assert_eq!(line(&ethernet(0x88cc, &[0; 46])), format!("{unknown}ethertype LLDP (0x88cc), length 60"));
    assert_eq!(line(&ethernet(38, &[0x42; 46])), format!("{unknown}802.3, dsap 0x42, ssap 0x42, length 60"));
    assert_eq!(line(&ipv4_of(132, &[0; 12])), "IP 10.0.0.1 > 10.0.0.2: sctp, length 12");
    assert_eq!(line(&ipv4_of(200, &[0; 12])), "IP 10.0.0.1 > 10.0.0.2: ip-proto-200, length 12");
}

/// Returns the end of the line of a segment or datagram, behind the length.
fn application(frame: &[u8], len: usize) -> String {
    let line = line(frame);
    let (_, end) = line.split_once(&format!("length {len}")).unwrap_or_else(|| panic!("{line}"));
    end.to_owned()
}

fn of_segment(payload: &[u8]) -> String {
    let mut frame = Vec::new();
    v4().tcp(4242, 8080, 5, 512).write(&mut frame, payload).unwrap();
    application(&frame, payload.len())
}

fn of_datagram(ports: [u16; 2], payload: &[u8]) -> String {
    application(&udp(ports[0], ports[1], payload), payload.len())
}

#[test]
fn first_lines_of_http_and_sip_follow_the_length() {
    assert_eq!(of_segment(b"GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n"), ": HTTP: GET /a?b HTTP/1.1");
    assert_eq!(of_segment(b"HTTP/1.1 404 Not Found\r\n"), ": HTTP: HTTP/1.1 404 Not Found");
    let invite = b"INVITE sip:b@example.org SIP/2.0\r\nVia: x\r\n";
    assert_eq!(of_datagram([5060, 4242], invite), ": SIP: INVITE sip:b@example.org SIP/2.0");
    assert_eq!(of_segment(b"SIP/2.0 180 Ringing\r\n"), ": SIP: SIP/2.0 180 Ringing");
    // Control characters reach no terminal, and no line is long.
    assert_eq!(of_segment(b"GET /\x1b[2J\\\xff"), ": HTTP: GET /\\x1b[2J\\\\\\xff");
    let long = [&b"GET /"[..], &[b'a'; 1000]].concat();
    assert_eq!(of_segment(&long), format!(": HTTP: GET /{}...", "a".repeat(195)));
    for other in [&b"get / HTTP/1.1\r\n"[..], b"SIP", b"", b"xSIP/2.0\r\n"] {
        assert_eq!((of_segment(other), of_datagram([5060, 5060], other)), (String::new(), String::new()));
    }
}

/// Returns a record of TLS with a hello that has a name and a protocol.
fn client_hello() -> Vec<u8> {
    let name = b"\0\0\0\x0a\0\x08\0\0\x05a.org";
    let protocols = b"\0\x10\0\x05\0\x03\x02h2";
    let extensions = [&name[..], protocols].concat();
    let mut body = vec![3, 3];
    body.extend([0; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0, 0, extensions.len() as u8]);
    body.extend(extensions);
    let record = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 1, 0, record.len() as u8][..], &record].concat()
}

#[test]
fn hellos_of_tls_follow_the_length() {
    let hello = client_hello();
    assert_eq!(of_segment(&hello), ": TLS client hello, name a.org, alpn h2");
    // The rest is in another segment.
    assert_eq!(of_segment(&hello[..40]), ": TLS client hello");
    let mut spoofed = hello.clone();
    let at = spoofed.len() - 9 - 5;
    assert_eq!(&spoofed[at..at + 5], b"a.org");
    spoofed[at..at + 5].copy_from_slice(b"a, :b");
    assert_eq!(of_segment(&spoofed), ": TLS client hello, name a\\x2c\\x20\\x3ab, alpn h2");
    // A record without content.
    assert_eq!(of_segment(&[22, 3, 1, 0, 0, 1]), "");
    let mut server = hello;
    server[5] = 2;
    assert_eq!(of_segment(&server[..40]), ": TLS server hello");
}

#[test]
fn initial_packets_of_quic_follow_the_length() {
    let head = [0xc0, 0, 0, 0, 1, 2, 0xab, 0xcd, 1, 0xef, 0, 20];
    let initial = [&head[..], &[0; 20]].concat();
    assert_eq!(of_datagram([4242, 443], &initial), ": QUIC initial, v1, dcid abcd, scid ef");
    assert_eq!(of_datagram([4242, 443], &[0xf0, 0, 0, 0, 1, 0, 0, 9]), ": QUIC retry");
    assert_eq!(of_datagram([4242, 443], &initial[..9]), "");
}

#[test]
fn types_of_dhcp_follow_the_length() {
    let mut message = vec![0; 236];
    message[28..34].copy_from_slice(&MACS.0);
    let with = |options: &[u8]| of_datagram([68, 67], &[&message, &[99, 130, 83, 99][..], options].concat());
    assert_eq!(with(&[0, 12, 1, b'a', 53, 1, 1, 255]), ": DHCP discover, client 02:00:00:00:00:01");
    assert_eq!(with(&[53, 1, 9]), ": DHCP message, client 02:00:00:00:00:01");
    for cut in [&[255, 53, 1, 1][..], &[12, 9, 53], &[53], &[53, 0], &[]] {
        assert_eq!(with(cut), "");
    }
}

#[test]
fn cut_or_malformed_header_ends_the_summary() {
    let syn = tcp_syn();
    let cut = |len: usize| line(&syn[..len]);
    assert_eq!(cut(13), "[|ether]");
    assert_eq!(cut(30), "IP [|ip]");
    assert_eq!(cut(37), "IP 10.0.0.1 > 10.0.0.2: [|tcp]");
    assert_eq!(cut(50), "IP 10.0.0.1.4242 > 10.0.0.2.443: [|tcp]");
    let mut wrong = syn.clone();
    wrong[14] = 0x44;
    assert_eq!(line(&wrong), "IP [bad header length 16]");
    wrong[14] = 0x55;
    assert_eq!(line(&wrong), "IP [bad version 5]");
    let mut wrong = syn;
    wrong[46] = 0x10;
    assert_eq!(line(&wrong), "IP 10.0.0.1.4242 > 10.0.0.2.443: [bad header length 4]");
}

#[test]
fn lengths_are_those_on_the_wire_of_a_cut_frame() {
    let frame = udp(4343, 4242, &[0; 1000]);
    let mut line = String::new();
    summary::write(&mut line, &frame[..60], frame.len() as u32, &Options::default()).unwrap();
    assert_eq!(line, "IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 1000");
}

#[test]
fn other_link_types_and_removed_tags_are_parsed() {
    let frame = udp(4343, 4242, &[0; 30]);
    let read = |link_type: u16, head: &[u8]| {
        let bytes = [head, &frame[14..]].concat();
        let tag = Some(Tag { tpid: 0x8100, tci: 7 });
        let mut line = String::new();
        summary::write(&mut line, &bytes, bytes.len() as u32, &Options { link_type, tag }).unwrap();
        line
    };
    let expected = "vlan 7, p 0, IP 10.0.0.1.4343 > 10.0.0.2.4242: UDP, length 30";
    assert_eq!(read(link_type::RAW, &[]), expected);
    assert_eq!(read(link_type::NULL, &[2, 0, 0, 0]), expected);
    assert_eq!(read(link_type::LINUX_SLL, &[[0; 14].as_slice(), &[8, 0]].concat()), expected);
    assert_eq!(read(link_type::LINUX_SLL2, &[[8, 0].as_slice(), &[0; 18]].concat()), expected);
    assert_eq!(read(147, &[]), "vlan 7, p 0, link type 147, length 58");
}

#[test]
fn time_is_the_utc_time_of_day() {
    let text = |ns| {
        let mut text = String::new();
        summary::write_time(&mut text, ns).unwrap();
        text
    };
    assert_eq!(text(0), "00:00:00.000000000");
    assert_eq!(text(1_700_000_000_123_456_789), "22:13:20.123456789");
    assert_eq!(text(u64::MAX).len(), 18);
}

/// Lines of `tcpdump -n -t` with `options`, one per frame; `None` if it cannot be run.
fn tcpdump(frames: &[Vec<u8>], options: &[&str]) -> Option<Vec<String>> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-t", "-r", "-"]).args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().ok()?;
    let mut input = child.stdin.take()?;
    let writer = std::thread::spawn(move || input.write_all(&file));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    String::from_utf8(output.stdout).ok().map(|text| text.lines().map(str::to_owned).collect())
}

/// Returns true if tcpdump parses the payload of this frame's ports, or writes tags: the summary is
/// then not compared.
fn is_not_comparable(frame: &[u8]) -> bool {
    let tagged = frame[12..14] == [0x81, 0];
    let transport = if frame[12..14] == [0x08, 0] { 34 } else { 54 };
    let ports = [0, 2].map(|at| u16::from_be_bytes([frame[transport + at], frame[transport + at + 1]]));
    tagged || ports.iter().any(|port| !(40_000..=49_000).contains(port))
}

#[test]
fn summaries_equal_those_of_tcpdump() {
    let mut runner = TestRunner::deterministic();
    let mut frames: Vec<Vec<u8>> = shared_cases().into_iter().map(|(frame, _)| frame).collect();
    for _ in 0..400 {
        let mut frame = frame().new_tree(&mut runner).unwrap().current();
        if frame[12..14] != [0x81, 0] {
            let transport = if frame[12..14] == [0x08, 0] { 34 } else { 54 };
            if [6, 17].contains(&frame[if transport == 34 { 23 } else { 20 }]) {
                frame[transport] = 0xa0;
                frame[transport + 2] = 0xa1;
            }
        }
        frames.push(frame);
    }
    let is_icmp = |frame: &[u8]| line(frame).contains("ICMP");
    let known = shared_cases().len();
    let mut place = 0;
    frames.retain(|frame| {
        place += 1;
        place <= known || frame[12..14] != [0x81, 0] && (is_icmp(frame) || !is_not_comparable(frame))
    });
    let Some(theirs) = tcpdump(&frames, &["-S"]).filter(|lines| !lines.is_empty()) else {
        eprintln!("SKIP summaries_equal_those_of_tcpdump: tcpdump is not installed");
        return;
    };
    assert_eq!(theirs.len(), frames.len());
    assert!(frames.len() > known + 100, "{} frames", frames.len());
    for (frame, theirs) in frames.iter().zip(theirs) {
        assert_eq!(line(frame), theirs);
    }
}

/// Returns the line of `frame` with relative sequence numbers.
fn relative_line(frame: &[u8], sequences: &mut Sequences) -> String {
    let (mut line, options, detail) = (String::new(), Options::default(), Detail::default());
    summary::write_relative(&mut line, frame, frame.len() as u32, &options, detail, sequences).unwrap();
    line
}

/// Returns a segment between two hosts with few connections, from random bits.
fn segment_of(bits: u64) -> Vec<u8> {
    let (source, destination) = if bits & 1 == 0 { (1, 2) } else { (2, 1) };
    let port = |bit: u64| 40_000 + (bits >> bit & 3) as u16;
    let (sequence, acknowledgment) = ((bits >> 8) as u32, (bits >> 24) as u32);
    let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let ethernet = PacketBuilder::ethernet2(MACS.0, MACS.1);
    let builder = match bits >> 7 & 1 {
        0 => ethernet.ipv4([10, 0, 0, source], [10, 0, 0, destination], 64),
        _ => ethernet.ipv6(address(source), address(destination), 64),
    };
    let mut segment = builder.tcp(port(1), port(3), sequence, 512);
    if bits >> 60 != 0 {
        segment = segment.ack(acknowledgment);
    }
    segment = match bits >> 56 & 7 {
        0 => segment.syn(),
        1 => segment.rst(),
        2 => segment.fin(),
        _ => segment.psh(),
    };
    let sack = [Some((sequence ^ 5, sequence ^ 9)), None, None];
    let options = TcpOptionElement::SelectiveAcknowledgement((acknowledgment, acknowledgment ^ 7), sack);
    if bits >> 54 & 3 == 1 {
        segment = segment.options(&[options, TcpOptionElement::Noop, TcpOptionElement::Noop]).unwrap();
    }
    let mut frame = Vec::new();
    segment.write(&mut frame, &[0; 9][..(bits >> 40 & 7) as usize]).unwrap();
    frame
}

#[test]
fn relative_sequence_numbers_equal_those_of_tcpdump() {
    let mut runner = TestRunner::deterministic();
    let bits = prop::collection::vec(any::<u64>(), 2000).new_tree(&mut runner).unwrap().current();
    let frames: Vec<Vec<u8>> = bits.into_iter().map(segment_of).collect();
    let Some(theirs) = tcpdump(&frames, &[]).filter(|lines| !lines.is_empty()) else {
        eprintln!("SKIP relative_sequence_numbers_equal_those_of_tcpdump: tcpdump is not installed");
        return;
    };
    assert_eq!(theirs.len(), frames.len());
    let mut sequences = Sequences::default();
    for (frame, theirs) in frames.iter().zip(theirs) {
        assert_eq!(relative_line(frame, &mut sequences), theirs);
    }
}

#[test]
fn connection_that_left_the_table_begins_again() {
    let segment = |source: u16, sequence| {
        let mut frame = Vec::new();
        let host = [10, 0, (source >> 8) as u8, source as u8];
        let ethernet = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(host, [10, 9, 9, 9], 64);
        ethernet.tcp(4242, 8080, sequence, 512).ack(1).write(&mut frame, b"x").unwrap();
        frame
    };
    let mut sequences = Sequences::default();
    assert!(relative_line(&segment(0, 1000), &mut sequences).contains("seq 1000:1001, ack 1,"));
    assert!(relative_line(&segment(0, 1010), &mut sequences).contains("seq 10:11, ack 1,"));
    let others = (1..u16::MAX).chain(1..u16::MAX);
    for source in others {
        relative_line(&segment(source, 5), &mut sequences);
    }
    // More connections than the table has places were used since.
    const { assert!(CONNECTIONS_MAX <= u16::MAX as usize + 1) };
    let evicted = (0..200)
        .filter(|source| relative_line(&segment(*source, 2000), &mut sequences).contains("seq 2000:2001"));
    assert!(evicted.count() > 0);
}
