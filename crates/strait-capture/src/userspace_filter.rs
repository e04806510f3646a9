//! Filter that runs in this process: a filter that the kernel cannot run, or the new filter for
//! frames that were lent before it was set.

use strait_filter::cbpf::{Program, opcode as op};
use strait_filter::{Metadata, Vlan};
use strait_packet::summary::link_type;
use strait_sys::packet::Cooked;

use crate::frame::{Direction, Frame};

/// Offset of a VLAN tag behind LINKTYPE_LINUX_SLL's header, which the tag lengthens.
const SLL_TAG_OFFSET: usize = 14;

/// Maximum size of a link header with its VLAN tag. A shorter frame may end within its header, and
/// then matches no filter, not even one that always returns the same value.
const HEADER_BYTES_MAX: usize = 32;

/// Filter, and the layout of its frames.
#[derive(Clone, Debug)]
pub struct UserspaceFilter {
    program: Program,
    view: View,
    /// Result of a program that always returns the same value. It need not be run.
    constant: Option<usize>,
}

/// Layout of frames in memory.
#[derive(Clone, Copy, Debug)]
enum View {
    /// Ethernet header first, VLAN tags in place.
    Ethernet,
    /// Layout for which the filter was compiled.
    Plain,
    /// This cooked header first.
    Cooked(Cooked),
}

impl UserspaceFilter {
    /// Returns a filter for frames with the link's own header.
    pub(crate) fn own(program: Program, link_type: u32) -> Self {
        let view = if link_type == u32::from(link_type::ETHERNET) { View::Ethernet } else { View::Plain };
        Self::new(program, view)
    }

    /// Returns a filter for packets with a cooked header.
    pub(crate) fn cooked(program: Program, header: Cooked) -> Self {
        Self::new(program, View::Cooked(header))
    }

    fn new(program: Program, view: View) -> Self {
        let constant = program.constant().map(|bytes| bytes as usize);
        Self { program, view, constant }
    }

    /// Returns the filter's result: the maximum number of captured bytes of the frame; 0 means no
    /// match.
    #[inline]
    pub fn matched_bytes(&self, frame: &Frame<'_>) -> usize {
        match self.constant {
            Some(bytes) if frame.bytes.len() >= HEADER_BYTES_MAX => bytes,
            _ => self.run(frame),
        }
    }

    fn run(&self, frame: &Frame<'_>) -> usize {
        let sent = frame.direction == Direction::Out;
        let metadata = Metadata {
            wire_len: frame.wire_len,
            pkttype: if sent { op::PACKET_OUTGOING } else { op::PACKET_HOST } as u8,
            ifindex: frame.interface,
            rx_hash: frame.rx_hash,
            hatype: 1,
            ..Metadata::default()
        };
        let vlan = frame.vlan.map(|tag| Vlan { tci: tag.tci, tpid: tag.tpid });
        let bytes = match self.view {
            View::Ethernet => self.program.run_wire(frame.bytes, &metadata),
            View::Plain => self.program.run(frame.bytes, &metadata),
            // libpcap filters before it inserts the tag.
            View::Cooked(Cooked::Sll) if vlan.is_some() => {
                self.program.run_without_tag(frame.bytes, SLL_TAG_OFFSET, &Metadata { vlan, ..metadata })
            }
            View::Cooked(_) => self.program.run(frame.bytes, &Metadata { vlan, ..metadata }),
        };
        bytes as usize
    }
}
