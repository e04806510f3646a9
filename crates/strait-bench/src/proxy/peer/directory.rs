//! Directories of a run and of each try.
//!
//! The directory of a try belongs to the unprivileged user of the proxies, which could put links
//! there. All entries are therefore made, opened and given away by descriptor.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, statat};
use strait_os::process;

use super::NOBODY;
use crate::error::{Error, Result};

/// Flags of a directory.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Modes of new directories and files, before the umask.
const DIRECTORY_MODE: Mode = Mode::from_bits_retain(0o755);
const FILE_MODE: Mode = Mode::from_bits_retain(0o644);

/// Directories of a run's tries. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Directories {
    path: PathBuf,
    file: OwnedFd,
    made: AtomicU32,
}

impl Directories {
    /// Creates the directory of a run. Its path is absolute: the other proxies interpret a relative
    /// path from their own directory.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let parent = std::path::absolute(parent).map_err(|error| failed("find", parent, error))?;
        let path = parent.join(format!("strait-bench-{}", std::process::id()));
        let file = make(CWD, &path).map_err(|error| failed("make", &path, error))?;
        Ok(Self { path, file, made: AtomicU32::new(0) })
    }

    /// Creates the directory of the next try.
    pub(crate) fn next(&self) -> Result<Directory> {
        let name = self.made.fetch_add(1, Ordering::Relaxed).to_string();
        let path = self.path.join(&name);
        let file = make(&self.file, Path::new(&name)).and_then(given_away);
        Ok(Directory { file: file.map_err(|error| failed("make", &path, error))?, path })
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        // A failure leaves the directory among the temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Directory of one try. Dropping it truncates its files and keeps them: a file system that skips
/// recently freed inode numbers, such as ext4 without a journal, would slow down the next try.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    file: OwnedFd,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failure is harmless: dropping [`Directories`] removes the files.
        let _ = empty(&self.file);
    }
}

impl Directory {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn make(&self, name: &str) -> Result<()> {
        let made = make(&self.file, Path::new(name)).and_then(given_away);
        made.map(drop).map_err(|error| failed("make", &self.path.join(name), error))
    }

    /// Writes a new file.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let write = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(&self.file, name, flags, FILE_MODE)?);
            file.write_all(text.as_bytes())?;
            given_away(file.into())
        };
        write().map(drop).map_err(|error| failed("write", &self.path.join(name), error))
    }

    /// Writes a new certificate and its key, as PEM files.
    pub(super) fn write_certificate(&self) -> Result<()> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.map_err(|error| Error::Invalid(format!("no certificate can be made: {error}")))?;
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        self.write(CERTIFICATE, &certificate)?;
        self.write(KEY, &key)?;
        self.write(BOTH, &(certificate + &key))
    }
}

/// Files of [`Directory::write_certificate`].
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";
/// Certificate and key, as HAProxy reads them.
const BOTH: &str = "both.pem";

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::file(format!("{operation} {}", path.display()), error)
}

/// Makes a directory and opens it. Refuses one that another user has put in its place.
fn make(parent: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    mkdirat(&parent, name, DIRECTORY_MODE)?;
    let made = File::from(openat(&parent, name, DIRECTORY, Mode::empty())?);
    if made.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("another user has replaced it meanwhile"));
    }
    Ok(made.into())
}

/// Gives a file or directory to the user of the proxies if this process is root.
fn given_away(file: OwnedFd) -> io::Result<OwnedFd> {
    if process::is_root() {
        fchown(&file, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(file)
}

/// Truncates all files.
fn empty(directory: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => empty(&openat(directory, name, DIRECTORY, Mode::empty())?)?,
            FileType::RegularFile => truncate(directory, name)?,
            _ => {}
        }
    }
    Ok(())
}

/// Truncates a file. One with a second name may be a file of another directory, and keeps its
/// content.
fn truncate(directory: &OwnedFd, name: &CStr) -> io::Result<()> {
    // O_NONBLOCK: a named pipe in place of the file is not waited for.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 { file.set_len(0) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn path_of_a_try_is_absolute() {
        let directories = Directories::new(Path::new(".")).unwrap();
        let directory = directories.next().unwrap();
        assert!(directory.path().is_absolute() && directory.path().is_dir());
    }

    #[test]
    fn links_in_the_directory_of_a_try_are_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let victim = base.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        let directories = Directories::new(base.path()).unwrap();
        let directory = directories.next().unwrap();
        symlink(&victim, directory.path().join("peer.conf")).unwrap();
        symlink(base.path(), directory.path().join("cache")).unwrap();
        fs::hard_link(&victim, directory.path().join("log")).unwrap();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        let before = (owner(&victim), owner(base.path()));
        assert!(directory.write("peer.conf", "text").is_err());
        assert!(directory.make("cache").is_err());
        directory.write("other.conf", "text").unwrap();
        let other = directory.path().join("other.conf");
        assert_eq!(fs::read(&other).unwrap(), b"text");
        drop(directory);
        assert_eq!(fs::read(&other).unwrap(), b"");
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
        assert_eq!((owner(&victim), owner(base.path())), before);
    }
}
