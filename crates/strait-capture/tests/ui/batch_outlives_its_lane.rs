//! A batch is in its lane's ring, so the lane cannot end, and unmap the ring, before the batch.

use std::time::Instant;

use strait_capture::Lane;

fn keep(mut lane: Lane) -> usize {
    let batch = lane.next_batch(Instant::now()).unwrap().unwrap();
    let _ = lane.finish();
    batch.len()
}

fn main() {
    let _ = keep;
}
