//! Files for copies of the relayed streams: `PREFIX.N.up` and `PREFIX.N.down`.
//!
//! The program opens [`Copies`] once, before the first connection, and the relay creates a file for
//! each direction. The files are private, and an existing name is never opened. All are made in the
//! directory that was checked at the start, even if its path leads elsewhere later.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Dir, Mode, OFlags, accessat, openat, unlinkat};
use strait_os::output;

/// Maximum number of a copy that is counted on from: another user may have planted a file with a
/// higher one.
const NUMBER_MAX: u64 = 1 << 48;
/// Ends of the names.
const UP: &str = "up";
const DOWN: &str = "down";
const PRIVATE: Mode = Mode::from_bits_retain(0o600);

/// Directory and prefix of the files.
#[derive(Clone, Debug)]
pub struct Copies {
    directory: Arc<OwnedFd>,
    /// File name up to the number, with the dot.
    prefix: OsString,
}

impl Copies {
    /// Opens the directory of `prefix`.
    ///
    /// # Errors
    /// It cannot be written to, or another user may have planted a link in its path.
    pub fn open(prefix: &Path) -> io::Result<Self> {
        let bytes = prefix.as_os_str().as_bytes();
        let name = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = bytes.split_at(name);
        let directory = output::directory(Path::new(OsStr::from_bytes(directory)))?;
        accessat(&directory, ".", Access::WRITE_OK, AtFlags::empty())?;
        let mut prefix = OsStr::from_bytes(name).to_owned();
        prefix.push(".");
        Ok(Self { directory: Arc::new(directory), prefix })
    }

    /// Returns the highest number of the files that exist, and 0 without one.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn last_number(&self) -> io::Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.directory, ".", flags, Mode::empty())?;
        let mut last = 0;
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let number = self.number(entry.file_name().to_bytes());
            last = last.max(number.filter(|number| *number <= NUMBER_MAX).unwrap_or(0));
        }
        Ok(last)
    }

    /// Returns N of `PREFIX.N.up`.
    fn number(&self, name: &[u8]) -> Option<u64> {
        let rest = name.strip_prefix(self.prefix.as_bytes())?;
        let end = rest.iter().position(|byte| *byte == b'.')?;
        str::from_utf8(&rest[..end]).ok()?.parse().ok()
    }

    /// Creates both files of connection `number`, from the client and to it. Returns `None` if a
    /// file of that number exists.
    pub(crate) fn create_both(&self, number: u64) -> Option<[io::Result<File>; 2]> {
        let is_taken = |made: &io::Result<File>| {
            made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        };
        let up = self.create(number, UP);
        if is_taken(&up) {
            return None;
        }
        let down = self.create(number, DOWN);
        if is_taken(&down) {
            // A failure leaves an empty file.
            if let Ok(up) = &up {
                drop(self.remove(number, UP, up));
            }
            return None;
        }
        Some([up, down])
    }

    /// Creates the file for the direction `way` of connection `number`.
    fn create(&self, number: u64, way: &str) -> io::Result<File> {
        let name = self.name(number, way);
        // O_EXCL follows no link that another user has planted (open(2)).
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(openat(&self.directory, &name, flags, PRIVATE)?.into())
    }

    /// Removes `file`, unless another process has put another one in its place.
    fn remove(&self, number: u64, way: &str, file: &File) -> io::Result<()> {
        let name = self.name(number, way);
        if output::is_entry(&self.directory, &name, file) {
            unlinkat(&self.directory, &name, AtFlags::empty())?;
        }
        Ok(())
    }

    fn name(&self, number: u64, way: &str) -> OsString {
        let mut name = self.prefix.clone();
        name.push(format!("{number}.{way}"));
        name
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numbers_go_on_after_the_files_of_the_prefix() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["copy.7.up", "copy.9.down", "copy2.50.up", "copy.x.up", "copy.18446744073709551615.up"] {
            fs::write(path(name), "").unwrap();
        }
        let copies = |prefix: &str| Copies::open(&path(prefix)).unwrap();
        assert_eq!(copies("copy").last_number().unwrap(), 9);
        assert_eq!(copies("other").last_number().unwrap(), 0);
        // A prefix without a name: names of files begin with a dot.
        copies("").create(1, "up").unwrap();
        assert!(path(".1.up").exists() && copies("").last_number().unwrap() == 1);
        let taken = copies("copy").create(7, "up").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        // Neither file of a number is left if one of them is taken.
        for (number, taken) in [(7, "down"), (9, "up")] {
            assert!(copies("copy").create_both(number).is_none());
            assert!(!path(&format!("copy.{number}.{taken}")).exists());
        }
        assert!(copies("copy").create_both(8).unwrap().iter().all(Result::is_ok));
        assert!(path("copy.8.up").exists() && path("copy.8.down").exists());
        assert_eq!(Copies::open(&path("none/copy")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn files_are_made_in_the_directory_that_was_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("checked")).unwrap();
        let copies = Copies::open(&path("checked/copy")).unwrap();
        fs::rename(path("checked"), path("moved")).unwrap();
        fs::create_dir(path("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", path("checked")).unwrap();
        copies.create(1, "up").unwrap();
        assert!(path("moved/copy.1.up").exists() && !path("elsewhere/copy.1.up").exists());
    }
}
