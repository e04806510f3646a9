//! Names of the files of one capture, and the ring of the newest ones.
//!
//! Without rotation there is one name, the target. With rotation, names are `STEM_NUMBER_TIME.EXT`
//! in UTC, like those of dumpcap. With rotation by time, a file name with `%` is a format of
//! strftime(3) as in tcpdump: the local time at which the file is opened, and a number if that name
//! is in use. This module opens no file, and deletes only files that this capture completed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use strait_os::clock;
use time::{Month, OffsetDateTime};

use super::error::SinkError;
use super::options::{SinkOptions, Target};
use super::output::{CompleteFile, unfinished};
use crate::compression::Compression;

/// Maximum number of names tried for one file before it gets a random one.
const NAMES_TRIED_MAX: u64 = 10_000;

/// Files of one capture.
#[derive(Debug)]
pub(super) struct Series {
    target: Target,
    rotates: bool,
    /// True if the file name is a format of strftime(3).
    is_format: bool,
    /// Last name made from the format, and its number.
    last: (PathBuf, u64),
    /// Number of files to keep, including the current one.
    ring: Option<usize>,
    number: u64,
    /// Complete files, oldest first. Only a ring keeps them, so their number is limited.
    complete: VecDeque<Finished>,
}

/// Complete file of a ring.
#[derive(Debug)]
struct Finished {
    name: PathBuf,
    file: CompleteFile,
    index: Option<CompleteFile>,
}

impl Series {
    pub(super) fn new(options: &SinkOptions) -> Result<Self, SinkError> {
        let rotates = options.rotates();
        if rotates && !is_regular(&options.target) {
            return Err(SinkError::Usage("rotation needs the name of a file".into()));
        }
        let series = Self {
            target: options.target.clone(),
            rotates,
            is_format: options.rotate_every.is_some() && has_percent(&options.target),
            last: (PathBuf::new(), 0),
            ring: options.ring_files,
            number: 0,
            complete: VecDeque::new(),
        };
        match &series.target {
            Target::Path(path) if series.is_format => {
                formatted(path, options.start_ns)?;
            }
            _ => {}
        }
        Ok(series)
    }

    /// Returns the next file, for the time `opened_ns` (nanoseconds since the epoch).
    pub(super) fn target(&mut self, opened_ns: u64) -> Result<Target, SinkError> {
        self.number += 1;
        Ok(match &self.target {
            Target::Path(path) if self.is_format => {
                let name = formatted(path, opened_ns)?;
                Target::Path(self.unused(name))
            }
            Target::Path(path) if self.rotates => Target::Path(numbered(path, self.number, opened_ns)),
            target => target.clone(),
        })
    }

    /// Returns a random name for the file `refused`: another user could create a file with a
    /// predictable name.
    pub(super) fn random_instead_of(refused: &Target) -> Target {
        match refused {
            Target::Stdout => Target::Stdout,
            Target::Path(path) => Target::Path(with_random(path)),
        }
    }

    /// Returns `name`, or if it is in use, the first free one of `STEM_00002.EXT`, `STEM_00003.EXT`
    /// and so on.
    fn unused(&mut self, name: PathBuf) -> PathBuf {
        if self.last.0 != name {
            self.last = (name, 0);
        }
        for _ in 0..NAMES_TRIED_MAX {
            self.last.1 += 1;
            let (name, number) = &self.last;
            let candidate =
                if *number == 1 { name.clone() } else { with_suffix(name, &format!("_{number:05}")) };
            if !exists(&candidate) && !exists(&unfinished(&candidate)) {
                return candidate;
            }
        }
        with_random(&self.last.0)
    }

    /// Returns the number of opened files.
    pub(super) fn opened(&self) -> u64 {
        self.number
    }

    /// Returns the oldest complete file of a ring.
    pub(super) fn oldest(&self) -> Option<&Path> {
        self.complete.front().map(|oldest| oldest.name.as_path())
    }

    /// Adds a complete file, and its index if it has one.
    pub(super) fn completed(&mut self, name: PathBuf, mut file: CompleteFile, index: Option<CompleteFile>) {
        if self.ring.is_some() {
            if let Some(last) = self.complete.back() {
                file.share_directory(&last.file);
            }
            let index = index.map(|mut index| {
                index.share_directory(&file);
                index
            });
            self.complete.push_back(Finished { name, file, index });
        }
    }

    /// Returns true if a file may get another name: with rotation the user expects several names.
    pub(super) fn can_rename(&self) -> bool {
        self.rotates
    }

