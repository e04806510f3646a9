//! Capture files as tables of the engine.
//!
//! Packets are decoded while the query runs: memory does not grow with the file. Each partition of
//! a scan reads its share of the files on a thread of its own, one file after the other, and sends
//! record batches with the columns that the query needs.

mod batches;
mod condition;
mod kind;
mod parts;
mod read;
pub(crate) mod retrieve;
mod selection;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use strait_table::messages::Missed;

use self::batches::Form;
use self::condition::Condition;
pub(crate) use self::kind::{Kind, TABLES};
pub(crate) use self::parts::Extent;
use self::read::Scan;
pub(crate) use self::selection::Selection;

/// Batches that wait between a reading thread and the query.
const QUEUE_BATCHES: usize = 2;
/// Maximum number of failures that are kept.
const FAILURES_MAX: usize = 10;

/// Defects of files that a query has met. They do not end it: the rows before them are valid.
#[derive(Debug, Default)]
pub(crate) struct Defects {
    /// Files that could not be read to their end, each once.
    unread: Vec<String>,
    /// Number of further ones.
    more: usize,
    missed: Missed,
    /// Parts of the files that were read by their indexes.
    extent: Extent,
    /// The first file that was read completely although it has an index, with the reason.
    first_whole: Option<String>,
}

impl Defects {
    fn add_unread(&mut self, failure: String) {
        // A query that uses a table twice reads its files twice.
        if self.unread.contains(&failure) {
            return;
        }
        if self.unread.len() < FAILURES_MAX {
            self.unread.push(failure);
        } else {
            self.more += 1;
        }
    }

    fn add_whole(&mut self, reason: String) {
        self.first_whole.get_or_insert(reason);
    }

    /// Returns the parts of the files that were read by their indexes.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Returns the first file that was read completely although it has an index, with the reason.
    pub(crate) fn first_whole(&self) -> Option<&str> {
        self.first_whole.as_deref()
    }

    /// Returns the failures, and the number of those that are not listed.
    pub(crate) fn unread(&self) -> (&[String], usize) {
        (&self.unread, self.more)
    }

    /// Returns the counts of messages that no row has.
    pub(crate) fn missed(&self) -> &Missed {
        &self.missed
    }
}

/// Defects that the threads of a query share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedDefects(Arc<Mutex<Defects>>);

impl SharedDefects {
    fn with(&self, change: impl FnOnce(&mut Defects)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the defects so far.
    pub(crate) fn take(&self) -> Defects {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Table of capture files.
#[derive(Debug)]
pub(crate) struct CaptureTable {
    kind: Kind,
    schema: SchemaRef,
    files: Arc<[String]>,
    defects: SharedDefects,
}

impl CaptureTable {
    pub(crate) fn new(kind: Kind, files: Arc<[String]>, defects: SharedDefects) -> Result<Self> {
        let schema = Form::whole(kind)?.schema();
        Ok(Self { kind, schema, files, defects })
    }
}

#[async_trait]
impl TableProvider for CaptureTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let form = match projection {
            Some(columns) => Form::projected(self.kind, &self.schema, columns)?,
            None => Form::whole(self.kind)?,
        };
        let count = state.config().target_partitions().clamp(1, self.files.len().max(1));
        let schema = form.schema();
        let scan = Scan { form: form.shared_by(count), condition: Condition::of(self.kind, filters) };
        let partition = |first| {
            let share = Share { files: Arc::clone(&self.files), first, step: count };
            let (scan, defects) = (scan.clone(), self.defects.clone());
            Arc::new(Partition { scan, share, schema: Arc::clone(&schema), defects })
                as Arc<dyn PartitionStream>
        };
        let partitions = (0..count).map(partition).collect();
        Ok(Arc::new(StreamingTableExec::try_new(Arc::clone(&schema), partitions, None, [], false, limit)?))
    }

    /// Asks for all conditions. They select parts of indexed files; the engine applies them again.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}

/// Files of a partition: every `step`th from `first` on.
#[derive(Clone, Debug)]
struct Share {
    files: Arc<[String]>,
    first: usize,
    step: usize,
}

impl Share {
    fn iter(&self) -> impl Iterator<Item = &str> {
        self.files.iter().skip(self.first).step_by(self.step).map(String::as_str)
    }
}

#[derive(Debug)]
struct Partition {
    scan: Scan,
    share: Share,
    schema: SchemaRef,
    defects: SharedDefects,
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), QUEUE_BATCHES);
        let sender = stream.tx();
        let (scan, share, defects) = (self.scan.clone(), self.share.clone(), self.defects.clone());
        stream.spawn_blocking(move || read::files(&scan, &share, &defects, &sender));
        stream.build()
    }
}
