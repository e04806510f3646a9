//! Rows of the tables of messages. All of them begin with the columns of the packet.

use std::sync::Arc;

use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, Schema, SchemaRef};

use super::message::{Application, Message};
use crate::column::{Numbers, Texts};
use crate::community_id;
use crate::extras::Extras;
use crate::rows::{BATCH_ROWS, Rows};
use crate::schema::{Column, Kind};

/// Maximum bytes of a text.
pub(super) const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of texts after which a batch ends. A column keeps each distinct text twice.
pub(super) const TEXTS_BYTES_MAX: usize = 16 << 20;

/// Value of a row in one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Number(Option<u64>),
    Text(Option<String>),
}

impl Cell {
    pub(super) fn number(number: impl Into<u64>) -> Self {
        Self::Number(Some(number.into()))
    }

    pub(super) fn optional(number: Option<impl Into<u64>>) -> Self {
        Self::Number(number.map(Into::into))
    }

    pub(super) fn text(text: &str) -> Self {
        Self::bytes(Some(text.as_bytes()))
    }

    /// Returns a text of bytes from a packet. Those that are not UTF-8 are replaced, each by up to
    /// 3 bytes, before the text is cut.
    pub(super) fn bytes(bytes: Option<&[u8]>) -> Self {
        let cut = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
        };
        Self::Text(bytes.map(cut))
    }

    /// Returns the bytes of a text.
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(Some(text)) => text.len(),
            Self::Text(None) | Self::Number(_) => 0,
        }
    }
}

/// Row of a table of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    time_ns: u64,
    lane: u32,
    cells: Vec<Cell>,
}

impl MessageRow {
    /// Returns the row of a message: the columns of its packet, and then `cells`.
    pub(super) fn new(message: &Message, cells: Vec<Cell>) -> Option<Self> {
        let headers = &message.headers;
        let (internet, [source, destination]) = (headers.internet?, headers.ports?);
        let id = community_id::of(
            internet.source,
            internet.destination,
            internet.protocol,
            Some([source, destination]),
        );
        let mut all = vec![
            Cell::Number(Some(headers.time_ns)),
            Cell::Text(Some(internet.source.to_string())),
            Cell::Text(Some(internet.destination.to_string())),
            Cell::number(source),
            Cell::number(destination),
            Cell::number(internet.protocol),
            Cell::Text(Some(id)),
        ];
        all.extend(cells);
        Some(Self { time_ns: headers.time_ns, lane: headers.lane, cells: all })
    }

    #[cfg(test)]
    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// Values of a column.
enum Values {
    Time(Numbers<TimestampNanosecondType>),
    U8(Numbers<UInt8Type>),
    U16(Numbers<UInt16Type>),
    U32(Numbers<UInt32Type>),
    I64(Numbers<Int64Type>),
    Texts(Texts),
}

impl Values {
    fn of(column: &Column) -> Self {
        match column.kind {
            Kind::Time => Self::Time(Numbers::new(0)),
            Kind::U8 => Self::U8(Numbers::new(0)),
            Kind::U16 => Self::U16(Numbers::new(0)),
            Kind::U32 => Self::U32(Numbers::new(0)),
            Kind::I64 => Self::I64(Numbers::new(0)),
            Kind::Text | Kind::Bytes(_) | Kind::Binary => Self::Texts(Texts::new(0)),
        }
    }

    fn append(&mut self, cell: &Cell) {
        let (number, text) = match cell {
            Cell::Number(number) => (*number, None),
            Cell::Text(text) => (None, text.as_deref()),
        };
        let signed = number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        match self {
            Self::Time(times) => times.extend_optional(&[signed], |number| *number),
            Self::U8(numbers) => {
                numbers.extend_optional(&[number], |number| number.map(|number| number as u8));
            }
            Self::U16(numbers) => {
                numbers.extend_optional(&[number], |number| number.map(|number| number as u16));
            }
            Self::U32(numbers) => {
                numbers.extend_optional(&[number], |number| number.map(|number| number as u32));
            }
            Self::I64(numbers) => numbers.extend_optional(&[signed], |number| *number),
            Self::Texts(texts) => texts.push(text),
        }
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Time(times) => Arc::new(times.finish().with_timezone("UTC")),
            Self::U8(numbers) => Arc::new(numbers.finish()),
            Self::U16(numbers) => Arc::new(numbers.finish()),
            Self::U32(numbers) => Arc::new(numbers.finish()),
            Self::I64(numbers) => Arc::new(numbers.finish()),
            Self::Texts(texts) => texts.finish()?,
        })
    }
}

/// Rows of messages, until they are a record batch.
pub struct MessageRows {
    schema: SchemaRef,
    columns: Vec<Values>,
    rows: usize,
    /// Bytes of the texts of all rows.
    text_bytes: usize,
}

impl MessageRows {
    /// Creates an empty batch of the table of `application`.
    pub(crate) fn new(application: Application) -> Self {
        let columns = application.table().columns;
        Self {
            schema: Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>())),
            columns: columns.iter().map(Values::of).collect(),
            rows: 0,
            text_bytes: 0,
        }
    }
}

impl Rows for MessageRows {
    type Row = MessageRow;

    fn time_ns(row: &MessageRow) -> u64 {
        row.time_ns
    }

    fn lane(row: &MessageRow) -> u32 {
        row.lane
    }

    /// Returns 0: the packets of a message are in the other tables.
    fn packets(_row: &MessageRow) -> u64 {
        0
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn len(&self) -> usize {
        self.rows
    }

    /// Returns true also if the texts of the batch have many bytes.
    fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.text_bytes >= TEXTS_BYTES_MAX
    }

    fn append(&mut self, rows: &[MessageRow], _extras: &Extras) {
        for row in rows {
            self.text_bytes += row.cells.iter().map(Cell::text_bytes).sum::<usize>();
            self.columns.iter_mut().zip(&row.cells).for_each(|(column, cell)| column.append(cell));
        }
        self.rows += rows.len();
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        (self.rows, self.text_bytes) = (0, 0);
        let arrays = self.columns.iter_mut().map(Values::finish).collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}
