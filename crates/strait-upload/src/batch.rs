//! Batch of flows from a capture, and the messages of a broker that it becomes.
//!
//! A message of JSON or Protobuf is a flow. One of Arrow has several: the batch is a stream of
//! Arrow IPC, and a message is another one with some of its rows. The clients select these rows, as
//! they know partitions and the maximum length of a message.

use std::borrow::Cow;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, RecordBatch, StringArray, UInt32Array};
use arrow_ipc::MetadataVersion;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, Schema};
use arrow_select::take::take_record_batch;
use bytes::Bytes;
use prost::Message as _;
use strait_program::broker::Format;

/// Start of the key in the line of a flow. In text, a quotation mark has a backslash before it.
const KEY: &str = "\"communityId\":\"";
/// Column of the key in Arrow.
const KEY_COLUMN: &str = "communityId";
/// Alignment of the buffers in a stream of Arrow, in bytes: the least that Arrow permits.
const ALIGNMENT: usize = 8;

/// Key of a flow in Protobuf. Other fields are skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct Keyed {
    #[prost(string, tag = "13")]
    community_id: String,
}

/// Flows that are acknowledged together.
pub(crate) struct Batch {
    /// Number of the first flow.
    first: u64,
    flows: Flows,
}

enum Flows {
    /// Lines of JSON, each of which is a flow.
    Lines(Vec<Bytes>),
    /// Messages of Protobuf, each of which is a flow.
    Messages(Vec<Bytes>),
    /// Rows of Arrow, and the column with their keys.
    Rows(RecordBatch, StringArray),
}

impl Batch {
    /// Reads a batch. It may have no flow.
    ///
    /// # Errors
    /// It is not in the format.
    pub(crate) fn read(first: u64, format: Format, bytes: Vec<u8>) -> Result<Self, String> {
        let wrong = |reason: String| format!("a batch is not in its format: {reason}");
        let flows = match format {
            Format::Json => return Ok(Self::lines(first, bytes)),
            Format::Protobuf => Flows::Messages(messages(bytes).map_err(wrong)?),
            Format::Arrow => rows(bytes).map_err(|error| wrong(error.to_string()))?,
        };
        Ok(Self { first, flows })
    }

    /// Splits lines, each of which is a flow.
    pub(crate) fn lines(first: u64, lines: Vec<u8>) -> Self {
        let all = Bytes::from(lines);
        let line = |line: &[u8]| all.slice_ref(line);
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line);
        Self { first, flows: Flows::Lines(lines.collect()) }
    }

    /// Returns the number of flows.
    pub(crate) fn flows(&self) -> usize {
        match &self.flows {
            Flows::Lines(flows) | Flows::Messages(flows) => flows.len(),
            Flows::Rows(rows, _) => rows.num_rows(),
        }
    }

    /// Returns the key of a flow: its community ID, which both directions share. Empty if there is
    /// none.
    pub(crate) fn key(&self, at: usize) -> Cow<'_, str> {
        match &self.flows {
            Flows::Lines(lines) => lines.get(at).map_or("", |line| key(line)).into(),
            Flows::Messages(messages) => {
                let keyed = messages.get(at).and_then(|message| Keyed::decode(message.clone()).ok());
                keyed.unwrap_or_default().community_id.into()
            }
            Flows::Rows(_, keys) => {
                if at < keys.len() {
                    keys.value(at).into()
                } else {
                    "".into()
                }
            }
        }
    }

    /// Returns true if a message has several flows. It has no key then.
    pub(crate) fn has_groups(&self) -> bool {
        matches!(self.flows, Flows::Rows(..))
    }

    /// Returns the flows of each message, if it may have any length.
    pub(crate) fn groups<'a>(&self, flows: &'a [usize]) -> std::slice::Chunks<'a, usize> {
        flows.chunks(if self.has_groups() { flows.len().max(1) } else { 1 })
    }

    /// Returns the message of a group of flows.
    ///
    /// # Errors
    /// Arrow cannot encode it.
    pub(crate) fn message(&self, group: &[usize]) -> Result<Bytes, String> {
        match &self.flows {
            Flows::Lines(flows) | Flows::Messages(flows) => {
                Ok(group.first().and_then(|at| flows.get(*at)).cloned().unwrap_or_default())
            }
            Flows::Rows(rows, _) => {
                encode(rows, group).map_err(|error| format!("flows cannot be encoded: {error}"))
            }
        }
    }

    /// Returns the identifier of a message: `PREFIX:FORMAT:NUMBER` with the number of its first
    /// flow, and `PREFIX:FORMAT:NUMBER:COUNT` if it can have several.
    pub(crate) fn id(&self, prefix: &str, group: &[usize]) -> String {
        let first = self.first.wrapping_add(group.first().copied().unwrap_or_default() as u64);
        let count = group.len();
        let format = self.format().name();
        if self.has_groups() {
            format!("{prefix}:{format}:{first}:{count}")
        } else {
            format!("{prefix}:{format}:{first}")
        }
    }

    const fn format(&self) -> Format {
        match self.flows {
            Flows::Lines(_) => Format::Json,
            Flows::Messages(_) => Format::Protobuf,
            Flows::Rows(..) => Format::Arrow,
        }
    }
}

