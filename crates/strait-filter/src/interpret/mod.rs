//! Interpreter for classic programs, with the kernel's semantics.
//!
//! The capture engine uses it for files, for frames that reached a ring before the filter was
//! attached, and for programs that the kernel refuses. In tests it is one of three executions that
//! must agree. It follows `bpf_convert_filter` and `bpf_skb_load_helper_*` of net/core/filter.c. It
//! allocates nothing and copies no frame.

mod ancillary;
mod frame;
#[cfg(test)]
mod tests;

pub use frame::ethernet_pkttype;
pub(crate) use frame::{
    ETHERNET_HEADER_LEN, ETHERTYPE_802_2, ETHERTYPE_802_3, ETHERTYPE_MIN, ETHERTYPE_OFFSET, TAG_LEN,
    TAG_TYPES, TAGGED_LEN_MIN, resolve,
};

use frame::View;

use crate::cbpf::opcode as op;
use crate::cbpf::{Instruction, MEMORY_CELLS, Program};

/// A VLAN tag that is not in the frame's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// Tag control information: priority, drop eligibility and identifier.
    pub tci: u16,
    /// The tag's own ethertype: 0x8100 or 0x88a8.
    pub tpid: u16,
}

/// Ancillary data of a frame, which is not part of its bytes: fields of the kernel's `struct
/// sk_buff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes of the whole frame. The given bytes may be only a part of it.
    pub wire_len: u32,
    /// `skb->protocol` in host order: the ethertype, or 1 (802.3) or 4 (802.2) if the frame has a
    /// length in the type field.
    pub protocol: u16,
    /// `PACKET_HOST` to `PACKET_OUTGOING`, see [`crate::cbpf::opcode`] and [`ethernet_pkttype`].
    pub pkttype: u8,
    /// Index of the interface.
    pub ifindex: u32,
    /// `skb->queue_mapping`: for received frames the receive queue plus one, or 0 if the driver
    /// records none.
    pub queue: u16,
    /// Flow hash from the device or the kernel; 0 if there is none.
    pub rx_hash: u32,
    /// `ARPHRD_*` type of the device; Ethernet is 1.
    pub hatype: u16,
    /// The outermost VLAN tag, if it was removed from the frame.
    pub vlan: Option<Vlan>,
    /// The CPU that receives the frame.
    pub cpu: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// Result of `SKF_AD_RANDOM`.
    pub random: u32,
    /// Offset of the transport payload according to the kernel's flow dissector, for
    /// `SKF_AD_PAY_OFFSET`.
    pub payload_offset: u32,
}

impl Program {
    /// Returns the maximum number of captured bytes of `packet`; 0 is no match.
    ///
    /// `packet` is in the form that a packet socket's filter sees: the outermost VLAN tag is not in
    /// its bytes but in `meta`. A load beyond the given bytes and a division by zero result in no
    /// match.
    pub fn run(&self, packet: &[u8], meta: &Metadata) -> u32 {
        run(self.instructions(), &View::whole(packet), meta)
    }

    /// Like [`Self::run`], for a packet with a four-byte VLAN tag reinserted at `at`: offsets and
    /// lengths do not count the tag.
    pub fn run_without_tag(&self, packet: &[u8], at: usize, meta: &Metadata) -> u32 {
        let wire_len = meta.wire_len.saturating_sub(TAG_LEN as u32);
        run(self.instructions(), &View::without_tag(packet, at), &Metadata { wire_len, ..*meta })
    }

    /// Like [`Self::run`], for a frame as received from the wire, with its VLAN tag still at offset
    /// 12.
    ///
    /// Prepares the frame as the kernel does before its filter runs. The tag moves to the metadata,
    /// unless the device has already removed one (`meta.vlan`). Offsets and lengths do not
    /// count the tag, and the protocol is the one after it. `meta.protocol` is ignored. Frames
    /// shorter than their header (14 bytes, 20 with a tag) never reach a packet socket and do not
    /// match.
    pub fn run_wire(&self, wire_frame: &[u8], meta: &Metadata) -> u32 {
        match frame::untag(wire_frame, meta) {
            Some((view, meta)) => run(self.instructions(), &view, &meta),
            None => 0,
        }
    }
}

