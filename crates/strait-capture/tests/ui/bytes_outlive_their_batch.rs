//! The bytes of a frame cannot be used after its batch has returned the slot.

use std::time::Instant;

use strait_capture::Lane;

fn first(lane: &mut Lane) -> Option<&[u8]> {
    let mut batch = lane.next_batch(Instant::now()).ok()??;
    let frame = batch.frames().next()?;
    Some(frame.bytes)
}

fn main() {
    let _ = first;
}
