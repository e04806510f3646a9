//! Primitive types of Kafka's protocol: numbers are big-endian, a length is before text and bytes.
//!
//! <https://kafka.apache.org/protocol.html#protocol_types>

/// Answer that is not in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<Malformed> for String {
    fn from(_: Malformed) -> Self {
        "its answer is not in Kafka's protocol".into()
    }
}

type Result<T> = std::result::Result<T, Malformed>;

/// Reader of an answer.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Result<()> {
        self.take(bytes).map(drop)
    }

    /// Reads text, which is empty if it is null.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let length = self.i16()?;
        let bytes = self.take(usize::try_from(length.max(0)).map_err(|_| Malformed)?)?;
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.i32()?.max(0);
        self.take(usize::try_from(length).map_err(|_| Malformed)?)
    }

    /// Reads an array. Each element has a byte at least, so the answer limits its length.
    pub(super) fn all<T>(&mut self, mut element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = usize::try_from(self.i32()?.max(0)).map_err(|_| Malformed)?;
        if count > self.rest.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| element(self)).collect()
    }
}

/// Appends text.
pub(super) fn put_text(to: &mut Vec<u8>, text: &str) {
    // Names and identifiers are shorter than 32 KiB.
    to.extend((text.len() as i16).to_be_bytes());
    to.extend(text.as_bytes());
}

/// Appends bytes, which are part of a batch of at most 1 MiB or of a password.
pub(super) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as i32).to_be_bytes());
    to.extend(bytes);
}

/// Appends a number (zigzag) in 1 to 10 bytes, the least significant group of 7 bits first.
pub(super) fn put_varint(to: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        to.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    to.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_bytes() {
        for (number, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (63, &[0x7e]),
            (64, &[0x80, 1]),
            (-65, &[0x81, 1]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            let mut to = Vec::new();
            put_varint(&mut to, number);
            assert_eq!(to, bytes, "{number}");
        }
    }

    #[test]
    fn written_values_are_read_back_and_short_ones_are_malformed() {
        let mut bytes = Vec::new();
        put_text(&mut bytes, "flows");
        put_bytes(&mut bytes, &[7; 3]);
        bytes.extend((-1_i16).to_be_bytes());
        bytes.extend([0, 0, 0, 2, 0, 1, 0, 2]);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.text(), reader.bytes(), reader.text()), (Ok("flows"), Ok(&[7; 3][..]), Ok("")));
        assert_eq!(reader.all(Reader::i16), Ok(vec![1, 2]));
        assert_eq!(reader.i16(), Err(Malformed));
        for short in [&[0, 5, 1][..], &[0, 2, 0xff, 0xff]] {
            assert_eq!(Reader::new(short).text(), Err(Malformed));
        }
        assert_eq!(Reader::new(&[0x7f, 0xff, 0xff, 0xff, 0, 1]).all(Reader::i16), Err(Malformed));
    }
}
