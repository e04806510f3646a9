//! Frames (RFC 9113, sections 4 and 6).
//!
//! ```text
//!  0        3      4       5                    9
//!  +--------+------+-------+--------------------+---------
//!  | length | type | flags | R, stream          | payload
//!  | u24    | u8   | u8    | u32, big-endian    |
//!  +--------+------+-------+--------------------+---------
//! ```

use crate::error::ErrorCode;

/// First bytes of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
pub const FRAME_HEAD_BYTES: usize = 9;
/// Largest payload that a peer must accept, and the largest one accepted here.
pub(crate) const FRAME_BYTES: usize = 16 << 10;

/// Frame types.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
    /// RFC 9218, section 7.1.
    pub(crate) const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) fn new(len: usize, kind: u8, flags: u8, stream: u32) -> Self {
        Self { len, kind, flags, stream }
    }

    pub(crate) fn parse(bytes: [u8; FRAME_HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        Self { len, kind, flags, stream: u32::from_be_bytes(stream) & STREAM_MAX }
    }

    pub(crate) fn bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let [_, len @ ..] = (self.len as u32).to_be_bytes();
        let mut bytes = [0; FRAME_HEAD_BYTES];
        bytes[..3].copy_from_slice(&len);
        bytes[3..5].copy_from_slice(&[self.kind, self.flags]);
        bytes[5..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Largest stream identifier, and largest window.
pub(crate) const STREAM_MAX: u32 = (1 << 31) - 1;

/// Returns a big-endian number at the start of `bytes`.
pub(crate) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

pub(crate) fn push_reset(out: &mut Vec<u8>, stream: u32, code: u32) {
    out.extend_from_slice(&Head::new(4, kind::RST_STREAM, 0, stream).bytes());
    out.extend_from_slice(&code.to_be_bytes());
}

pub(crate) fn push_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    out.extend_from_slice(&Head::new(4, kind::WINDOW_UPDATE, 0, stream).bytes());
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub(crate) fn push_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, why: &str) {
    out.extend_from_slice(&Head::new(8 + why.len(), kind::GOAWAY, 0, 0).bytes());
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
    out.extend_from_slice(why.as_bytes());
}
