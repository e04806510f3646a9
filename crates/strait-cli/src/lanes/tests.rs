//! A lane that panics: the run ends all the same, and the caller can still close its output.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use strait_capture::{Frame, Session};

use super::{Taker, Until, run};
use crate::Error;

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/demo.pcap");

/// Panics at its third frame.
#[derive(Default)]
struct Fragile {
    taken: u32,
}

impl Taker for Fragile {
    fn take(&mut self, _: &Frame<'_>) -> Result<(), Error> {
        assert!(self.taken < 2, "as meant by this test");
        self.taken += 1;
        Ok(())
    }

    fn batch_taken(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, _: Instant) -> Result<(), Error> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn lost(&self) -> u64 {
        0
    }
}

#[test]
fn a_lane_that_panics_ends_the_run_with_a_failure_and_a_report() {
    let session = Session::builder(RECORDING).open_file().unwrap();
    let mut taker = Fragile::default();
    let until = Until { count: None, duration: None, terminated: &AtomicBool::new(false) };
    let (report, failure) = run(session, &mut taker, &until, None);
    assert_eq!((taker.taken, report.lanes.len()), (2, 1));
    let failure = failure.expect("a failure").to_string();
    assert!(failure.contains("a lane's thread died"), "{failure}");
}
