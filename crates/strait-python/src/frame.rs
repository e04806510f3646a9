//! Frames as objects of Python, for programs such as scapy and dpkt.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use strait_table::{Direction, Packet};

/// Frame out of the ring, which waits for the program.
pub(crate) struct CopiedFrame {
    bytes: Box<[u8]>,
    properties: Properties,
}

/// Properties of a frame beside its bytes.
#[derive(Clone, Copy)]
struct Properties {
    time_ns: u64,
    length: u32,
    interface: u32,
    lane: u32,
    link_type: u16,
    direction: Option<Direction>,
}

impl CopiedFrame {
    /// Copies a frame: its slot returns to the kernel, and Python can keep the bytes for any time.
    pub(crate) fn new(packet: &Packet<'_>) -> Self {
        let Packet { bytes, link_type, wire_len: length, time_ns, interface, lane, direction, .. } = *packet;
        let properties = Properties { time_ns, length, interface, lane, link_type, direction };
        Self { bytes: bytes.into(), properties }
    }

    /// Returns the frame as a row of a batch.
    pub(crate) fn packet(&self) -> Packet<'_> {
        let Properties { time_ns, length: wire_len, interface, lane, link_type, direction } = self.properties;
        Packet { bytes: &self.bytes, link_type, wire_len, time_ns, interface, lane, direction, owner: None }
    }
}

/// Captured packet: bytes of the link-layer header and what follows it, time and lengths.
///
/// `bytes(frame)` returns the bytes, and `frame.data` a memoryview of them. They belong to this
/// object: they stay valid when the capture is closed.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Frame {
    bytes: Py<PyBytes>,
    properties: Properties,
}

impl Frame {
    pub(crate) fn new(py: Python<'_>, frame: &CopiedFrame) -> Self {
        Self { bytes: PyBytes::new(py, &frame.bytes).unbind(), properties: frame.properties }
    }
}

#[pymethods]
impl Frame {
    /// Captured bytes, from the link-layer header on, as a read-only memoryview.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(self.bytes.bind(py))
    }

    fn __bytes__(&self, py: Python<'_>) -> Py<PyBytes> {
        self.bytes.clone_ref(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.bytes.as_bytes(py).len()
    }

    /// Time at which the kernel received the packet, or its time in the file, in seconds since the
    /// epoch. A float has a resolution of 240 ns in these years: see `time_ns`.
    #[getter]
    fn time(&self) -> f64 {
        self.properties.time_ns as f64 / 1e9
    }

    /// This time in nanoseconds.
    #[getter]
    fn time_ns(&self) -> u64 {
        self.properties.time_ns
    }

    /// Length on the wire in bytes, without the frame check sequence.
    #[getter]
    fn length(&self) -> u32 {
        self.properties.length
    }

    /// Number of captured bytes: less than `length` if the snaplen has cut the packet.
    #[getter]
    fn captured_length(&self, py: Python<'_>) -> usize {
        self.__len__(py)
    }

    /// Link type of the bytes (LINKTYPE_*): 1 is Ethernet.
    #[getter]
    fn link_type(&self) -> u16 {
        self.properties.link_type
    }

    /// Index of the interface; in a file, the number of the interface there.
    #[getter]
    fn interface(&self) -> u32 {
        self.properties.interface
    }

    /// "in" or "out" as seen from the capturing host, or None if it is unknown.
    #[getter]
    fn direction(&self) -> Option<&'static str> {
        self.properties.direction.map(|direction| match direction {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Properties { time_ns, length, .. } = self.properties;
        format!("<strait.Frame time_ns={time_ns} length={length} captured_length={}>", self.__len__(py))
    }
}
