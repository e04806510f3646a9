//! Record batches that other libraries take over without a copy, by Arrow's PyCapsule interface.
//!
//! A capsule holds a structure of the C data interface, which shares the buffers of the batch: they
//! are freed when the batch and all its receivers are.

use arrow_array::ffi::FFI_ArrowArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{Array as _, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow_schema::Schema;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::arrow;

/// Packets as an Arrow record batch.
///
/// pyarrow.record_batch(batch), polars.DataFrame(batch), and every other function that accepts
/// objects with `__arrow_c_array__` or `__arrow_c_stream__` share its memory.
#[pyclass(frozen, module = "strait")]
pub(crate) struct RecordBatch(arrow_array::RecordBatch);

impl From<arrow_array::RecordBatch> for RecordBatch {
    fn from(batch: arrow_array::RecordBatch) -> Self {
        Self(batch)
    }
}

#[pymethods]
impl RecordBatch {
    /// Number of packets.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// Number of columns.
    #[getter]
    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.0.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("<strait.RecordBatch rows={} columns={}>", self.0.num_rows(), self.0.num_columns())
    }

    /// Returns the schema as a capsule.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.0.schema())
    }

    /// Returns the schema and the batch as capsules. It has one schema, so a requested one is
    /// ignored, as the protocol permits.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let array = FFI_ArrowArray::new(&StructArray::from(self.0.clone()).to_data());
        let array = PyCapsule::new_with_value(py, array, c"arrow_array")?;
        Ok((schema_capsule(py, &self.0.schema())?, array))
    }

    /// Returns a stream of this batch as a capsule.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.0.clone())], self.0.schema());
        stream_capsule(py, Box::new(batches))
    }
}

/// Returns a schema as a capsule.
pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|error| arrow(&error))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// Returns a stream as a capsule.
pub(crate) fn stream_capsule(
    py: Python<'_>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
}
