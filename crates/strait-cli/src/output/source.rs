//! Inputs of an output: the interfaces of a capture, or a file.

/// Interface of a capture, or input file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    /// Name of the interface or of the file.
    pub(crate) name: String,
    /// Number of the interface in its packets; not used if there is a single input.
    pub(crate) index: u32,
    /// A `LINKTYPE_*` value.
    pub(crate) link_type: u32,
    /// Speed of the link in bits per second, if the kernel reports it.
    pub(crate) speed_bps: Option<u64>,
    /// Number of its first lane in the whole capture.
    pub(crate) first_lane: u32,
}
