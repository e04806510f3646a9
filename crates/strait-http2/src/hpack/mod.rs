//! HPACK (RFC 7541): decoder with a dynamic table, encoder without one.
//!
//! The decoder stops as soon as a block expands beyond its limit: one byte of a block can stand for
//! a field of 4 KiB. The encoder uses the static table alone, so that responses of several streams
//! need no common order and no state.

mod codes;
mod decode;
mod encode;
mod fixed;
mod huffman;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use decode::Entry;
pub use decode::{Decoder, FieldList};
pub use encode::{encode, encode_lower, encode_value_by, forget_table};

/// Error in a header block. The state of the decoder is lost: the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// The block ends within a field.
    #[error("a header block ends within a field")]
    Truncated,
    /// An integer exceeds 2^28.
    #[error("an integer in a header block is too large")]
    Integer,
    /// An index refers to no entry.
    #[error("an index in a header block refers to no entry")]
    Index,
    /// A string is not a valid Huffman code.
    #[error("a string in a header block has an invalid Huffman code")]
    Huffman,
    /// A table size exceeds the setting, or does not come first in its block.
    #[error("a table size update in a header block is invalid")]
    TableSize,
    /// The block expands beyond [`FieldList::EXPANDED_MAX`] times the limit of the list.
    #[error("a header block expands to too many bytes")]
    Bomb,
}
