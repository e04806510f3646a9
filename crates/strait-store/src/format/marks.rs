//! The file `marks`: in which run of the machine, and up to which write, the store is known to be on disk. 56 bytes, which are
//! replaced as a whole; behind them, where there are any, the files for which that is not known.
//!
//! ```text
//!  0  magic and version   8  boot id, 16 bytes   24  session   32  first session of this boot   40  durable   48  checksum
//! 56  count of files held back   64  number and durable of each, 16 bytes   then  checksum from 56
//! ```

use rapidhash::v3::rapidhash_v3;

use super::{get, put};

const MAGIC: u64 = u64::from_le_bytes(*b"StraitM1");
/// Bytes of the file where no file is held back.
pub const MARKS_BYTES: usize = 56;
/// Files that can be held back: with them the marks are within a page.
pub const HELD_MAX: usize = 250;
const HELD_AT: usize = MARKS_BYTES + 8;
const HELD_BYTES: usize = 16;
/// Bits of a sequence number that count within a session; the session stands above them.
const COUNT_BITS: u32 = 40;

/// A file that could not be read, or not to its end, when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub file: u64,
    /// Every write of this number and less is on disk in it: what was known when it could first not be read.
    pub durable: u64,
}

/// What is known about the files of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The run of the machine in which the store was opened last.
    pub boot_id: [u8; 16],
    /// How many times it was opened.
    pub session: u64,
    /// The first session in that run: all that was written from then on is in the page cache, at least.
    pub boot_session: u64,
    /// Every write of this number and less is on disk, but in the files that are held back.
    pub durable: u64,
    /// Those; at most [`HELD_MAX`].
    pub held: Vec<Held>,
}

impl Marks {
    /// As written.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; MARKS_BYTES];
        put(&mut bytes, 0, MAGIC);
        bytes[8..24].copy_from_slice(&self.boot_id);
        put(&mut bytes, 24, self.session);
        put(&mut bytes, 32, self.boot_session);
        put(&mut bytes, 40, self.durable);
        let check = rapidhash_v3(&bytes[..48]);
        put(&mut bytes, 48, check);
        encode_held(&self.held[..self.held.len().min(HELD_MAX)], &mut bytes);
        bytes
    }

    /// What `bytes` say, if it is a file of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let is_right = get(bytes, 0)? == MAGIC && get(bytes, 48)? == rapidhash_v3(bytes.get(..48)?);
        let boot_id = *bytes.get(8..)?.first_chunk()?;
        let marks = Self {
            boot_id,
            session: get(bytes, 24)?,
            boot_session: get(bytes, 32)?,
            durable: get(bytes, 40)?,
            held: if bytes.len() > MARKS_BYTES { decode_held(bytes)? } else { Vec::new() },
        };
        (is_right && marks.session < 1 << (64 - COUNT_BITS)).then_some(marks)
    }

    /// Those of the next session, in the run `boot_id`.
    #[must_use]
    pub fn next(&self, boot_id: [u8; 16]) -> Self {
        let session = self.session + 1;
        let boot_session = if self.boot_id == boot_id { self.boot_session } else { session };
        Self { boot_id, session, boot_session, durable: self.durable, held: self.held.clone() }
    }

    /// The first number of this session.
    pub fn first_number(&self) -> u64 {
        self.session << COUNT_BITS
    }

    /// Every write into `file` of this number and less is on disk.
    pub fn durable_in(&self, file: u64) -> u64 {
        self.held.iter().find(|held| held.file == file).map_or(self.durable, |held| held.durable)
    }

    /// Whether what was written into `file` under `number` in an earlier session can be relied on.
    pub fn covers(&self, file: u64, number: u64) -> bool {
        number <= self.durable_in(file) || number >> COUNT_BITS >= self.boot_session
    }
}

fn encode_held(held: &[Held], bytes: &mut Vec<u8>) {
    if held.is_empty() {
        return;
    }
    let check_at = HELD_AT + held.len() * HELD_BYTES;
    bytes.resize(check_at + 8, 0);
    put(bytes, MARKS_BYTES, held.len() as u64);
    for (place, held) in held.iter().enumerate() {
        put(bytes, HELD_AT + place * HELD_BYTES, held.file);
        put(bytes, HELD_AT + place * HELD_BYTES + 8, held.durable);
    }
    let check = rapidhash_v3(&bytes[MARKS_BYTES..check_at]);
    put(bytes, check_at, check);
}

fn decode_held(bytes: &[u8]) -> Option<Vec<Held>> {
    let count = usize::try_from(get(bytes, MARKS_BYTES)?).ok().filter(|count| *count <= HELD_MAX)?;
    let check_at = HELD_AT + count * HELD_BYTES;
    if get(bytes, check_at)? != rapidhash_v3(bytes.get(MARKS_BYTES..check_at)?) {
        return None;
    }
    let held = |at| Some(Held { file: get(bytes, at)?, durable: get(bytes, at + 8)? });
    (0..count).map(|place| held(HELD_AT + place * HELD_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(held: usize) -> Marks {
        let held = (0..held as u64).map(|file| Held { file, durable: 7 * file }).collect();
        Marks { boot_id: [3; 16], session: 9, boot_session: 8, durable: 5 << COUNT_BITS, held }
    }

    #[test]
    fn marks_are_read_as_they_were_written_and_not_if_a_bit_is_wrong() {
        for held in [0, 1, 2, HELD_MAX] {
            let marks = marks(held);
            let mut bytes = marks.encode();
            assert_eq!(bytes.len() == MARKS_BYTES, held == 0);
            assert!(bytes.len() <= super::super::PAGE_BYTES as usize);
            assert_eq!(Marks::decode(&bytes), Some(marks));
            for at in (0..bytes.len()).step_by(5) {
                bytes[at] ^= 16;
                assert_eq!(Marks::decode(&bytes), None, "{at}");
                bytes[at] ^= 16;
            }
            bytes.pop();
            assert_eq!(Marks::decode(&bytes), None);
        }
    }

    #[test]
    fn a_file_that_is_held_back_has_a_durable_number_of_its_own() {
        let marks = marks(3);
        assert!(marks.covers(1, 7) && !marks.covers(1, 8) && marks.covers(2, 14));
        assert!(marks.covers(3, 5 << COUNT_BITS) && !marks.covers(3, (5 << COUNT_BITS) + 1));
        assert!(marks.covers(1, 8 << COUNT_BITS), "it was written in this run of the machine");
    }
}
