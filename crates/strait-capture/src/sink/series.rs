//! The names of the files of one capture, and the ring that keeps the newest of them.
//!
//! Without rotation there is one name, the target. With it, names are `STEM_NUMBER_TIME.EXT` as dumpcap
//! makes them, in UTC. It opens nothing; it deletes only files that this capture completed.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use strait_packet::summary::date;

use super::{SinkError, SinkOptions, Target};

/// The files of one capture.
#[derive(Debug)]
pub(super) struct Series {
    target: Target,
    rotates: bool,
    /// Files to keep, the one being written included.
    ring: Option<usize>,
    number: u64,
    /// Complete files, oldest first; kept only for a ring, so never more than that.
    complete: VecDeque<PathBuf>,
}

impl Series {
    pub(super) fn new(options: &SinkOptions) -> Result<Self, SinkError> {
        let rotates = options.rotates();
        if rotates && !is_regular(&options.target) {
            return Err(SinkError::Usage("rotation needs the name of a file".into()));
        }
        let ring = options.ring_files;
        Ok(Self { target: options.target.clone(), rotates, ring, number: 0, complete: VecDeque::new() })
    }

    /// The next file, opened at `opened_ns` (nanoseconds since the epoch).
    pub(super) fn target(&mut self, opened_ns: u64) -> Target {
        self.number += 1;
        match &self.target {
            Target::Path(path) if self.rotates => Target::Path(numbered(path, self.number, opened_ns)),
            target => target.clone(),
        }
    }

    /// How many files were opened.
    pub(super) fn opened(&self) -> u64 {
        self.number
    }

    /// The oldest complete file of a ring.
    pub(super) fn oldest(&self) -> Option<&Path> {
        self.complete.front().map(PathBuf::as_path)
    }

    /// Notes a file that is complete.
    pub(super) fn completed(&mut self, name: PathBuf) {
        if self.ring.is_some() {
            self.complete.push_back(name);
        }
    }

    /// Deletes the files that the ring has no place for, now that one more is being written; returns how many.
    /// One that cannot be deleted stays.
    pub(super) fn delete_oldest(&mut self) -> u64 {
        let keep = self.ring.map_or(usize::MAX, |files| files - 1);
        let mut deleted = 0;
        while self.complete.len() > keep {
            let Some(oldest) = self.complete.pop_front() else { break };
            deleted += u64::from(fs::remove_file(oldest).is_ok());
        }
        deleted
    }
}

fn is_regular(target: &Target) -> bool {
    match target {
        Target::Stdout => false,
        Target::Path(path) => fs::metadata(path).map_or(true, |metadata| metadata.is_file()),
    }
}

/// `dir/STEM_00001_20240131235959.EXT`.
fn numbered(path: &Path, number: u64, opened_ns: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number:05}_{}", utc(opened_ns / 1_000_000_000)));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// `YYYYmmddHHMMSS` of a time in seconds since the epoch.
fn utc(seconds: u64) -> String {
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::{numbered, utc};
    use std::path::Path;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, expected) in [
            (0, "19700101000000"),
            (951_782_399, "20000228235959"),
            (951_782_400, "20000229000000"),
            (1_709_251_199, "20240229235959"),
            (1_735_689_599, "20241231235959"),
            (4_107_542_400, "21000301000000"),
            (u64::MAX / 1_000_000_000, "25540721233433"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn names_carry_number_and_time_before_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number, 86_400_000_000_000);
        assert_eq!(name("dir/a.b.pcapng", 7), Path::new("dir/a.b_00007_19700102000000.pcapng"));
        assert_eq!(name("plain", 100_000), Path::new("plain_100000_19700102000000"));
    }
}
