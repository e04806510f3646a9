//! Lines of JSON: an object for each flow, with the names and the values of the table `flows`.

use std::io::Write as _;

use time::OffsetDateTime;

use super::values::{Texts, Value, values};
use crate::export::{Build, Message, Record};
use crate::schema::FLOWS;

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
        let texts = Texts::of(record.row);
        let line = &mut self.line;
        line.clear();
        line.extend(&self.start);
        for (column, value) in FLOWS.columns.iter().zip(values(record, &texts)) {
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
pub(super) fn time_text(time_ns: u64) -> String {
    // 64 bits of nanoseconds end in the year 2554.
    let time = OffsetDateTime::from_unix_timestamp_nanos(time_ns.into());
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second, nanosecond)) =
        (time.to_calendar_date(), time.to_hms_nano());
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanosecond:09}Z")
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
