//! Replacement of a file by a completely written one.
//!
//! The directory may belong to another user: links are not followed, an existing file is not
//! written to, and all names are relative to the descriptor of the checked directory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use strait_os::output::{self, Entry};

/// Unfinished file that replaces another one when it is complete; dropping it removes it.
#[derive(Debug)]
pub struct Replacement {
    entry: Entry,
    name: OsString,
    file: fs::File,
    is_renamed: bool,
}

impl Replacement {
    /// Creates the file beside `path`. Removes an existing one first: another user may have planted
    /// a link of that name, or a killed process may have left it.
    ///
    /// # Errors
    /// The file cannot be created, or a user who is not trusted can have planted it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let entry = output::file(path)?;
        let name = part_name(&entry.name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match unlinkat(&entry.directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let file = openat(&entry.directory, &name, flags, Mode::from_raw_mode(0o666))?;
        Ok(Self { entry, name, file: file.into(), is_renamed: false })
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// It cannot be set.
    pub fn permit(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(fs::Permissions::from_mode(mode))
    }

    /// Removes everything after the first `bytes` bytes, which are written.
    ///
    /// # Errors
    /// The file cannot be truncated.
    pub fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes)).map(drop)
    }

    /// Stores the content, and gives the file its name.
    ///
    /// # Errors
    /// The content cannot be stored; another user has replaced the file.
    pub fn complete(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        let names = (self.name.as_os_str(), self.entry.name.as_os_str());
        output::rename(&self.entry.directory, names, &self.file).map_err(io::Error::other)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_renamed {
            // Ignored, because the first failure is the one to report.
            let _ = unlinkat(&self.entry.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Returns the name of this process's unfinished file for `name`.
pub fn part_name(name: &OsStr) -> OsString {
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{}", std::process::id()));
    part
}

/// Returns true if both paths lead to one existing file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Writes `content` to `path` completely, or leaves an existing file unchanged.
///
/// # Errors
/// The file cannot be written, or a user who is not trusted can have planted it.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut part = Replacement::create(path)?;
    part.write_all(content)?;
    part.complete()
}

/// Checks that [`replace`] can create its file, and removes it.
///
/// # Errors
/// As for [`replace`].
pub fn check(path: &Path) -> io::Result<()> {
    Replacement::create(path).map(drop)
}
