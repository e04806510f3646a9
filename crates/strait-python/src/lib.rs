//! Python module `strait`: captures and capture files as Arrow record batches and as frames.
//!
//! `scripts/wheel` packs the library with the files of the folder `python`. [`arguments`] checks
//! the arguments of a call, [`lanes`] and [`reader`] read packets, [`shared`] waits for them with
//! signals checked and the interpreter's lock released, [`session`] has the classes for it.
//! [`batch`] and [`stream`] pass batches on by Arrow's C data interface, [`frame`] has packets for
//! scapy and dpkt.
//!
//! No memory of a ring is visible in Python: the encoder copies fields out of a frame, and a
//! [`frame::Frame`] has the bytes in an object of Python's.

mod arguments;
mod batch;
mod error;
mod frame;
mod lanes;
mod reader;
mod session;
mod shared;
mod stream;

/// Native part of the package `strait`.
#[pyo3::pymodule(name = "_strait")]
mod native {
    #[pymodule_export]
    use crate::arguments::{capture, read};
    #[pymodule_export]
    use crate::batch::RecordBatch;
    #[pymodule_export]
    use crate::error::{Error, RefusedError, UsageError};
    #[pymodule_export]
    use crate::frame::Frame;
    #[pymodule_export]
    use crate::session::{Frames, Session};
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name is one of Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
