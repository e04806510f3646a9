//! Properties of an open session.

use strait_filter::cbpf::Program;

use crate::directions::Directions;
use crate::link::Link;

/// Properties of an open session.
pub(super) struct Info {
    pub(super) path: &'static str,
    pub(super) mode: String,
    /// Geometry of each lane's ring in words.
    pub(super) ring: String,
    pub(super) interface: String,
    pub(super) is_loopback: bool,
    /// First header of its packets; none for a file, which may hold several link types.
    pub(super) link: Option<Link>,
    pub(super) link_type: u32,
    pub(super) directions: Directions,
    /// Filter as it was given last.
    pub(super) program: Program,
    pub(super) snaplen: u32,
    pub(super) notes: Vec<String>,
}
