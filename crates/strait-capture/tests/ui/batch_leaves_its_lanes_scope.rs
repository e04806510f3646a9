//! A batch cannot be returned from the scope of its lane.

use std::time::Instant;

use strait_capture::{Batch, Session};

fn first(session: &mut Session) -> Batch<'static> {
    let mut lane = session.take_lanes().remove(0);
    lane.next_batch(Instant::now()).unwrap().unwrap()
}

fn main() {
    let _ = first;
}
