//! Limit of a directory that another program empties: the spool of an upload.
//!
//! Rows are refused while the directory is full, and counted. Rows of a file wait instead, for as
//! long as the directory gets emptier. The directory is measured now and then, so it can exceed the
//! limit by the rows in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Interval between two measurements.
const MEASURE_EVERY: Duration = Duration::from_millis(500);
/// Interval at which waiting rows look again.
const WAIT_STEP: Duration = Duration::from_millis(50);
/// Directories below the root that are measured: table, date, hour, sensor.
const DEPTH: usize = 4;

/// Files of a spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolUsage {
    /// Bytes of all files, also of unfinished ones.
    pub bytes: u64,
    /// Complete files.
    pub files: u64,
    /// Time of the last change of the oldest complete file.
    pub oldest: Option<SystemTime>,
}

impl SpoolUsage {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
    }

    /// Returns the age of the oldest complete file; zero without one.
    pub fn oldest_age(&self, now: SystemTime) -> Duration {
        self.oldest.and_then(|oldest| now.duration_since(oldest).ok()).unwrap_or_default()
    }
}

/// Directory with a limit.
#[derive(Debug)]
pub struct Spool {
    root: PathBuf,
    bytes_max: u64,
    /// Time for which rows wait although the directory does not get emptier.
    patience: Duration,
    measured: Mutex<Option<(Instant, SpoolUsage)>>,
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
        let (mut least, mut since) = (self.usage().bytes, Instant::now());
        while since.elapsed() < self.patience {
            std::thread::sleep(WAIT_STEP);
            if self.is_below() {
                return true;
            }
            let used = self.usage().bytes;
            if used < least {
                (least, since) = (used, Instant::now());
            }
        }
        self.is_given_up.store(true, Ordering::Relaxed);
        false
    }

    fn is_below(&self) -> bool {
        self.usage().bytes < self.bytes_max
    }

    /// Returns the maximum bytes of all files.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the files of the directory, which is measured twice a second at most.
    pub fn usage(&self) -> SpoolUsage {
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        match &*measured {
            Some((when, usage)) if when.elapsed() < MEASURE_EVERY => *usage,
            _ => {
                let usage = usage_below(&self.root, DEPTH);
                *measured = Some((Instant::now(), usage));
                usage
            }
        }
    }
}

/// Returns the files in and below a directory. Entries that cannot be read do not count: those of
/// tables can be. An unfinished file has a name that starts with a dot.
fn usage_below(directory: &Path, depth: usize) -> SpoolUsage {
    let mut usage = SpoolUsage::default();
    let Ok(entries) = fs::read_dir(directory) else { return usage };
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => usage.add(usage_below(&entry.path(), depth - 1)),
            Ok(kind) if kind.is_file() => {
                let Ok(metadata) = entry.metadata() else { continue };
                let is_complete = !entry.file_name().as_encoded_bytes().starts_with(b".");
                usage.add(SpoolUsage {
                    bytes: metadata.len(),
                    files: u64::from(is_complete),
                    oldest: metadata.modified().ok().filter(|_| is_complete),
                });
            }
            _ => {}
        }
    }
    usage
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

    #[test]
    fn usage_has_all_bytes_and_the_age_of_complete_files() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("packets/date=1/hour=2/sensor=s");
        fs::create_dir_all(&below).unwrap();
        let write = |name: &str, bytes: usize, second: u64| {
            fs::write(below.join(name), vec![0; bytes]).unwrap();
            let file = fs::File::options().write(true).open(below.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        };
        write("a.parquet", 10, 500);
        write("b.parquet", 20, 400);
        write(".c.parquet.part", 30, 300);
        let usage = Spool::new(root.path(), 1, Duration::ZERO).usage();
        assert_eq!((usage.bytes, usage.files), (60, 2));
        let age = |second| usage.oldest_age(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).as_secs();
        assert_eq!((age(401), age(399)), (1, 0), "no negative age");
        assert_eq!(SpoolUsage::default().oldest_age(SystemTime::now()), Duration::ZERO);
    }
}
