//! Hashes of whole files, made while the kernel moves their bytes past user space.
//!
//! `strait send` and `strait receive` compare them at the end of a transfer. The hash (rapidhash v3, 64 bits) finds accidents: flipped
//! bits, a source that was overwritten. It is no defence against forgery, as the protocol itself has none. Pages are read right
//! behind the transfer, so that they still are in the page cache.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidStreamHasherV3};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// Positions on their way to a follower. Each includes those before, so that one that finds no place is left out.
const POSITIONS_MAX: usize = 16;

/// The hash of the first bytes of a file or stream.
pub struct Hasher {
    hash: RapidStreamHasherV3<'static>,
    bytes: u64,
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self { hash: RapidStreamHasherV3::new(&DEFAULT_RAPID_SECRETS), bytes: 0 }
    }
}

impl Hasher {
    /// Adds the next bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The hash of the bytes so far.
    pub fn value(&self) -> u64 {
        self.hash.finish()
    }

    /// Adds the bytes of `file` from where it is up to `end`, or to the end of the file if that comes before.
    ///
    /// # Errors
    /// pread(2)'s.
    pub fn read_up_to(&mut self, end: u64, file: &File) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.bytes < end {
            let most = (end - self.bytes).min(CHUNK_BYTES as u64) as usize;
            match file.read_at(&mut chunk[..most], self.bytes) {
                Ok(0) => break,
                Ok(read) => self.write(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A thread that hashes a file as far as a transfer has come.
#[derive(Debug)]
pub struct Follower {
    positions: Option<SyncSender<u64>>,
    result: Receiver<io::Result<Hasher>>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Goes on behind the bytes that `hasher` has.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(mut hasher: Hasher, file: File) -> io::Result<Self> {
        let (positions, taken) = sync_channel::<u64>(POSITIONS_MAX);
        let (done, result) = sync_channel(1);
        let thread = std::thread::Builder::new().name("hash".into()).spawn(move || {
            let read = taken.iter().try_for_each(|end| hasher.read_up_to(end, &file));
            // Without a receiver the transfer has failed, and the hash is of no use.
            let _ = done.send(read.map(|()| hasher));
        })?;
        Ok(Self { positions: Some(positions), result, thread: Some(thread) })
    }

    /// The bytes before `end` are there.
    pub fn follow(&self, end: u64) {
        if let Some(positions) = &self.positions {
            // A later position includes it.
            let _ = positions.try_send(end);
        }
    }

    /// The file ends at `end`: [`Follower::result`] follows.
    pub fn end(&mut self, end: u64) {
        if let Some(positions) = self.positions.take() {
            // It fails where reading has failed, which is the result.
            let _ = positions.send(end);
        }
    }

    /// The hash, or `None` if it is not there within `timeout`.
    pub fn result(&self, timeout: Duration) -> Option<io::Result<Hasher>> {
        match self.result.recv_timeout(timeout) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("the hashing thread ended"))),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.positions = None;
        if let Some(thread) = self.thread.take() {
            // Its result, if any is wanted, was taken before.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn pieces_and_followed_files_have_the_hash_of_the_whole() {
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at * 7 + (at >> 9)) as u8).collect();
        let mut whole = Hasher::default();
        whole.write(&bytes);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for begin in [0, 1, 300_000] {
            let mut hasher = Hasher::default();
            hasher.read_up_to(begin, &file).unwrap();
            let mut follower = Follower::start(hasher, file.try_clone().unwrap()).unwrap();
            for end in (begin..bytes.len() as u64).step_by(1000) {
                follower.follow(end);
            }
            follower.end(bytes.len() as u64);
            let followed = follower.result(Duration::from_mins(1)).unwrap().unwrap();
            assert_eq!((followed.bytes(), followed.value()), (whole.bytes(), whole.value()));
        }
        let mut other = Hasher::default();
        file.write_all_at(&[!bytes[500_000]], 500_000).unwrap();
        other.read_up_to(u64::MAX, &file).unwrap();
        assert_ne!(other.value(), whole.value());
    }
}
