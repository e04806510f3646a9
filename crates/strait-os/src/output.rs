//! Opens the file, named pipe or device that a user names for output, unless another user may have
//! planted it.
//!
//! A directory such as /tmp is shared: another user may put a symbolic link, a named pipe or a hard
//! link where this process is about to write. `fs.protected_symlinks`, `_fifos` and `_regular`
//! (sysctl) refuse most of these, but only if they are set and O_CREAT is used; this module always
//! makes these checks. Each check uses a descriptor (O_PATH) and not a name, so that it holds for
//! the file that is opened. Every program that writes to a path of the user calls it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, fstatfs, linkat, mkdirat, openat, readlinkat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// Maximum number of symbolic links to follow, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// Attempts to create a file that other processes create and remove meanwhile.
const ATTEMPTS_MAX: usize = 8;
/// Mode of a new file, before the umask.
const NEW: Mode = Mode::from_bits_retain(0o666);
/// Mode of a new directory, before the umask.
const NEW_DIRECTORY: Mode = Mode::from_bits_retain(0o777);
/// `S_ISVTX`, and write permission for group and others.
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Flags of a descriptor for checks only, not for writing.
const PIN: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// `PROC_SUPER_MAGIC` and `PIPEFS_MAGIC` (linux/magic.h).
const PROC: i128 = 0x9fa0;
const PIPEFS: i128 = 0x5049_5045;

/// Output that is safe to write to.
#[derive(Debug)]
pub enum SafeOutput {
    /// Regular file, or an unused name.
    File(Box<Entry>),
    /// Named pipe, device, or descriptor of this process, opened for writing.
    Stream(File),
}

/// Entry of a directory.
#[derive(Debug)]
pub struct Entry {
    /// Directory, opened with O_PATH.
    pub directory: OwnedFd,
    /// Name in the directory. It is not a symbolic link: links in the user's path were followed.
    pub name: OsString,
    /// Directory and name, for messages.
    pub path: PathBuf,
    /// Metadata of the file that has the name now.
    pub found: Option<Metadata>,
    /// File itself, opened with O_PATH.
    pinned: Option<File>,
}

/// Checks `path` and opens it unless it is a regular file. Waits for a reader of a named pipe.
///
/// # Errors
/// A symbolic link or a named pipe of another user; a symbolic link in the middle of the path that
/// another user may have planted; a regular file of another user in a sticky directory; a
/// directory, a socket; `EINTR` if a signal interrupts the wait.
pub fn find(path: &Path) -> io::Result<SafeOutput> {
    match examine(path)? {
        Found::File(entry) => Ok(SafeOutput::File(entry)),
        Found::Stream(stream) => Ok(SafeOutput::Stream(stream.open(OFlags::WRONLY)?)),
    }
}

/// Opens `path` for appending, and creates it if it is missing.
///
/// # Errors
/// As for [`find`]; a file with several hard links in a directory that others can write to.
pub fn append(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND;
    for _ in 0..ATTEMPTS_MAX {
        let entry = match examine(path)? {
            Found::Stream(stream) => return stream.open(flags),
            Found::File(entry) => entry,
        };
        match entry.open_or_create(flags) {
            Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
            opened => return opened,
        }
    }
    Err(Errno::BUSY.into())
}

/// Checks that `path` is a regular file or an unused name, and opens nothing.
///
/// # Errors
/// As for [`find`]; a device or a named pipe.
pub fn file(path: &Path) -> io::Result<Entry> {
    match examine(path)? {
        Found::File(entry) => Ok(*entry),
        Found::Stream(_) => Err(refused("a device or a named pipe: give a file")),
    }
}

/// Opens the directory `path` with O_PATH, to make entries in it.
///
/// # Errors
/// As for [`find`] about the symbolic links in the path, the last component included.
pub fn directory(path: &Path) -> io::Result<OwnedFd> {
    walk(CWD, path, &mut { LINKS_MAX }, Missing::Refuse)
}

/// Opens the directory `path` like [`directory`], and creates its missing components. Creates none
/// behind a symbolic link that is refused.
///
/// # Errors
/// As for [`directory`]; a component cannot be created.
pub fn create_directory(path: &Path) -> io::Result<OwnedFd> {
    walk(CWD, path, &mut { LINKS_MAX }, Missing::Create)
}

