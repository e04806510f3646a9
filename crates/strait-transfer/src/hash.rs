//! Hashes of whole files, computed while the kernel moves their bytes without a copy to user space.
//!
//! `strait send` and `strait receive` compare them at the end of a transfer. The hash (rapidhash
//! v3, 64 bits) detects accidents: flipped bits, a source that was overwritten. It is no defence
//! against forgery; the protocol has none either. The pages are read shortly after they were moved,
//! while they are still in the page cache.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidStreamHasherV3};

/// Bytes of one read.
const CHUNK_BYTES: usize = 256 << 10;

/// Hash of the first bytes of a file or stream.
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

    /// Adds the bytes of `file` from the current position to `end`, or to the end of the file if
    /// that comes first. Checks `stop` before each chunk of 256 KiB.
    ///
    /// # Errors
    /// Those of pread(2); [`ErrorKind::Interrupted`] once `stop` is set.
    pub fn read_up_to(&mut self, end: u64, file: &File, stop: &AtomicBool) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.bytes < end {
            if stop.load(Ordering::Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
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

/// Thread that hashes a file up to the position of a transfer. Dropping the follower ends the
/// thread.
#[derive(Debug)]
pub struct Follower {
    progress: Arc<Progress>,
    result: Receiver<io::Result<Hasher>>,
    thread: Option<JoinHandle<()>>,
}

/// Position of a transfer.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes transferred so far.
    position: AtomicU64,
    /// True if the position is the end of the file.
    has_ended: AtomicBool,
    /// True if the hash is no longer needed.
    stop: AtomicBool,
}

impl Progress {
    /// Hashes up to the current position, and sleeps until the position moves, until the file has
    /// ended.
    fn follow(&self, mut hasher: Hasher, file: &File) -> io::Result<Hasher> {
        loop {
            // Read before the position, because the final position is stored before this flag.
            let has_ended = self.has_ended.load(Ordering::Acquire);
            hasher.read_up_to(self.position.load(Ordering::Acquire), file, &self.stop)?;
            if has_ended || self.stop.load(Ordering::Relaxed) {
                return Ok(hasher);
            }
            std::thread::park();
        }
    }
}

impl Follower {
    /// Starts after the bytes that `hasher` already has.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(hasher: Hasher, file: File) -> io::Result<Self> {
        let progress = Arc::<Progress>::default();
        let (done, result) = sync_channel(1);
        let followed = Arc::clone(&progress);
        let thread = std::thread::Builder::new().name("hash".into()).spawn(move || {
            // Without a receiver the transfer has failed, and the hash is of no use.
            let _ = done.send(followed.follow(hasher, &file));
        })?;
        Ok(Self { progress, result, thread: Some(thread) })
    }

    /// Reports that all bytes before `end` have been transferred.
    pub fn follow(&self, end: u64) {
        self.progress.position.fetch_max(end, Ordering::Release);
        self.wake();
    }

    /// Reports that the file ends at `end`; [`Follower::result`] then returns the hash.
    pub fn end(&self, end: u64) {
        self.progress.position.fetch_max(end, Ordering::Release);
        self.progress.has_ended.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Returns the hash, or `None` after `timeout`.
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
        self.progress.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A caller that needs the result has taken it before.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn pieces_and_followed_files_have_the_hash_of_the_whole_file() {
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|at| (at * 7 + (at >> 9)) as u8).collect();
        let mut whole = Hasher::default();
        whole.write(&bytes);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for begin in [0, 1, 300_000] {
            let mut hasher = Hasher::default();
            hasher.read_up_to(begin, &file, &AtomicBool::new(false)).unwrap();
            let follower = Follower::start(hasher, file.try_clone().unwrap()).unwrap();
            for end in (begin..bytes.len() as u64).step_by(1000) {
                follower.follow(end);
            }
            follower.end(bytes.len() as u64);
            let followed = follower.result(Duration::from_mins(1)).unwrap().unwrap();
            assert_eq!((followed.bytes(), followed.value()), (whole.bytes(), whole.value()));
        }
        let mut other = Hasher::default();
        file.write_all_at(&[!bytes[500_000]], 500_000).unwrap();
        other.read_up_to(u64::MAX, &file, &AtomicBool::new(false)).unwrap();
        assert_ne!(other.value(), whole.value());
    }

    /// Length of a sparse file that takes longer to hash than a test may take.
    const ENDLESS: u64 = 4 << 40;

    #[test]
    fn slow_follower_neither_blocks_nor_outlives_its_owner() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(ENDLESS).unwrap();
        let follower = Follower::start(Hasher::default(), file).unwrap();
        for positions in 1..=100 {
            follower.follow(ENDLESS / 2 + positions);
        }
        follower.end(ENDLESS);
        assert!(follower.result(Duration::ZERO).is_none());
        drop(follower);
    }
}
