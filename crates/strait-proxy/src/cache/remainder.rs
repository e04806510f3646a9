//! Remainder of a body that the store refuses, which a client takes over.

use strait_transfer::pipe::Pipe;

use crate::io::piece::Piece;
use crate::upstream::incoming::Incoming;

/// Remainder of a body after the part that could be stored.
#[derive(Debug)]
pub(crate) struct Remainder {
    /// Its offset in the representation.
    pub(crate) first: u64,
    pub(crate) incoming: Box<Incoming>,
    /// Bytes that were on their way to the store.
    pub(crate) held: Option<Held>,
}

/// Bytes between the origin and the store.
#[derive(Debug)]
pub(crate) enum Held {
    /// Spliced.
    Pipe(Pipe),
    /// Copied.
    Piece(Piece),
}

impl Held {
    /// Returns their number.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Pipe(pipe) => pipe.held() as u64,
            Self::Piece(piece) => piece.bytes().len() as u64,
        }
    }
}
