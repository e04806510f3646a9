//! The names of the files of one capture, and the ring that keeps the newest of them.
//!
//! Without rotation there is one name, the target. With it, names are `STEM_NUMBER_TIME.EXT` as
//! dumpcap makes them, in UTC. With rotation by time, a file name with `%` is a format of
//! strftime(3) instead, as in tcpdump: the local time at which the file is opened, and a number
//! behind it where that name is taken. It opens nothing; it deletes only files that this capture
//! completed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use strait_packet::summary::date;
use strait_sys::clock;

use super::output::{Kept, unfinished};
use super::{SinkError, SinkOptions, Target};

/// Names that are looked at for one file before it gets a random one.
const TAKEN_MAX: u64 = 10_000;

/// The files of one capture.
#[derive(Debug)]
pub(super) struct Series {
    target: Target,
    rotates: bool,
    /// The file name is a format of strftime(3).
    is_format: bool,
    /// The last name that the format gave, and the number behind it.
    last: (PathBuf, u64),
    /// Files to keep, the one being written included.
    ring: Option<usize>,
    number: u64,
    /// Complete files, oldest first; kept only for a ring, so never more than that.
    complete: VecDeque<(PathBuf, Kept)>,
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

    /// The next file, opened at `opened_ns` (nanoseconds since the epoch).
    pub(super) fn target(&mut self, opened_ns: u64) -> Result<Target, SinkError> {
        self.number += 1;
        Ok(match &self.target {
            Target::Path(path) if self.is_format => {
                let name = formatted(path, opened_ns)?;
                Target::Path(self.untaken(name))
            }
            Target::Path(path) if self.rotates => Target::Path(numbered(path, self.number, opened_ns)),
            target => target.clone(),
        })
    }

    /// Another name for `refused`, the next file. It is random: another user may plant every name
    /// that can be predicted.
    pub(super) fn instead_of(refused: &Target) -> Target {
        match refused {
            Target::Stdout => Target::Stdout,
            Target::Path(path) => Target::Path(with_random(path)),
        }
    }

    /// `name`, or where a file has that name, the first free one of `STEM_00002.EXT` and on.
    fn untaken(&mut self, name: PathBuf) -> PathBuf {
        if self.last.0 != name {
            self.last = (name, 0);
        }
        for _ in 0..TAKEN_MAX {
            self.last.1 += 1;
            let (name, number) = &self.last;
            let candidate =
                if *number == 1 { name.clone() } else { with_suffix(name, &format!("_{number:05}")) };
            if !is_taken(&candidate) && !is_taken(&unfinished(&candidate)) {
                return candidate;
            }
        }
        with_random(&self.last.0)
    }

    /// How many files were opened.
    pub(super) fn opened(&self) -> u64 {
        self.number
    }

    /// The oldest complete file of a ring.
    pub(super) fn oldest(&self) -> Option<&Path> {
        self.complete.front().map(|(name, _)| name.as_path())
    }

    /// Notes a file that is complete.
    pub(super) fn completed(&mut self, name: PathBuf, mut file: Kept) {
        if self.ring.is_some() {
            if let Some((_, last)) = self.complete.back() {
                file.share_directory(last);
            }
            self.complete.push_back((name, file));
        }
    }

    /// Returns true if a file may get another name than its own: there are several anyway.
    pub(super) fn can_rename(&self) -> bool {
        self.rotates
    }

    /// Deletes the files that the ring has no place for, now that one more is being written;
    /// returns how many. One that cannot be deleted stays.
    pub(super) fn delete_oldest(&mut self) -> u64 {
        let keep = self.ring.map_or(usize::MAX, |files| files - 1);
        let mut deleted = 0;
        while self.complete.len() > keep {
            let Some((_, oldest)) = self.complete.pop_front() else { break };
            deleted += u64::from(oldest.delete());
        }
        deleted
    }
}

/// Returns true if there is such a name; that of a dangling link is one too.
fn is_taken(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// `path` with a random number behind its name, which no other user can predict.
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

/// `path` with its file name as the format of a local time. The directory is taken as it is: a
/// format must not select another one.
fn formatted(path: &Path, opened_ns: u64) -> Result<PathBuf, SinkError> {
    let unusable = |why: &str| SinkError::Usage(format!("{}: {why}", path.display()));
    let format = path.file_name().unwrap_or_default();
    let seconds = i64::try_from(opened_ns / 1_000_000_000).unwrap_or(i64::MAX);
    let name: OsString = clock::local_format(format, seconds)
        .ok_or_else(|| unusable("the name with its time is empty or too long"))?;
    let is_plain = !name.as_bytes().contains(&b'/') && name != "." && name != "..";
    if !is_plain {
        return Err(unusable("a % in it stands for a time with a slash (%D): write it as %Y-%m-%d"));
    }
    Ok(path.with_file_name(name))
}

/// `dir/STEM_00001_20240131235959.EXT`.
fn numbered(path: &Path, number: u64, opened_ns: u64) -> PathBuf {
    with_suffix(path, &format!("_{number:05}_{}", utc(opened_ns / 1_000_000_000)))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(suffix);
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
    fn a_format_gives_a_name_in_the_same_directory() {
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
    }
}
