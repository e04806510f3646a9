//! Limit of a directory that another program empties: the spool of an upload.
//!
//! Rows are refused while the directory is full, and counted. Rows of a file wait instead, for as
//! long as the directory gets emptier. The directory is measured now and then, so it can exceed the
//! limit by the rows in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between two measurements.
const MEASURE_EVERY: Duration = Duration::from_millis(500);
/// Interval at which waiting rows look again.
const WAIT_STEP: Duration = Duration::from_millis(50);
/// Directories below the root that are measured: table, date, hour, sensor.
const DEPTH: usize = 4;

/// Directory with a limit.
#[derive(Debug)]
pub struct Spool {
    root: PathBuf,
    bytes_max: u64,
    /// Time for which rows wait although the directory does not get emptier.
    patience: Duration,
    used: AtomicU64,
    measured: Mutex<Option<Instant>>,
    /// True if rows have waited in vain since the directory was last below the limit.
    is_given_up: AtomicBool,
}

impl Spool {
    /// Time for which rows of a file wait although nothing is removed from the directory.
    pub const PATIENCE: Duration = Duration::from_mins(1);

    /// Limits the files below `root` to `bytes_max` bytes.
    pub fn new(root: &Path, bytes_max: u64, patience: Duration) -> Self {
        Self {
            root: root.to_owned(),
            bytes_max,
            patience,
            used: AtomicU64::new(0),
            measured: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Returns true if there is room for rows. With `waits`, waits for it.
    pub(crate) fn has_room(&self, waits: bool) -> bool {
        if self.is_below() {
            self.is_given_up.store(false, Ordering::Relaxed);
            return true;
        }
        if !waits || self.is_given_up.load(Ordering::Relaxed) {
            return false;
        }
        let (mut least, mut since) = (self.used.load(Ordering::Relaxed), Instant::now());
        while since.elapsed() < self.patience {
            std::thread::sleep(WAIT_STEP);
            if self.is_below() {
                return true;
            }
            let used = self.used.load(Ordering::Relaxed);
            if used < least {
                (least, since) = (used, Instant::now());
            }
        }
        self.is_given_up.store(true, Ordering::Relaxed);
        false
    }

    /// Measures the directory if that is due.
    fn is_below(&self) -> bool {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        if measured.is_none_or(|measured| measured.elapsed() >= MEASURE_EVERY) {
            self.used.store(bytes_below(&self.root, DEPTH), Ordering::Relaxed);
            *measured = Some(Instant::now());
        }
        self.used.load(Ordering::Relaxed) < self.bytes_max
    }
}

/// Returns the bytes of the files in and below a directory. Entries that cannot be read do not
/// count: those of tables can be.
fn bytes_below(directory: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |metadata| metadata.len()),
        _ => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_directory_refuses_rows_and_lets_those_of_a_file_wait() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("x");
        fs::write(&file, [0; 100]).unwrap();
        let spool = |bytes_max, patience| Spool::new(root.path(), bytes_max, patience);
        assert!(spool(101, Duration::ZERO).has_room(false));
        let full = spool(100, Duration::from_millis(1));
        assert!(!full.has_room(false) && !full.has_room(true) && full.is_given_up.load(Ordering::Relaxed));
        let patient = spool(100, Duration::from_secs(100));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| patient.has_room(true));
            fs::remove_file(&file).unwrap();
            assert!(waiting.join().unwrap());
        });
    }
}
