//! Reader of fields whose lengths are in the packet itself, for TLS and QUIC.

use crate::error::{Error, Header, Result};

/// Bytes that are read from their start.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    /// Bytes that are not read yet.
    pub(crate) rest: &'a [u8],
    /// Length at the start, and the header, for errors.
    len: usize,
    header: Header,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(header: Header, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, len: bytes.len(), header }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let needed = (self.len - self.rest.len()).saturating_add(len);
        let truncated = Error::Truncated { header: self.header, needed, had: self.len };
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.take(2).map(|bytes| bytes.iter().fold(0, |word, byte| word << 8 | u16::from(*byte)))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.take(4).map(|bytes| bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    }

    /// Returns the content of a vector after its length of 2 bytes.
    pub(crate) fn vector(&mut self) -> Result<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Returns the content of a vector after its length of 1 byte.
    pub(crate) fn short_vector(&mut self) -> Result<&'a [u8]> {
        let len = self.u8()?;
        self.take(usize::from(len))
    }
}
