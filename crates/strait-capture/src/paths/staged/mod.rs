//! Capture path for tests: frames that the test staged in memory. It shows that a path is this
//! folder and its line in the table.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::Capture;

use crate::booking::Copies;
use crate::directions::Directions;
use crate::error::Error;
use crate::frame::Frame;
use crate::paths::engine::{self, Lend, Lent};
use crate::paths::packet;
use crate::paths::request::Request;
use crate::paths::spec::{About, FilterChange, Lanes, Opened, Source, Spec};
use crate::placing::Replaced;
use crate::wait::{Step, Wakers};
use crate::watch::LinkWatch;

/// Frames that every engine holds.
pub(crate) const FRAMES: [&[u8]; 3] = [&[1; 60], &[2; 80], &[3; 100]];

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> =
    Spec { about: About { name: "staged", path: "staged", ..packet::ABOUT }, open };

fn open(request: &Request<'_>) -> Result<Opened<Engine>, Error> {
    let numbers = request.lane_numbers()?.into_iter();
    Ok(Opened {
        engines: numbers.map(|number| (Engine { waiting: &FRAMES, received: 0 }, number)).collect(),
        source: Box::new(Staging),
        watch: LinkWatch::default(),
        userspace: None,
        path: "staged",
        mode: "memory",
        ring: format!("{} frames", FRAMES.len()),
        notes: Vec::new(),
    })
}

/// Frames that have not been lent.
pub(crate) struct Engine {
    waiting: &'static [&'static [u8]],
    received: u64,
}

impl Lend for Engine {
    type Batch<'a> = Batch;

    fn ready(&mut self, _stopping: &AtomicBool) -> Result<bool, Error> {
        Ok(!self.waiting.is_empty())
    }

    fn take(&mut self, limit: usize) -> Batch {
        let (lent, rest) = self.waiting.split_at(limit.min(self.waiting.len()));
        self.waiting = rest;
        self.received += lent.len() as u64;
        Batch(lent)
    }
}

impl engine::Engine for Engine {
    fn capacity(&self) -> usize {
        FRAMES.len()
    }

    fn capacity_min(&self) -> usize {
        FRAMES.len()
    }

    fn copies(&self) -> Copies {
        Copies::Nothing
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn wait(&mut self, _step: Step, timeout: Duration, _wakers: Wakers<'_>) -> Result<(), Error> {
        strait_os::wait::sleep(timeout.min(Duration::from_millis(1)));
        Ok(())
    }

    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error> {
        account.received = self.received + self.waiting.len() as u64;
        account.filtered = discarded;
        account.lost.unread = account.received - account.delivered - account.lost.sink - discarded;
        Ok(())
    }

    fn drain(&mut self, _account: &mut Capture, _discarded: u64, _since: Instant) -> Result<bool, Error> {
        Ok(!self.waiting.is_empty())
    }

    fn discard_waiting(
        &mut self,
        _program: &Program,
        _account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error> {
        discarded.fetch_add(self.take(usize::MAX).0.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Lent frames.
pub(crate) struct Batch(&'static [&'static [u8]]);

impl Lent for Batch {
    type Frames<'b> = Frames<'b>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn frames(&mut self) -> Frames<'_> {
        Frames(self.0.iter())
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a>(std::slice::Iter<'a, &'static [u8]>);

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        self.0.next().map(|bytes| Frame::received(bytes, 1, 0))
    }
}

/// Source without a kernel.
struct Staging;

impl Source for Staging {
    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn set_filter(&mut self, change: &FilterChange<'_>, lanes: &mut dyn Lanes) -> Result<Replaced, Error> {
        lanes.place(change.link.split_to_userspace(change.new, change.directions, &"")?)?;
        Ok(Replaced { userspace_reason: None, refused: None })
    }

    fn set_directions(&mut self, _directions: Directions) -> Result<bool, Error> {
        Ok(false)
    }
}
