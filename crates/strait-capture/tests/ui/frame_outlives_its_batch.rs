//! A frame is in the ring: it cannot be used after its batch has returned the slot.

use std::time::Instant;

use strait_capture::Lane;

fn last_byte(lane: &mut Lane) -> Option<u8> {
    let mut batch = lane.next_batch(Instant::now()).ok()??;
    let frame = batch.frames().next()?;
    drop(batch);
    frame.bytes.last().copied()
}

fn main() {
    let _ = last_byte;
}
