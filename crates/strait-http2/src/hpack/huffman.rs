//! Huffman code of strings (RFC 7541, section 5.2).
//!
//! The decoder takes four bits at a time. No code is shorter than five bits, so a step completes at
//! most one byte.

use super::HpackError;
use super::codes::CODES;

/// Inner nodes of the code's tree: one less than its 257 leaves.
const NODES: usize = 256;
/// Bits of padding at the end of a string, at most.
const PADDING_BITS_MAX: usize = 7;

/// Child of a node while the tree is built.
#[derive(Clone, Copy)]
enum Child {
    None,
    Node(u8),
    Byte(u8),
}

/// Result of four bits at a node.
#[derive(Clone, Copy)]
struct Step {
    next: u8,
    byte: Option<u8>,
    /// True if the bits are part of no code, or complete the code for the end.
    is_invalid: bool,
}

const TREE: [[Child; 2]; NODES] = tree();
static STEPS: [[Step; 16]; NODES] = steps();
static MAY_END: [bool; NODES] = may_end();

const fn tree() -> [[Child; 2]; NODES] {
    let mut tree = [[Child::None; 2]; NODES];
    let (mut used, mut byte) = (1, 0);
    while byte < CODES.len() {
        let (code, len) = CODES[byte];
        let (mut node, mut left) = (0, len);
        while left > 1 {
            left -= 1;
            let bit = (code >> left & 1) as usize;
            if let Child::Node(next) = tree[node][bit] {
                node = next as usize;
            } else {
                tree[node][bit] = Child::Node(used as u8);
                node = used;
                used += 1;
            }
        }
        tree[node][(code & 1) as usize] = Child::Byte(byte as u8);
        byte += 1;
    }
    tree
}

const fn steps() -> [[Step; 16]; NODES] {
    let mut steps = [[Step { next: 0, byte: None, is_invalid: false }; 16]; NODES];
    let mut node = 0;
    while node < NODES {
        let mut bits = 0;
        while bits < 16 {
            steps[node][bits] = step(node, bits);
            bits += 1;
        }
        node += 1;
    }
    steps
}

const fn step(node: usize, bits: usize) -> Step {
    let (mut node, mut byte, mut left) = (node, None, 4);
    while left > 0 {
        left -= 1;
        match TREE[node][bits >> left & 1] {
            Child::Node(next) => node = next as usize,
            Child::Byte(done) => (node, byte) = (0, Some(done)),
            Child::None => return Step { next: 0, byte: None, is_invalid: true },
        }
    }
    Step { next: node as u8, byte, is_invalid: false }
}

/// Returns the nodes at which a string may end: padding consists of ones.
const fn may_end() -> [bool; NODES] {
    let (mut ends, mut node, mut depth) = ([false; NODES], 0, 0);
    while depth <= PADDING_BITS_MAX {
        ends[node] = true;
        if let Child::Node(next) = TREE[node][1] {
            node = next as usize;
        }
        depth += 1;
    }
    ends
}

/// Coded bytes that are decoded in one go, and the bytes that they can stand for.
const PIECE_BYTES: usize = 64;
const ROOM_BYTES: usize = PIECE_BYTES * 8 / CODE_BITS_MIN + 1;
/// Bits of the shortest code.
const CODE_BITS_MIN: usize = 5;

/// Appends the decoded string.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let mut node = 0;
    for piece in coded.chunks(PIECE_BYTES) {
        // In an array, because the capacity of `out` would be compared for each byte.
        let (mut room, mut len) = ([0; ROOM_BYTES], 0);
        for nibble in piece.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            let step = STEPS[usize::from(node)][usize::from(nibble)];
            if step.is_invalid {
                return Err(HpackError::Huffman);
            }
            if let Some(byte) = step.byte {
                room[len] = byte;
                len += 1;
            }
            node = step.next;
        }
        out.extend_from_slice(&room[..len]);
    }
    if MAY_END[usize::from(node)] { Ok(()) } else { Err(HpackError::Huffman) }
}

/// Returns the length of the coded string in bytes.
pub(super) fn coded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(CODES[usize::from(*byte)].1)).sum();
    bits.div_ceil(8)
}

/// Appends the coded string.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut held, mut held_bits) = (0_u64, 0);
    for byte in text {
        let (code, len) = CODES[usize::from(*byte)];
        held = held << len | u64::from(code);
        held_bits += u32::from(len);
        // The next code has at most 30 bits, so both fit.
        if held_bits >= u32::BITS {
            held_bits -= u32::BITS;
            out.extend_from_slice(&((held >> held_bits) as u32).to_be_bytes());
        }
    }
    // Padding consists of ones.
    let left = u64::BITS - held_bits;
    let last = held.checked_shl(left).unwrap_or(0) | u64::MAX.checked_shr(held_bits).unwrap_or(0);
    out.extend_from_slice(&last.to_be_bytes()[..held_bits.div_ceil(8) as usize]);
}
