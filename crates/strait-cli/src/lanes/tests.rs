//! Tests of a lane that panics, which ends the run with a report, and of a blocked lane, which does
//! not block the live line.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::wait_until;
use strait_capture::{Frame, Session};
use strait_ledger::Report;

use super::{Inputs, Limits, Sink, run};
use crate::Error;
use crate::live::LiveLine;

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/demo.pcap");

/// Panics at its third frame.
#[derive(Default)]
struct Fragile {
    taken: u32,
}

impl Sink for Fragile {
    fn take(&mut self, _: &Frame<'_>) -> Result<(), Error> {
        assert!(self.taken < 2, "intended by this test");
        self.taken += 1;
        Ok(())
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, _: Instant) -> Result<(), Error> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn charge(&self, _: &mut Report) {}
}

#[test]
fn panic_of_a_lane_ends_the_run_with_failure_and_report() {
    let session = Session::builder(RECORDING).open_file().unwrap();
    let mut sink = Fragile::default();
    let limits = Limits { count: None, duration: None, terminated: &AtomicBool::new(false), reloading: None };
    let (report, failure) = run(Inputs::new(vec![session]), &mut sink, &limits, None, None);
    assert_eq!((sink.taken, report.lanes.len()), (2, 1));
    let failure = failure.expect("a failure").to_string();
    assert!(failure.contains("a lane's thread panicked"), "{failure}");
}

/// Counts the drawn lines.
struct Lines(Arc<AtomicU64>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Each line begins with a carriage return.
        self.0.fetch_add(u64::from(bytes.contains(&b'\r')), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks at its first frame, like a full pipe, until the line was drawn three times.
struct Blocked {
    lines: Arc<AtomicU64>,
    was_drawn: Option<bool>,
}

impl Sink for Blocked {
    fn take(&mut self, _: &Frame<'_>) -> Result<(), Error> {
        let drawn = || wait_until(Duration::from_secs(20), || self.lines.load(Ordering::Relaxed) >= 3);
        self.was_drawn = Some(self.was_drawn.unwrap_or_else(drawn));
        Ok(())
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, _: Instant) -> Result<(), Error> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn charge(&self, _: &mut Report) {}

    fn written_bytes(&self) -> Option<u64> {
        Some(1)
    }
}

#[test]
fn stalled_reader_does_not_block_the_live_line() {
    let session = Session::builder(RECORDING).open_file().unwrap();
    let lines = Arc::new(AtomicU64::new(0));
    let mut sink = Blocked { lines: Arc::clone(&lines), was_drawn: None };
    let limits = Limits { count: None, duration: None, terminated: &AtomicBool::new(false), reloading: None };
    let (_, failure) =
        run(Inputs::new(vec![session]), &mut sink, &limits, Some(LiveLine::on(Lines(lines))), None);
    assert!(failure.is_none());
    assert_eq!(sink.was_drawn, Some(true));
}
