//! Addresses of Ethernet, each distinct one as text once in a batch.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::StringBuilder;
use arrow_schema::ArrowError;
use hashbrown::HashTable;

use crate::address;
use crate::column::{Keys, dictionary};

type Mac = [u8; 6];

/// Column of addresses.
pub(super) struct Macs {
    keys: Keys,
    numbers: HashTable<u32>,
    list: Vec<Mac>,
    /// Random, so that a sender cannot choose addresses that collide.
    seeds: [u64; 2],
    /// Last two addresses and their numbers, the newest first: most packets of a link are those of
    /// two stations.
    last: [Option<(Mac, u32)>; 2],
}

impl Macs {
    pub(super) fn new(capacity: usize) -> Self {
        let random = RandomState::new();
        Self {
            keys: Keys::new(capacity),
            numbers: HashTable::new(),
            list: Vec::new(),
            seeds: [random.hash_one(0), random.hash_one(1)],
            last: [None; 2],
        }
    }

    /// Adds an address for each row.
    pub(super) fn extend<R>(&mut self, rows: &[R], mac: impl Fn(&R) -> Option<Mac>) {
        let Self { keys, numbers, list, seeds, last } = self;
        keys.extend_optional(rows, |row| mac(row).map(|mac| number(mac, numbers, list, *seeds, last)));
    }

    /// Returns the column and starts an empty one.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let mut texts = StringBuilder::new();
        for mac in &self.list {
            texts.append_value(mac.map(|octet| format!("{octet:02x}")).join(":"));
        }
        self.numbers.clear();
        self.list.clear();
        self.last = [None; 2];
        dictionary(self.keys.finish(), Arc::new(texts.finish()))
    }
}

/// Returns the number of an address.
#[inline]
fn number(
    mac: Mac,
    numbers: &mut HashTable<u32>,
    list: &mut Vec<Mac>,
    seeds: [u64; 2],
    last: &mut [Option<(Mac, u32)>; 2],
) -> u32 {
    if let Some((_, number)) = last.iter().flatten().find(|(known, _)| *known == mac) {
        return *number;
    }
    let is_mac = |number: &u32| list.get(*number as usize) == Some(&mac);
    let known = numbers.find(hash(mac, seeds), is_mac).copied();
    let number = known.unwrap_or_else(|| {
        let number = list.len() as u32;
        list.push(mac);
        let hash_of = |number: &u32| list.get(*number as usize).map_or(0, |mac| hash(*mac, seeds));
        numbers.insert_unique(hash(mac, seeds), number, hash_of);
        number
    });
    *last = [Some((mac, number)), last[0]];
    number
}

fn hash(mac: Mac, seeds: [u64; 2]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..mac.len()].copy_from_slice(&mac);
    address::multiply([u64::from_le_bytes(bytes), u64::MAX], seeds)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::UInt32Type;

    use super::*;

    #[test]
    fn each_address_is_a_text_once() {
        let mut macs = Macs::new(8);
        let rows = [1, 2, 1, 3, 0, 2, 1, 3].map(|last: u8| (last > 0).then_some([2, 0, 0, 0, 0xab, last]));
        for _ in 0..2 {
            macs.extend(&rows, |row| *row);
            let column = macs.finish().unwrap();
            let column = column.as_dictionary::<UInt32Type>();
            let numbers: Vec<_> = column.keys().iter().collect();
            let expected = [Some(0), Some(1), Some(0), Some(2), None, Some(1), Some(0), Some(2)];
            assert_eq!(numbers, expected);
            let texts: Vec<_> = column.values().as_string::<i32>().iter().flatten().collect();
            assert_eq!(texts, ["02:00:00:00:ab:01", "02:00:00:00:ab:02", "02:00:00:00:ab:03"]);
        }
    }
}
