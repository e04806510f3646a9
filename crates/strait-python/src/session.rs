//! The class `Session`, and the iterator over its frames.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::batch::{RecordBatch, schema_capsule, stream_capsule};
use crate::error::Error;
use crate::frame::Frame;
use crate::reader::{Limits, Reader};
use crate::shared::Shared;
use crate::stream::Batches;

/// Capture on an interface, or a capture file: an iterator over record batches of its packets.
///
/// It is a context manager, which closes it. Its ledger stays.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Session {
    shared: Arc<Shared>,
    schema: SchemaRef,
    path: &'static str,
    mode: String,
    interface: String,
    link_type: u32,
    notes: Vec<String>,
}

impl Session {
    pub(crate) fn new(session: strait_capture::Session, limits: &Limits) -> Self {
        let reader = Reader::new(session, limits);
        let session = reader.session();
        Self {
            schema: reader.schema(),
            path: session.path(),
            mode: session.mode().to_owned(),
            interface: session.interface().to_owned(),
            link_type: session.link_type(),
            notes: session.notes().to_vec(),
            shared: Arc::new(Shared::new(reader)),
        }
    }
}

#[pymethods]
impl Session {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Waits for the next record batch. It has as many rows as `batch_rows`, or those of
    /// `batch_time` seconds.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        Ok(self.shared.next_batch(py)?.map(RecordBatch::from))
    }

    /// Returns an iterator over the frames instead of batches of their fields. A later batch begins
    /// with the packet after the last frame.
    fn frames(this: Py<Self>) -> Frames {
        Frames(this)
    }

    /// Stops reception. The iterator still returns the packets that the kernel has received, and
    /// then ends. Another thread may call it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.stop(py)
    }

    /// Ends the capture. Packets that the iterator has not returned count as `unread`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.close(py)
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// Counters of packets, with the keys of `strait capture --json`: received is delivered +
    /// filtered + the sum of lost. It balances once the capture has ended.
    #[getter]
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.shared.report(py)?;
        let text = serde_json::to_string(&report).map_err(|error| Error::new_err(error.to_string()))?;
        Ok(py.import("json")?.call_method1("loads", (text,))?.cast_into()?)
    }

    /// Path that runs: "recv", "v2", "v3", "tap", "xdp", "zerocopy" or "file".
    #[getter]
    fn path(&self) -> &'static str {
        self.path
    }

    /// Mode of the path: "copy", "zero-copy", "native copy", "generic" or "read".
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }

    /// Name of the interface or of the file.
    #[getter]
    fn interface(&self) -> &str {
        &self.interface
    }

    /// Link type of the frames (LINKTYPE_*): 1 is Ethernet.
    #[getter]
    fn link_type(&self) -> u32 {
        self.link_type
    }

    /// Differences from the requested options with their reasons, such as a smaller ring.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<strait.Session interface={:?} path={:?}>", self.interface, self.path)
    }

    /// Returns the schema of the batches as a capsule.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// Returns the remaining batches as a capsule with an Arrow stream.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = Batches { shared: Arc::clone(&self.shared), schema: Arc::clone(&self.schema) };
        stream_capsule(py, Box::new(batches))
    }
}

/// Iterator over the frames of a session, which it keeps open.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Frames(Py<Session>);

#[pymethods]
impl Frames {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        Ok(self.0.get().shared.next_frame(py)?.map(|frame| Frame::new(py, &frame)))
    }

    /// Session of the frames, with the ledger.
    #[getter]
    fn session(&self, py: Python<'_>) -> Py<Session> {
        self.0.clone_ref(py)
    }
}
