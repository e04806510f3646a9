//! Bloom filter of the flows of a part.
//!
//! With 12 bits and 8 probes for each flow it has an absent flow with a probability of 0.3 %, and
//! every present one. An identifier has 64 bits of a cryptographic hash, whose halves give all
//! probes.

/// Bits of the filter for each flow.
const FLOW_BITS: usize = 12;
const PROBES: u32 = 8;
/// Bytes of a word.
const WORD: usize = 8;

/// Appends the filter of `flows`, which are sorted and distinct. Returns its number of words.
pub(super) fn append(flows: &[u64], out: &mut Vec<u8>) -> u16 {
    let words = (flows.len() * FLOW_BITS).div_ceil(8 * WORD).min(usize::from(u16::MAX));
    let start = out.len();
    out.resize(start + words * WORD, 0);
    let filter = &mut out[start..];
    for flow in flows {
        for bit in probes(*flow, filter.len()) {
            filter[bit / 8] |= 1 << (bit % 8);
        }
    }
    words as u16
}

/// Returns true if the filter may have been made with `flow`.
pub(super) fn has(filter: &[u8], flow: u64) -> bool {
    !filter.is_empty() && probes(flow, filter.len()).all(|bit| filter[bit / 8] & 1 << (bit % 8) != 0)
}

/// Returns the maximum number of flows with which the filter was made; none if it has the maximum
/// length.
pub(super) fn flows_max(filter: &[u8]) -> Option<u64> {
    let is_limited = filter.len() / WORD >= usize::from(u16::MAX);
    (!is_limited).then_some((filter.len() * 8 / FLOW_BITS) as u64)
}

/// Returns the positions of the bits of a flow in a filter of `bytes` bytes, of which there is at
/// least one.
fn probes(flow: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let (start, step) = (flow as u32, (flow >> 32) as u32 | 1);
    let bits = bytes as u64 * 8;
    (0..PROBES).map(move |number| {
        let position = start.wrapping_add(step.wrapping_mul(number));
        ((u64::from(position) * bits) >> 32) as usize
    })
}
