//! Decodes blocks that are copied from file to file: secrets, names.
//!
//! The block decoder uses it. Readers need none of these blocks for packets: a defective one is
//! skipped like an unknown one.

use super::{FRAMING_BYTES, option, padding};
use crate::bytes::Order;
use crate::record::{Names, Secrets};

/// Offset of the secrets in their block (s4.8).
const SECRETS_HEAD_BYTES: usize = 16;

/// Returns the secrets of a complete block (s4.8); `None` if their length exceeds the block.
pub(super) fn secrets(order: Order, block: &[u8]) -> Option<Secrets<'_>> {
    if block.len() < FRAMING_BYTES + 8 {
        return None;
    }
    let bytes = order.u32(block, 12) as usize;
    let data = block[SECRETS_HEAD_BYTES..block.len() - 4].get(..bytes)?;
    Some(Secrets { kind: order.u32(block, 8), data })
}

/// Returns the names of a complete block (s4.5); `None` if a record exceeds the block. Options
/// after the records are left out.
pub(super) fn names(order: Order, block: &[u8]) -> Option<Names<'_>> {
    let content = &block[8..block.len() - 4];
    let mut at = 0;
    // Readers must accept that the end of the records is missing.
    while let Some(head) = content.get(at..at + 4) {
        if order.u16(head, 0) == option::END {
            break;
        }
        let length = usize::from(order.u16(head, 2));
        at += 4 + length + padding(length);
        if at > content.len() {
            return None;
        }
    }
    Some(Names { order, records: &content[..at] })
}
