//! Completes the files that killed captures have left.
//!
//! Such a file ends anywhere. Its rows up to the last footer are valid: it is truncated there and
//! gets its final name. A file without a footer has no complete row group and is removed. The file
//! of a running capture is locked, or will be in a moment, and is left alone. Other entries are
//! left alone too, with a note if they have the name of such a file: the directory may be shared,
//! and others may make any.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parquet::file::metadata::ParquetMetaDataReader;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use strait_os::output;

use crate::error::TableError;
use crate::file::{Part, UNFINISHED, UNLOCKED};
use crate::schema::TABLES;

/// Bytes read at once in the search for the last footer.
const CHUNK: u64 = 1 << 20;
/// Magic number at the start and the end of a Parquet file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Length of the end of a footer: its length, and the magic number.
const TAIL: u64 = 8;
/// Maximum length of a footer. That of a file of 128 MiB has some 100 KiB.
const FOOTER_MAX: u64 = 16 << 20;

/// Age at which a file that is not locked is that of a killed capture: a running one locks its file
/// as soon as it has created it.
const UNLOCKED_AGE: Duration = Duration::from_mins(1);
/// Maximum number of notes. Others may make any number of entries.
const NOTES_MAX: usize = 10;
/// Digits of the capture and the least ones of the number in a file's name.
const CAPTURE_DIGITS: usize = 16;
const NUMBER_DIGITS: usize = 6;

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Completed files.
    pub completed: Vec<PathBuf>,
    /// Number of files that had no complete row group, and are removed.
    pub removed: u64,
    /// Entries that are left alone, each with the reason: at most ten.
    pub skipped: Vec<(PathBuf, String)>,
    /// Number of further such entries.
    pub skipped_more: u64,
}

impl Recovered {
    fn skip(&mut self, path: &Path, reason: &impl ToString) {
        if self.skipped.len() < NOTES_MAX {
            self.skipped.push((path.to_owned(), reason.to_string()));
        } else {
            self.skipped_more += 1;
        }
    }
}

/// Recovers the files of killed captures of `sensor` below `root`. An entry that is no such file or
/// cannot be recovered is skipped: it must not keep a capture from starting.
pub(crate) fn recover(root: &Path, sensor: &str) -> Recovered {
    let mut recovered = Recovered::default();
    for table in TABLES {
        for date in entries(&root.join(table.name), "date=", &mut recovered) {
            for hour in entries(&date, "hour=", &mut recovered) {
                let directory = hour.join(format!("sensor={sensor}"));
                for path in entries(&directory, ".", &mut recovered) {
                    let name = path.file_name().and_then(OsStr::to_str);
                    let Some(name) = name.and_then(|name| leftover(table.name, name)) else { continue };
                    if let Err(error) = recover_file(&directory, name, &mut recovered) {
                        recovered.skip(&path, &error);
                    }
                }
            }
        }
    }
    recovered
}

/// Returns the entries of a directory with this prefix; none if there is no such directory.
fn entries(directory: &Path, prefix: &str, recovered: &mut Recovered) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            recovered.skip(directory, &error);
            return Vec::new();
        }
    };
    let named = entries.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().to_string_lossy().starts_with(prefix).then(|| entry.path()),
        Err(error) => {
            recovered.skip(directory, &error);
            None
        }
    });
    named.collect()
}

/// Returns the final name and the suffix of an unfinished file, whose name is
/// `.TABLE-CAPTURE-NUMBER.parquet.part` or `.new`; none for every other name.
fn leftover<'a>(table: &str, name: &'a str) -> Option<(&'a str, &'static str)> {
    let with = |suffix| Some((name.strip_prefix('.')?.strip_suffix(suffix)?, suffix));
    let (whole, suffix) = with(UNFINISHED).or_else(|| with(UNLOCKED))?;
    let rest = whole.strip_suffix(".parquet")?.strip_prefix(table)?.strip_prefix('-')?;
    let (capture, number) = rest.split_once('-')?;
    let is_hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_ours = capture.len() == CAPTURE_DIGITS
        && capture.bytes().all(is_hexadecimal)
        && number.len() >= NUMBER_DIGITS
        && number.bytes().all(|byte| byte.is_ascii_digit());
    is_ours.then_some((whole, suffix))
}

/// Recovers one file. The file of a running capture is left alone, and so is one that its capture
/// has just completed.
fn recover_file(
    path: &Path,
    (name, suffix): (&str, &str),
    recovered: &mut Recovered,
) -> Result<(), TableError> {
    let directory = output::directory(path).map_err(|source| TableError::io("open", path, source))?;
    let entry = format!(".{name}{suffix}");
    let failed = |source: io::Error| TableError::io("recover", path.join(&entry), source);
    // Looking first: opening a device can have an effect, and opening a link fails.
    let found = match statat(&directory, &entry, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno.into())),
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err(failed(io::Error::other("it belongs to another user")));
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(&directory, &entry, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(failed(errno.into())),
    };
    let opened = file.metadata().map_err(failed)?;
    // Before the lock, which would keep a running capture from locking its file.
    let may_be_new = suffix == UNLOCKED && !is_older(&opened, UNLOCKED_AGE);
    let is_other = (opened.dev(), opened.ino()) != (found.st_dev, found.st_ino);
    if may_be_new || is_other || file.try_lock().is_err() {
        return Ok(());
    }
    let length = file.metadata().map_err(failed)?.len();
    let end = last_footer(&file, length).map_err(failed)?;
    let mut part = Part::adopt(directory, path, (name, suffix), file);
    // Its capture may have completed it before the lock: it then has another name and is valid.
    if !part.is_present() {
        return Ok(());
    }
    match end {
        None => {
            part.remove()?;
            recovered.removed += 1;
        }
        Some(end) => {
            part.truncate(end)?;
            recovered.completed.push(part.complete()?);
        }
    }
    Ok(())
}

/// Returns true if nothing was written to the file for `age`.
fn is_older(file: &fs::Metadata, age: Duration) -> bool {
    let modified = file.modified().ok();
    let since = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
    since.is_some_and(|since| since >= age)
}

/// Returns the end of the last footer.
fn last_footer(file: &File, length: u64) -> io::Result<Option<u64>> {
    let mut end = length;
    while end >= TAIL {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - start) as usize];
        file.read_exact_at(&mut chunk, start)?;
        let ends = chunk.windows(MAGIC.len()).enumerate().rev().filter(|(_, window)| window == MAGIC);
        for (at, _) in ends {
            let end = start + (at + MAGIC.len()) as u64;
            if is_footer(file, end)? {
                return Ok(Some(end));
            }
        }
        // Chunks overlap, as the magic number may be in both.
        end = if start == 0 { 0 } else { start + MAGIC.len() as u64 - 1 };
    }
    Ok(None)
}

/// Returns true if a valid footer ends at `end`. The magic number alone may be data.
fn is_footer(file: &File, end: u64) -> io::Result<bool> {
    let Some(tail) = end.checked_sub(TAIL) else { return Ok(false) };
    let mut length = [0; 4];
    file.read_exact_at(&mut length, tail)?;
    let length = u64::from(u32::from_le_bytes(length));
    let Some(start) = tail.checked_sub(length).filter(|_| (1..=FOOTER_MAX).contains(&length)) else {
        return Ok(false);
    };
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, start)?;
    Ok(ParquetMetaDataReader::decode_metadata(&footer).is_ok())
}
