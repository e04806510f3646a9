//! Decoder of header blocks.

use std::ops::Range;

use super::table::{ENTRY_BYTES, Table};
use super::{HpackError, huffman};

/// Largest integer in a block: no string and no index needs more.
const INTEGER_MAX: usize = 1 << 28;

/// Decoded fields, in memory that is reused.
#[derive(Debug)]
pub struct FieldList {
    /// Names and values while a block is decoded, and after that unless they are UTF-8.
    bytes: Vec<u8>,
    /// Names and values of a decoded block if they are UTF-8: one check serves all of them.
    text: String,
    fields: Vec<(Range<usize>, Range<usize>)>,
    size: usize,
    size_max: usize,
    fields_max: usize,
    is_over: bool,
}

impl FieldList {
    /// A block that expands to more than this many times the limit of the list is refused. Up to
    /// there the fields are decoded for the dynamic table, so that the connection stays usable.
    pub const EXPANDED_MAX: usize = 4;

    /// List of at most `fields_max` fields and `size_max` bytes, counted as in
    /// SETTINGS_MAX_HEADER_LIST_SIZE: name, value and 32 bytes for each field.
    pub fn new(size_max: usize, fields_max: usize) -> Self {
        let (bytes, text, fields) = (Vec::new(), String::new(), Vec::new());
        Self { bytes, text, fields, size: 0, size_max, fields_max, is_over: false }
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        (self.size, self.is_over) = (0, false);
        if !self.text.is_empty() {
            self.bytes = std::mem::take(&mut self.text).into_bytes();
        }
        self.bytes.clear();
        self.fields.clear();
    }

    /// Returns true if the block had more fields or bytes than the list takes.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the fields in the order of the block.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.entries().map(|entry| (entry.name(), entry.value()))
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> + Clone {
        self.fields.iter().map(|(name, value)| Entry { list: self, name, value })
    }

    /// Keeps the field in `bytes` from `start` on, if it fits.
    fn push(&mut self, start: usize, name_len: usize) -> Result<(), HpackError> {
        let (middle, end) = (start + name_len, self.bytes.len());
        self.size += end - start + ENTRY_BYTES;
        if self.size > self.size_max.saturating_mul(Self::EXPANDED_MAX) {
            return Err(HpackError::Bomb);
        }
        self.is_over |= self.size > self.size_max || self.fields.len() >= self.fields_max;
        if self.is_over {
            self.bytes.truncate(start);
        } else {
            self.fields.push((start..middle, middle..end));
        }
        Ok(())
    }

    /// Ends the list: all fields were decoded.
    fn finish(&mut self) {
        match String::from_utf8(std::mem::take(&mut self.bytes)) {
            Ok(text) if text.is_empty() => self.bytes = text.into_bytes(),
            Ok(text) => self.text = text,
            Err(error) => self.bytes = error.into_bytes(),
        }
    }

    fn all(&self) -> &[u8] {
        if self.text.is_empty() { &self.bytes } else { self.text.as_bytes() }
    }

    fn text(&self, part: &Range<usize>) -> Option<&str> {
        self.text.get(part.clone()).or_else(|| std::str::from_utf8(&self.all()[part.clone()]).ok())
    }
}

/// Field of a list.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    list: &'a FieldList,
    name: &'a Range<usize>,
    value: &'a Range<usize>,
}

impl<'a> Entry<'a> {
    pub(crate) fn name(self) -> &'a [u8] {
        &self.list.all()[self.name.clone()]
    }

    pub(crate) fn value(self) -> &'a [u8] {
        &self.list.all()[self.value.clone()]
    }

    /// Returns the name if it is UTF-8.
    pub(crate) fn name_text(self) -> Option<&'a str> {
        self.list.text(self.name)
    }

    /// Returns the value if it is UTF-8.
    pub(crate) fn value_text(self) -> Option<&'a str> {
        self.list.text(self.value)
    }
}

/// Decoder of the header blocks of one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Value of SETTINGS_HEADER_TABLE_SIZE that the peer must keep.
    table_max: usize,
}

impl Decoder {
    /// Decoder with a dynamic table of at most `table_max` bytes.
    pub fn new(table_max: usize) -> Self {
        Self { table: Table::new(table_max), table_max }
    }

    /// Decodes a whole block into `list`, which is cleared first.
    pub fn decode(&mut self, block: &[u8], list: &mut FieldList) -> Result<(), HpackError> {
        list.clear();
        let mut input = Input(block);
        let mut is_first = true;
        while let Some(first) = input.peek() {
            match first {
                0x80.. => self.indexed(&mut input, list)?,
                0x40..=0x7f => self.literal(&mut input, 6, true, list)?,
                0x20..=0x3f => {
                    let size = input.integer(5)?;
                    // RFC 7541 s4.2: at the beginning of the first block after the change.
                    if !is_first || size > self.table_max {
                        return Err(HpackError::TableSize);
                    }
                    self.table.resize(size);
                    continue;
                }
                _ => self.literal(&mut input, 4, false, list)?,
            }
            is_first = false;
        }
        list.finish();
        Ok(())
    }

    fn indexed(&self, input: &mut Input<'_>, list: &mut FieldList) -> Result<(), HpackError> {
        let (name, value) = self.table.get(input.integer(7)?).ok_or(HpackError::Index)?;
        let start = list.bytes.len();
        list.bytes.extend_from_slice(name);
        list.bytes.extend_from_slice(value);
        list.push(start, name.len())
    }

    fn literal(
        &mut self,
        input: &mut Input<'_>,
        prefix_bits: u8,
        is_added: bool,
        list: &mut FieldList,
    ) -> Result<(), HpackError> {
        let start = list.bytes.len();
        match input.integer(prefix_bits)? {
            0 => input.string(&mut list.bytes)?,
            index => list.bytes.extend_from_slice(self.table.get(index).ok_or(HpackError::Index)?.0),
        }
        let name_len = list.bytes.len() - start;
        input.string(&mut list.bytes)?;
        if is_added {
            let (name, value) = list.bytes[start..].split_at(name_len);
            self.table.add(name, value);
        }
        list.push(start, name_len)
    }

    #[cfg(test)]
    pub(super) fn table_size(&self) -> usize {
        self.table.size()
    }
}

/// Bytes of a block that are not decoded yet.
struct Input<'b>(&'b [u8]);

impl Input<'_> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn byte(&mut self) -> Result<u8, HpackError> {
        let (first, rest) = self.0.split_first().ok_or(HpackError::Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads an integer with a prefix of `bits` (RFC 7541, section 5.1).
    fn integer(&mut self, bits: u8) -> Result<usize, HpackError> {
        let prefix_max = (1 << bits) - 1;
        let mut value = usize::from(self.byte()?) & prefix_max;
        if value < prefix_max {
            return Ok(value);
        }
        for shift in (0..=28).step_by(7) {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if value > INTEGER_MAX {
                break;
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Integer)
    }

    /// Appends a string (RFC 7541, section 5.2).
    fn string(&mut self, out: &mut Vec<u8>) -> Result<(), HpackError> {
        let is_coded = self.peek().ok_or(HpackError::Truncated)? & 0x80 != 0;
        let len = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(len).ok_or(HpackError::Truncated)?;
        self.0 = rest;
        if is_coded {
            return huffman::decode(text, out);
        }
        out.extend_from_slice(text);
        Ok(())
    }
}
