//! Framing of a message's body: separates data from chunk framing without copying.

use strait_http::Malformed;
use strait_http::chunked::{self, Chunked};
use strait_http::framing::BodyFraming;

/// Error of a chunk that exceeds the body's limit.
pub(crate) const TOO_LONG: Malformed = Malformed::TooLarge("the body is longer than the limit");

/// End of a chunked body without trailers.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// State of a body that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framed {
    /// That many bytes are left.
    Length(u64),
    /// In chunks, with at most that many bytes of data to come.
    Chunked(Chunked, u64),
    /// All bytes to the end of the connection.
    ToClose,
}

/// Kind and length of the piece that the buffered bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Data of the body.
    Data(usize),
    /// Chunk framing.
    Framing(usize),
    /// Line of a trailer.
    Trailer(usize),
    /// More bytes are needed.
    More,
    /// Framing that ends the body.
    End(usize),
}

impl Framed {
    pub(crate) fn new(body: BodyFraming) -> Self {
        match body {
            BodyFraming::None => Self::Length(0),
            BodyFraming::Length(length) => Self::Length(length),
            BodyFraming::Chunked => Self::Chunked(Chunked::default(), u64::MAX),
            BodyFraming::ToClose | BodyFraming::Tunnel => Self::ToClose,
        }
    }

    /// Framing of a body; limits a chunked one to `most` bytes of data.
    pub(crate) fn limited(body: BodyFraming, most: u64) -> Self {
        match Self::new(body) {
            Self::Chunked(chunked, _) => Self::Chunked(chunked, most),
            other => other,
        }
    }

    /// Returns the framing of a body with exactly `len` bytes of data; `None` if it announces
    /// another length.
    pub(crate) fn exactly(self, len: u64) -> Option<Self> {
        match self {
            Self::Length(left) => (left == len).then_some(self),
            Self::Chunked(chunked, _) => Some(Self::Chunked(chunked, len)),
            Self::ToClose => Some(Self::Length(len)),
        }
    }

    /// Returns true if a body of [`Framed::exactly`] has ended short of its length.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self, Self::Length(left) | Self::Chunked(_, left) if *left > 0)
    }

    /// Returns the first piece of `bytes`. After data, call [`Framed::advance`].
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Piece, Malformed> {
        let data = |most: u64| match most.min(bytes.len() as u64) as usize {
            0 => Piece::More,
            len => Piece::Data(len),
        };
        Ok(match self {
            Self::Length(0) => Piece::End(0),
            Self::Length(left) => data(*left),
            Self::ToClose => data(u64::MAX),
            Self::Chunked(chunked, most) => match chunked.next(bytes)? {
                chunked::Next::Unknown => Piece::More,
                chunked::Next::Framing(len) => Piece::Framing(len),
                chunked::Next::Data(left) if left > *most => return Err(TOO_LONG),
                chunked::Next::Data(left) => data(left),
                chunked::Next::Trailer(len) => Piece::Trailer(len),
                chunked::Next::End(len) => Piece::End(len),
            },
        })
    }

    /// Notes that `moved` bytes of data were moved.
    pub(crate) fn advance(&mut self, moved: u64) {
        match self {
            Self::Length(left) => *left -= moved,
            Self::Chunked(chunked, most) => {
                chunked.advance(moved);
                *most = most.saturating_sub(moved);
            }
            Self::ToClose => {}
        }
    }

    /// Returns the number of data bytes ahead, which can be moved unread.
    pub(crate) fn data_ahead(&mut self) -> u64 {
        match self {
            Self::Length(left) => *left,
            Self::ToClose => u64::MAX,
            Self::Chunked(chunked, most) => match chunked.next(&[]) {
                Ok(chunked::Next::Data(left)) if left <= *most => left,
                _ => 0,
            },
        }
    }

    /// Returns true if the body is chunked.
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self, Self::Chunked(..))
    }

    /// Returns true if the whole body was moved.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked, _) => chunked.is_over(),
            Self::ToClose => false,
        }
    }

    /// Returns true if the end of the connection ends the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::ToClose | Self::Length(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_framing_is_separated_from_data() {
        let mut framed = Framed::new(BodyFraming::Chunked);
        assert_eq!(framed.data_ahead(), 0);
        assert_eq!(framed.next(b"a\r\n0123"), Ok(Piece::Framing(3)));
        assert_eq!(framed.next(b"0123"), Ok(Piece::Data(4)));
        framed.advance(4);
        assert_eq!(framed.data_ahead(), 6);
        framed.advance(6);
        assert_eq!(framed.next(b"\r"), Ok(Piece::More));
        assert_eq!(framed.next(b"\r\n"), Ok(Piece::Framing(2)));
        assert_eq!(framed.next(b"0\r\n"), Ok(Piece::Framing(3)));
        assert_eq!(framed.next(b"\r\n"), Ok(Piece::End(2)));
        let mut framed = Framed::new(BodyFraming::Length(3));
        assert_eq!((framed.next(b""), framed.next(b"12345")), (Ok(Piece::More), Ok(Piece::Data(3))));
        framed.advance(3);
        assert_eq!(framed.next(b"45"), Ok(Piece::End(0)));
    }

    #[test]
    fn body_of_exact_length_is_cut_and_may_be_short() {
        assert!(Framed::Length(3).exactly(4).is_none() && Framed::Length(3).exactly(3).is_some());
        let mut to_close = Framed::ToClose.exactly(3).unwrap();
        assert_eq!((to_close.data_ahead(), to_close.next(b"12345")), (3, Ok(Piece::Data(3))));
        assert!(to_close.is_short() && !to_close.ends_with_connection());
        let mut chunked = Framed::new(BodyFraming::Chunked).exactly(3).unwrap();
        assert_eq!(chunked.next(b"4\r\n1234"), Ok(Piece::Framing(3)));
        assert_eq!((chunked.data_ahead(), chunked.next(b"1234")), (0, Err(TOO_LONG)));
        let mut chunked = Framed::new(BodyFraming::Chunked).exactly(3).unwrap();
        assert_eq!(chunked.next(b"0\r\n\r\n"), Ok(Piece::Framing(3)));
        assert_eq!(chunked.next(b"\r\n"), Ok(Piece::End(2)));
        assert!(chunked.is_short());
    }
}
