//! Ancillary values of a frame that a program can determine.
//!
//! Each value equals that of `convert_bpf_extensions` of net/core/filter.c on a packet socket.
//! A tcx program reads most of them from its context. Values that are not available are refused at
//! translation time, not at run time.

use super::body::Body;
use super::layout::{HEADER, RESULTS, View};
use super::options::Context;
use crate::cbpf::opcode as cop;
use crate::ebpf::{
    Condition, Operation,
    Register::{R0, R1, R2, R3, R6, R7, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;
use crate::interpret::{
    ETHERNET_HEADER_LEN, ETHERTYPE_802_2, ETHERTYPE_802_3, ETHERTYPE_MIN, ETHERTYPE_OFFSET,
};

const TYPE: i16 = HEADER + ETHERTYPE_OFFSET as i16;
const AFTER_TYPE: i16 = HEADER + ETHERNET_HEADER_LEN as i16;

impl Body<'_, '_, '_> {
    /// R0 = the ancillary value at absolute offset `k`, which is in the ancillary area.
    pub(super) fn ancillary(&mut self, at: usize, k: u32) -> Result<(), Error> {
        if self.filter.options.context.is_skb() && self.skb_field(k) {
            return Ok(());
        }
        let hatype = i32::from(self.filter.options.hatype);
        match k.wrapping_sub(cop::SKF_AD_OFF as u32) {
            cop::SKF_AD_PROTOCOL => self.protocol(),
            cop::SKF_AD_PKTTYPE => self.pkttype(),
            cop::SKF_AD_IFINDEX => self.asm.load(Size::W, R0, R6, op::XDP_MD_INGRESS_IFINDEX),
            cop::SKF_AD_QUEUE => self.queue(),
            cop::SKF_AD_HATYPE => self.asm.mov(R0, hatype),
            cop::SKF_AD_RXHASH => self.rx_hash(),
            cop::SKF_AD_MARK => self.asm.mov(R0, 0),
            cop::SKF_AD_CPU => self.asm.call(op::GET_SMP_PROCESSOR_ID),
            cop::SKF_AD_RANDOM => self.asm.call(op::GET_PRANDOM_U32),
            cop::SKF_AD_ALU_XOR_X => self.asm.alu32(Operation::Xor, R0, R9),
            cop::SKF_AD_VLAN_TAG => self.vlan_tag(),
            cop::SKF_AD_VLAN_TAG_PRESENT => self.vlan_tag_present(),
            cop::SKF_AD_VLAN_TPID => self.vlan_tpid(),
            cop::SKF_AD_NLATTR => return Err(untranslatable(at, "a netlink attribute")),
            cop::SKF_AD_NLATTR_NEST => return Err(untranslatable(at, "a nested netlink attribute")),
            cop::SKF_AD_PAY_OFFSET => return Err(untranslatable(at, "the payload offset")),
            _ => return Err(untranslatable(at, "this ancillary value")),
        }
        Ok(())
    }

    /// R0 = an ancillary value that is a field of `struct __sk_buff`. Returns false for other
    /// values.
    fn skb_field(&mut self, k: u32) -> bool {
        let (field, is_big_endian) = match k.wrapping_sub(cop::SKF_AD_OFF as u32) {
            // The kernel marks sent frames for packet sockets only after tcx.
            cop::SKF_AD_PKTTYPE if self.filter.options.context == Context::Sent => {
                self.asm.mov(R0, cop::PACKET_OUTGOING as i32);
                return true;
            }
            cop::SKF_AD_PKTTYPE => (op::SKB_PKT_TYPE, false),
            cop::SKF_AD_PROTOCOL => (op::SKB_PROTOCOL, true),
            cop::SKF_AD_IFINDEX => (op::SKB_IFINDEX, false),
            cop::SKF_AD_QUEUE => (op::SKB_QUEUE_MAPPING, false),
            cop::SKF_AD_RXHASH => (op::SKB_HASH, false),
            cop::SKF_AD_MARK => (op::SKB_MARK, false),
            cop::SKF_AD_VLAN_TAG => (op::SKB_VLAN_TCI, false),
            cop::SKF_AD_VLAN_TAG_PRESENT => (op::SKB_VLAN_PRESENT, false),
            cop::SKF_AD_VLAN_TPID => (op::SKB_VLAN_PROTO, true),
            _ => return false,
        };
        self.asm.load(Size::W, R0, R6, field);
        if is_big_endian {
            self.asm.swap_big_endian(R0, 16);
        }
        true
    }

    /// R0 = the ethertype, or the kind of 802.3 frame if the type field is a length.
    fn protocol(&mut self) {
        let done = self.asm.label();
        let asm = &mut *self.asm;
        asm.load(Size::H, R0, R10, TYPE);
        asm.swap_big_endian(R0, 16);
        asm.jump_if(Condition::GreaterOrEqual, R0, i32::from(ETHERTYPE_MIN), done);
        asm.load(Size::H, R1, R10, AFTER_TYPE);
        asm.mov(R0, i32::from(ETHERTYPE_802_3));
        asm.jump_if(Condition::Equal, R1, 0xffff, done);
        asm.mov(R0, i32::from(ETHERTYPE_802_2));
        asm.bind(done);
    }

    /// R0 = the packet type by the destination, as in `eth_type_trans`.
    fn pkttype(&mut self) {
        let [low @ .., high_0, high_1] = self.filter.options.device_mac;
        let (low, high) = (i32::from_ne_bytes(low), u16::from_ne_bytes([high_0, high_1]));
        let (not_host, not_broadcast, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        let asm = &mut *self.asm;
        asm.load(Size::W, R1, R10, HEADER);
        asm.load(Size::H, R2, R10, HEADER + 4);
        asm.mov(R0, cop::PACKET_HOST as i32);
        asm.jump32_if(Condition::NotEqual, R1, low, not_host);
        asm.jump_if(Condition::Equal, R2, i32::from(high), done);
        asm.bind(not_host);
        asm.mov(R0, cop::PACKET_BROADCAST as i32);
        asm.jump32_if(Condition::NotEqual, R1, -1, not_broadcast);
        asm.jump_if(Condition::Equal, R2, 0xffff, done);
        asm.bind(not_broadcast);
        asm.load(Size::B, R1, R10, HEADER);
        asm.mov(R0, cop::PACKET_MULTICAST as i32);
        asm.jump_if(Condition::AnyBitSet, R1, 1, done);
        asm.mov(R0, cop::PACKET_OTHERHOST as i32);
        asm.bind(done);
    }

    /// R0 = the receive queue plus one, as NIC drivers record it (`skb_record_rx_queue`). A few
    /// drivers, such as veth, record none, and packet sockets on them see 0. An XDP program cannot
    /// determine its driver.
    fn queue(&mut self) {
        self.asm.load(Size::W, R0, R6, op::XDP_MD_RX_QUEUE_INDEX);
        self.asm.alu32(Operation::Add, R0, 1);
    }

    /// R0 = the device's flow hash, or 0 if the device provides none.
    fn rx_hash(&mut self) {
        let Some(function) = self.filter.options.functions.rx_hash else {
            return self.asm.mov(R0, 0);
        };
        let done = self.asm.label();
        let asm = &mut *self.asm;
        asm.store(Size::Dw, R10, RESULTS, 0);
        asm.mov(R1, R6);
        asm.mov(R2, R10);
        asm.alu(Operation::Add, R2, i32::from(RESULTS));
        asm.mov(R3, R10);
        asm.alu(Operation::Add, R3, i32::from(RESULTS) + 4);
        asm.call_kernel(function);
        asm.mov(R1, R0);
        asm.mov(R0, 0);
        asm.jump_if(Condition::NotEqual, R1, 0, done);
        asm.load(Size::W, R0, R10, RESULTS);
        asm.bind(done);
    }

    fn vlan_tag(&mut self) {
        self.asm.mov(R0, R7);
        self.asm.alu32(Operation::And, R0, 0xffff);
    }

    fn vlan_tpid(&mut self) {
        self.asm.mov(R0, R7);
        self.asm.alu32(Operation::Rsh, R0, 16);
    }

    fn vlan_tag_present(&mut self) {
        let driver_reports_tags = self.filter.options.functions.rx_vlan_tag.is_some();
        let done = self.asm.label();
        match self.view {
            View::Tagged => self.asm.mov(R0, 1),
            View::Untagged if driver_reports_tags => {
                self.asm.mov(R0, 0);
                self.asm.jump_if(Condition::Equal, R7, 0, done);
                self.asm.mov(R0, 1);
            }
            View::Untagged => self.asm.mov(R0, 0),
        }
        self.asm.bind(done);
    }
}

fn untranslatable(at: usize, what: &'static str) -> Error {
    Error::Untranslatable { at, what }
}
