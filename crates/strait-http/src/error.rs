//! Errors of malformed messages.

/// Reason for which a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message violates the grammar or is ambiguous.
    #[error("{0}")]
    Syntax(&'static str),
    /// A line or a head exceeds its limit.
    #[error("{0}")]
    TooLarge(&'static str),
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    #[error("neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// The transfer coding is not supported.
    #[error("a transfer coding other than chunked")]
    Coding,
}

impl Malformed {
    /// Status of the response to the client (RFC 9110, section 15; RFC 6585, section 5).
    pub fn status(self) -> u16 {
        match self {
            Self::Syntax(_) => 400,
            Self::TooLarge(_) => 431,
            Self::Version => 505,
            Self::Coding => 501,
        }
    }
}
