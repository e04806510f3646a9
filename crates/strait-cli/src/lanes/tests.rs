//! A lane that panics: the run ends all the same, and the caller can still close its output. One
//! that is blocked: it is watched all the same.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::wait_until;
use strait_capture::{Frame, Session};

use super::{Taker, Until, run};
use crate::Error;
use crate::live::LiveLine;

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

/// Counts the lines that are drawn.
struct Lines(Arc<AtomicU64>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each line begins with one.
        self.0.fetch_add(u64::from(bytes.contains(&b'\r')), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks at its first frame, as a pipe without room does, until the line was drawn three times.
struct Blocked {
    lines: Arc<AtomicU64>,
    was_drawn: Option<bool>,
}

impl Taker for Blocked {
    fn take(&mut self, _: &Frame<'_>) -> Result<(), Error> {
        let drawn = || wait_until(Duration::from_secs(20), || self.lines.load(Ordering::Relaxed) >= 3);
        self.was_drawn = Some(self.was_drawn.unwrap_or_else(drawn));
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

    fn written_bytes(&self) -> Option<u64> {
        Some(1)
    }
}

#[test]
fn a_reader_that_stalls_does_not_stall_the_watch() {
    let session = Session::builder(RECORDING).open_file().unwrap();
    let lines = Arc::new(AtomicU64::new(0));
    let mut taker = Blocked { lines: Arc::clone(&lines), was_drawn: None };
    let until = Until { count: None, duration: None, terminated: &AtomicBool::new(false) };
    let (_, failure) = run(session, &mut taker, &until, Some(LiveLine::on(Lines(lines))));
    assert!(failure.is_none());
    assert_eq!(taker.was_drawn, Some(true));
}
