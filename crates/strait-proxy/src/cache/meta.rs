//! What is kept beside a body in the store: the head of the response, and what the cache knew of
//! it. `docs/internals/proxy.md` draws it.

/// The version of this layout and of the rules for what is stored; records of others are not read.
/// Version 1 may hold errors and variants that one request caused and that would answer all
/// clients.
const VERSION: u8 = 2;
/// In place of a length that is not known.
const UNKNOWN: u64 = u64::MAX;
/// Bytes before the variant.
const FIXED_BYTES: usize = 1 + 5 * 8 + 4;

/// What is kept beside a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta<'b> {
    /// When it was asked for and when it came, in seconds since 1970; and how old it was then.
    pub(crate) requested: u64,
    pub(crate) received: u64,
    pub(crate) age: u64,
    /// Which byte of the representation the body begins with.
    pub(crate) first: u64,
    /// Bytes of the representation, where they are known.
    pub(crate) length: Option<u64>,
    /// What the request said of the fields that it varies with.
    pub(crate) variant: &'b str,
    /// The head.
    pub(crate) head: &'b [u8],
}

impl<'b> Meta<'b> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.variant.len() + self.head.len());
        bytes.push(VERSION);
        let length = self.length.unwrap_or(UNKNOWN);
        for number in [self.requested, self.received, self.age, self.first, length] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.variant.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.variant.as_bytes());
        bytes.extend_from_slice(self.head);
        bytes
    }

    /// `None` of bytes that are none.
    pub(crate) fn decode(bytes: &'b [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES)?;
        if fixed[0] != VERSION {
            return None;
        }
        let number = |index: usize| {
            let at = 1 + 8 * index;
            fixed[at..at + 8].try_into().map(u64::from_le_bytes).ok()
        };
        let variant_len = u32::from_le_bytes(fixed[FIXED_BYTES - 4..].try_into().ok()?);
        let (variant, head) = rest.split_at_checked(variant_len as usize)?;
        Some(Self {
            requested: number(0)?,
            received: number(1)?,
            age: number(2)?,
            first: number(3)?,
            length: number(4).filter(|length| *length != UNKNOWN),
            variant: std::str::from_utf8(variant).ok()?,
            head,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_what_is_cut_is_not() {
        let head = b"HTTP/1.1 200 OK\r\n\r\n";
        let meta =
            Meta { requested: 1, received: 2, age: 3, first: 4, length: None, variant: "accept:a\n", head };
        let bytes = meta.encode();
        assert_eq!(Meta::decode(&bytes), Some(meta));
        let meta = Meta { length: Some(9), ..meta };
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        assert_eq!(Meta::decode(&bytes[..FIXED_BYTES + 3]), None);
        for version in [1, VERSION + 1] {
            assert_eq!(Meta::decode(&[&[version], &bytes[1..]].concat()), None, "{version}");
        }
    }
}
