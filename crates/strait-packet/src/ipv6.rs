//! The IPv6 header and its chain of extension headers (RFC 8200).
//!
//! Layout: version 4 bits, traffic class 8, flow label 20, payload length 2 bytes, next header 1,
//! hop limit 1, source 16, destination 16. Extension headers follow, each with the protocol of the
//! next. [`Extensions`] iterates over them, and [`Ipv6::upper`] skips to the payload after them.

use std::net::Ipv6Addr;

use crate::error::{Error, Header, Result, array_at, be16, be32, part, split_head};
use crate::protocol::ip;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Maximum number of extension headers; packets with more are refused.
pub const EXTENSIONS_MAX: usize = 16;

/// A view of an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    head: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

/// Payload after the extension headers.
#[derive(Clone, Copy, Debug)]
pub struct Upper<'a> {
    /// The protocol after the last extension header.
    pub protocol: u8,
    /// The fragment header, if there was one.
    pub fragment: Option<Fragment>,
    /// The captured payload.
    pub payload: &'a [u8],
    /// Length of the payload on the wire, which may exceed the captured part.
    pub payload_len: usize,
}

/// The fields of a fragment header (RFC 8200 s4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of this fragment in the fragmentable part of the whole packet, in bytes.
    pub offset: u32,
    /// More fragments follow.
    pub more: bool,
    /// The identification, which is equal in all fragments of a packet.
    pub identification: u32,
}

/// One extension header.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Its protocol number: hop-by-hop, routing, fragment and so on.
    pub kind: u8,
    /// Its bytes, from its next-header field on.
    pub bytes: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Parses the fixed header. Fails on another version and on fewer than 40 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (head, rest) = split_head::<HEADER_LEN>(Header::Ipv6, bytes)?;
        if head[0] >> 4 != 6 {
            let value = u32::from(head[0] >> 4);
            return Err(Error::Invalid { header: Header::Ipv6, field: "version", value, expected: "6" });
        }
        let end = match usize::from(be16(head, 4)) {
            0 if head[6] != ip::NO_NEXT => rest.len(),
            len => len.min(rest.len()),
        };
        Ok(Self { head, payload: &rest[..end] })
    }

    /// Returns the traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.head, 0) >> 4) as u8
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.head, 0) & 0x000f_ffff
    }

    /// Returns the payload length field: the bytes after the fixed header. It is 0 in a jumbogram
    /// (RFC 2675), and within a host in a segment before the NIC cuts it or after GRO has joined
    /// it.
    pub fn payload_len(&self) -> usize {
        match usize::from(be16(self.head, 4)) {
            0 => self.payload.len(),
            len => len,
        }
    }

    /// Returns the next header of the fixed header.
    pub fn next_header(&self) -> u8 {
        self.head[6]
    }

    /// Returns the hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.head[7]
    }

    /// Returns the source address.
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(array_at::<16, HEADER_LEN>(self.head, 8))
    }

    /// Returns the destination address.
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(array_at::<16, HEADER_LEN>(self.head, 24))
    }

    /// Returns the captured bytes after the fixed header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Iterates over the extension headers, in order.
    pub fn extensions(&self) -> Extensions<'a> {
        Extensions {
            next: self.next_header(),
            rest: self.payload,
            rest_len: self.payload_len(),
            left: EXTENSIONS_MAX,
            fragment: None,
            failed: false,
        }
    }

    /// Skips the extension headers and returns the payload after them.
    pub fn upper(&self) -> Result<Upper<'a>> {
        let mut extensions = self.extensions();
        for extension in extensions.by_ref() {
            extension?;
        }
        Ok(extensions.upper())
    }
}

/// An iterator over extension headers. It ends after the last one, after the header of a fragment
/// that is not the first of its packet (the bytes after it are the middle of the payload), and
/// after an error.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    next: u8,
    rest: &'a [u8],
    rest_len: usize,
    left: usize,
    fragment: Option<Fragment>,
    failed: bool,
}

impl<'a> Extensions<'a> {
    /// Returns the payload after the headers that the iterator has returned.
    pub fn upper(&self) -> Upper<'a> {
        let Self { next: protocol, fragment, rest: payload, rest_len: payload_len, .. } = *self;
        Upper { protocol, fragment, payload, payload_len }
    }

    fn take(&mut self) -> Result<Extension<'a>> {
        self.left =
            self.left.checked_sub(1).ok_or(Error::TooMany { header: Header::Ipv6, limit: EXTENSIONS_MAX })?;
        let (head, _) = split_head::<8>(Header::Ipv6, self.rest)?;
        let kind = self.next;
        let len = match kind {
            ip::FRAGMENT => 8,
            ip::AUTHENTICATION => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        let bytes = part(Header::Ipv6, self.rest, 0, len)?;
        if kind == ip::FRAGMENT {
            self.fragment = Some(Fragment::read(*head));
        }
        self.next = head[0];
        self.rest = &self.rest[len..];
        self.rest_len = self.rest_len.saturating_sub(len);
        Ok(Extension { kind, bytes })
    }

    fn is_done(&self) -> bool {
        let in_the_middle = self.fragment.is_some_and(|fragment| fragment.offset > 0);
        self.failed || in_the_middle || !is_extension(self.next)
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done() {
            return None;
        }
        let taken = self.take();
        self.failed = taken.is_err();
        Some(taken)
    }
}

impl Fragment {
    fn read(head: [u8; 8]) -> Self {
        let offset = be16(&head, 2);
        Self { offset: u32::from(offset & 0xfff8), more: offset & 1 == 1, identification: be32(&head, 4) }
    }
}

/// Returns true if a next-header value is an extension header that can be skipped. ESP cannot: the
/// rest is encrypted.
fn is_extension(next: u8) -> bool {
    matches!(
        next,
        ip::HOP_BY_HOP
            | ip::ROUTING
            | ip::FRAGMENT
            | ip::AUTHENTICATION
            | ip::DESTINATION_OPTIONS
            | ip::MOBILITY
            | ip::HIP
            | ip::SHIM6
    )
}
