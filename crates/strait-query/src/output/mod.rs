//! Rows of a result: an aligned table, CSV, JSON, or a Parquet file.

mod parquet;
mod table;

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::writer::{LineDelimited, WriterBuilder};
use strait_os::text::printable;
use strait_program::Error;

use self::parquet::ParquetOutput;
use self::table::TableOutput;

/// Form of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Aligned columns for a terminal.
    Table,
    /// CSV with a line of names.
    Csv,
    /// One JSON object for each row.
    Json,
    /// Parquet file.
    Parquet(PathBuf),
}

/// Open output.
pub(crate) enum Output {
    Table(TableOutput),
    Csv,
    Json,
    Parquet(Box<ParquetOutput>),
}

impl Output {
    /// Opens the output for rows of this schema.
    ///
    /// # Errors
    /// The file cannot be created; standard output cannot be written to.
    pub(crate) fn open(form: &Form, schema: &SchemaRef) -> Result<Self, Error> {
        Ok(match form {
            Form::Table => Self::Table(TableOutput::new(schema)),
            Form::Csv => {
                // The line of names comes also before no rows.
                print(&csv(&RecordBatch::new_empty(schema.clone()), true)?, printable)?;
                Self::Csv
            }
            Form::Json => Self::Json,
            Form::Parquet(path) => Self::Parquet(Box::new(ParquetOutput::create(path, schema)?)),
        })
    }

    /// Writes rows.
    ///
    /// # Errors
    /// Standard output or the file cannot be written to.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        match self {
            Self::Table(table) => table.write(batch),
            Self::Csv => print(&csv(batch, false)?, printable),
            Self::Json => print(&json(batch)?, json_escaped),
            Self::Parquet(file) => file.write(batch),
        }
    }

    /// Writes the end. A Parquet file gets its name.
    ///
    /// # Errors
    /// As for [`Output::write`].
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self {
            Self::Table(table) => table.finish(),
            Self::Csv | Self::Json => Ok(()),
            Self::Parquet(file) => file.finish(),
        }
    }
}

/// Writes bytes to standard output. The encoders write to memory, as they hide the error of a
/// closed pipe. Text of packets must not control a terminal: there it is escaped by `escape`.
fn print(bytes: &[u8], escape: impl FnOnce(&str) -> String) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let written = if out.is_terminal() {
        out.write_all(escape(&String::from_utf8_lossy(bytes)).as_bytes())
    } else {
        out.write_all(bytes)
    };
    written.and_then(|()| out.flush()).map_err(Error::Output)
}

/// Escapes what [`printable`] does, and every other character outside ASCII, as JSON does it.
fn json_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || c.is_ascii() && !c.is_control() {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

fn csv(batch: &RecordBatch, has_header: bool) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    csv::WriterBuilder::new()
        .with_header(has_header)
        .build(&mut bytes)
        .write(batch)
        .map_err(|error| encode(&error))?;
    Ok(bytes)
}

fn json(batch: &RecordBatch) -> Result<Vec<u8>, Error> {
    let builder = WriterBuilder::new().with_explicit_nulls(true);
    let mut writer = builder.build::<_, LineDelimited>(Vec::new());
    writer.write(batch).and_then(|()| writer.finish()).map_err(|error| encode(&error))?;
    Ok(writer.into_inner())
}

fn encode(error: &ArrowError) -> Error {
    Error::failed(format!("write the result: {error}"))
}
