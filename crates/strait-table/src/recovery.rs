//! Completes the files that killed captures have left.
//!
//! Such a file ends anywhere. Its rows up to the last footer are valid: it is truncated there and
//! gets its final name. A file without a footer has no complete row group and is removed. The file
//! of a running capture is locked and left alone.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use parquet::file::metadata::ParquetMetaDataReader;

use crate::error::TableError;
use crate::file::{Part, UNFINISHED};
use crate::schema::TABLES;

/// Bytes read at once in the search for the last footer.
const CHUNK: u64 = 1 << 20;
/// Magic number at the start and the end of a Parquet file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Length of the end of a footer: its length, and the magic number.
const TAIL: u64 = 8;
/// Maximum length of a footer. That of a file of 128 MiB has some 100 KiB.
const FOOTER_MAX: u64 = 16 << 20;

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Completed files.
    pub completed: Vec<PathBuf>,
    /// Number of files that had no complete row group, and are removed.
    pub removed: u64,
}

/// Recovers the files of killed captures of `sensor` below `root`.
pub(crate) fn recover(root: &Path, sensor: &str) -> Result<Recovered, TableError> {
    let mut recovered = Recovered::default();
    for table in TABLES {
        for date in entries(&root.join(table.name), "date=")? {
            for hour in entries(&date, "hour=")? {
                let directory = hour.join(format!("sensor={sensor}"));
                for file in entries(&directory, ".")? {
                    recover_file(&directory, &file, &mut recovered)?;
                }
            }
        }
    }
    Ok(recovered)
}

/// Returns the entries of a directory with this prefix; none if there is no such directory.
fn entries(directory: &Path, prefix: &str) -> Result<Vec<PathBuf>, TableError> {
    let failed = |source| TableError::io("read", directory, source);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

fn recover_file(directory: &Path, path: &Path, recovered: &mut Recovered) -> Result<(), TableError> {
    let failed = |source| TableError::io("recover", path, source);
    let name = path.file_name().unwrap_or_default();
    if !name.to_string_lossy().ends_with(UNFINISHED) {
        return Ok(());
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path);
    let file = file.map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let is_ours = found.is_file() && found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || file.try_lock().is_err() {
        return Ok(());
    }
    let end = last_footer(&file, found.len()).map_err(failed)?;
    let mut part = Part::adopt(directory, name.to_owned(), file)?;
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

/// Returns the end of the last footer.
fn last_footer(file: &File, length: u64) -> std::io::Result<Option<u64>> {
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
fn is_footer(file: &File, end: u64) -> std::io::Result<bool> {
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
