//! A filter that a callback sets on its own handle: it counts for the rest of the batch already, which came by another.

use strait_capture::{Direction, Frame};
use strait_filter::cbpf::{Program, opcode as op};
use strait_filter::{Metadata, Vlan};

use crate::entry::Entry;

/// What a callback has set so far in this batch.
pub(crate) struct LateFilter {
    program: Program,
    is_ethernet: bool,
}

impl LateFilter {
    pub(crate) fn of(entry: &Entry) -> Option<Self> {
        const LINKTYPE_ETHERNET: u32 = 1;
        let program = entry.coming_filter()?;
        Some(Self { program, is_ethernet: entry.facts.link_type() == LINKTYPE_ETHERNET })
    }

    pub(crate) fn matches(&self, frame: &Frame<'_>) -> bool {
        let sent = frame.direction == Direction::Out;
        let metadata = Metadata {
            wire_len: frame.wire_len,
            pkttype: if sent { op::PACKET_OUTGOING } else { op::PACKET_HOST } as u8,
            ifindex: frame.interface,
            vlan: frame.vlan.filter(|_| !self.is_ethernet).map(|tag| Vlan { tci: tag.tci, tpid: tag.tpid }),
            ..Metadata::default()
        };
        let kept = if self.is_ethernet {
            self.program.run_wire(frame.bytes, &metadata)
        } else {
            self.program.run(frame.bytes, &metadata)
        };
        kept != 0
    }
}