/// Returns true if `name` in `directory` is `file` itself, and not a link to it.
pub fn is_entry(directory: impl AsFd, name: &OsStr, file: impl AsFd) -> bool {
    let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let own = fstat(file);
    matches!((named, own), (Ok(named), Ok(own)) if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
}

/// Failure of [`rename`].
#[derive(Debug, thiserror::Error)]
pub enum RenameError {
    /// Another process has put something else in place of the file.
    #[error("another process has replaced it meanwhile")]
    Replaced,
    /// The rename failed: the file has its old name.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Renames `file` from `from` to `to`, both in `directory`, and replaces a file of that name.
///
/// rename(2) takes names. In a directory that others can write to, another user may replace the
/// first name after any check: the second name is therefore checked after the rename, too.
///
/// # Errors
/// [`RenameError::Replaced`] if either name is not `file`.
pub fn rename(
    directory: impl AsFd,
    (from, to): (&OsStr, &OsStr),
    file: impl AsFd,
) -> Result<(), RenameError> {
    if !is_entry(&directory, from, &file) {
        return Err(RenameError::Replaced);
    }
    rename_and_check(directory, (from, to), file)
}

/// Renames `file` like [`rename`], but replaces no file.
///
/// # Errors
/// `EEXIST` if `to` exists. As for [`rename`].
pub fn rename_new(
    directory: impl AsFd,
    (from, to): (&OsStr, &OsStr),
    file: impl AsFd,
) -> Result<(), RenameError> {
    if !is_entry(&directory, from, &file) {
        return Err(RenameError::Replaced);
    }
    match renameat_with(&directory, from, &directory, to, RenameFlags::NOREPLACE) {
        // The file system does not support the flag, as NFS (rename(2)).
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => rename_by_link(&directory, (from, to), &file)?,
        renamed => renamed.map_err(io::Error::from)?,
    }
    if is_entry(directory, to, file) { Ok(()) } else { Err(RenameError::Replaced) }
}

/// Renames by link(2), which replaces no file, and unlink(2). A file system without hard links is
/// only checked for the name before the rename.
fn rename_by_link(
    directory: impl AsFd,
    (from, to): (&OsStr, &OsStr),
    file: impl AsFd,
) -> Result<(), RenameError> {
    match linkat(&directory, from, &directory, to, AtFlags::empty()) {
        Ok(()) if is_entry(&directory, from, file) => {
            unlinkat(directory, from, AtFlags::empty()).map_err(io::Error::from)?;
        }
        Ok(()) => return Err(RenameError::Replaced),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
            match statat(&directory, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => return Err(io::Error::from(Errno::EXIST).into()),
                Err(Errno::NOENT) => renameat(&directory, from, &directory, to).map_err(io::Error::from)?,
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Err(error) => return Err(io::Error::from(error).into()),
    }
    Ok(())
}

fn rename_and_check(
    directory: impl AsFd,
    (from, to): (&OsStr, &OsStr),
    file: impl AsFd,
) -> Result<(), RenameError> {
    renameat(&directory, from, &directory, to).map_err(io::Error::from)?;
    if is_entry(directory, to, file) { Ok(()) } else { Err(RenameError::Replaced) }
}

/// Checks `path` for [`append`] and opens nothing.
///
/// # Errors
/// As for [`append`].
pub fn check(path: &Path) -> io::Result<()> {
    let Found::File(entry) = examine(path)? else { return Ok(()) };
    let Some(pinned) = &entry.pinned else { return Ok(()) };
    // st_nlink has 32 bits on arm64.
    #[allow(clippy::useless_conversion, reason = "st_nlink has 64 bits on x86-64")]
    entry.check_names(fstat(pinned)?.st_nlink.into())
}

impl Entry {
    fn open_or_create(&self, flags: OFlags) -> io::Result<File> {
        let Some(pinned) = &self.pinned else {
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            return Ok(openat(&self.directory, &self.name, flags, NEW)?.into());
        };
        let file = open_same(&self.directory, &self.name, flags | OFlags::NOFOLLOW, pinned)?;
        self.check_names(file.metadata()?.nlink())?;
        Ok(file)
    }

    /// Refuses a file with `names` hard links if another user may have made one of them.
    fn check_names(&self, names: u64) -> io::Result<()> {
        if names > 1 && can_others_write(&self.directory)? {
            return Err(refused(
                "the file has a second name, by which another user may have planted it: give another one",
            ));
        }
        Ok(())
    }
}

/// Output that is safe to write to and not opened yet.
enum Found {
    File(Box<Entry>),
    Stream(Stream),
}

/// Named pipe, device, or descriptor of this process.
struct Stream {
    directory: OwnedFd,
    name: OsString,
    pinned: File,
    /// True if the name is a link of /proc, which leads to the descriptor.
    is_link: bool,
}

impl Stream {
    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = if self.is_link { flags } else { flags | OFlags::NOFOLLOW };
        open_same(&self.directory, &self.name, flags, &self.pinned)
    }
}

/// Path from a directory that was reached.
struct Way<'a> {
    base: BorrowedFd<'a>,
    path: PathBuf,
    /// Path from the working directory, for messages. It has the links of directories that the user
    /// gave, and not their targets.
    shown: PathBuf,
}

fn examine(path: &Path) -> io::Result<Found> {
    let mut links = LINKS_MAX;
    let (path, mut from) = (path.to_path_buf(), None::<OwnedFd>);
    let (mut path, mut shown) = (path.clone(), path);
    loop {
        let base = from.as_ref().map_or(CWD, AsFd::as_fd);
        match step(Way { base, path, shown }, &mut links)? {
            Step::Arrived(found) => return Ok(found),
            Step::Link { directory, target, target_shown } => {
                (path, shown, from) = (target, target_shown, Some(directory));
            }
        }
    }
}

enum Step {
    Arrived(Found),
    /// Symbolic link in `directory` to `target`.
    Link {
        directory: OwnedFd,
        target: PathBuf,
        target_shown: PathBuf,
    },
}

fn step(Way { base, path, shown }: Way<'_>, links: &mut usize) -> io::Result<Step> {
    // As open(2) with O_CREAT. Path omits both endings.
    if [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end)) {
        return Err(Errno::ISDIR.into());
    }
    let Some(name) = path.file_name().map(OsString::from) else {
        let is_empty = path.as_os_str().is_empty();
        return Err(if is_empty { Errno::NOENT } else { Errno::ISDIR }.into());
    };
    let directory = walk(base, path.parent().unwrap_or(Path::new("")), links, Missing::Refuse)?;
    let pinned = match openat(&directory, &name, PIN | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(pinned) => File::from(pinned),
        Err(Errno::NOENT) => {
            let entry = Entry { directory, name, path: shown, found: None, pinned: None };
            return Ok(Step::Arrived(Found::File(Box::new(entry))));
        }
        Err(error) => return Err(error.into()),
    };
    let found = pinned.metadata()?;
    if found.is_symlink() {
        *links = links.checked_sub(1).ok_or(Errno::LOOP)?;
        return follow(directory, name, &pinned, &shown);
    }
    if found.is_file() {
        check_file(&directory, &found)?;
        let entry = Entry { directory, name, path: shown, found: Some(found), pinned: Some(pinned) };
        return Ok(Step::Arrived(Found::File(Box::new(entry))));
    }
    check_stream(&pinned, &found)?;
    Ok(Step::Arrived(Found::Stream(Stream { directory, name, pinned, is_link: false })))
}

