//! SETTINGS (RFC 9113, section 6.5).

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{FRAME_BYTES, Head, STREAM_MAX, kind, number};
use crate::limits::Limits;

const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// RFC 8441, section 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
/// RFC 9218, section 2.1.
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// Size of the dynamic table that the peer's encoder may use: the default.
pub(crate) const TABLE_BYTES: usize = 4096;
/// Initial windows before any SETTINGS.
pub(crate) const WINDOW_DEFAULT: u32 = 65_535;
const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

/// Settings of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Initial window of its streams.
    pub(crate) window: u32,
    /// Largest payload of a frame that it accepts.
    pub(crate) frame_bytes: u32,
    /// Concurrent streams that it accepts.
    pub(crate) streams: u32,
}

impl Default for Peer {
    fn default() -> Self {
        Self { window: WINDOW_DEFAULT, frame_bytes: FRAME_BYTES as u32, streams: u32::MAX }
    }
}

impl Peer {
    /// Applies the payload of a SETTINGS frame that `own` side has received.
    pub(crate) fn apply(&mut self, payload: &[u8], own: Side) -> Result<(), ConnectionError> {
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(ConnectionError::new(ErrorCode::FrameSize, "SETTINGS of a wrong length"));
        };
        for [high, low, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*high, *low]) {
                // RFC 9113 s6.5.2: a server must not enable push.
                ENABLE_PUSH if value > u32::from(own == Side::Server) => {
                    return Err(ConnectionError::protocol("invalid ENABLE_PUSH"));
                }
                INITIAL_WINDOW_SIZE if value > STREAM_MAX => {
                    return Err(ConnectionError::new(ErrorCode::FlowControl, "invalid INITIAL_WINDOW_SIZE"));
                }
                INITIAL_WINDOW_SIZE => self.window = value,
                MAX_FRAME_SIZE if !(FRAME_BYTES as u32..=FRAME_BYTES_MAX).contains(&value) => {
                    return Err(ConnectionError::protocol("invalid MAX_FRAME_SIZE"));
                }
                MAX_FRAME_SIZE => self.frame_bytes = value,
                MAX_CONCURRENT_STREAMS => self.streams = value,
                // No dynamic table is used, and nothing is pushed.
                _ => {}
            }
        }
        Ok(())
    }
}

/// Appends the SETTINGS of a side.
pub(crate) fn push_own(limits: &Limits, side: Side, out: &mut Vec<u8>) {
    let of_client = [
        (HEADER_TABLE_SIZE, TABLE_BYTES as u32),
        (ENABLE_PUSH, 0),
        (INITIAL_WINDOW_SIZE, limits.stream_window),
        (MAX_HEADER_LIST_SIZE, limits.head_bytes as u32),
    ];
    let of_server = [
        (HEADER_TABLE_SIZE, TABLE_BYTES as u32),
        (MAX_CONCURRENT_STREAMS, limits.streams),
        (INITIAL_WINDOW_SIZE, limits.stream_window),
        (MAX_HEADER_LIST_SIZE, limits.head_bytes as u32),
        (ENABLE_CONNECT_PROTOCOL, u32::from(limits.takes_websockets)),
        (NO_RFC7540_PRIORITIES, 1),
    ];
    let own = if side == Side::Server { &of_server[..] } else { &of_client };
    out.extend_from_slice(&Head::new(own.len() * 6, kind::SETTINGS, 0, 0).bytes());
    for (setting, value) in own {
        out.extend_from_slice(&setting.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Adds to a window, which must not exceed 2^31 - 1 (RFC 9113, section 6.9.1).
pub(crate) fn widened(window: i64, more: i64) -> Option<i64> {
    Some(window + more).filter(|sum| *sum <= i64::from(STREAM_MAX))
}

/// Returns the increment of a WINDOW_UPDATE.
pub(crate) fn increment(payload: &[u8]) -> Option<u32> {
    (payload.len() == 4).then(|| number(payload).unwrap_or(0) & STREAM_MAX)
}
