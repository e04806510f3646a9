//! Accounting of lent frames: each frame is cut to the snaplen and counted as delivered, or is
//! rejected by the userspace filter and counted as discarded.

use std::sync::atomic::{AtomicU64, Ordering};

use strait_ledger::Capture;

use crate::frame::Frame;
use crate::userspace_filter::UserspaceFilter;

/// Account for the frames of a batch, and the settings by which they are counted.
pub(crate) struct Booking<'lane> {
    pub(crate) account: &'lane mut Capture,
    pub(crate) snaplen: u32,
    pub(crate) queue: u32,
    pub(crate) copies: Copies,
    /// Filter that runs in this process.
    pub(crate) userspace: Option<&'lane UserspaceFilter>,
    /// Count of frames that the userspace filter rejected.
    pub(crate) discarded: &'lane AtomicU64,
}

/// Part of a frame that the kernel copies between the device's memory and the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Nothing: the device writes into memory that the program reads.
    Nothing,
    /// The part within the snaplen.
    Captured,
    /// The whole frame.
    Whole,
}

impl Booking<'_> {
    /// Cuts a frame to the snaplen and counts it as delivered. Returns false if the userspace
    /// filter rejects it; it then counts as discarded.
    #[inline]
    pub(crate) fn count(&mut self, frame: &mut Frame<'_>) -> bool {
        let mut limit = self.snaplen as usize;
        if let Some(userspace) = self.userspace {
            if self.copies == Copies::Captured {
                // The kernel copied the whole frame, so that the filter can see it.
                self.account.copied_bytes += frame.bytes.len() as u64;
            }
            // Filter a copy: a reference would force loops without this filter to keep every
            // field of their frame in memory.
            let lent = *frame;
            limit = limit.min(userspace.matched_bytes(&lent));
            if limit == 0 {
                self.discarded.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        if let Some((cut, _)) = frame.bytes.split_at_checked(limit) {
            frame.bytes = cut;
        }
        frame.queue = self.queue;
        self.account.deliver(frame.bytes.len() as u32, frame.wire_len);
        match self.copies {
            Copies::Nothing => {}
            Copies::Captured if self.userspace.is_some() => {}
            Copies::Captured => self.account.copied_bytes += frame.bytes.len() as u64,
            Copies::Whole => self.account.copied_bytes += u64::from(frame.wire_len),
        }
        true
    }

    /// Counts frames as delivered and returns their number. There must be no userspace filter.
    #[inline]
    pub(crate) fn count_all<'f>(&mut self, frames: impl Iterator<Item = Frame<'f>>) -> u64 {
        // In registers: the account is in memory.
        let mut sums = Sums::default();
        for frame in frames {
            let captured = (frame.bytes.len() as u32).min(self.snaplen);
            sums.frames += 1;
            sums.captured += u64::from(captured);
            sums.wire += u64::from(frame.wire_len);
            sums.cuts += u64::from(captured < frame.wire_len);
        }
        self.add(&sums)
    }

    /// Counts `frames` whole frames with these lengths, of at most `longest`, as delivered, and
    /// returns their number. There must be no userspace filter, which reads the frames.
    #[inline]
    pub(crate) fn count_lengths(
        &mut self,
        frames: u64,
        lengths: impl Iterator<Item = u32> + Clone,
        longest: u32,
    ) -> u64 {
        let wire = lengths.clone().map(u64::from).sum();
        let mut sums = Sums { frames, captured: wire, wire, cuts: 0 };
        if longest > self.snaplen {
            sums.captured = lengths.clone().map(|length| u64::from(length.min(self.snaplen))).sum();
            sums.cuts = lengths.filter(|&length| length > self.snaplen).count() as u64;
        }
        self.add(&sums)
    }

    fn add(&mut self, sums: &Sums) -> u64 {
        debug_assert!(self.userspace.is_none());
        self.account.delivered += sums.frames;
        self.account.bytes += sums.captured;
        self.account.wire_bytes += sums.wire;
        self.account.events.snaplen_cuts += sums.cuts;
        self.account.copied_bytes += match self.copies {
            Copies::Nothing => 0,
            Copies::Captured => sums.captured,
            Copies::Whole => sums.wire,
        };
        sums.frames
    }

    /// Counts a frame and passes it to `take` if it is delivered.
    // By reference: a copy of the frame would stall on the preceding stores to its single fields
    // (failed store forwarding).
    #[allow(
        clippy::inline_always,
        reason = "a call of it costs a tenth of the libpcap drop-in's instructions"
    )]
    #[inline(always)]
    pub(crate) fn count_and_pass<E>(
        &mut self,
        frame: &mut Frame<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.count(frame) { take(frame) } else { Ok(()) }
    }

    pub(crate) fn reborrow(&mut self) -> Booking<'_> {
        Booking { account: self.account, ..*self }
    }
}

/// Sums over delivered frames.
#[derive(Default)]
struct Sums {
    frames: u64,
    /// Bytes within the snaplen.
    captured: u64,
    /// Bytes on the wire.
    wire: u64,
    /// Number of cut frames.
    cuts: u64,
}
