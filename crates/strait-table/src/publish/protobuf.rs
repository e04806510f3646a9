//! Messages of Protocol Buffers: one for each flow, with the columns of the table as fields.

use std::fmt::Write as _;

use prost::Message as _;

use super::values::Texts;
use crate::export::{Build, Message, Record};
use crate::schema::{FLOWS, Kind};

/// Number of the field of the first column. Field 1 is the sensor.
const FIRST: usize = 2;

/// Message of a flow: field N is column N - 2 of the table.
#[derive(Clone, PartialEq, prost::Message)]
#[expect(clippy::struct_field_names, reason = "the names are those of IPFIX")]
struct Flow {
    #[prost(string, tag = "1")]
    sensor: String,
    #[prost(uint64, tag = "2")]
    flow_start_nanoseconds: u64,
    #[prost(uint64, tag = "3")]
    flow_end_nanoseconds: u64,
    #[prost(uint32, tag = "4")]
    flow_end_reason: u32,
    #[prost(string, optional, tag = "5")]
    interface_name: Option<String>,
    #[prost(uint32, optional, tag = "6")]
    vlan_id: Option<u32>,
    #[prost(string, tag = "7")]
    source_address: String,
    #[prost(string, tag = "8")]
    destination_address: String,
    #[prost(uint32, optional, tag = "9")]
    source_transport_port: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    destination_transport_port: Option<u32>,
    #[prost(uint32, tag = "11")]
    protocol_identifier: u32,
    #[prost(uint32, optional, tag = "12")]
    icmp_type_code: Option<u32>,
    #[prost(string, tag = "13")]
    community_id: String,
    #[prost(uint64, tag = "14")]
    packet_delta_count: u64,
    #[prost(uint64, tag = "15")]
    reverse_packet_delta_count: u64,
    #[prost(uint64, tag = "16")]
    octet_delta_count: u64,
    #[prost(uint64, tag = "17")]
    reverse_octet_delta_count: u64,
    #[prost(uint32, optional, tag = "18")]
    tcp_control_bits: Option<u32>,
    #[prost(uint32, optional, tag = "19")]
    reverse_tcp_control_bits: Option<u32>,
    #[prost(uint64, optional, tag = "20")]
    handshake_nanoseconds: Option<u64>,
    #[prost(uint32, tag = "21")]
    retransmitted: u32,
    #[prost(uint32, tag = "22")]
    reverse_retransmitted: u32,
    #[prost(uint32, tag = "23")]
    out_of_order: u32,
    #[prost(uint32, tag = "24")]
    reverse_out_of_order: u32,
    #[prost(uint32, tag = "25")]
    zero_windows: u32,
    #[prost(uint32, tag = "26")]
    reverse_zero_windows: u32,
}

impl Flow {
    fn of(record: &Record<'_>, sensor: &str) -> Self {
        let (row, texts) = (record.row, Texts::of(record.row));
        let [to, back] = &row.sides;
        Self {
            sensor: sensor.to_owned(),
            flow_start_nanoseconds: row.start_ns,
            flow_end_nanoseconds: row.end_ns,
            flow_end_reason: row.reason as u32,
            interface_name: record.interface.map(str::to_owned),
            vlan_id: row.vlan.map(u32::from),
            source_address: texts.source,
            destination_address: texts.destination,
            source_transport_port: row.port(0).map(u32::from),
            destination_transport_port: row.port(1).map(u32::from),
            protocol_identifier: row.protocol.into(),
            icmp_type_code: row.type_and_code().map(u32::from),
            community_id: texts.id,
            packet_delta_count: to.packets,
            reverse_packet_delta_count: back.packets,
            octet_delta_count: to.octets,
            reverse_octet_delta_count: back.octets,
            tcp_control_bits: row.flags(0).map(u32::from),
            reverse_tcp_control_bits: row.flags(1).map(u32::from),
            handshake_nanoseconds: row.handshake_ns,
            retransmitted: to.retransmitted,
            reverse_retransmitted: back.retransmitted,
            out_of_order: to.out_of_order,
            reverse_out_of_order: back.out_of_order,
            zero_windows: to.zero_windows,
            reverse_zero_windows: back.zero_windows,
        }
    }
}

/// Gathers messages of flows, each after its length as a varint.
pub(super) struct Delimited {
    sensor: String,
    message: Message,
}

impl Delimited {
    pub(super) fn new(sensor: &str) -> Self {
        Self { sensor: sensor.to_owned(), message: Message::default() }
    }
}

impl Build for Delimited {
    fn push(&mut self, record: &Record<'_>, bytes_max: usize) -> Option<Message> {
        let flow = Flow::of(record, &self.sensor).encode_length_delimited_to_vec();
        let is_full = self.message.bytes.len() + flow.len() > bytes_max;
        let complete = if is_full { self.finish() } else { None };
        self.message.bytes.extend(flow);
        self.message.count(record.row);
        complete
    }

    fn finish(&mut self) -> Option<Message> {
        (!self.message.flows.is_empty()).then(|| std::mem::take(&mut self.message))
    }
}

/// Returns the definition of the message for compilers of Protocol Buffers.
pub fn definition() -> String {
    let mut text = format!(
        "// Flow of strait capture --to nats://HOST/SUBJECT?format=protobuf or kafka://HOST/TOPIC?format=protobuf:\n\
         // {}. A field that is not there has no value, or is 0 if it is not optional.\n\
         syntax = \"proto3\";\n\n\
         package strait;\n\n\
         message Flow {{\n  \
         // name of the sensor: --sensor, else the name of the host\n  \
         string sensor = 1;\n",
        FLOWS.about
    );
    for (number, column) in (FIRST..).zip(FLOWS.columns) {
        let unit = if column.kind == Kind::Time { ", in nanoseconds since 1970 UTC" } else { "" };
        let optional = if column.nullable { "optional " } else { "" };
        let (kind, name) = (field_type(column.kind), snake_case(column.name));
        // Writing to memory does not fail.
        let _ = writeln!(text, "  // {}{unit}\n  {optional}{kind} {name} = {number};", column.about);
    }
    text + "}\n"
}

/// Returns the type of a field.
fn field_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Time | Kind::I64 => "uint64",
        Kind::U8 | Kind::U16 | Kind::U32 => "uint32",
        Kind::Text => "string",
        Kind::Bytes(_) | Kind::Binary => "bytes",
    }
}

/// Returns the name of a field, which becomes the name of the column in Protobuf's JSON.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
