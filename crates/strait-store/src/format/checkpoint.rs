//! Checkpoint file `marks`: the run of the machine, the session, and the highest durable write. It
//! has 56 bytes and is replaced as a whole. Files with a durable number of their own follow, if
//! there are any.
//!
//! ```text
//!  0  magic and version   8  boot id, 16 bytes   24  session   32  first session of this boot
//! 40  durable   48  checksum
//! 56  count of files held back   64  number and durable of each, 16 bytes   then  checksum from 56
//! ```

use rapidhash::v3::rapidhash_v3;

use super::{get, put};

const MAGIC: u64 = u64::from_le_bytes(*b"StraitM1");
/// Bytes of the file if no file is held back.
pub const CHECKPOINT_BYTES: usize = 56;
/// Limit of held-back files, which keeps the checkpoint within a page.
pub const HELD_MAX: usize = 250;
const HELD_AT: usize = CHECKPOINT_BYTES + 8;
const HELD_BYTES: usize = 16;
/// Bits of a write number that count within a session. The session is in the bits above.
const COUNT_BITS: u32 = 40;

/// A held-back file: it could not be read, at least not completely, when it was loaded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of the file.
    pub file: u64,
    /// Every write to the file with this number or less is on disk: the durable number when reading
    /// first failed.
    pub durable: u64,
}

/// Durability state of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Run of the machine in which the store was opened last.
    pub boot_id: [u8; 16],
    /// Number of sessions so far.
    pub session: u64,
    /// First session in that run. Writes from then on are at least in the page cache.
    pub boot_session: u64,
    /// Every write with this number or less is on disk, except in held-back files.
    pub durable: u64,
    /// Held-back files; at most [`HELD_MAX`].
    pub held: Vec<Held>,
}

impl Checkpoint {
    /// Encodes the checkpoint.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CHECKPOINT_BYTES];
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

    /// Decodes `bytes`; `None` if they are not a valid checkpoint of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let is_right = get(bytes, 0)? == MAGIC && get(bytes, 48)? == rapidhash_v3(bytes.get(..48)?);
        let boot_id = *bytes.get(8..)?.first_chunk()?;
        let checkpoint = Self {
            boot_id,
            session: get(bytes, 24)?,
            boot_session: get(bytes, 32)?,
            durable: get(bytes, 40)?,
            held: if bytes.len() > CHECKPOINT_BYTES { decode_held(bytes)? } else { Vec::new() },
        };
        (is_right && checkpoint.session < 1 << (64 - COUNT_BITS)).then_some(checkpoint)
    }

    /// Checkpoint of the next session, in the run `boot_id`.
    #[must_use]
    pub fn next(&self, boot_id: [u8; 16]) -> Self {
        let session = self.session + 1;
        let boot_session = if self.boot_id == boot_id { self.boot_session } else { session };
        Self { boot_id, session, boot_session, durable: self.durable, held: self.held.clone() }
    }

    /// First write number of this session.
    pub fn first_number(&self) -> u64 {
        self.session << COUNT_BITS
    }

    /// Durable number of `file`.
    pub fn durable_in(&self, file: u64) -> u64 {
        self.held.iter().find(|held| held.file == file).map_or(self.durable, |held| held.durable)
    }

    /// Returns true if a write to `file` with `number`, made in an earlier session, is intact.
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
    put(bytes, CHECKPOINT_BYTES, held.len() as u64);
    for (place, held) in held.iter().enumerate() {
        put(bytes, HELD_AT + place * HELD_BYTES, held.file);
        put(bytes, HELD_AT + place * HELD_BYTES + 8, held.durable);
    }
    let check = rapidhash_v3(&bytes[CHECKPOINT_BYTES..check_at]);
    put(bytes, check_at, check);
}

fn decode_held(bytes: &[u8]) -> Option<Vec<Held>> {
    let count = usize::try_from(get(bytes, CHECKPOINT_BYTES)?).ok().filter(|count| *count <= HELD_MAX)?;
    let check_at = HELD_AT + count * HELD_BYTES;
    if get(bytes, check_at)? != rapidhash_v3(bytes.get(CHECKPOINT_BYTES..check_at)?) {
        return None;
    }
    let held = |at| Some(Held { file: get(bytes, at)?, durable: get(bytes, at + 8)? });
    (0..count).map(|place| held(HELD_AT + place * HELD_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(held: usize) -> Checkpoint {
        let held = (0..held as u64).map(|file| Held { file, durable: 7 * file }).collect();
        Checkpoint { boot_id: [3; 16], session: 9, boot_session: 8, durable: 5 << COUNT_BITS, held }
    }

    #[test]
    fn checkpoint_round_trips_and_is_refused_with_a_wrong_bit() {
        for held in [0, 1, 2, HELD_MAX] {
            let checkpoint = checkpoint(held);
            let mut bytes = checkpoint.encode();
            assert_eq!(bytes.len() == CHECKPOINT_BYTES, held == 0);
            assert!(bytes.len() <= super::super::PAGE_BYTES as usize);
            assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint));
            for at in (0..bytes.len()).step_by(5) {
                bytes[at] ^= 16;
                assert_eq!(Checkpoint::decode(&bytes), None, "{at}");
                bytes[at] ^= 16;
            }
            bytes.pop();
            assert_eq!(Checkpoint::decode(&bytes), None);
        }
    }

    #[test]
    fn held_back_file_has_its_own_durable_number() {
        let checkpoint = checkpoint(3);
        assert!(checkpoint.covers(1, 7) && !checkpoint.covers(1, 8) && checkpoint.covers(2, 14));
        assert!(checkpoint.covers(3, 5 << COUNT_BITS) && !checkpoint.covers(3, (5 << COUNT_BITS) + 1));
        assert!(checkpoint.covers(1, 8 << COUNT_BITS), "it was written in this run of the machine");
    }
}
