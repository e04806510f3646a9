//! A filter that runs here, on frames that reached the ring before it could: where the kernel cannot run it, or the
//! program may not give it to the kernel any more.

use strait_filter::cbpf::{Program, opcode as op};
use strait_filter::{Metadata, Vlan, ethernet_pkttype};

use crate::frame::{Direction, Frame};

/// A filter and what it has to know to see frames as the kernel would.
#[derive(Clone, Debug)]
pub(crate) struct Sieve {
    program: Program,
    view: View,
}

/// How the frames lie in memory.
#[derive(Clone, Copy, Debug)]
enum View {
    /// From the Ethernet header on, VLAN tags in place; received by a device of this address.
    Wire { mac: [u8; 6] },
    /// Behind a cooked header, which the filter knows.
    Cooked,
}

impl Sieve {
    /// For received Ethernet frames of a device of this address.
    pub(crate) fn wire(program: Program, mac: [u8; 6]) -> Self {
        Self { program, view: View::Wire { mac } }
    }

    /// For packets behind the cooked header that the program is for.
    pub(crate) fn cooked(program: Program) -> Self {
        Self { program, view: View::Cooked }
    }

    /// How many bytes of the frame to keep; 0 is no match.
    pub(crate) fn keeps(&self, frame: &Frame<'_>) -> usize {
        let metadata = Metadata {
            wire_len: frame.wire_len,
            ifindex: frame.interface,
            rx_hash: frame.rx_hash,
            hatype: 1,
            ..Metadata::default()
        };
        let kept = match self.view {
            View::Wire { mac } => {
                let destination = frame.bytes.first_chunk().copied().unwrap_or_default();
                let pkttype = ethernet_pkttype(destination, mac);
                self.program.run_wire(frame.bytes, &Metadata { pkttype, ..metadata })
            }
            View::Cooked => {
                let sent = frame.direction == Direction::Out;
                let pkttype = if sent { op::PACKET_OUTGOING } else { op::PACKET_HOST } as u8;
                let vlan = frame.vlan.map(|tag| Vlan { tci: tag.tci, tpid: tag.tpid });
                self.program.run(frame.bytes, &Metadata { pkttype, vlan, ..metadata })
            }
        };
        kept as usize
    }
}
