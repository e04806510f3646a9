//! Complete files below a spool directory: `TABLE/date=DATE/hour=HOUR/sensor=NAME/FILE.parquet`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use strait_program::Error;

/// Directories between the spool directory and a file.
const DEPTH: usize = 4;
/// Maximum number of files in a listing.
const FILES_MAX: usize = 10_000;
const SUFFIX: &str = ".parquet";

/// Spool directory.
pub(crate) struct Spool {
    pub(crate) directory: PathBuf,
}

/// Extent of a listing of the complete files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// All of them.
    Whole,
    /// The oldest [`FILES_MAX`].
    Truncated,
}

/// Complete file.
#[derive(Debug)]
pub(crate) struct Complete {
    pub(crate) path: PathBuf,
    /// Path below the spool directory, with `/` between its parts.
    pub(crate) key: String,
    modified: SystemTime,
}

impl Spool {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns the complete files, oldest first, [`FILES_MAX`] at most. Unfinished ones have a dot
    /// before their names. Links are not followed.
    pub(crate) fn complete(&self) -> Result<(Vec<Complete>, Listing), Error> {
        let mut found = Vec::new();
        add(&self.directory, "", DEPTH, &mut found)?;
        found.sort_by(|one, other| (one.modified, &one.key).cmp(&(other.modified, &other.key)));
        let listing = if found.len() > FILES_MAX { Listing::Truncated } else { Listing::Whole };
        found.truncate(FILES_MAX);
        Ok((found, listing))
    }

    /// Removes a file that was sent, and the directories above it that are empty then, so that
    /// listings do not get longer with each hour. The spool directory itself stays.
    pub(crate) fn remove(&self, file: &Complete) -> Result<(), Error> {
        match fs::remove_file(&file.path) {
            // Another process has sent it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::failed(format!("remove {}: {error}", file.path.display())));
            }
            _ => {}
        }
        let parents = file.path.ancestors().skip(1);
        for directory in parents.take(DEPTH).take_while(|directory| *directory != self.directory) {
            // A directory with an entry stays, and those above it.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Adds the complete files in and below a directory, whose key is `parent`.
fn add(directory: &Path, parent: &str, depth: usize, found: &mut Vec<Complete>) -> Result<(), Error> {
    let failed = |error: io::Error| Error::failed(format!("read {}: {error}", directory.display()));
    let entries = match fs::read_dir(directory) {
        // Another process may have removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound && depth < DEPTH => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        // Names of tables, partitions and files are ASCII.
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let key = if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && depth > 0 {
            add(&entry.path(), &key, depth - 1, found)?;
        } else if kind.is_file() && depth == 0 && name.ends_with(SUFFIX) {
            match entry.metadata().and_then(|metadata| metadata.modified()) {
                Ok(modified) => found.push(Complete { path: entry.path(), key, modified }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_files_of_tables_are_found() {
        let spool = tempfile::tempdir().unwrap();
        let leaf = "flows/date=2026-11-25/hour=16/sensor=s";
        fs::create_dir_all(spool.path().join(leaf)).unwrap();
        for name in ["b.parquet", "a.parquet", ".c.parquet.part", ".d.parquet.new", "e.txt"] {
            fs::write(spool.path().join(leaf).join(name), "x").unwrap();
        }
        fs::write(spool.path().join("f.parquet"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", spool.path().join(leaf).join("g.parquet")).unwrap();
        std::os::unix::fs::symlink(leaf, spool.path().join("packets")).unwrap();
        let (found, listing) = Spool::new(spool.path()).complete().unwrap();
        assert_eq!(listing, Listing::Whole);
        let mut keys: Vec<&str> = found.iter().map(|file| &*file.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [format!("{leaf}/a.parquet"), format!("{leaf}/b.parquet")]);
        assert!(Spool::new(&spool.path().join("none")).complete().is_err());
    }

    #[test]
    fn directories_are_removed_with_their_last_file() {
        let root = tempfile::tempdir().unwrap();
        let directory = |name: &str| root.path().join("flows/date=2026-11-25").join(name);
        for hour in ["hour=15/sensor=s", "hour=16/sensor=s"] {
            fs::create_dir_all(directory(hour)).unwrap();
            fs::write(directory(hour).join("a.parquet"), "x").unwrap();
        }
        let unfinished = directory("hour=16/sensor=s/.b.parquet.part");
        fs::write(&unfinished, "x").unwrap();
        let spool = Spool::new(root.path());
        for file in spool.complete().unwrap().0 {
            spool.remove(&file).unwrap();
            spool.remove(&file).unwrap();
        }
        assert!(!directory("hour=15").exists() && unfinished.exists());
        let last = directory("hour=16/sensor=s/b.parquet");
        fs::rename(&unfinished, &last).unwrap();
        spool.remove(&spool.complete().unwrap().0[0]).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn long_listing_is_truncated() {
        let spool = tempfile::tempdir().unwrap();
        let leaf = spool.path().join("flows/date=2026-11-25/hour=16/sensor=s");
        fs::create_dir_all(&leaf).unwrap();
        for number in 0..=FILES_MAX {
            fs::write(leaf.join(format!("{number}.parquet")), "").unwrap();
        }
        let (found, listing) = Spool::new(spool.path()).complete().unwrap();
        assert_eq!((found.len(), listing), (FILES_MAX, Listing::Truncated));
    }
}
