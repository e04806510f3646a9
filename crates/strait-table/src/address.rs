//! Distinct addresses of a record batch, so that a column has a number for each row and each text
//! once.
//!
//! The number of addresses is limited by the rows of a batch: two for each row.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, FixedSizeBinaryArray};
use hashbrown::HashTable;

/// Bytes of the longest text of an address without a scope.
const TEXT_BYTES_MAX: usize = 39;

/// Set of addresses with numbers from 0.
pub(crate) struct Addresses {
    numbers: HashTable<u32>,
    list: Vec<IpAddr>,
    /// Random, so that a sender cannot choose addresses that collide.
    seeds: [u64; 2],
    /// Last address and its number: packets of a flow often follow one another.
    last: Option<(IpAddr, u32)>,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        Self {
            numbers: HashTable::new(),
            list: Vec::new(),
            seeds: [random.hash_one(0), random.hash_one(1)],
            last: None,
        }
    }

    /// Returns the number of an address.
    #[inline]
    pub(crate) fn number(&mut self, address: IpAddr) -> u32 {
        if let Some((last, number)) = self.last
            && last == address
        {
            return number;
        }
        let number = self.look_up(address);
        self.last = Some((address, number));
        number
    }

    fn look_up(&mut self, address: IpAddr) -> u32 {
        let Self { numbers, list, seeds, .. } = self;
        let seeds = *seeds;
        let entry = numbers.entry(
            hash(address, seeds),
            |number| list.get(*number as usize) == Some(&address),
            |number| list.get(*number as usize).map_or(0, |address| hash(*address, seeds)),
        );
        *entry
            .or_insert_with(|| {
                list.push(address);
                (list.len() - 1) as u32
            })
            .get()
    }

    /// Returns the addresses as text, in the order of their numbers.
    pub(crate) fn texts(&self) -> ArrayRef {
        use std::fmt::Write as _;
        let count = self.list.len();
        let mut texts = StringBuilder::with_capacity(count, count * TEXT_BYTES_MAX);
        for address in &self.list {
            // Writing to a builder cannot fail.
            let _ = write!(texts, "{address}");
            texts.append_value("");
        }
        Arc::new(texts.finish())
    }

    /// Returns the addresses as 16 bytes, in the order of their numbers.
    pub(crate) fn bytes(&self) -> ArrayRef {
        let mut bytes = FixedSizeBinaryBuilder::with_capacity(self.list.len(), 16);
        for address in &self.list {
            // The length is that of the builder.
            let _ = bytes.append_value(sixteen(*address));
        }
        let bytes: FixedSizeBinaryArray = bytes.finish();
        Arc::new(bytes)
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.list.clear();
        self.last = None;
    }
}

/// Returns an address as 16 bytes; an IPv4 address is mapped (RFC 4291 s2.5.5.2).
fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => Ipv4Addr::to_ipv6_mapped(&address).octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[inline]
fn hash(address: IpAddr, seeds: [u64; 2]) -> u64 {
    let [high, low] = match address {
        IpAddr::V4(address) => [u64::MAX, u64::from(address.to_bits())],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [(bits >> 64) as u64, bits as u64]
        }
    };
    multiply([high, low], seeds)
}

/// Returns a hash: both halves multiplied with each other, each changed by a random number.
#[inline]
pub(crate) fn multiply([high, low]: [u64; 2], seeds: [u64; 2]) -> u64 {
    let product = u128::from(high ^ seeds[0]) * u128::from(low ^ seeds[1]);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray as _;

    use super::*;

    #[test]
    fn each_address_has_one_number_and_its_text() {
        let texts = ["10.0.0.1", "2001:db8::1", "10.0.0.2", "::ffff:10.0.0.1", "10.0.0.1", "2001:db8::1"];
        let mut addresses = Addresses::new();
        let numbers: Vec<u32> = texts.iter().map(|text| addresses.number(text.parse().unwrap())).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 0, 1]);
        let array = addresses.texts();
        let written: Vec<&str> = array.as_string::<i32>().iter().flatten().collect();
        assert_eq!(written, texts[..4]);
        assert_eq!(
            addresses.bytes().as_fixed_size_binary().value(0),
            [&[0; 10][..], &[255, 255, 10, 0, 0, 1]].concat()
        );
        addresses.clear();
        assert_eq!(addresses.number("10.0.0.2".parse().unwrap()), 0);
    }
}
