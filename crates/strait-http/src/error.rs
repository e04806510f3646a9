//! What is wrong with a message.

/// A message that is refused, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not as the grammar says, or in two ways at once.
    #[error("{0}")]
    Syntax(&'static str),
    /// A line or a head is longer than anybody needs.
    #[error("{0}")]
    TooLarge(&'static str),
    /// A version other than HTTP/1.0 and 1.1.
    #[error("neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// A transfer coding that is not known here.
    #[error("a transfer coding other than chunked")]
    Coding,
}

impl Malformed {
    /// The status that tells a client of it (RFC 9110, section 15; RFC 6585, section 5).
    pub fn status(self) -> u16 {
        match self {
            Self::Syntax(_) => 400,
            Self::TooLarge(_) => 431,
            Self::Version => 505,
            Self::Coding => 501,
        }
    }
}
