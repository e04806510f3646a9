//! Tests of rows: each field has its column, and rows without a field have null.

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type};
use proptest::prelude::*;
use strait_packet::summary::link_type;
use strait_packet::traffic::{Kind, Traffic};

use super::*;
use crate::batches::Batches as _;
use crate::headers::Packet;

fn packet(bytes: &[u8], time_ns: u64) -> Packet<'_> {
    Packet {
        bytes,
        link_type: link_type::ETHERNET,
        wire_len: bytes.len() as u32,
        time_ns,
        interface: 7,
        lane: 0,
        direction: Some(Direction::Out),
        owner: None,
    }
}

fn headers(bytes: &[u8], time_ns: u64) -> Headers {
    Headers::of(&packet(bytes, time_ns))
}

fn names() -> InterfaceNames {
    Arc::new(|index| (index == 7).then(|| "eth0".to_owned()))
}

fn batch(columns: &str, rows: &[Headers]) -> RecordBatch {
    let mut batch = PacketRows::new(&Columns::parse(columns).unwrap(), names(), 16, 0);
    batch.append(rows, &Extras::default());
    batch.finish().unwrap()
}

/// Returns the text of a dictionary column's row.
fn text(batch: &RecordBatch, column: &str, row: usize) -> Option<String> {
    let array = batch.column_by_name(column).unwrap().as_dictionary::<UInt32Type>();
    let values = array.values().as_string::<i32>();
    array.key(row).map(|key| values.value(key).to_owned())
}

#[test]
fn every_column_has_the_type_of_the_schema() {
    let all = Columns::parse("all").unwrap().with_frame().with_owner();
    assert_eq!(all.0.len(), PACKETS.columns.len());
    let owner = Arc::new(Owner { process_id: 9, process: Some("curl".into()), ..Owner::default() });
    let mut extras = Extras::default();
    let packet = |bytes, owner| Packet { owner, ..packet(bytes, 1) };
    let row = |packet: &Packet<'_>, extras: &mut Extras| {
        let mut headers = Headers::of(packet);
        extras.push(packet, 5, &mut headers);
        headers
    };
    let first = row(&packet(&[7; 60], Some(&owner)), &mut extras);
    let second = row(&packet(&[8, 9], None), &mut extras);
    let mut rows = PacketRows::new(&all, names(), 16, 5);
    rows.append(&[first, second], &extras);
    let batch = rows.finish().unwrap();
    let frames = batch.column_by_name("frame").unwrap().as_binary::<i32>();
    assert_eq!((frames.value(0), frames.value(1)), (&[7; 5][..], &[8, 9][..]));
    assert_eq!([0, 1].map(|at| text(&batch, "process", at)), [Some("curl".into()), None]);
    assert_eq!(text(&batch, "user", 0), None);
    let ids = batch.column_by_name("process_id").unwrap().as_primitive::<UInt32Type>();
    assert_eq!((ids.value(0), arrow_array::Array::is_valid(ids, 1)), (9, false));
    assert_eq!(batch.num_columns(), FIELDS.len());
    for (column, field) in PACKETS.columns.iter().zip(batch.schema().fields()) {
        assert_eq!((column.name, &column.kind.data_type()), (field.name().as_str(), field.data_type()));
    }
}

#[test]
fn sets_have_8_13_and_20_columns() {
    let count = |text| Columns::parse(text).map(|columns| columns.0.len());
    assert_eq!((count("basic"), count("headers"), count("standard")), (Ok(8), Ok(13), Ok(20)));
    assert_eq!((count("ttl"), count("basic,ttl,time")), (Ok(2), Ok(9)));
    assert_eq!(Columns::default(), Columns::parse("standard").unwrap());
    assert!(count("basic,tll").unwrap_err().starts_with("tll: no such column"));
    assert!(count("basic,frame").unwrap_err().contains("--frames"));
    assert!(count("user").unwrap_err().contains("--owner"));
}