    /// Deletes the oldest files so that the ring has room for the current one. Returns the number
    /// of deleted files. A file that cannot be deleted stays and is no longer part of the ring.
    pub(super) fn delete_oldest(&mut self) -> u64 {
        let keep = self.ring.map_or(usize::MAX, |files| files - 1);
        let mut deleted = 0;
        while self.complete.len() > keep {
            let Some(oldest) = self.complete.pop_front() else { break };
            deleted += u64::from(oldest.file.delete());
            if let Some(index) = oldest.index {
                index.delete();
            }
        }
        deleted
    }
}

/// Returns true if the name exists, also as a dangling symbolic link.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Returns `path` with a random number after its stem, which no other user can predict.
pub(super) fn with_random(path: &Path) -> PathBuf {
    with_suffix(path, &format!("_{:016x}", RandomState::new().build_hasher().finish()))
}

fn is_regular(target: &Target) -> bool {
    match target {
        Target::Stdout => false,
        Target::Path(path) => fs::metadata(path).map_or(true, |metadata| metadata.is_file()),
    }
}

fn has_percent(target: &Target) -> bool {
    let Target::Path(path) = target else { return false };
    path.file_name().is_some_and(|name| name.as_bytes().contains(&b'%'))
}

/// Returns `path` with its file name formatted as a local time. The directory is not a format, so
/// that the time cannot select another directory.
fn formatted(path: &Path, opened_ns: u64) -> Result<PathBuf, SinkError> {
    let unusable = |cause: &str| SinkError::Usage(format!("{}: {cause}", path.display()));
    let format = path.file_name().unwrap_or_default();
    let seconds = i64::try_from(opened_ns / 1_000_000_000).unwrap_or(i64::MAX);
    let name: OsString = clock::local_format(format, seconds)
        .ok_or_else(|| unusable("the name with the time filled in is empty or too long"))?;
    let is_plain = !name.as_bytes().contains(&b'/') && name != "." && name != "..";
    if !is_plain {
        return Err(unusable("a time format in the name contains a slash (%D): use %Y-%m-%d"));
    }
    Ok(path.with_file_name(name))
}

/// Returns `dir/STEM_00001_20240131235959.EXT`.
fn numbered(path: &Path, number: u64, opened_ns: u64) -> PathBuf {
    with_suffix(path, &format!("_{number:05}_{}", utc(opened_ns / 1_000_000_000)))
}

/// Returns `path` with a suffix before its extension, and before that of its compression.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let plain = Compression::strip(path);
    let mut name = plain.file_stem().unwrap_or_default().to_owned();
    name.push(suffix);
    let compression = Compression::of_name(path).and_then(|_| path.extension());
    for extension in plain.extension().into_iter().chain(compression) {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Returns the first end of a rotation period after `now_ns`. The first period starts with the
/// capture.
pub(super) fn boundary_after(now_ns: u64, options: &SinkOptions) -> u64 {
    let Some(period) = options.rotate_every else { return u64::MAX };
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    let periods = now_ns.saturating_sub(options.start_ns) / period_ns + 1;
    options.start_ns.saturating_add(periods.saturating_mul(period_ns))
}

/// Formats a time in seconds since the epoch as `YYYYmmddHHMMSS`.
fn utc(seconds: u64) -> String {
    // The largest number of nanoseconds is in the year 2554.
    let time =
        i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let ((year, month, day), (hour, minute, second)) =
        time.map_or(((1970, Month::January, 1), (0, 0, 0)), |time| (time.to_calendar_date(), time.to_hms()));
    format!("{year:04}{:02}{day:02}{hour:02}{minute:02}{second:02}", u8::from(month))
}

#[cfg(test)]
mod tests {
    use super::{formatted, numbered, utc};
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
    fn format_gives_a_name_in_the_same_directory() {
        let name = |path: &str| formatted(Path::new(path), 86_400_000_000_000);
        assert_eq!(name("a%b/x_%Y.pcap").unwrap(), Path::new("a%b/x_1970.pcap"));
        assert_eq!(name("dir/50%%.pcap").unwrap(), Path::new("dir/50%.pcap"));
        for path in ["dir/%D.pcap", "dir/%%D%D", &format!("dir/{}%Y", "x".repeat(5000))] {
            assert!(name(path).is_err(), "{path}");
        }
    }

    #[test]
    fn names_carry_number_and_time_before_the_extension() {
        let name = |path: &str, number| numbered(Path::new(path), number, 86_400_000_000_000);
        assert_eq!(name("dir/a.b.pcapng", 7), Path::new("dir/a.b_00007_19700102000000.pcapng"));
        assert_eq!(name("plain", 100_000), Path::new("plain_100000_19700102000000"));
        assert_eq!(name("dir/a.b.pcap.GZ", 7), Path::new("dir/a.b_00007_19700102000000.pcap.GZ"));
        assert_eq!(name("dir.d/plain.zst", 7), Path::new("dir.d/plain_00007_19700102000000.zst"));
    }
}
