//! Messages of Protocol Buffers: one for each flow, with the columns of the table as fields.

use std::fmt::Write as _;

use prost::encoding::{WireType, encode_key, encode_varint};

use super::values::{Texts, Value, values};
use crate::export::{Build, Message, Record};
use crate::schema::{FLOWS, Kind};

/// Number of the field of the first column. Field 1 is the sensor.
const FIRST: u32 = 2;

/// Returns the message of a flow.
fn message(record: &Record<'_>, sensor: &str) -> Vec<u8> {
    let texts = Texts::of(record.row);
    let mut message = Vec::new();
    put(&mut message, FIRST - 1, Value::Text(sensor), false);
    for ((number, column), value) in (FIRST..).zip(FLOWS.columns).zip(values(record, &texts)) {
        put(&mut message, number, value, column.nullable);
    }
    message
}

/// Appends a field. One that is not optional is left out if it is zero or empty.
fn put(message: &mut Vec<u8>, number: u32, value: Value<'_>, is_optional: bool) {
    match value {
        Value::Null => {}
        Value::Number(0) | Value::Time(0) | Value::Text("") if !is_optional => {}
        Value::Number(value) | Value::Time(value) => {
            encode_key(number, WireType::Varint, message);
            encode_varint(value, message);
        }
        Value::Text(text) => {
            encode_key(number, WireType::LengthDelimited, message);
            encode_varint(text.len() as u64, message);
            message.extend(text.as_bytes());
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
        let flow = message(record, &self.sensor);
        let mut length = Vec::new();
        encode_varint(flow.len() as u64, &mut length);
        let is_full = self.message.bytes.len() + length.len() + flow.len() > bytes_max;
        let complete = if is_full { self.finish() } else { None };
        self.message.bytes.extend(length);
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
