//! Lines of JSON: an object for each flow, with the names and the values of the table `flows`.

use std::io::Write as _;

use time::OffsetDateTime;

use crate::community_id;
use crate::export::{Build, Message, Record};
use crate::flows::{FlowRow, Side};
use crate::schema::FLOWS;

/// Value of a column.
enum Value<'a> {
    Null,
    Number(u64),
    Text(&'a str),
    /// Nanoseconds since the epoch.
    Time(u64),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<u64>> From<Option<T>> for Value<'_> {
    fn from(number: Option<T>) -> Self {
        number.map_or(Self::Null, |number| Self::Number(number.into()))
    }
}

/// Number of columns.
const COLUMNS: usize = FLOWS.columns.len();

/// Gathers lines to messages.
pub(super) struct Lines {
    message: Message,
    line: Vec<u8>,
    /// Start of each line, before the first column.
    start: Vec<u8>,
}

impl Lines {
    pub(super) fn new(sensor: &str) -> Self {
        let mut start = b"{\"sensor\":".to_vec();
        write_text(&mut start, sensor);
        Self { message: Message::default(), line: Vec::new(), start }
    }

    /// Makes the line of a flow.
    fn write(&mut self, record: &Record<'_>) {
        let row = record.row;
        let texts = [row.source, row.destination].map(|address| address.to_string());
        let id = community_id::of(row.source, row.destination, row.protocol, row.ports);
        let line = &mut self.line;
        line.clear();
        line.extend(&self.start);
        for (column, value) in FLOWS.columns.iter().zip(values(record, &texts, &id)) {
            line.extend(b",\"");
            line.extend(column.name.as_bytes());
            line.extend(b"\":");
            match value {
                Value::Null => line.extend(b"null"),
                // Writing to memory does not fail.
                Value::Number(number) => drop(write!(line, "{number}")),
                Value::Text(text) => write_text(line, text),
                Value::Time(time_ns) => write_text(line, &time_text(time_ns)),
            }
        }
        line.extend(b"}\n");
    }
}

/// Appends a string of JSON.
fn write_text(line: &mut Vec<u8>, text: &str) {
    line.extend(serde_json::Value::from(text).to_string().as_bytes());
}

/// Returns a time as RFC 3339 has it: as a number it would lose digits where numbers are doubles.
fn time_text(time_ns: u64) -> String {
    // 64 bits of nanoseconds end in the year 2554.
    let time = OffsetDateTime::from_unix_timestamp_nanos(time_ns.into());
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second, nanosecond)) =
        (time.to_calendar_date(), time.to_hms_nano());
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanosecond:09}Z")
}

/// Returns the values in the order of the columns.
fn values<'a>(record: &Record<'a>, addresses: &'a [String; 2], id: &'a str) -> [Value<'a>; COLUMNS] {
    let row: &FlowRow = record.row;
    let [to, back] = &row.sides;
    let of = |count: fn(&Side) -> u32| [to, back].map(|side| Value::Number(count(side).into()));
    let [retransmitted, reverse_retransmitted] = of(|side| side.retransmitted);
    let [out_of_order, reverse_out_of_order] = of(|side| side.out_of_order);
    let [zero_windows, reverse_zero_windows] = of(|side| side.zero_windows);
    [
        Value::Time(row.start_ns),
        Value::Time(row.end_ns),
        u64::from(row.reason as u8).into(),
        record.interface.map_or(Value::Null, Value::Text),
        row.vlan.into(),
        Value::Text(&addresses[0]),
        Value::Text(&addresses[1]),
        row.port(0).into(),
        row.port(1).into(),
        u64::from(row.protocol).into(),
        row.type_and_code().into(),
        Value::Text(id),
        to.packets.into(),
        back.packets.into(),
        to.octets.into(),
        back.octets.into(),
        row.flags(0).into(),
        row.flags(1).into(),
        row.handshake_ns.into(),
        retransmitted,
        reverse_retransmitted,
        out_of_order,
        reverse_out_of_order,
        zero_windows,
        reverse_zero_windows,
    ]
}

impl Build for Lines {
    fn push(&mut self, record: &Record<'_>, bytes_max: usize) -> Option<Message> {
        self.write(record);
        let is_full = self.message.bytes.len() + self.line.len() > bytes_max;
        let complete = if is_full { self.finish() } else { None };
        self.message.bytes.extend(&self.line);
        self.message.count(record.row);
        complete
    }

    fn finish(&mut self) -> Option<Message> {
        (!self.message.flows.is_empty()).then(|| std::mem::take(&mut self.message))
    }
}
