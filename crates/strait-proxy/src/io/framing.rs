//! A message that comes from an origin: its head, and a body that is told apart from its framing.

use strait_http::Malformed;
use strait_http::chunked::{self, Chunked};
use strait_http::framing::Body;

/// A chunk goes past what was allowed.
pub(crate) const TOO_LONG: Malformed = Malformed::TooLarge("the body is longer than is taken");

/// A body that is being read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framed {
    /// So many bytes.
    Length(u64),
    /// In chunks, of so many bytes of data more at most.
    Chunked(Chunked, u64),
    /// All to the end of the connection.
    ToClose,
}

/// What the bytes at hand begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// So many bytes of the body.
    Data(usize),
    /// So many bytes of framing.
    Framing(usize),
    /// So many bytes of a trailer's line.
    Trailer(usize),
    /// There are too few to tell.
    More,
    /// So many bytes of framing, and the body is over.
    End(usize),
}

impl Framed {
    pub(crate) fn new(body: Body) -> Self {
        match body {
            Body::None => Self::Length(0),
            Body::Length(length) => Self::Length(length),
            Body::Chunked => Self::Chunked(Chunked::default(), u64::MAX),
            Body::ToClose | Body::Tunnel => Self::ToClose,
        }
    }

    /// Of so many bytes of data at most, if it does not tell how many they are.
    pub(crate) fn limited(body: Body, most: u64) -> Self {
        match Self::new(body) {
            Self::Chunked(chunked, _) => Self::Chunked(chunked, most),
            other => other,
        }
    }

    /// The same body with `len` bytes of data; `None` if it announces another length.
    pub(crate) fn exactly(self, len: u64) -> Option<Self> {
        match self {
            Self::Length(left) => (left == len).then_some(self),
            Self::Chunked(chunked, _) => Some(Self::Chunked(chunked, len)),
            Self::ToClose => Some(Self::Length(len)),
        }
    }

    /// Returns true if a body of [`Framed::exactly`] so many bytes has had fewer.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self, Self::Length(left) | Self::Chunked(_, left) if *left > 0)
    }

    /// What `bytes` begin with; data then is to be told to [`Framed::advance`].
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

    /// So many bytes of data were moved.
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

    /// Bytes of data that follow, whatever they are: they may be moved without being looked at.
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

    /// Whether framing stands between the data.
    pub(crate) fn is_chunked(&self) -> bool {
        matches!(self, Self::Chunked(..))
    }

    /// Whether all of it has passed.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked, _) => chunked.is_over(),
            Self::ToClose => false,
        }
    }

    /// Whether the end of the connection is the end of the body.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self, Self::ToClose | Self::Length(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_told_apart_and_may_be_moved_unseen() {
        let mut framed = Framed::new(Body::Chunked);
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
        let mut framed = Framed::new(Body::Length(3));
        assert_eq!((framed.next(b""), framed.next(b"12345")), (Ok(Piece::More), Ok(Piece::Data(3))));
        framed.advance(3);
        assert_eq!(framed.next(b"45"), Ok(Piece::End(0)));
    }

    #[test]
    fn a_body_of_exactly_so_many_bytes_is_cut_and_may_be_short() {
        assert!(Framed::Length(3).exactly(4).is_none() && Framed::Length(3).exactly(3).is_some());
        let mut to_close = Framed::ToClose.exactly(3).unwrap();
        assert_eq!((to_close.data_ahead(), to_close.next(b"12345")), (3, Ok(Piece::Data(3))));
        assert!(to_close.is_short() && !to_close.ends_with_connection());
        let mut chunked = Framed::new(Body::Chunked).exactly(3).unwrap();
        assert_eq!(chunked.next(b"4\r\n1234"), Ok(Piece::Framing(3)));
        assert_eq!((chunked.data_ahead(), chunked.next(b"1234")), (0, Err(TOO_LONG)));
        let mut chunked = Framed::new(Body::Chunked).exactly(3).unwrap();
        assert_eq!(chunked.next(b"0\r\n\r\n"), Ok(Piece::Framing(3)));
        assert_eq!(chunked.next(b"\r\n"), Ok(Piece::End(2)));
        assert!(chunked.is_short());
    }
}