/// Answer to a missing component of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    Create,
}

/// Opens the directory `path` from `base`, one component after the other, and checks each symbolic
/// link. Of a link, the name is opened once (O_PATH): its owner and its target belong together.
fn walk(base: BorrowedFd<'_>, path: &Path, links: &mut usize, missing: Missing) -> io::Result<OwnedFd> {
    let flags = PIN | OFlags::DIRECTORY;
    let start = if path.is_absolute() { "/" } else { "." };
    let mut directory = openat(base, start, flags, Mode::empty())?;
    let mut pending = reversed(path);
    while let Some(name) = pending.pop() {
        // O_DIRECTORY makes the kernel mount an automount point; O_PATH alone does not.
        match openat(&directory, &name, flags | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(next) => directory = next,
            Err(Errno::NOENT) if missing == Missing::Create => {
                match mkdirat(&directory, &name, NEW_DIRECTORY) {
                    // Another process may have created it, and may remove it each time.
                    Ok(()) | Err(Errno::EXIST) => *links = links.checked_sub(1).ok_or(Errno::LOOP)?,
                    Err(error) => return Err(error.into()),
                }
                pending.push(name);
            }
            Err(Errno::NOTDIR) => {
                *links = links.checked_sub(1).ok_or(Errno::LOOP)?;
                let link = File::from(openat(&directory, &name, PIN | OFlags::NOFOLLOW, Mode::empty())?);
                check_link(&directory, &link)?;
                if file_system(&link)? == PROC {
                    // The text of a link in /proc is informative only.
                    directory = openat(&directory, &name, flags, Mode::empty())?;
                } else {
                    pending.append(&mut reversed(&target(&link)?));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(directory)
}

/// Returns the components of `path`, the last one first; the root is a component.
fn reversed(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|component| component.as_os_str().to_owned()).collect()
}

/// Refuses a link in the middle of a path that another user may have planted. The rule is that of
/// `fs.protected_symlinks`, also for directories that only a group can write to or that are not
/// sticky: a user's own links and links that only the owner of the directory can make are followed.
fn check_link(directory: &OwnedFd, link: &File) -> io::Result<()> {
    let (around, link) = (metadata(directory)?, link.metadata()?);
    if !link.is_symlink() {
        return Err(Errno::NOTDIR.into());
    }
    let is_shared = around.mode() & WRITABLE_BY_OTHERS != 0;
    if is_shared && !is_trusted(link.uid()) && link.uid() != around.uid() {
        return Err(refused(
            "its path has a symbolic link of another user, in a directory that others write to: \
             give the directory that it leads to",
        ));
    }
    Ok(())
}

/// Returns the target of a link that is open with O_PATH.
fn target(link: &File) -> io::Result<PathBuf> {
    Ok(PathBuf::from(OsString::from_vec(readlinkat(link, "", Vec::new())?.into_bytes())))
}

fn follow(directory: OwnedFd, name: OsString, link: &File, shown: &Path) -> io::Result<Step> {
    let parent = shown.parent().unwrap_or(Path::new(""));
    // In a user namespace, root's /dev/stdout belongs to a user without a number there.
    let is_device = parent == Path::new("/dev") && metadata(&directory)?.mode() & WRITABLE_BY_OTHERS == 0;
    if !is_device && !is_trusted(link.metadata()?.uid()) {
        return Err(refused(
            "a symbolic link of another user is not followed: give the file that it leads to",
        ));
    }
    let target = target(link)?;
    if file_system(link)? != PROC {
        let target_shown = parent.join(&target);
        return Ok(Step::Link { directory, target, target_shown });
    }
    // A link of /proc/PID/fd leads to the open file itself; its text is informative only (proc(5)).
    let pinned = File::from(openat(&directory, &name, PIN, Mode::empty())?);
    let found = pinned.metadata()?;
    let is_it = |named: Metadata| (named.dev(), named.ino()) == (found.dev(), found.ino());
    if found.is_file() && std::fs::symlink_metadata(&target).is_ok_and(is_it) {
        return Ok(Step::Link { directory, target_shown: target.clone(), target });
    }
    check_stream(&pinned, &found)?;
    Ok(Step::Arrived(Found::Stream(Stream { directory, name, pinned, is_link: true })))
}

/// Refuses a file of another user in a sticky directory that others can write to, as
/// `fs.protected_regular` does.
fn check_file(directory: &OwnedFd, found: &Metadata) -> io::Result<()> {
    let around = metadata(directory)?;
    let is_shared = around.mode() & STICKY != 0 && around.mode() & WRITABLE_BY_OTHERS != 0;
    if is_shared && !is_trusted(found.uid()) && found.uid() != around.uid() {
        return Err(refused(
            "a file of another user, in a directory that others write to: give another name",
        ));
    }
    Ok(())
}

/// Refuses a named pipe of another user, who could read from it. Only root can make devices
/// (mknod(2)).
fn check_stream(pinned: &File, found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if kind.is_socket() {
        return Err(refused("a socket cannot be written to as a file: give a file or a named pipe"));
    }
    // An anonymous pipe was passed to this process.
    if kind.is_fifo() && !is_trusted(found.uid()) && file_system(pinned)? != PIPEFS {
        return Err(refused("a named pipe of another user is not written to: give another name"));
    }
    Ok(())
}

/// Opens the name, and refuses a file that has replaced `pinned` meanwhile.
fn open_same(directory: &OwnedFd, name: &OsString, flags: OFlags, pinned: &File) -> io::Result<File> {
    let flags = flags | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    let (own, other) = (pinned.metadata()?, file.metadata()?);
    if (own.dev(), own.ino()) != (other.dev(), other.ino()) {
        return Err(refused("another process has replaced it meanwhile"));
    }
    Ok(file)
}

/// Returns true for this user, root, and the user who became root by sudo(8).
fn is_trusted(uid: u32) -> bool {
    let own = rustix::process::geteuid();
    let by_sudo = || std::env::var("SUDO_UID").is_ok_and(|asked| asked.parse() == Ok(uid));
    uid == own.as_raw() || uid == 0 || own.is_root() && by_sudo()
}

/// Returns true if `owner`, the owner of a replaced file in `directory`, can also own the new file.
/// False if the owner may have planted the file to get the new content.
///
/// # Errors
/// The directory cannot be examined.
pub fn may_keep_owner(directory: &OwnedFd, owner: u32) -> io::Result<bool> {
    Ok(is_trusted(owner) || !can_others_write(directory)?)
}

/// Returns true if a user that is not trusted can make and rename entries.
fn can_others_write(directory: &OwnedFd) -> io::Result<bool> {
    let around = metadata(directory)?;
    Ok(around.mode() & WRITABLE_BY_OTHERS != 0 || !is_trusted(around.uid()))
}

fn metadata(fd: &impl AsFd) -> io::Result<Metadata> {
    File::from(fd.as_fd().try_clone_to_owned()?).metadata()
}

fn file_system(file: &File) -> io::Result<i128> {
    Ok(i128::from(fstatfs(file)?.f_type))
}

fn refused(text: &str) -> io::Error {
    io::Error::other(text)
}

#[cfg(test)]
mod tests;
