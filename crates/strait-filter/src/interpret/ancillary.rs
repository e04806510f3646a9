//! Loads from `SKF_AD_OFF` on: ancillary data of a frame instead of its bytes.
//!
//! Follows `convert_bpf_extensions` of net/core/filter.c. Only the interpreter calls this module;
//! the translation emits its own eBPF.

use super::frame::View;
use super::{Machine, Metadata};
use crate::cbpf::opcode as op;

/// `struct nlattr`: length and type, both 16 bits in host order.
const NLATTR_LEN: u32 = 4;
/// The type without its two flag bits, `NLA_TYPE_MASK`.
const NLA_TYPE_MASK: u16 = 0x3fff;

impl Machine {
    /// Returns the ancillary value at absolute offset `k`, which is in the ancillary area.
    pub(super) fn ancillary(&self, k: u32, view: &View<'_>, meta: &Metadata) -> Option<u32> {
        let vlan = meta.vlan.unwrap_or_default();
        Some(match k.wrapping_sub(op::SKF_AD_OFF as u32) {
            op::SKF_AD_PROTOCOL => u32::from(meta.protocol),
            op::SKF_AD_PKTTYPE => u32::from(meta.pkttype),
            op::SKF_AD_IFINDEX => meta.ifindex,
            op::SKF_AD_NLATTR => attribute(view, self.a, view.len(), self.x),
            op::SKF_AD_NLATTR_NEST => nested_attribute(view, self.a, self.x),
            op::SKF_AD_MARK => meta.mark,
            op::SKF_AD_QUEUE => u32::from(meta.queue),
            op::SKF_AD_HATYPE => u32::from(meta.hatype),
            op::SKF_AD_RXHASH => meta.rx_hash,
            op::SKF_AD_CPU => meta.cpu,
            op::SKF_AD_ALU_XOR_X => self.a ^ self.x,
            op::SKF_AD_VLAN_TAG => u32::from(vlan.tci),
            op::SKF_AD_VLAN_TAG_PRESENT => u32::from(meta.vlan.is_some()),
            op::SKF_AD_VLAN_TPID => u32::from(vlan.tpid),
            op::SKF_AD_PAY_OFFSET => meta.payload_offset,
            op::SKF_AD_RANDOM => meta.random,
            _ => return None,
        })
    }
}

/// `nla_find`: returns the offset in `start..end` of the first attribute of the given type, or 0.
fn attribute(view: &View<'_>, start: u32, end: u32, wanted: u32) -> u32 {
    let mut at = start;
    while at <= end.saturating_sub(NLATTR_LEN) && end >= NLATTR_LEN {
        let Some((len, kind)) = attribute_header(view, at) else { return 0 };
        if u32::from(len) < NLATTR_LEN || u32::from(len) > end - at {
            return 0;
        }
        if u32::from(kind & NLA_TYPE_MASK) == wanted {
            return at;
        }
        at += u32::from(len).next_multiple_of(4);
    }
    0
}

/// Like [`attribute`], among the attributes nested in the attribute at `at`.
fn nested_attribute(view: &View<'_>, at: u32, wanted: u32) -> u32 {
    let len = match attribute_header(view, at) {
        Some((len, _)) => u32::from(len),
        None => return 0,
    };
    if len < NLATTR_LEN || len > view.len() - at {
        return 0;
    }
    attribute(view, at + NLATTR_LEN, at + len, wanted)
}

fn attribute_header(view: &View<'_>, at: u32) -> Option<(u16, u16)> {
    let [a, b, c, d] = view.bytes(at as usize)?;
    Some((u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])))
}