#[test]
fn row_has_the_fields_of_its_packet() {
    let traffic = Traffic::builder().kinds(&[Kind::Udp4]).vlan(Some(5)).build().unwrap();
    let mut frame = vec![0; traffic.frame_len_max()];
    let len = traffic.write_frame(0, 0, &mut frame);
    let rows = [headers(&frame[..len], 1), headers(&[0xff; 60], 2)];
    let batch = batch("all", &rows);
    let key = strait_packet::FlowKey::of(&frame[..len]).unwrap();
    assert_eq!(text(&batch, "source_address", 0), Some(key.source.address.to_string()));
    assert_eq!(text(&batch, "destination_address", 0), Some(key.destination.address.to_string()));
    assert_eq!(
        (text(&batch, "interface", 0), text(&batch, "direction", 1)),
        (Some("eth0".into()), Some("out".into()))
    );
    let u16_of = |column: &str, row| {
        let array = batch.column_by_name(column).unwrap().as_primitive::<UInt16Type>();
        arrow_array::Array::is_valid(array, row).then(|| array.value(row))
    };
    assert_eq!((u16_of("vlan", 0), u16_of("destination_port", 0)), (Some(5), Some(key.destination.port)));
    for column in ["vlan", "source_port", "tcp_flags"] {
        assert_eq!(u16_of(column, 1), None, "{column} of a frame that is not IP");
    }
    assert_eq!(text(&batch, "source_address", 1), None);
    assert_eq!(text(&batch, "source_mac", 1), Some("ff:ff:ff:ff:ff:ff".into()));
    let [a, b] =
        [0, 6].map(|at| frame[at..at + 6].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>());
    assert_eq!(text(&batch, "destination_mac", 0), Some(a.join(":")));
    assert_eq!(text(&batch, "source_mac", 0), Some(b.join(":")));
}

#[test]
fn frames_end_a_batch_by_their_bytes() {
    let columns = Columns::parse("basic").unwrap().with_frame();
    let mut rows = PacketRows::new(&columns, names(), 16, 60_000);
    let frame = vec![1; 60_000];
    let (mut extras, mut row) = (Extras::default(), headers(&frame, 1));
    extras.push(&packet(&frame, 1), 60_000, &mut row);
    let mut count = 0;
    while !rows.is_full() {
        rows.append(&[row], &extras);
        count += 1;
    }
    assert_eq!(count, FRAMES_BYTES_MAX.div_ceil(60_000));
    let batch = rows.finish().unwrap();
    assert_eq!((batch.num_rows(), rows.is_full()), (count, false));
}

#[test]
fn second_batch_has_only_its_own_rows_and_addresses() {
    let traffic = Traffic::builder().kinds(&Kind::ALL).flows(8).build().unwrap();
    let mut frame = vec![0; traffic.frame_len_max()];
    let mut rows = PacketRows::new(&Columns::default(), names(), 4, 0);
    for (start, count) in [(0, 30), (30, 3)] {
        for sequence in start..start + count {
            let len = traffic.write_frame(sequence, 0, &mut frame);
            rows.append(&[headers(&frame[..len], sequence)], &Extras::default());
        }
        let batch = rows.finish().unwrap();
        assert_eq!((batch.num_rows(), rows.len()), (count as usize, 0));
        let array = batch.column_by_name("source_address").unwrap().as_dictionary::<UInt32Type>();
        assert!(arrow_array::Array::len(array.values()) <= 2 * count as usize);
    }
}

/// Returns a frame with a TCP header of 40 bytes: 20 of them are options.
fn tcp_with_options() -> Vec<u8> {
    let traffic = Traffic::builder().kinds(&[Kind::Tcp4]).build().unwrap();
    let mut frame = vec![0; traffic.frame_len_max()];
    let len = traffic.write_frame(0, 0, &mut frame);
    frame.truncate(len.max(TCP_AT + 40));
    frame[TCP_AT + 12] = 10 << 4 | frame[TCP_AT + 12] & 0xf;
    frame
}

/// Offset of the transport header after Ethernet and IPv4.
const TCP_AT: usize = 34;

#[test]
fn cut_options_leave_the_fields_of_tcp() {
    let frame = tcp_with_options();
    let whole = headers(&frame, 1).tcp.unwrap();
    assert_eq!(whole.header_length, 40);
    for length in [TCP_AT + 20, TCP_AT + 32] {
        assert_eq!(headers(&frame[..length], 1).tcp, Some(whole), "{length}");
    }
    let cut = headers(&frame[..TCP_AT + 19], 1);
    assert!(cut.tcp.is_none() && cut.ports.is_some());
}

