//! Reads a session into record batches or frames.
//!
//! [`crate::shared`] calls it without the interpreter's lock. A call waits for at most [`TICK`], so
//! that the caller can check for signals.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use strait_capture::{Batch, Frame, Session};
use strait_ledger::Report;
use strait_table::Batches as _;
use strait_table::packets::{Columns, PacketBatches};
use strait_table::{Packet, interface_names, no_names};

use crate::error::Failure;
use crate::frame::CopiedFrame;
use crate::lanes::Lanes;

/// Maximum time of a call.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Maximum frames that a lane lends at once. At the maximum snaplen they have 256 MiB, for which a
/// batch has space: the offsets of its column `frame` have 31 bits.
const LENT_MAX: usize = 1024;
/// Maximum frames that wait in memory until the program takes them.
const FRAMES_MAX: usize = 256;

/// Form of the batches, and limits of the capture.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Columns of a batch.
    pub(crate) columns: Columns,
    /// Maximum bytes of a packet in the column `frame`.
    pub(crate) frame_bytes: u32,
    /// Maximum rows of a batch.
    pub(crate) batch_rows: usize,
    /// Time after its first packet at which a batch is returned.
    pub(crate) batch_time: Duration,
    /// Maximum packets of the capture.
    pub(crate) count: Option<u64>,
    /// Maximum time of the capture.
    pub(crate) duration: Option<Duration>,
}

/// Result of a call.
pub(crate) enum Step<T> {
    /// The next one.
    Ready(T),
    /// There is none yet.
    Waiting,
    /// The capture or the file has ended.
    Ended,
}

/// Open session, and the packets that the program has not taken yet.
pub(crate) struct Reader {
    lanes: Lanes,
    link_type: u16,
    batches: PacketBatches,
    batch_time: Duration,
    /// Time of the first packet of the batch.
    batch_since: Option<Instant>,
    frames: VecDeque<CopiedFrame>,
    /// Failure to report after the packets before it.
    failure: Option<Failure>,
}

impl Reader {
    pub(crate) fn new(session: Session, limits: &Limits) -> Self {
        let link_type = session.link_type();
        let names = match session.path() {
            "file" => no_names(),
            _ => interface_names(session.interface(), link_type),
        };
        Self {
            batches: PacketBatches::new(&limits.columns, names, limits.batch_rows, limits.frame_bytes),
            lanes: Lanes::new(session, limits.count, limits.duration),
            link_type: u16::try_from(link_type).unwrap_or(u16::MAX),
            batch_time: limits.batch_time,
            batch_since: None,
            frames: VecDeque::new(),
            failure: None,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.lanes.session()
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }

    /// Stops reception. The packets in the rings can still be read.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        self.lanes.stop()
    }

    /// Ends the capture, and returns its ledger.
    pub(crate) fn close(&mut self) -> Result<Report, Failure> {
        self.lanes.close()?;
        self.report()
    }

    /// Returns the ledger so far. It balances after the end of the capture.
    pub(crate) fn report(&mut self) -> Result<Report, Failure> {
        self.lanes.report((self.batches.len() + self.frames.len()) as u64)
    }

    /// Returns a batch that is full or due, or the last packets.
    pub(crate) fn next_batch(&mut self) -> Result<Step<RecordBatch>, Failure> {
        let end = Instant::now() + TICK;
        loop {
            self.move_frames();
            // The only reading of the clock for a packet of a file.
            let now = Instant::now();
            if !self.batches.is_empty() {
                self.batch_since.get_or_insert(now);
            }
            let due = self.batch_since.map(|since| since + self.batch_time);
            let is_due = due.is_some_and(|due| now >= due) || self.batches.space() == 0;
            if is_due || (self.has_ended() && !self.batches.is_empty()) {
                self.batch_since = None;
                return Ok(Step::Ready(self.batches.finish()?));
            }
            if self.has_ended() {
                return self.failure.take().map_or(Ok(Step::Ended), Err);
            }
            if now >= end {
                return Ok(Step::Waiting);
            }
            self.fill_batch(now, due.map_or(end, |due| due.min(end)));
        }
    }

    /// Moves frames that were copied earlier, and that the program has left, to the batch.
    fn move_frames(&mut self) {
        while self.batches.space() > 0
            && let Some(frame) = self.frames.pop_front()
        {
            self.batches.push(&frame.packet());
        }
    }

    /// Adds the next packets to the batch.
    fn fill_batch(&mut self, now: Instant, until: Instant) {
        let Self { batches, link_type, .. } = self;
        let limit = batches.space().min(LENT_MAX);
        let lent = self.lanes.lend(limit, now, until, |batch| {
            each(batch, limit, |frame| batches.push(&packet(frame, *link_type)))
        });
        self.failure = lent.err();
    }

    /// Returns a frame that was copied earlier.
    pub(crate) fn copied_frame(&mut self) -> Option<CopiedFrame> {
        self.frames.pop_front()
    }

    /// Waits for frames if there are none, and returns the next one.
    pub(crate) fn next_frame(&mut self) -> Result<Step<CopiedFrame>, Failure> {
        if self.frames.is_empty() {
            self.fill_frames();
        }
        match self.copied_frame() {
            Some(frame) => Ok(Step::Ready(frame)),
            None if self.has_ended() => self.failure.take().map_or(Ok(Step::Ended), Err),
            None => Ok(Step::Waiting),
        }
    }

    /// Copies the next frames, as many as are there.
    fn fill_frames(&mut self) {
        let Self { frames, link_type, .. } = self;
        let mut now = Instant::now();
        let mut until = now + TICK;
        while self.failure.is_none() && !self.lanes.have_ended() {
            let (before, limit) = (frames.len(), FRAMES_MAX - frames.len());
            let lent = self.lanes.lend(limit, now, until, |batch| {
                each(batch, limit, |frame| frames.push_back(CopiedFrame::new(&packet(frame, *link_type))))
            });
            self.failure = lent.err();
            if frames.len() == before || frames.len() >= FRAMES_MAX {
                break;
            }
            // A file lends the frames of its buffer.
            now = Instant::now();
            until = now;
        }
    }

    fn has_ended(&self) -> bool {
        self.failure.is_some() || self.lanes.have_ended()
    }
}

/// Passes at most `limit` frames of a batch to `take`, and returns their number.
fn each(batch: &mut Batch<'_>, limit: usize, mut take: impl FnMut(&Frame<'_>)) -> usize {
    let mut taken = 0;
    let Ok(()) = batch.try_each(limit, |frame| {
        taken += 1;
        take(frame);
        Ok::<(), Infallible>(())
    });
    taken
}

fn packet<'a>(frame: &Frame<'a>, link_type: u16) -> Packet<'a> {
    Packet {
        bytes: frame.bytes,
        link_type,
        wire_len: frame.wire_len,
        time_ns: frame.timestamp_ns,
        interface: frame.interface,
        lane: frame.queue,
        direction: frame.direction.known(),
        owner: None,
    }
}
