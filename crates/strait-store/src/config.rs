//! Configuration of a store.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// Minimum number of segments in a capacity, if no segment size is configured. Eviction frees one
/// segment at a time.
const SEGMENTS_MIN: u64 = 128;
/// That number below [`SMALL_BYTES`]: lanes and eviction hold some segments with few objects.
const SMALL_SEGMENTS_MIN: u64 = 256;
const SMALL_BYTES: u64 = 1 << 30;
/// Minimum number of segments for each lane. Each lane holds one that is not full.
const SEGMENTS_PER_LANE_MIN: u64 = 8;
/// Range of the default segment size in bytes.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Range of the configurable segment size in bytes.
const CONFIGURED_BYTES_MIN: u64 = 64 << 10;
const CONFIGURED_BYTES_MAX: u64 = 4 << 30;
/// Segments in addition to those of the lanes: three of eviction, the spares, and some full ones.
const SEGMENTS_EXTRA: u64 = 7;

/// Rate and period of the background check of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// Limit of the bytes that it reads in a second.
    pub bytes_per_second: u64,
    /// Interval between the starts of two passes over all records. The first pass starts once the
    /// store is loaded.
    pub every: Duration,
}

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the store; created if missing.
    pub dir: PathBuf,
    /// Limit of the bytes of all files together, at all times.
    pub capacity_bytes: u64,
    /// Bytes of a segment file. `None`: 1/128 of the capacity, or 1/256 of one below 1 GiB, or less
    /// with many lanes, between 256 KiB and 256 MiB.
    pub segment_bytes: Option<u64>,
    /// Number of writing threads, each with a segment of its own.
    pub lanes: usize,
    /// Interval between syncs to disk. `None`: sync only when the store is closed.
    pub sync_every: Option<Duration>,
    /// Background check of the stored bytes. `None`: none.
    pub scrub: Option<Scrub>,
    /// True if the records of earlier sessions are discarded.
    pub is_emptied: bool,
    /// Limit of open files. `None`: a quarter of the process's limit (`RLIMIT_NOFILE`).
    pub files_max: Option<usize>,
    /// Identifies one run of the machine. `None`: `/proc/sys/kernel/random/boot_id`. Tests simulate
    /// a power loss with another value.
    pub boot_id: Option<[u8; 16]>,
}

impl Config {
    /// 1 GiB in `dir`, one lane, synced every 10 s, not scrubbed.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            capacity_bytes: 1 << 30,
            segment_bytes: None,
            lanes: 1,
            sync_every: Some(Duration::from_secs(10)),
            scrub: None,
            is_emptied: false,
            files_max: None,
            boot_id: None,
        }
    }

    /// Bytes of a segment, rounded down to whole pages.
    pub(crate) fn segment_bytes(&self) -> Result<u64> {
        let lanes = self.lanes.max(1) as u64;
        let segments = if self.capacity_bytes < SMALL_BYTES { SMALL_SEGMENTS_MIN } else { SEGMENTS_MIN };
        let share = self.capacity_bytes / segments.max(lanes * SEGMENTS_PER_LANE_MIN);
        let bytes = match self.segment_bytes {
            Some(bytes) => bytes.clamp(CONFIGURED_BYTES_MIN, CONFIGURED_BYTES_MAX),
            None => share.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
        };
        let bytes = bytes & !4095;
        let capacity_min_bytes = (lanes + SEGMENTS_EXTRA) * bytes;
        if self.capacity_bytes < capacity_min_bytes {
            let (capacity_bytes, lanes) = (self.capacity_bytes, self.lanes);
            return Err(Error::CapacityTooSmall { capacity_bytes, lanes, capacity_min_bytes });
        }
        Ok(bytes)
    }
}
