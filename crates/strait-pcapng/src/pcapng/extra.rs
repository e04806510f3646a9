//! Decodes blocks that are copied from file to file: secrets.
//!
//! The block decoder uses it. Readers need none of these blocks for packets: a defective one is
//! skipped like an unknown one.

use super::FRAMING_BYTES;
use crate::bytes::Order;
use crate::record::Secrets;

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
