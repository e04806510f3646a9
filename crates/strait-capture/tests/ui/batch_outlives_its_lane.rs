//! A batch lies in its lane's ring: the lane cannot end, and unmap it, before.

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
