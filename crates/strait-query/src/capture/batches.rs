//! Packets of a file as record batches of one table, with the columns that a query needs.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::DataFusionError;
use datafusion::error::Result;
use strait_table::flows::{FlowBatches, FlowLimits};
use strait_table::messages::{MessageBatches, Missed};
use strait_table::packets::{Columns, PacketBatches};
use strait_table::{Packet, TableError, no_names};

use super::Kind;

/// Columns of the table `packets`: all but frames and owners, which a file does not have.
const PACKET_COLUMNS: &str = "all";

/// Columns of a table in the order of a query.
#[derive(Clone, Debug)]
pub(super) struct Form {
    kind: Kind,
    /// Columns that are filled, of the table `packets`.
    columns: Columns,
    /// Positions of the query's columns among those that are filled; none for all.
    positions: Option<Vec<usize>>,
    schema: SchemaRef,
}

impl Form {
    /// Returns the form with every column.
    pub(super) fn whole(kind: Kind) -> Result<Self> {
        let columns = parse(PACKET_COLUMNS)?;
        let schema = Rows::new(kind, &columns, 1).schema();
        Ok(Self { kind, columns, positions: None, schema })
    }

    /// Returns the form with the columns of the whole table's `schema` at `projection`.
    pub(super) fn projected(kind: Kind, schema: &SchemaRef, projection: &[usize]) -> Result<Self> {
        let names: Vec<&str> =
            projection.iter().map(|column| schema.field(*column).name().as_str()).collect();
        // The cost of a packet depends on its columns. Other tables always have all of theirs.
        let columns = match kind {
            Kind::Packets if names.is_empty() => parse("time")?,
            Kind::Packets => parse(&names.join(","))?,
            Kind::Flows | Kind::Messages(_) => parse(PACKET_COLUMNS)?,
        };
        let filled = Rows::new(kind, &columns, 1).schema();
        let positions = names.iter().map(|name| filled.index_of(name)).collect::<Result<Vec<_>, _>>()?;
        let schema = Arc::new(filled.project(&positions)?);
        Ok(Self { kind, columns, positions: Some(positions), schema })
    }

    /// Returns Arrow's schema.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns empty rows for one of `partitions` readers.
    pub(super) fn rows(&self, partitions: usize) -> Rows {
        Rows::new(self.kind, &self.columns, partitions)
    }

    /// Selects the columns of the query.
    pub(super) fn select(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        match &self.positions {
            Some(positions) => Ok(batch.project(positions)?),
            None => Ok(batch.clone()),
        }
    }
}

fn parse(columns: &str) -> Result<Columns> {
    Columns::parse(columns).map_err(DataFusionError::Internal)
}

/// Rows of a table, until they are a batch.
pub(super) enum Rows {
    Packets(Box<PacketBatches>),
    Flows(Box<FlowBatches>),
    Messages(Box<MessageBatches>),
}

impl Rows {
    fn new(kind: Kind, columns: &Columns, partitions: usize) -> Self {
        match kind {
            Kind::Packets => {
                Self::Packets(Box::new(PacketBatches::new(columns, no_names(), PacketBatches::ROWS_MAX, 0)))
            }
            Kind::Flows => {
                let limits = FlowLimits::default().shared_by(partitions);
                Self::Flows(Box::new(FlowBatches::new(limits, no_names())))
            }
            Kind::Messages(application) => Self::Messages(Box::new(MessageBatches::new(application))),
        }
    }

    fn schema(&self) -> SchemaRef {
        match self {
            Self::Packets(rows) => rows.schema(),
            Self::Flows(rows) => rows.schema(),
            Self::Messages(rows) => rows.schema(),
        }
    }

    /// Adds a packet. Returns a full batch.
    pub(super) fn push(&mut self, packet: &Packet<'_>) -> Result<Option<RecordBatch>, TableError> {
        let is_full = match self {
            Self::Packets(rows) => {
                rows.push(packet);
                rows.space() == 0
            }
            Self::Flows(rows) => {
                rows.push(packet);
                rows.is_full()
            }
            Self::Messages(rows) => {
                rows.push(packet);
                rows.is_full()
            }
        };
        if is_full { self.finish().map(Some) } else { Ok(None) }
    }

    /// Ends a file. Returns a batch if there is one; then call it again.
    pub(super) fn end(&mut self) -> Result<Option<RecordBatch>, TableError> {
        let is_empty = match self {
            Self::Packets(rows) => rows.is_empty(),
            Self::Flows(rows) => {
                rows.end();
                rows.is_empty()
            }
            Self::Messages(rows) => {
                rows.end();
                rows.is_empty()
            }
        };
        if is_empty { Ok(None) } else { self.finish().map(Some) }
    }

    fn finish(&mut self) -> Result<RecordBatch, TableError> {
        match self {
            Self::Packets(rows) => rows.finish(),
            Self::Flows(rows) => rows.finish(),
            Self::Messages(rows) => rows.finish(),
        }
    }

    /// Returns the counts of messages without a row.
    pub(super) fn missed(&self) -> Missed {
        match self {
            Self::Messages(rows) => rows.missed(),
            Self::Packets(_) | Self::Flows(_) => Missed::default(),
        }
    }
}
