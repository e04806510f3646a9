//! Identity of a directory: another one can take its place, as when a disk is not mounted.
//!
//! The stores of several directories compare it before they use one again.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Identity of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) owner: u32,
    /// True if its path is a symbolic link.
    pub(crate) is_link: bool,
}

impl Identity {
    /// Returns true for the same directory, whatever its owner and the link to it are.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Returns the identity of the directory at a path; follows a link.
pub(crate) fn identity(dir: &Path) -> io::Result<Identity> {
    let found = std::fs::metadata(dir)?;
    let is_link = std::fs::symlink_metadata(dir)?.is_symlink();
    Ok(Identity { device: found.dev(), inode: found.ino(), owner: found.uid(), is_link })
}
