//! A lane lends one batch at a time: the next one requires that the first is dropped.

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
