//! Netlink messages as bytes: a writer of attributes, and a reader that checks every length.
//!
//! Only `netlink` uses it. Layouts are those of `netlink(7)` and `rtnetlink(7)`: native byte order,
//! every header and attribute aligned to 4 bytes. No I/O here.

use crate::{Error, Kind, Result};

/// `sizeof(struct nlmsghdr)`.
pub(super) const HEADER_LEN: usize = 16;
/// `sizeof(struct nlattr)`.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// The nested and byte-order flags that share an attribute's type field (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// Request under construction.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// Starts a message of `kind` (`RTM_*`) with the family header `body` (`ifinfomsg`,
    /// `ifaddrmsg`, ...).
    pub(super) fn new(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(body);
        Self { bytes }
    }

    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nested(kind, |request| request.bytes.extend_from_slice(value))
    }

    pub(super) fn attribute_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute with a C string, including its NUL.
    pub(super) fn attribute_str(&mut self, kind: u16, value: &str) -> &mut Self {
        self.nested(kind, |request| {
            request.bytes.extend_from_slice(value.as_bytes());
            request.bytes.push(0);
        })
    }

    /// Adds bytes without an attribute header: the family header inside `VETH_INFO_PEER`.
    pub(super) fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// Adds an attribute with the value that `inside` writes.
    pub(super) fn nested(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER_LEN]);
        inside(self);
        let len =
            u16::try_from(self.bytes.len() - start).expect("attributes written here are far below 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes.resize(align(self.bytes.len()), 0);
        self
    }

    /// Returns the finished message, with its length filled in.
    pub(super) fn finish(&mut self) -> &[u8] {
        let len = u32::try_from(self.bytes.len()).expect("requests written here are far below 4 GiB");
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        &self.bytes
    }
}

/// Message of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Removes the first message from `datagram` and returns it; `None` at the end.
    pub(super) fn take(datagram: &mut &'a [u8]) -> Result<Option<Self>> {
        if datagram.is_empty() {
            return Ok(None);
        }
        let len = read_u32(datagram, 0).ok_or_else(|| malformed("a truncated header"))? as usize;
        if len < HEADER_LEN || len > datagram.len() {
            return Err(malformed("a message's length is outside the datagram"));
        }
        let (message, rest) = (&datagram[..len], &datagram[align(len).min(datagram.len())..]);
        *datagram = rest;
        Ok(Some(Self {
            kind: u16::from_ne_bytes([message[4], message[5]]),
            flags: u16::from_ne_bytes([message[6], message[7]]),
            sequence: u32::from_ne_bytes([message[8], message[9], message[10], message[11]]),
            body: &message[HEADER_LEN..],
        }))
    }

    /// Returns the attributes after a family header of `header_len` bytes.
    pub(super) fn attributes(&self, header_len: usize) -> Result<Attributes<'a>> {
        let bytes =
            self.body.get(align(header_len)..).ok_or_else(|| malformed("a truncated family header"))?;
        Ok(Attributes(bytes))
    }
}

/// Sequence of attributes, checked during iteration.
#[derive(Clone, Debug)]
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the value of the first attribute of type `wanted`.
    pub(super) fn find(&self, wanted: u16) -> Result<Option<&'a [u8]>> {
        for attribute in self.clone() {
            let (kind, value) = attribute?;
            if kind == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the attribute as a `u32`; `None` if absent, an error if too short.
    pub(super) fn find_u32(&self, wanted: u16) -> Result<Option<u32>> {
        let Some(value) = self.find(wanted)? else { return Ok(None) };
        read_u32(value, 0).map(Some).ok_or_else(|| malformed("a truncated 32-bit attribute"))
    }

    /// Returns the attribute as text up to its NUL.
    pub(super) fn find_str(&self, wanted: u16) -> Result<Option<String>> {
        Ok(self.find(wanted)?.map(Self::text))
    }

    /// Returns a value as text up to its NUL.
    pub(super) fn text(value: &[u8]) -> String {
        let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
        String::from_utf8_lossy(&value[..end]).into_owned()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        // Fewer bytes than a header are padding.
        let header = self.0.first_chunk::<ATTRIBUTE_HEADER_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        if len < ATTRIBUTE_HEADER_LEN || len > self.0.len() {
            self.0 = &[];
            return Some(Err(malformed("an attribute's length is outside the message")));
        }
        let value = &self.0[ATTRIBUTE_HEADER_LEN..len];
        self.0 = &self.0[align(len).min(self.0.len())..];
        Some(Ok((kind, value)))
    }
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

pub(super) fn malformed(what: &str) -> Error {
    Error::new(Kind::Failed, "read", "netlink reply", what)
}

/// `NLMSG_ALIGN` and `NLA_ALIGN`.
const fn align(len: usize) -> usize {
    (len + 3) & !3
}
