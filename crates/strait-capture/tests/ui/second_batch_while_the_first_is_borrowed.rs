//! Only one batch of a lane can be borrowed at a time: the first must be dropped before the next.

use std::time::Instant;

use strait_capture::Lane;

fn two(lane: &mut Lane) -> usize {
    let first = lane.next_batch(Instant::now()).unwrap().unwrap();
    let second = lane.next_batch(Instant::now()).unwrap().unwrap();
    first.len() + second.len()
}

fn main() {
    let _ = two;
}
