//! Packets of a file as record batches of one table, with the columns that a query needs.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::DataFusionError;
use datafusion::error::Result;
use strait_table::flows::{FlowBatches, FlowLimits};
use strait_table::messages::MessageBatches;
use strait_table::packets::{Columns, PacketBatches};
use strait_table::{Batches, no_names};

use super::kind::Kind;

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
    /// Number of readers that share the memory.
    partitions: usize,
}

impl Form {
    /// Returns the form with every column.
    pub(super) fn whole(kind: Kind) -> Result<Self> {
        let columns = parse(PACKET_COLUMNS)?;
        let schema = rows(kind, &columns, 1).schema();
        Ok(Self { kind, columns, positions: None, schema, partitions: 1 })
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
        let filled = rows(kind, &columns, 1).schema();
        let positions = names.iter().map(|name| filled.index_of(name)).collect::<Result<Vec<_>, _>>()?;
        let schema = Arc::new(filled.project(&positions)?);
        Ok(Self { kind, columns, positions: Some(positions), schema, partitions: 1 })
    }

    /// Returns Arrow's schema.
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Divides the memory of flows between `partitions` readers.
    pub(super) fn shared_by(self, partitions: usize) -> Self {
        Self { partitions, ..self }
    }

    /// Returns empty rows for one reader.
    pub(super) fn rows(&self) -> Box<dyn Batches> {
        rows(self.kind, &self.columns, self.partitions)
    }

    /// Returns the maximum number of flows of a reader at a time, in the table `flows`.
    pub(super) fn flows_max(&self) -> Option<u64> {
        (self.kind == Kind::Flows).then(|| flow_limits(self.partitions).flows_max.into())
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

fn flow_limits(partitions: usize) -> FlowLimits {
    FlowLimits::default().shared_by(partitions)
}

/// Returns the empty rows of a table for one of `partitions` readers.
fn rows(kind: Kind, columns: &Columns, partitions: usize) -> Box<dyn Batches> {
    match kind {
        Kind::Packets => Box::new(PacketBatches::new(columns, no_names(), PacketBatches::ROWS_MAX, 0)),
        Kind::Flows => Box::new(FlowBatches::new(flow_limits(partitions), no_names())),
        Kind::Messages(application) => Box::new(MessageBatches::new(application)),
    }
}
