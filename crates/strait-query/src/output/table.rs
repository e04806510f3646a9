//! Aligned table for a terminal.
//!
//! The first rows determine the widths, so that memory does not grow with the result. A later value
//! that is wider moves the rest of its line.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use strait_program::Error;
use strait_program::output::printable;

/// Rows that determine the widths.
const MEASURED_ROWS: usize = 1000;
/// Maximum width of a column in characters, but for its last one.
const WIDTH_MAX: usize = 60;
/// Blanks between columns.
const GAP: &str = "  ";

/// Table with aligned columns. It keeps its first rows until the widths are known.
pub(crate) struct TableOutput {
    names: Vec<String>,
    /// True for columns of numbers, which are aligned to the right.
    is_number: Vec<bool>,
    measured: Vec<Vec<String>>,
    /// Widths, once they are known.
    widths: Option<Vec<usize>>,
    rows: u64,
    out: BufWriter<io::Stdout>,
}

impl TableOutput {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self {
            names: schema.fields().iter().map(|field| printable(field.name())).collect(),
            is_number: schema.fields().iter().map(|field| is_number(field.data_type())).collect(),
            measured: Vec::new(),
            widths: None,
            rows: 0,
            out: BufWriter::new(io::stdout()),
        }
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let options = FormatOptions::default();
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>().map_err(|error| super::encode(&error))?;
        for row in 0..batch.num_rows() {
            let cell =
                |column: &ArrayFormatter<'_>| column.value(row).try_to_string().map(|text| flat(&text));
            let cells = columns
                .iter()
                .map(cell)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| super::encode(&error))?;
            self.push(cells)?;
        }
        Ok(())
    }

    fn push(&mut self, cells: Vec<String>) -> Result<(), Error> {
        self.rows += 1;
        if self.widths.is_some() {
            return self.print(&cells);
        }
        self.measured.push(cells);
        if self.measured.len() < MEASURED_ROWS { Ok(()) } else { self.print_measured() }
    }

    /// Prints the names and the rows so far.
    fn print_measured(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.measured);
        let names = self.names.clone();
        let mut widths: Vec<usize> = names.iter().map(|name| name.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count()).min(WIDTH_MAX.max(*width));
            }
        }
        self.widths = Some(widths);
        self.print(&names)?;
        rows.iter().try_for_each(|row| self.print(row))
    }

    fn print(&mut self, cells: &[String]) -> Result<(), Error> {
        let widths = self.widths.as_deref().unwrap_or_default();
        let line = line(cells, widths, &self.is_number);
        writeln!(self.out, "{line}").map_err(Error::Output)
    }

    pub(super) fn finish(mut self) -> Result<(), Error> {
        if self.widths.is_none() {
            self.print_measured()?;
        }
        let rows = if self.rows == 1 { "row" } else { "rows" };
        writeln!(self.out, "({} {rows})", self.rows).and_then(|()| self.out.flush()).map_err(Error::Output)
    }
}

/// Returns a line of cells, without blanks at its end.
fn line(cells: &[String], widths: &[usize], is_number: &[bool]) -> String {
    let mut line = String::new();
    for (index, cell) in cells.iter().enumerate() {
        let width = widths.get(index).copied().unwrap_or_default();
        if index > 0 {
            line.push_str(GAP);
        }
        // Writing to a String cannot fail.
        let _ = if is_number.get(index) == Some(&true) {
            write!(line, "{cell:>width$}")
        } else {
            write!(line, "{cell:<width$}")
        };
    }
    line.truncate(line.trim_end().len());
    line
}

/// Returns a value on one line, with control characters as escapes: packets may have any text.
fn flat(text: &str) -> String {
    if text.contains(['\n', '\t']) {
        printable(&text.replace('\n', "\\n").replace('\t', "\\t"))
    } else {
        printable(text)
    }
}

fn is_number(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, value) => is_number(value),
        kind => kind.is_numeric(),
    }
}
