//! A session as an Arrow stream: another library reads the remaining batches.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::shared::Shared;

/// Remaining batches of a session.
pub(crate) struct Batches {
    pub(crate) shared: Arc<Shared>,
    pub(crate) schema: SchemaRef,
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    /// Waits for the next batch. The library may have released the interpreter's lock.
    fn next(&mut self) -> Option<Self::Item> {
        let next = Python::try_attach(|py| match self.shared.next_batch(py) {
            Ok(batch) => batch.map(Ok),
            Err(error) => Some(Err(failure(py, &error))),
        });
        let ended = || Some(Err(ArrowError::CDataInterface("the interpreter of Python has ended".into())));
        next.unwrap_or_else(ended)
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Returns the failure for the library, which passes on only its text. An interrupt stays pending,
/// so that the program still gets it.
fn failure(py: Python<'_>, error: &PyErr) -> ArrowError {
    let text = error.to_string();
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // Last: the next code of Python is interrupted.
        let interrupted = py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main"));
        if let Err(error) = interrupted {
            return ArrowError::CDataInterface(format!("{text}; {error}"));
        }
    }
    ArrowError::CDataInterface(text)
}
