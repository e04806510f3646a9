//! A session that threads of Python share: waits with signals checked and the interpreter's lock
//! released.
//!
//! The lock of the reader is taken only without that of the interpreter, and the reader knows
//! nothing of Python. So two threads never wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use pyo3::{PyResult, Python};
use strait_ledger::Report;

use crate::error::Failure;
use crate::frame::CopiedFrame;
use crate::reader::{Reader, Step};

/// State of a session.
enum State {
    Open(Box<Reader>),
    /// With the ledger.
    Closed(Box<Report>),
}

/// Session of which several objects of Python have a part.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Held while a thread waits for the state, so that it is the next to get it. A thread that
    /// reads unlocks the state for such short moments that it could keep others out.
    turn: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { state: Mutex::new(State::Open(Box::new(reader))), turn: Mutex::default() }
    }

    /// Runs `work` on the state.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut State) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| {
            let turn = lock(&self.turn);
            let mut state = lock(&self.state);
            drop(turn);
            work(&mut state)
        })?)
    }

    /// Calls `step` until it has a result, and checks for signals meanwhile. A closed session has
    /// ended.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        step: impl Fn(&mut Reader) -> Result<Step<T>, Failure> + Send + Sync,
    ) -> PyResult<Option<T>> {
        loop {
            // Also if each step has a result: a library may read a stream without code of Python.
            py.check_signals()?;
            let next = self.with(py, |state| match state {
                State::Open(reader) => step(reader),
                State::Closed(_) => Ok(Step::Ended),
            })?;
            match next {
                Step::Ready(result) => return Ok(Some(result)),
                Step::Ended => return Ok(None),
                Step::Waiting => {}
            }
        }
    }

    pub(crate) fn next_batch(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        self.wait(py, Reader::next_batch)
    }

    pub(crate) fn next_frame(&self, py: Python<'_>) -> PyResult<Option<CopiedFrame>> {
        // Without a wait keep the lock of the interpreter: to get it back from a busy thread takes
        // milliseconds.
        if let Ok(mut state) = self.state.try_lock()
            && let State::Open(reader) = &mut *state
            && let Some(frame) = reader.copied_frame()
        {
            return Ok(Some(frame));
        }
        self.wait(py, Reader::next_frame)
    }

    /// Stops reception.
    pub(crate) fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |state| match state {
            State::Open(reader) => reader.stop(),
            State::Closed(_) => Ok(()),
        })
    }

    /// Ends the capture.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |state| {
            if let State::Open(reader) = state {
                *state = State::Closed(Box::new(reader.close()?));
            }
            Ok(())
        })
    }

    /// Returns the ledger.
    pub(crate) fn report(&self, py: Python<'_>) -> PyResult<Report> {
        self.with(py, |state| match state {
            State::Open(reader) => reader.report(),
            State::Closed(report) => Ok(Report::clone(report)),
        })
    }
}

/// Locks a mutex, also after a panic: counters and rings are valid at each step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
