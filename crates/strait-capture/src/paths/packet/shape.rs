//! Options of a packet socket, and the sizes from which rings are computed.

use strait_sys::packet::{Cooked, Socket, v3};

use super::ring::Ring;
use crate::error::Error;

/// Options of a packet socket and its ring.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Ring size in bytes that the user requested.
    pub(crate) requested_bytes: Option<usize>,
    /// Number of lanes of the session, among which frames are distributed.
    pub(crate) lanes: usize,
    /// Size of the largest frame to capture whole: the smaller of the longest frame and the
    /// snaplen.
    pub(crate) frame_bytes: usize,
    pub(crate) rx_hash: bool,
    pub(crate) promiscuous: bool,
    pub(crate) ignore_outgoing: bool,
    /// Wake the reader with a second socket while the link is quiet.
    pub(crate) doorbell: bool,
    /// Use the long retire timer: the reader does not depend on it, because it is woken for frames
    /// or spins, and reads the open block.
    pub(crate) long_retire: bool,
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
    /// [`DEFAULT_FRAMES`].
    pub(crate) fn ring_bytes<R: Ring>(&self) -> usize {
        self.requested_bytes.unwrap_or_else(|| R::default_bytes(self))
    }
}

/// Default size of a ring if it holds [`DEFAULT_FRAMES`]: some tens of milliseconds of small frames
/// at a million a second, and small enough to stay in a shared cache.
pub(crate) const RING_BYTES: usize = 8 << 20;
/// Number of frames of up to the MTU that the rings of default size of all lanes hold together:
/// 100 ms at 20,000 a second. On a busy machine a reader may not run for tens of milliseconds.
pub(crate) const DEFAULT_FRAMES: usize = 2048;

/// Returns a size as text. Rings consist of whole KiB.
pub(crate) fn size(bytes: usize) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} bytes") }
}
