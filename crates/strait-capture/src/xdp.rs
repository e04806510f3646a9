//! The `AF_XDP` path: one socket a queue on one shared UMEM, fed by an XDP program that filters.

use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::interface::Interface;

use crate::error::Error;
use crate::frame::Frame;
use crate::wait::{Step, Wait};

/// What an `AF_XDP` session is to be like.
pub(crate) struct Options<'a> {
    pub(crate) interface: &'a Interface,
    /// The filter, as a packet socket would see the frames; its return value is the snaplen.
    pub(crate) program: &'a Program,
    /// Receive queues, one engine each.
    pub(crate) queues: &'a [u32],
    /// UMEM bytes for each queue.
    pub(crate) ring_bytes: usize,
    /// Take nothing less than zero-copy.
    pub(crate) zero_copy_only: bool,
    pub(crate) huge_pages: bool,
    pub(crate) wait: Wait,
    pub(crate) promiscuous: bool,
}

/// What [`open`] made.
pub(crate) struct Opened {
    /// One for each of the queues asked for, in their order.
    pub(crate) engines: Vec<Engine>,
    pub(crate) intake: Intake,
    /// `zero-copy`, `native copy` or `generic`.
    pub(crate) mode: &'static str,
    /// What the user should know: each fallback and its reason.
    pub(crate) notes: Vec<String>,
}

/// The attached XDP program, until it is stopped.
pub(crate) struct Intake {}

impl Intake {
    /// Detaches the program: no frame enters the rings after this.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// One AF_XDP socket with its rings.
pub(crate) struct Engine {}

pub(crate) fn open(options: &Options<'_>) -> Result<Opened, Error> {
    Err(Error::Usage(format!("{}: AF_XDP is not built in yet", options.interface.name)))
}

impl Engine {
    pub(crate) fn capacity(&self) -> usize {
        4096
    }
    pub(crate) fn ready(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    pub(crate) fn take(&mut self) -> Batch<'_> {
        Batch { _engine: self }
    }
    pub(crate) fn wait(&mut self, _step: Step, _timeout: Duration) -> Result<(), Error> {
        Ok(())
    }
    /// Reads the kernel's counters; sets received, filtered, lost and events (not delivered, bytes).
    pub(crate) fn account(&mut self, _account: &mut Capture) -> Result<(), Error> {
        Ok(())
    }
    /// After the intake has ended: whether frames are still to come. Ends by itself within a few seconds.
    pub(crate) fn drain(&mut self, _account: &mut Capture, _since: Instant) -> Result<bool, Error> {
        Ok(false)
    }
}

pub(crate) struct Batch<'a> {
    _engine: &'a mut Engine,
}

impl Batch<'_> {
    pub(crate) fn len(&self) -> usize {
        0
    }
    pub(crate) fn frames(&mut self) -> Frames<'_> {
        Frames { _batch: std::marker::PhantomData }
    }
}

pub(crate) struct Frames<'a> {
    _batch: std::marker::PhantomData<&'a ()>,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;
    fn next(&mut self) -> Option<Frame<'a>> {
        None
    }
}
