//! Reads a block's options (s3.5). An option that extends beyond its block is an error.
//!
//! The block decoder uses it. It lends values and copies none.

use super::{option, padding};
use crate::bytes::Order;
use crate::error::Error;

/// The remaining options of a block.
pub(super) struct Options<'a> {
    order: Order,
    left: &'a [u8],
    /// Offset of the block, for errors.
    offset: u64,
}

/// One option: its code and its value without padding.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) code: u16,
    pub(super) bytes: &'a [u8],
    offset: u64,
}

impl<'a> Options<'a> {
    /// Returns the options in `bytes`, the part of a block from its fixed fields to its trailing
    /// length.
    pub(super) fn new(order: Order, bytes: &'a [u8], offset: u64) -> Self {
        Self { order, left: bytes, offset }
    }

    /// Returns the next option. Returns `None` after `opt_endofopt`, or at the end of the block:
    /// readers must accept that `opt_endofopt` is missing.
    pub(super) fn next(&mut self) -> Result<Option<Value<'a>>, Error> {
        if self.left.is_empty() {
            return Ok(None);
        }
        if self.left.len() < 4 {
            return Err(self.overrun(option::END, 4));
        }
        let (code, len) = (self.order.u16(self.left, 0), self.order.u16(self.left, 2));
        let need = 4 + usize::from(len) + padding(usize::from(len));
        if need > self.left.len() {
            return Err(self.overrun(code, need));
        }
        let value = Value { code, bytes: &self.left[4..4 + usize::from(len)], offset: self.offset };
        self.left = &self.left[need..];
        if code == option::END {
            value.fixed::<0>()?;
            return Ok(None);
        }
        Ok(Some(value))
    }

    fn overrun(&self, code: u16, need: usize) -> Error {
        Error::OptionOverrun { offset: self.offset, code, need: need as u32, room: self.left.len() as u32 }
    }
}

impl<'a> Value<'a> {
    /// Returns a value of exactly `N` bytes.
    pub(super) fn fixed<const N: usize>(&self) -> Result<[u8; N], Error> {
        self.bytes.try_into().map_err(|_| Error::OptionLength {
            offset: self.offset,
            code: self.code,
            len: self.bytes.len() as u16,
            expected: N as u16,
        })
    }

    /// Returns a string, up to the first zero byte or invalid UTF-8 (s3.5, s3.6.3).
    pub(super) fn text(&self) -> &'a str {
        text(self.bytes)
    }
}

/// Returns the string in `bytes`, see [`Value::text`].
pub(super) fn text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    }
}
