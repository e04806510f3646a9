//! What a store is opened with.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// Segments that a capacity is divided into at least, where nothing is asked for: eviction takes one at a time.
const SEGMENTS_MIN: u64 = 64;
/// Segments for each lane at least: it holds one that is not full.
const SEGMENTS_PER_LANE_MIN: u64 = 8;
/// Bytes of a segment where nothing is asked for: from, to.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a segment that can be asked for: from, to.
const ASKED_BYTES_MIN: u64 = 64 << 10;
const ASKED_BYTES_MAX: u64 = 4 << 30;
/// Segments beside those of the lanes: eviction's two, those kept ready, and some that are full.
const SEGMENTS_BESIDE: u64 = 6;

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory; it is made if it is not there.
    pub dir: PathBuf,
    /// Bytes of all files together, at all times.
    pub capacity_bytes: u64,
    /// Bytes of a segment file; `None`: a 64th of the capacity, or less with many lanes, from 1 to 256 MiB.
    pub segment_bytes: Option<u64>,
    /// Threads that write, each to a segment of its own.
    pub lanes: usize,
    /// How often what was written is made to outlive a power loss; `None`: only when the store is closed.
    pub sync_every: Option<Duration>,
    /// Files that may be open at a time; `None`: a quarter of what the process may open (`RLIMIT_NOFILE`).
    pub files_max: Option<usize>,
    /// Tells one run of the machine from another; `None`: `/proc/sys/kernel/random/boot_id`. Tests play a power loss with it.
    pub boot_id: Option<[u8; 16]>,
}

impl Config {
    /// 1 GiB in `dir`, one lane, synced every 10 s.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            capacity_bytes: 1 << 30,
            segment_bytes: None,
            lanes: 1,
            sync_every: Some(Duration::from_secs(10)),
            files_max: None,
            boot_id: None,
        }
    }

    /// Bytes of a segment, of whole pages.
    pub(crate) fn segment_bytes(&self) -> Result<u64> {
        let lanes = self.lanes.max(1) as u64;
        let share = self.capacity_bytes / SEGMENTS_MIN.max(lanes * SEGMENTS_PER_LANE_MIN);
        let bytes = match self.segment_bytes {
            Some(bytes) => bytes.clamp(ASKED_BYTES_MIN, ASKED_BYTES_MAX),
            None => share.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
        };
        let bytes = bytes & !4095;
        let capacity_min_bytes = (lanes + SEGMENTS_BESIDE) * bytes;
        if self.capacity_bytes < capacity_min_bytes {
            let (capacity_bytes, lanes) = (self.capacity_bytes, self.lanes);
            return Err(Error::CapacityTooSmall { capacity_bytes, lanes, capacity_min_bytes });
        }
        Ok(bytes)
    }
}