/// Returns the key in the line of a flow.
fn key(line: &[u8]) -> &str {
    let line = std::str::from_utf8(line).unwrap_or_default();
    line.split_once(KEY).and_then(|(_, rest)| rest.split_once('"')).map_or("", |(key, _)| key)
}

/// Splits messages, each of which follows its length.
fn messages(bytes: Vec<u8>) -> Result<Vec<Bytes>, String> {
    let (mut rest, mut messages) = (Bytes::from(bytes), Vec::new());
    while !rest.is_empty() {
        let length = prost::decode_length_delimiter(&mut rest).map_err(|error| error.to_string())?;
        if length > rest.len() {
            return Err("a message is cut".into());
        }
        let message = rest.split_to(length);
        Keyed::decode(message.clone()).map_err(|error| error.to_string())?;
        messages.push(message);
    }
    Ok(messages)
}

/// Reads the record batch of a stream.
fn rows(bytes: Vec<u8>) -> Result<Flows, ArrowError> {
    let empty = || RecordBatch::new_empty(Arc::new(Schema::empty()));
    if bytes.is_empty() {
        return Ok(Flows::Rows(empty(), StringArray::new_null(0)));
    }
    let rows = StreamReader::try_new(Cursor::new(bytes), None)?.next().transpose()?;
    let rows = rows.unwrap_or_else(empty);
    let keys = rows.column_by_name(KEY_COLUMN).and_then(|column| column.as_string_opt::<i32>()).cloned();
    let keys = keys.ok_or_else(|| ArrowError::IpcError(format!("the column {KEY_COLUMN} is missing")))?;
    Ok(Flows::Rows(rows, keys))
}

/// Encodes some rows as a stream.
fn encode(rows: &RecordBatch, group: &[usize]) -> Result<Bytes, ArrowError> {
    let positions: UInt32Array = group.iter().map(|at| *at as u32).collect();
    let rows = take_record_batch(rows, &positions)?;
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &rows.schema(), options)?;
    writer.write(&rows)?;
    writer.finish()?;
    writer.into_inner().map(Bytes::from)
}