/// Maximum number of steps on one frame; a program that exceeds it does not match. It stops endless
/// loops. `protochain`, the only loop that libpcap compiles, advances by 8 bytes in at most 50
/// steps, so it takes 1.6 million steps on the longest frame of 262,144 bytes. A program without
/// loops takes at most [`crate::cbpf::INTERPRETED_MAX`].
pub const STEPS_MAX: usize = 1 << 21;

/// Registers and scratch memory of the classic machine.
struct Machine {
    a: u32,
    x: u32,
    memory: [u32; MEMORY_CELLS],
}

fn run(program: &[Instruction], view: &View<'_>, meta: &Metadata) -> u32 {
    let mut machine = Machine { a: 0, x: 0, memory: [0; MEMORY_CELLS] };
    let mut pc = 0;
    // `Program` has checked that jumps stay inside and that the last instruction returns.
    for _ in 0..STEPS_MAX {
        let Some(&instruction) = program.get(pc) else { return 0 };
        pc += 1;
        match instruction.code & op::CLASS {
            op::RET if instruction.code == op::RET | op::A => return machine.a,
            op::RET => return instruction.k,
            op::JMP => pc = pc.wrapping_add_signed(machine.skip(instruction)),
            _ => {
                if machine.step(instruction, view, meta).is_none() {
                    return 0;
                }
            }
        }
    }
    0
}

impl Machine {
    /// Executes an instruction other than a jump or return. `None` ends the program without a
    /// match.
    fn step(&mut self, i: Instruction, view: &View<'_>, meta: &Metadata) -> Option<()> {
        match i.code & op::CLASS {
            op::LD => self.a = self.load(i, view, meta)?,
            op::LDX => self.x = self.load_x(i, view, meta)?,
            op::ST => self.memory[i.k as usize] = self.a,
            op::STX => self.memory[i.k as usize] = self.x,
            op::ALU => self.a = self.alu(i)?,
            _ if i.code & op::TXA != 0 => self.a = self.x,
            _ => self.x = self.a,
        }
        Some(())
    }

    fn load(&self, i: Instruction, view: &View<'_>, meta: &Metadata) -> Option<u32> {
        match i.code & op::MODE {
            op::ABS if i.k >= op::SKF_AD_OFF as u32 => self.ancillary(i.k, view, meta),
            op::ABS => view.load(i.k as i32, i.code & op::SIZE),
            op::IND => view.load(self.x.wrapping_add(i.k) as i32, i.code & op::SIZE),
            op::MEM => Some(self.memory[i.k as usize]),
            op::LEN => Some(meta.wire_len),
            _ => Some(i.k),
        }
    }

    fn load_x(&self, i: Instruction, view: &View<'_>, meta: &Metadata) -> Option<u32> {
        match i.code & op::MODE {
            op::MSH => view.load(i.k as i32, op::B).map(|byte| (byte & 0xf) << 2),
            op::MEM => Some(self.memory[i.k as usize]),
            op::LEN => Some(meta.wire_len),
            _ => Some(i.k),
        }
    }

    /// Executes 32-bit arithmetic. A shift counts modulo 32, as in eBPF; division by zero is
    /// `None`.
    fn alu(&self, i: Instruction) -> Option<u32> {
        let a = self.a;
        let operand = if i.code & op::X == 0 { i.k } else { self.x };
        Some(match i.code & op::OPERATION {
            op::ADD => a.wrapping_add(operand),
            op::SUB => a.wrapping_sub(operand),
            op::MUL => a.wrapping_mul(operand),
            op::DIV => a.checked_div(operand)?,
            op::MOD => a.checked_rem(operand)?,
            op::AND => a & operand,
            op::OR => a | operand,
            op::XOR => a ^ operand,
            op::LSH => a.wrapping_shl(operand),
            op::RSH => a.wrapping_shr(operand),
            _ => a.wrapping_neg(),
        })
    }

    /// Returns the number of instructions that a jump skips; a negative number jumps back.
    fn skip(&self, i: Instruction) -> isize {
        let operand = if i.code & op::X == 0 { i.k } else { self.x };
        let holds = match i.code & op::OPERATION {
            op::JEQ => self.a == operand,
            op::JGT => self.a > operand,
            op::JGE => self.a >= operand,
            op::JSET => self.a & operand != 0,
            _ => return i.k as i32 as isize,
        };
        isize::from(if holds { i.jt } else { i.jf })
    }
}
