//! Metadata of a record in the store: the response's head and times. `docs/internals/proxy.md`
//! draws the format.

use strait_http::lifetimes::Lifetimes;

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
/// Version of a record with lifetimes of the operator: the time of the mark, the lengths of the
/// forms, and the lifetimes follow. An earlier program does not read it: it would use those of the
/// origin.
const RULED: u8 = 5;
/// Value for an unknown length, for no mark, and for no lifetime of the operator.
const UNKNOWN: u64 = u64::MAX;
/// Bytes of the lifetimes: three numbers, and a byte that is 1 if they override the origin's.
const LIFETIMES_BYTES: usize = 3 * 8 + 1;
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
    /// Lifetimes of the operator.
    pub(crate) lifetimes: Lifetimes,
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
        let fixed = 1 + 8 + Forms::BYTES + LIFETIMES_BYTES + FIXED_BYTES;
        let mut bytes = Vec::with_capacity(fixed + self.variant.len() + self.head.len());
        self.write(&mut bytes);
        bytes
    }

    /// Appends the encoded metadata.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        match self.expired {
            expired if !self.forms.are_none() || !self.lifetimes.are_none() => {
                bytes.push(if self.lifetimes.are_none() { CODED } else { RULED });
                bytes.extend_from_slice(&expired.unwrap_or(UNKNOWN).to_le_bytes());
                bytes.extend_from_slice(&self.forms.encode());
                if !self.lifetimes.are_none() {
                    bytes.extend_from_slice(&encode(self.lifetimes));
                }
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
        let mut lifetimes = Lifetimes::default();
        let (expired, forms, rest) = match *version {
            VERSION => (None, Forms::default(), rest),
            EXPIRED => {
                let (time, rest) = rest.split_first_chunk()?;
                (Some(u64::from_le_bytes(*time)), Forms::default(), rest)
            }
            CODED | RULED => {
                let (time, rest) = rest.split_first_chunk()?;
                let (forms, mut rest) = rest.split_first_chunk()?;
                if *version == RULED {
                    let (encoded, behind) = rest.split_first_chunk()?;
                    (lifetimes, rest) = (decode(*encoded), behind);
                }
                (known(*time), Forms::decode(*forms), rest)
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
            lifetimes,
            first: number(3)?,
            length: number(4).filter(|length| *length != UNKNOWN),
            variant: std::str::from_utf8(variant).ok()?,
            head,
        })
    }
}

fn encode(lifetimes: Lifetimes) -> [u8; LIFETIMES_BYTES] {
    let Lifetimes { fresh, stale_while_revalidate, stale_if_error, is_overriding } = lifetimes;
    let mut bytes = [0; LIFETIMES_BYTES];
    for (index, number) in [fresh, stale_while_revalidate, stale_if_error].into_iter().enumerate() {
        bytes[8 * index..8 * index + 8].copy_from_slice(&number.unwrap_or(UNKNOWN).to_le_bytes());
    }
    bytes[LIFETIMES_BYTES - 1] = is_overriding.into();
    bytes
}

fn decode(bytes: [u8; LIFETIMES_BYTES]) -> Lifetimes {
    let [fresh @ .., _] = bytes;
    let number = |index: usize| fresh[8 * index..8 * index + 8].try_into().ok().and_then(known);
    Lifetimes {
        fresh: number(0),
        stale_while_revalidate: number(1),
        stale_if_error: number(2),
        is_overriding: bytes[LIFETIMES_BYTES - 1] == 1,
    }
}

fn known(bytes: [u8; 8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes)).filter(|number| *number != UNKNOWN)
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
            lifetimes: Lifetimes::default(),
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
        for lifetimes in [
            Lifetimes { fresh: Some(0), ..Lifetimes::default() },
            Lifetimes {
                stale_while_revalidate: Some(1),
                stale_if_error: Some(2),
                fresh: Some(3),
                is_overriding: true,
            },
        ] {
            for ruled in [Meta { lifetimes, ..meta }, Meta { forms, lifetimes, ..marked }] {
                assert_eq!(Meta::decode(&ruled.encode()), Some(ruled));
                assert_eq!((ruled.encode()[0], Meta::decode(&ruled.encode()[..40])), (5, None));
            }
        }
        assert_eq!((bytes[0], marked.encode()[0]), (2, 3), "programs before the mark do not read it");
        for short in [&bytes[..FIXED_BYTES + 3], &marked.encode()[..8], &[]] {
            assert_eq!(Meta::decode(short), None);
        }
        for version in [1, RULED + 1] {
            assert_eq!(Meta::decode(&[&[version], &bytes[1..]].concat()), None, "{version}");
        }
    }
}