#[cfg(test)]
pub(crate) mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    /// Returns a stream of Arrow with these keys.
    pub(crate) fn stream(keys: &[&str]) -> Vec<u8> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("number", DataType::UInt32, false),
            Field::new(KEY_COLUMN, DataType::Utf8, false),
        ]));
        let numbers: UInt32Array = (0..keys.len() as u32).collect();
        let keys = StringArray::from(keys.to_vec());
        let rows =
            RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers), Arc::new(keys)]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        writer.write(&rows).unwrap();
        writer.into_inner().unwrap()
    }

    /// Returns a message of Protobuf after its length.
    fn delimited(key: &str) -> Vec<u8> {
        Keyed { community_id: key.to_owned() }.encode_length_delimited_to_vec()
    }

    #[test]
    fn batch_has_a_flow_for_each_line() {
        let batch = Batch::read(7, Format::Json, b"one\ntwo\n".to_vec()).unwrap();
        let groups: Vec<_> =
            batch.groups(&[0, 1]).map(|group| (batch.id("c", group), batch.message(group))).collect();
        let expected = [("c:json:7", "one"), ("c:json:8", "two")];
        assert_eq!(groups, expected.map(|(id, line)| (id.to_owned(), Ok(Bytes::from(line)))));
        assert_eq!(Batch::lines(0, Vec::new()).flows(), 0);
    }

    #[test]
    fn key_is_the_community_id_also_after_odd_names() {
        let line = br#"{"sensor":"a\"communityId\":\"b","interfaceName":null,"communityId":"1:x=","n":1}"#;
        assert_eq!(key(line), "1:x=");
        assert_eq!((key(b"{}"), key(b"\xff")), ("", ""));
    }

    #[test]
    fn message_of_protobuf_is_a_flow_with_its_key() {
        let bytes = [delimited("1:x="), delimited(""), delimited("\n")].concat();
        let batch = Batch::read(7, Format::Protobuf, bytes.clone()).unwrap();
        assert_eq!((0..4).map(|at| batch.key(at)).collect::<Vec<_>>(), ["1:x=", "", "\n", ""]);
        assert_eq!(batch.groups(&[0, 1, 2]).count(), 3);
        assert_eq!(
            (batch.message(&[0]).unwrap(), batch.id("c", &[2])),
            (delimited("1:x=")[1..].to_vec().into(), "c:protobuf:9".into())
        );
        for end in (1..bytes.len()).filter(|end| ![7, 8].contains(end)) {
            assert!(Batch::read(0, Format::Protobuf, bytes[..end].to_vec()).is_err(), "{end}");
        }
        assert!(Batch::read(0, Format::Protobuf, vec![0xff; 11]).is_err());
    }

    #[test]
    fn message_of_arrow_has_the_selected_flows() {
        let batch = Batch::read(7, Format::Arrow, stream(&["1:a", "1:b", "1:a"])).unwrap();
        assert_eq!((batch.flows(), batch.key(1), batch.key(3)), (3, "1:b".into(), "".into()));
        assert_eq!(batch.groups(&[0, 2]).collect::<Vec<_>>(), [[0, 2]]);
        assert_eq!(batch.groups(&[]).count(), 0);
        let message = batch.message(&[0, 2]).unwrap();
        let read = Batch::read(0, Format::Arrow, message.into()).unwrap();
        assert_eq!((read.flows(), read.key(1)), (2, "1:a".into()));
        let Flows::Rows(rows, _) = read.flows else { panic!("rows") };
        assert_eq!(rows.column(0).as_ref(), &UInt32Array::from(vec![0, 2]));
        let ids = [batch.id("c", &[1]), batch.id("c", &[0, 2])];
        assert_eq!(ids, ["c:arrow:8:1", "c:arrow:7:2"]);
        assert!(batch.message(&[3]).is_err());
    }

    #[test]
    fn stream_that_is_cut_or_has_no_keys_is_refused() {
        let bytes = stream(&["1:a"]);
        for end in 1..bytes.len() - 8 {
            assert!(Batch::read(0, Format::Arrow, bytes[..end].to_vec()).is_err(), "{end}");
        }
        assert_eq!(Batch::read(0, Format::Arrow, Vec::new()).unwrap().flows(), 0);
        let schema = Schema::new(vec![Field::new("number", DataType::UInt32, false)]);
        let writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        let error = Batch::read(0, Format::Arrow, writer.into_inner().unwrap()).err().unwrap();
        assert!(error.contains("the column communityId is missing"), "{error}");
    }
}
