//! The class `Session`: waits with signals checked and the interpreter's lock released.
//!
//! The lock of the reader is only taken without that of the interpreter, and no code of Python runs
//! while it is held. So two threads never wait for each other.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::SchemaRef;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use strait_ledger::Report;

use crate::batch::{RecordBatch, schema_capsule, stream_capsule};
use crate::error::{Error, Failure};
use crate::frame::{Frames, OwnedFrame};
use crate::reader::{Limits, Reader, Step};
use crate::stream::Batches;

/// State of a session.
enum State {
    Open(Box<Reader>),
    /// With the ledger.
    Closed(Box<Report>),
}

/// Session of which several objects of Python have a part.
pub(crate) struct Shared(Mutex<State>);

impl Shared {
    /// Runs `work` on the state.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))?)
    }

    /// Calls `step` until it has a result, and checks for signals meanwhile. A closed session has
    /// ended.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        step: impl Fn(&mut Reader) -> Result<Step<T>, Failure> + Send + Sync,
    ) -> PyResult<Option<T>> {
        loop {
            let next = self.with(py, |state| match state {
                State::Open(reader) => step(reader),
                State::Closed(_) => Ok(Step::Ended),
            })?;
            match next {
                Step::Ready(result) => return Ok(Some(result)),
                Step::Ended => return Ok(None),
                Step::Waiting => py.check_signals()?,
            }
        }
    }

    pub(crate) fn next_batch(&self, py: Python<'_>) -> PyResult<Option<arrow_array::RecordBatch>> {
        self.wait(py, Reader::next_batch)
    }

    pub(crate) fn next_frame(&self, py: Python<'_>) -> PyResult<Option<OwnedFrame>> {
        self.wait(py, Reader::next_frame)
    }
}

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
            shared: Arc::new(Shared(Mutex::new(State::Open(Box::new(reader))))),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
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

    /// Returns an iterator over the frames instead of batches of their fields.
    fn frames(this: Py<Self>) -> Frames {
        Frames(this)
    }

    /// Stops reception. The iterator still returns the packets that the kernel has received, and
    /// then ends. Another thread may call it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, |state| match state {
            State::Open(reader) => reader.stop(),
            State::Closed(_) => Ok(()),
        })
    }

    /// Ends the capture. Packets that the iterator has not returned count as `unread`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.with(py, |state| {
            if let State::Open(reader) = state {
                *state = State::Closed(Box::new(reader.close()?));
            }
            Ok(())
        })
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    /// Counters of packets, with the keys of `strait capture --json`: received is delivered +
    /// filtered + the sum of lost. It balances once the capture has ended.
    #[getter]
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.shared.with(py, |state| match state {
            State::Open(reader) => reader.report(),
            State::Closed(report) => Ok(Report::clone(report)),
        })?;
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
