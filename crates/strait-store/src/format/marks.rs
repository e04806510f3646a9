//! The file `marks`: in which run of the machine, and up to which write, the store is known to be on disk. 56 bytes, which are
//! replaced as a whole.
//!
//! ```text
//!  0  magic and version   8  boot id, 16 bytes   24  session   32  first session of this boot   40  durable   48  checksum
//! ```

use rapidhash::v3::rapidhash_v3;

use super::{get, put};

const MAGIC: u64 = u64::from_le_bytes(*b"StraitM1");
/// Bytes of the file.
pub const MARKS_BYTES: usize = 56;
/// Bits of a sequence number that count within a session; the session stands above them.
const COUNT_BITS: u32 = 40;

/// What is known about the files of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The run of the machine in which the store was opened last.
    pub boot_id: [u8; 16],
    /// How many times it was opened.
    pub session: u64,
    /// The first session in that run: all that was written from then on is in the page cache, at least.
    pub boot_session: u64,
    /// Every write of this number and less is on disk.
    pub durable: u64,
}

impl Marks {
    /// As written.
    pub fn encode(&self) -> [u8; MARKS_BYTES] {
        let mut bytes = [0; MARKS_BYTES];
        put(&mut bytes, 0, MAGIC);
        bytes[8..24].copy_from_slice(&self.boot_id);
        put(&mut bytes, 24, self.session);
        put(&mut bytes, 32, self.boot_session);
        put(&mut bytes, 40, self.durable);
        let check = rapidhash_v3(&bytes[..48]);
        put(&mut bytes, 48, check);
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
        };
        (is_right && marks.session < 1 << (64 - COUNT_BITS)).then_some(marks)
    }

    /// Those of the next session, in the run `boot_id`.
    #[must_use]
    pub fn next(&self, boot_id: [u8; 16]) -> Self {
        let session = self.session + 1;
        let boot_session = if self.boot_id == boot_id { self.boot_session } else { session };
        Self { boot_id, session, boot_session, durable: self.durable }
    }

    /// The first number of this session.
    pub fn first_number(&self) -> u64 {
        self.session << COUNT_BITS
    }

    /// Whether what was written under `number` in an earlier session can be relied on.
    pub fn covers(&self, number: u64) -> bool {
        number <= self.durable || number >> COUNT_BITS >= self.boot_session
    }
}
