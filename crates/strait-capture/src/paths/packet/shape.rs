//! Options of a packet socket, and the sizes from which rings are computed.

use strait_sys::packet::{Cooked, Socket, v3};

use super::ring::Ring;
use crate::error::Error;

/// Options of a packet socket and its ring.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Ring size in bytes that the user asked for.
    pub(crate) asked_bytes: Option<usize>,
    /// Number of lanes of the session, among which frames are spread.
    pub(crate) lanes: usize,
    /// Size of the largest frame to capture whole: the smaller of the interface's largest frame and
    /// the snaplen.
    pub(crate) frame_bytes: usize,
    pub(crate) rx_hash: bool,
    pub(crate) promiscuous: bool,
    pub(crate) ignore_outgoing: bool,
    /// Wake the reader by a second socket while the line is quiet.
    pub(crate) doorbell: bool,
    /// The reader sees frames of the open block as they come, or is woken for them.
    pub(crate) patient: bool,
    /// Blocks to read before the kernel retires them.
    pub(crate) early: v3::Early,
    /// Header that replaces the link header.
    pub(crate) cooked: Option<Cooked>,
}

impl Shape {
    /// Opens a socket that receives nothing yet.
    pub(crate) fn socket(&self, interface: &str) -> Result<Socket, Error> {
        let open = if self.cooked.is_some() { Socket::open_cooked } else { Socket::open };
        Ok(open(interface)?)
    }

    /// Returns the size in bytes of a ring, or of the socket's queue. The default size holds
    /// [`HELD_FRAMES`].
    pub(crate) fn ring_bytes<R: Ring>(&self) -> usize {
        self.asked_bytes.unwrap_or_else(|| R::default_bytes(self))
    }
}

/// Default size of a ring that holds [`HELD_FRAMES`] in it: some tens of milliseconds of small
/// frames at a million a second, and small enough to stay in a shared cache.
pub(crate) const RING_BYTES: usize = 8 << 20;
/// Frames of up to the MTU that a ring of default size holds, all lanes together: 100 ms at 20,000
/// a second. A busy machine keeps a reader from its CPU for tens of milliseconds.
pub(crate) const HELD_FRAMES: usize = 2048;

/// Returns a size in words; rings are made of whole KiB.
pub(crate) fn size(bytes: usize) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} bytes") }
}
