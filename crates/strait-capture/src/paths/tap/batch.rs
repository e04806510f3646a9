//! Frames lent from the rings.

use strait_filter::tap::layout::Record;

use super::merge::{Cursor, Item};
use crate::frame::{Direction, Frame, Vlan};
use crate::paths::engine::Lent;
use crate::paths::stamp::Clock;

/// Lent frames; dropping them returns their space.
pub(crate) struct Batch<'a> {
    pub(super) cursors: &'a mut [Cursor],
    pub(super) items: &'a [Item],
    pub(super) clock: &'a Clock,
    pub(super) interface: u32,
    /// The programs record owners and not flow hashes.
    pub(super) owners: bool,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.cursors.iter_mut().for_each(Cursor::release);
    }
}

impl Lent for Batch<'_> {
    type Frames<'b>
        = Frames<'b>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    fn frames(&mut self) -> Frames<'_> {
        Frames {
            cursors: self.cursors,
            items: self.items.iter(),
            clock: self.clock,
            interface: self.interface,
            owners: self.owners,
        }
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<'a> {
    cursors: &'a [Cursor],
    items: std::slice::Iter<'a, Item>,
    clock: &'a Clock,
    interface: u32,
    owners: bool,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let (record, bytes) = self.items.next()?.read(self.cursors)?;
        Some(Frame {
            bytes,
            wire_len: record.wire_len,
            timestamp_ns: self.clock.realtime_ns(record.timestamp_ns),
            interface: self.interface,
            queue: 0,
            vlan: tag(&record),
            direction: if record.is_sent { Direction::Out } else { Direction::In },
            rx_hash: if self.owners { 0 } else { record.mark },
            hardware_ns: 0,
            owner: if self.owners { record.mark } else { 0 },
        })
    }
}

/// Returns the tag that was in the frame's metadata, as packet sockets report it.
#[inline]
fn tag(record: &Record) -> Option<Vlan> {
    (record.tag != 0).then_some(Vlan { tci: record.tag as u16, tpid: (record.tag >> 16) as u16 })
}