#[test]
fn flow_of_cut_tcp_headers_has_no_flags() {
    let frame = tcp_with_options();
    let flags = |length: usize| {
        let mut table = crate::flows::FlowTable::new(crate::flows::FlowLimits::default());
        let mut ended = Vec::new();
        table.take(&headers(&frame[..length], 1), &mut ended);
        table.drain(1, &mut ended);
        let mut rows = crate::flows::FlowRows::new(names());
        rows.append(&ended, &Extras::default());
        let batch = rows.finish().unwrap();
        ["tcpControlBits", "reverseTcpControlBits"].map(|name| {
            let array = batch.column_by_name(name).unwrap().as_primitive::<UInt16Type>();
            arrow_array::Array::is_valid(array, 0).then(|| array.value(0))
        })
    };
    let whole = headers(&frame, 1).tcp.unwrap().flags;
    assert_eq!(flags(TCP_AT + 20), [Some(whole), Some(0)]);
    assert_eq!(flags(TCP_AT + 8), [None, None]);
}

#[test]
fn cut_header_leaves_the_tags_and_types_before_it() {
    let mut frame = [0; 22];
    frame[12..].copy_from_slice(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]);
    let fields = |length: usize| {
        let headers = headers(&frame[..length], 1);
        (headers.vlan, headers.inner_vlan, headers.ether_type)
    };
    assert_eq!(fields(22), (Some(5), Some(6), Some(0x0800)), "the IPv4 header is cut");
    assert_eq!(fields(21), (Some(5), None, None));
    assert_eq!(fields(17), (None, None, None));
}

#[test]
fn atomic_fragment_is_a_whole_packet() {
    let mut packet = [0; 60];
    packet[0] = 0x60;
    (packet[5], packet[6], packet[7]) = (20, 44, 64);
    (packet[40], packet[47]) = (17, 9);
    packet[48..52].copy_from_slice(&[0, 53, 0, 54]);
    let of = |packet: &[u8]| {
        let packet = Packet {
            bytes: packet,
            link_type: link_type::RAW,
            wire_len: 60,
            time_ns: 1,
            interface: 0,
            lane: 0,
            direction: None,
            owner: None,
        };
        Headers::of(&packet)
    };
    let atomic = of(&packet);
    let internet = atomic.internet.unwrap();
    assert_eq!((internet.identification, internet.fragment_offset), (Some(9), None));
    assert_eq!(atomic.ports, Some([53, 54]));
    packet[43] = 1;
    assert_eq!(of(&packet).internet.unwrap().fragment_offset, Some(0), "more fragments follow");
}

proptest! {
    #[test]
    fn any_bytes_of_any_link_type_become_a_row(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..5_usize) {
        let link_type = [link_type::ETHERNET, link_type::RAW, link_type::LINUX_SLL2, link_type::NULL, 9999][kind];
        let packet = Packet {
            bytes: &bytes, link_type, wire_len: u32::MAX, time_ns: u64::MAX, interface: 1, lane: 0, direction: None, owner: None,
        };
        let batch = batch("all", &[Headers::of(&packet)]);
        prop_assert_eq!(batch.num_rows(), 1);
    }
}

#[test]
fn batches_have_the_rows_and_frames_in_order_and_end_at_their_limit() {
    let columns = Columns::parse("length").unwrap().with_frame();
    let mut batches = PacketBatches::new(&columns, names(), 700, 4);
    let frames: Vec<Vec<u8>> = (0..1000_u32).map(|number| number.to_be_bytes().repeat(3)).collect();
    let mut rows = Vec::new();
    for (bytes, at) in frames.iter().zip(0..) {
        if batches.space() == 0 {
            rows.push(batches.finish().unwrap());
        }
        batches.push(&packet(bytes, at));
    }
    assert_eq!((batches.len(), batches.space()), (300, 400));
    rows.push(batches.finish().unwrap());
    assert!(batches.is_empty());
    assert_eq!(rows.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [700, 300]);
    assert_eq!(rows[0].schema(), batches.schema());
    let stored = rows.iter().flat_map(|batch| {
        let column = batch.column_by_name("frame").unwrap().as_binary::<i32>().clone();
        column.iter().map(|frame| frame.unwrap().to_vec()).collect::<Vec<_>>()
    });
    assert!(stored.eq(frames.iter().map(|frame| frame[..4].to_vec())));
}

#[test]
fn batch_of_long_frames_has_no_space_before_its_rows_are_many() {
    let columns = Columns::parse("length").unwrap().with_frame();
    let mut batches = PacketBatches::new(&columns, names(), PacketBatches::ROWS_MAX, 262_144);
    let frame = vec![0; 262_144];
    let mut pushed = 0;
    while batches.space() > 0 {
        batches.push(&packet(&frame, pushed));
        pushed += 1;
    }
    assert_eq!(pushed as usize, FRAMES_BYTES_MAX / frame.len());
}
