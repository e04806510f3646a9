//! Errors of a connection and codes on the wire (RFC 9113, section 7).

use crate::limits::Abuse;

/// Code in RST_STREAM and GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: the end of a connection, or of a request body that is not needed.
    NoError = 0x0,
    /// The peer violates the protocol.
    Protocol = 0x1,
    /// The sender of the code has failed.
    Internal = 0x2,
    /// The peer violates flow control.
    FlowControl = 0x3,
    /// A frame was received for a stream that the peer has ended.
    StreamClosed = 0x5,
    /// A frame has a wrong size.
    FrameSize = 0x6,
    /// The stream was not processed: the request may be sent again.
    RefusedStream = 0x7,
    /// The stream is no longer needed.
    Cancel = 0x8,
    /// A header block cannot be decoded.
    Compression = 0x9,
    /// The peer uses too many resources.
    EnhanceYourCalm = 0xb,
}

impl From<ErrorCode> for u32 {
    fn from(code: ErrorCode) -> Self {
        code as Self
    }
}

/// Error that ends a connection: send the output, which has a GOAWAY with the code, and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct ConnectionError {
    /// Code of the GOAWAY.
    pub code: ErrorCode,
    /// Reason.
    pub why: &'static str,
    /// Exceeded limit, if that is the reason.
    pub abuse: Option<Abuse>,
}

impl ConnectionError {
    pub(crate) fn new(code: ErrorCode, why: &'static str) -> Self {
        Self { code, why, abuse: None }
    }

    pub(crate) fn protocol(why: &'static str) -> Self {
        Self::new(ErrorCode::Protocol, why)
    }
}

impl From<Abuse> for ConnectionError {
    fn from(abuse: Abuse) -> Self {
        Self { code: ErrorCode::EnhanceYourCalm, why: abuse.reason(), abuse: Some(abuse) }
    }
}
