//! Limits of all injection paths: frame sizes, and the wait for a full transmit queue.

use std::time::Duration;

use strait_sys::Kind;

use crate::error::Error;

/// Maximum wait for a full queue.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(5);
/// Pause between two checks of a full queue.
pub(crate) const STALL_PAUSE: Duration = Duration::from_micros(20);
/// Size of the largest frame: a jumbo frame with two VLAN tags.
pub(crate) const FRAME_BYTES_MAX: usize = 9022;
/// EtherType of a VLAN tag (802.1Q).
const TAGGED: [u8; 2] = [0x81, 0x00];

/// Returns true if the frame has a VLAN tag.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&TAGGED)
}

/// Returns the error of a queue that stayed full.
pub(crate) fn stalled() -> Error {
    let cause = "its transmit queue stayed full; is the link up?";
    strait_sys::Error::new(Kind::Failed, "send", "", cause).into()
}
