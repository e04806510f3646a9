//! Hash of the bytes that are present before a transfer.
//!
//! A thread computes it once, not once for each offer: a peer that offers again and again would
//! otherwise keep the disk and the receiver busy. `Senders` uses it. It never writes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use strait_transfer::hash::{Follower, Hasher};
use strait_transfer::offer::Begins;

use super::part::Found;
use crate::Error;

/// Hash of the bytes of one file, with the state of that file.
#[derive(Default)]
pub(super) struct Digest(Option<(Stamp, State)>);

enum State {
    /// A thread reads the file.
    Hashing(Follower),
    Hashed(Hasher),
}

/// State of a file: device, inode, length, and times of the last write and change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 7]);

impl Stamp {
    fn of(file: &Metadata) -> Self {
        let (device, inode, bytes) = (file.dev() as i64, file.ino() as i64, file.len() as i64);
        let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
        Self([device, inode, bytes, modified.0, modified.1, changed.0, changed.1])
    }
}

impl Digest {
    /// Starts to hash the bytes of `found`, unless they are hashed and unchanged. Hashes one file
    /// at a time.
    pub(super) fn start(&mut self, found: &Found) -> Result<(), Error> {
        let failed = |error| found.failed(&error);
        // Read before the bytes: a later change of the file makes the hash void.
        let stamp = Stamp::of(&found.file.metadata().map_err(failed)?);
        let is_current =
            |(hashed, state): &(Stamp, State)| *hashed == stamp || matches!(state, State::Hashing(_));
        if self.0.as_ref().is_some_and(is_current) {
            return Ok(());
        }
        let file = found.file.try_clone().map_err(failed)?;
        let follower = Follower::start(Hasher::default(), file).map_err(failed)?;
        follower.end(found.bytes);
        self.0 = Some((stamp, State::Hashing(follower)));
        Ok(())
    }

    /// Returns the hash of the bytes of `found`, or `None` if it is not there after `timeout`.
    pub(super) fn get(&mut self, found: &Found, timeout: Duration) -> Result<Option<Begins>, Error> {
        self.start(found)?;
        if let Some((_, state)) = &mut self.0
            && let State::Hashing(follower) = state
            && let Some(result) = follower.result(timeout)
        {
            *state = State::Hashed(result.map_err(|error| found.failed(&error))?);
            // The bytes may be those of another file, or may have changed.
            self.start(found)?;
        }
        Ok(match &self.0 {
            Some((_, State::Hashed(hasher))) => Some(beginning(hasher)),
            _ => None,
        })
    }

    /// Takes the hasher of the present bytes, to hash what follows them. Without one, which a
    /// change of the file makes possible, the bytes are hashed again from their beginning.
    pub(super) fn take(&mut self, kept: Begins) -> Hasher {
        match self.0.take() {
            Some((_, State::Hashed(hasher))) if beginning(&hasher) == kept => hasher,
            _ => Hasher::default(),
        }
    }
}

/// Returns length and hash of the bytes so far.
pub(super) fn beginning(hasher: &Hasher) -> Begins {
    Begins { bytes: hasher.bytes(), hash: hasher.value() }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const LEN: usize = 8 << 20;
    const LIMIT: Duration = Duration::from_mins(1);

    fn hash_of(bytes: &[u8]) -> Begins {
        let mut hasher = Hasher::default();
        hasher.write(bytes);
        beginning(&hasher)
    }

    #[test]
    fn hash_of_one_file_is_not_taken_for_another() {
        let files = [1_u8, 2].map(|byte| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[byte; 1000]).unwrap();
            file
        });
        let mut digest = Digest::default();
        digest.start(&Found::of(&files[0], 1000)).unwrap();
        for (file, byte) in files.iter().zip([1_u8, 2]).rev() {
            let found = Found::of(file, 1000);
            let hash = loop {
                if let Some(hash) = digest.get(&found, LIMIT).unwrap() {
                    break hash;
                }
            };
            assert_eq!(hash, hash_of(&[byte; 1000]));
        }
    }

    #[test]
    fn unchanged_bytes_are_hashed_once() {
        let (mut file, mut bytes) = (tempfile::tempfile().unwrap(), vec![7; LEN]);
        file.write_all(&bytes).unwrap();
        let found = || Found::of(&file, LEN as u64);
        let mut digest = Digest::default();
        assert_eq!(digest.get(&found(), LIMIT).unwrap(), Some(hash_of(&bytes)));
        // The hash is there at once for each further offer.
        for _ in 0..3 {
            assert_eq!(digest.get(&found(), Duration::ZERO).unwrap(), Some(hash_of(&bytes)));
        }
        file.write_all_at(b"other", 1000).unwrap();
        bytes[1000..1005].copy_from_slice(b"other");
        let before = std::fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        file.set_times(before).unwrap();
        assert_eq!(digest.get(&found(), LIMIT).unwrap(), Some(hash_of(&bytes)));
        let kept = hash_of(&bytes);
        assert_eq!(beginning(&digest.take(kept)), kept);
        assert_eq!(digest.take(kept).bytes(), 0);
    }
}
