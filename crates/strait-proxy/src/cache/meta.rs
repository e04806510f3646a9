//! Metadata of a record in the store: the response's head and times. `docs/internals/proxy.md`
//! draws the format.

use crate::cache::forms::Forms;

/// Version of the format and of the rules for storing; records of other versions are not read.
/// Records of version 1 may be errors or variants that one request caused and that would answer all
/// clients.
const VERSION: u8 = 2;
/// Version of a record that the operator has marked as stale: the time of the mark follows. An
/// earlier program does not read it, so it never serves the response as fresh.
const EXPIRED: u8 = 3;
/// Version of a record with coded forms behind its body: the time of the mark, or [`UNKNOWN`], and
/// the lengths of the forms follow. An earlier program does not read it: it would take the forms
/// for a part of the body.
const CODED: u8 = 4;
/// Value for an unknown length, and for no mark.
const UNKNOWN: u64 = u64::MAX;
/// Bytes between the version, or the time of the mark, and the variant.
const FIXED_BYTES: usize = 5 * 8 + 4;

/// Metadata of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta<'b> {
    /// Times of request and receipt in seconds since 1970, and the age at receipt.
    pub(crate) requested: u64,
    pub(crate) received: u64,
    pub(crate) age: u64,
    /// Time from which on it is stale, whatever its lifetime.
    pub(crate) expired: Option<u64>,
    /// Coded forms behind the body.
    pub(crate) forms: Forms,
    /// First byte of the representation that the body has.
    pub(crate) first: u64,
    /// Length of the representation, if known.
    pub(crate) length: Option<u64>,
    /// Request's values of the fields with which the response varies.
    pub(crate) variant: &'b str,
    /// Head of the response.
    pub(crate) head: &'b [u8],
}

impl<'b> Meta<'b> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let fixed = 1 + 8 + Forms::BYTES + FIXED_BYTES;
        let mut bytes = Vec::with_capacity(fixed + self.variant.len() + self.head.len());
        self.write(&mut bytes);
        bytes
    }

    /// Appends the encoded metadata.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        match self.expired {
            expired if !self.forms.are_none() => {
                bytes.push(CODED);
                bytes.extend_from_slice(&expired.unwrap_or(UNKNOWN).to_le_bytes());
                bytes.extend_from_slice(&self.forms.encode());
            }
            None => bytes.push(VERSION),
            Some(time) => {
                bytes.push(EXPIRED);
                bytes.extend_from_slice(&time.to_le_bytes());
            }
        }
        let length = self.length.unwrap_or(UNKNOWN);
        for number in [self.requested, self.received, self.age, self.first, length] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.variant.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.variant.as_bytes());
        bytes.extend_from_slice(self.head);
    }

    /// Decodes metadata; `None` if the bytes are invalid.
    pub(crate) fn decode(bytes: &'b [u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (expired, forms, rest) = match *version {
            VERSION => (None, Forms::default(), rest),
            EXPIRED => {
                let (time, rest) = rest.split_first_chunk()?;
                (Some(u64::from_le_bytes(*time)), Forms::default(), rest)
            }
            CODED => {
                let (time, rest) = rest.split_first_chunk()?;
                let (forms, rest) = rest.split_first_chunk()?;
                let time = u64::from_le_bytes(*time);
                (Some(time).filter(|time| *time != UNKNOWN), Forms::decode(*forms), rest)
            }
            _ => return None,
        };
        let (fixed, rest) = rest.split_at_checked(FIXED_BYTES)?;
        let number = |index: usize| {
            let at = 8 * index;
            fixed[at..at + 8].try_into().map(u64::from_le_bytes).ok()
        };
        let variant_len = u32::from_le_bytes(fixed[FIXED_BYTES - 4..].try_into().ok()?);
        let (variant, head) = rest.split_at_checked(variant_len as usize)?;
        Some(Self {
            requested: number(0)?,
            received: number(1)?,
            age: number(2)?,
            expired,
            forms,
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
    fn metadata_is_decoded_unless_truncated_or_of_another_version() {
        let head = b"HTTP/1.1 200 OK\r\n\r\n";
        let meta = Meta {
            requested: 1,
            received: 2,
            age: 3,
            expired: None,
            forms: Forms::default(),
            first: 4,
            length: None,
            variant: "accept:a\n",
            head,
        };
        let bytes = meta.encode();
        assert_eq!(Meta::decode(&bytes), Some(meta));
        let meta = Meta { length: Some(9), ..meta };
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        let marked = Meta { expired: Some(7), ..meta };
        assert_eq!(Meta::decode(&marked.encode()), Some(marked));
        let mut forms = Forms::default();
        forms.set(strait_http::coding::Coding::Brotli, Some(9));
        for coded in [Meta { forms, ..meta }, Meta { forms, ..marked }] {
            assert_eq!(Meta::decode(&coded.encode()), Some(coded));
            assert_eq!((coded.encode()[0], Meta::decode(&coded.encode()[..20])), (4, None));
        }
        assert_eq!((bytes[0], marked.encode()[0]), (2, 3), "programs before the mark do not read it");
        for short in [&bytes[..FIXED_BYTES + 3], &marked.encode()[..8], &[]] {
            assert_eq!(Meta::decode(short), None);
        }
        for version in [1, CODED + 1] {
            assert_eq!(Meta::decode(&[&[version], &bytes[1..]].concat()), None, "{version}");
        }
    }
}
