//! A lane can move to a thread, but threads that share it cannot read it.

use std::time::Instant;

use strait_capture::Lane;

fn read(lane: &Lane) -> bool {
    lane.next_batch(Instant::now()).is_ok()
}

fn main() {
    let _ = read;
}
