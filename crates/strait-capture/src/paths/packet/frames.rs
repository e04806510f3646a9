//! Frames of a packet socket, converted from those of `strait-sys`.

use strait_sys::packet::{Frame as RawFrame, PACKET_OUTGOING, VlanTag};

use super::ring::RawBatch;
use crate::frame::{Direction, Frame, Vlan};
use crate::paths::engine::Lent;

/// Frames lent by a packet socket.
pub(crate) struct Batch<B>(pub(super) B);

impl<B: RawBatch> Lent for Batch<B> {
    type Frames<'b>
        = Frames<B::Frames<'b>>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn frames(&mut self) -> Frames<B::Frames<'_>> {
        Frames(self.0.frames())
    }
}

/// Iterator over the frames of a [`Batch`].
pub(crate) struct Frames<F>(F);

impl<'a, F: Iterator<Item = RawFrame<'a>>> Iterator for Frames<F> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        self.0.next().map(frame)
    }
}

#[inline]
fn frame(raw: RawFrame<'_>) -> Frame<'_> {
    let sent = raw.packet_type == PACKET_OUTGOING;
    Frame {
        bytes: raw.bytes,
        wire_len: raw.wire_len,
        timestamp_ns: raw.timestamp_ns,
        interface: raw.ifindex,
        queue: 0,
        vlan: raw.vlan.map(|VlanTag { tci, tpid }| Vlan { tci, tpid }),
        direction: if sent { Direction::Out } else { Direction::In },
        rx_hash: raw.rx_hash,
        hardware_ns: 0,
        owner: 0,
    }
}
