//! Checks that only trusted users can have installed the library that `strait run` preloads, and
//! the programs of external commands, and that only they can change a spool directory.
//!
//! The library and the programs run with the rights of the caller, and the files of the spool are
//! read and removed with them. The checks read the file system, /etc/passwd and
//! /etc/group, and change nothing.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The access control list of a file (acl(5)), in the kernel's form (linux/posix_acl_xattr.h).
const ACL: &str = "system.posix_acl_access";
/// Maximum size of an extended attribute (`XATTR_SIZE_MAX`, linux/limits.h).
const ACL_BYTES_MAX: usize = 64 << 10;
const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;
const ACL_MASK: u16 = 0x10;
const ACL_WRITE: u16 = 0x02;

/// Returns the path, `library` or a directory above it, that an untrusted user owns or may write
/// to: this user could have planted the library. Trusted users are root, the effective user, and
/// the owners of `program` and of `/`. Directories above the first may be writable if they have the
/// sticky bit.
///
/// In a user namespace in which root has no number, `/` has the overflow user, like all files of
/// users without a number (user_namespaces(7)).
///
/// For root, a group with write access counts as untrusted, unless it has the owner of the file as
/// its only member. Other users are assumed to know the groups with which they share a directory.
pub(crate) fn untrusted_path<'l>(library: &'l Path, program: &Path) -> Option<&'l Path> {
    let is_safe = |(depth, path): (usize, &Path)| is_safe(path, program, depth > 1);
    library.ancestors().enumerate().find(|place| !is_safe(*place)).map(|(_, path)| path)
}

/// Like [`untrusted_path`], for a `found` program that may be a link: checks the directories of the
/// link, and the file to which it leads.
pub(crate) fn untrusted_program(found: &Path, program: &Path) -> Option<PathBuf> {
    let (Ok(file), Some(directory)) = (fs::canonicalize(found), found.parent()) else {
        return Some(found.to_owned());
    };
    untrusted_directory(directory, program).or_else(|| untrusted_path(&file, program).map(Path::to_owned))
}

/// Like [`untrusted_path`], for a directory, of which the path may have links.
pub(crate) fn untrusted_directory(directory: &Path, program: &Path) -> Option<PathBuf> {
    let Ok(directory) = fs::canonicalize(directory) else { return Some(directory.to_owned()) };
    let is_safe = |(above, path): &(usize, &Path)| is_safe(path, program, *above > 0);
    let untrusted = directory.ancestors().enumerate().find(|place| !is_safe(place));
    untrusted.map(|(_, path)| path.to_owned())
}

/// Returns `directory`, or an entry in it, if it could make the loader load another library than
/// `library`. The loader searches the whole directory and its subdirectories.
///
/// Trusted users are those of [`untrusted_path`]. It does not check the directories above.
pub(crate) fn untrusted_link(
    directory: &Path,
    names: &[&str],
    library: &Path,
    program: &Path,
) -> Option<PathBuf> {
    let is_directory = fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir());
    let (Ok(entries), Ok(library)) = (fs::read_dir(directory), fs::canonicalize(library)) else {
        return Some(directory.to_owned());
    };
    if !is_directory || !is_safe(directory, program, false) {
        return Some(directory.to_owned());
    }
    let leads_to_library = |entry: &Path| fs::canonicalize(entry).is_ok_and(|target| target == library);
    let is_link = |entry: &Path| {
        let name = entry.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| names.contains(&name)) && leads_to_library(entry)
    };
    entries
        .map(|entry| entry.map_or_else(|_| directory.to_owned(), |entry| entry.path()))
        .find(|entry| !is_link(entry))
}

/// Returns true if a trusted user owns `path` and only trusted users may write to it. With
/// `may_be_sticky` a directory with the sticky bit is safe too: other users can create entries in
/// it, but not rename existing ones.
fn is_safe(path: &Path, program: &Path, may_be_sticky: bool) -> bool {
    let effective_user = rustix::process::geteuid();
    let owner = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
    let owners = [owner(program), owner(Path::new("/"))];
    let is_trusted = |user: u32| user == 0 || user == effective_user.as_raw() || owners.contains(&Some(user));
    let others_write = |found: &Metadata| {
        let groups_write =
            effective_user.is_root() && found.mode() & GROUP_WRITES != 0 && !has_own_group(found);
        found.mode() & OTHERS_WRITE != 0 || groups_write || list_lets_others_write(path, is_trusted)
    };
    fs::symlink_metadata(path).is_ok_and(|found| {
        let is_sticky = may_be_sticky && found.mode() & STICKY != 0;
        is_trusted(found.uid()) && (is_sticky || !others_write(&found))
    })
}

/// Returns true if the access control list of `path` lets another user or a group write, or cannot
/// be read.
fn list_lets_others_write(path: &Path, is_trusted: impl Fn(u32) -> bool) -> bool {
    let mut list = vec![0; ACL_BYTES_MAX];
    match rustix::fs::lgetxattr(path, ACL, &mut list[..]) {
        Ok(len) => grants_write(list.get(..len).unwrap_or_default(), is_trusted),
        // The file or its file system has no access control lists.
        Err(error) => !matches!(error, Errno::NODATA | Errno::OPNOTSUPP),
    }
}

/// Returns true if an entry for a group, or for a user that is not trusted, grants write
/// permission. The mask limits these entries.
fn grants_write(list: &[u8], is_trusted: impl Fn(u32) -> bool) -> bool {
    let Some((_version, list)) = list.split_at_checked(ACL_HEADER_BYTES) else { return true };
    let (entries, rest) = list.as_chunks::<ACL_ENTRY_BYTES>();
    let entry = |[tag, kind, low, high, id @ ..]: &[u8; ACL_ENTRY_BYTES]| {
        let (tag, rights) = (u16::from_le_bytes([*tag, *kind]), u16::from_le_bytes([*low, *high]));
        (tag, rights & ACL_WRITE != 0, u32::from_le_bytes(*id))
    };
    let is_masked = entries.iter().map(entry).any(|(tag, writes, _)| tag == ACL_MASK && !writes);
    let is_granted = entries.iter().map(entry).any(|(tag, writes, id)| match tag {
        ACL_USER => writes && !is_trusted(id),
        ACL_GROUP => writes,
        _ => false,
    });
    !rest.is_empty() || is_granted && !is_masked
}

/// Returns true if the owner of the file is the only member of its group. useradd(8) creates such a
/// group for each user.
fn has_own_group(found: &Metadata) -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    is_own_group(found.gid(), found.uid(), &read("/etc/group"), &read("/etc/passwd"))
}

/// Returns true if only `owner` and root are members of `group`, according to the texts of group(5)
/// and passwd(5). A group that is not listed can have other members.
fn is_own_group(group: u32, owner: u32, groups: &str, users: &str) -> bool {
    let fields = |line: &'_ str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
    let number = |fields: &[String], at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok());
    let is_trusted = |user: &[String]| matches!(number(user, 2), Some(id) if id == 0 || id == owner);
    let users: Vec<_> = users.lines().map(fields).collect();
    let listed: Vec<_> =
        groups.lines().map(fields).filter(|listed| number(listed, 2) == Some(group)).collect();
    let names = listed.iter().filter_map(|listed| listed.get(3)).flat_map(|members| members.split(','));
    let mut members = names.filter(|name| !name.is_empty());
    let is_named = |name: &str| users.iter().any(|user| user[0] == name && is_trusted(user));
    let mut primary = users.iter().filter(|user| number(user, 3) == Some(group));
    !listed.is_empty() && members.all(is_named) && primary.all(|user| is_trusted(user))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    const NOBODY: u32 = 65534;

    #[test]
    fn library_writable_by_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("library");
        let program = env::current_exe().unwrap();
        assert!(untrusted_path(&library, &program).is_some(), "no such file");
        fs::write(&library, "").unwrap();
        assert_eq!(untrusted_path(&library, &program), None);
        let is_root = rustix::process::geteuid().is_root();
        let modes = [0o777, 0o1777, 0o775, 0o1775];
        for mode in modes.iter().filter(|mode| is_root || *mode & OTHERS_WRITE != 0) {
            for open in [directory.path(), &library] {
                let before = fs::metadata(open).unwrap();
                if is_root {
                    chown(open, None, Some(NOBODY)).unwrap();
                }
                fs::set_permissions(open, fs::Permissions::from_mode(*mode)).unwrap();
                assert_eq!(untrusted_path(&library, &program), Some(open), "{mode:o}");
                fs::set_permissions(open, before.permissions()).unwrap();
            }
        }
        if is_root {
            chown(&library, Some(NOBODY), None).unwrap();
            assert_eq!(untrusted_path(&library, &program), Some(&*library));
        }
    }

    #[test]
    fn sticky_directory_further_up_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (above, below) = (directory.path().join("above"), directory.path().join("above/below"));
        let library = below.join("library");
        fs::create_dir_all(&below).unwrap();
        fs::write(&library, "").unwrap();
        let program = env::current_exe().unwrap();
        for (mode, offends) in [(0o1777, false), (0o777, true)] {
            fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(untrusted_path(&library, &program).is_some(), offends, "{mode:o}");
        }
    }

    #[test]
    fn program_behind_a_link_needs_trusted_directories_on_both_sides() {
        let root = tempfile::tempdir().unwrap();
        let (links, files) = (root.path().join("links"), root.path().join("files"));
        let (link, file) = (links.join("program"), files.join("file"));
        let own = env::current_exe().unwrap();
        for directory in [&links, &files] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(untrusted_program(&link, &own), None);
        for open in [&links, &files, &file] {
            let before = fs::metadata(open).unwrap().permissions();
            fs::set_permissions(open, fs::Permissions::from_mode(0o1777)).unwrap();
            assert_eq!(untrusted_program(&link, &own).as_ref(), Some(open));
            fs::set_permissions(open, before).unwrap();
        }
        fs::remove_file(&file).unwrap();
        assert!(untrusted_program(&link, &own).is_some(), "no such file");
    }

    /// Returns an access control list like setfacl(1) sets it, with an entry of `tag` for `id`.
    fn list(tag: u16, id: u32, rights: u16, mask: u16) -> Vec<u8> {
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let base = |tag, rights| entry(tag, rights, u32::MAX);
        let named = entry(tag, rights, id);
        let (owner, group, others) = (base(0x01, 7), base(0x04, 5), base(0x20, 5));
        if tag == ACL_USER {
            return [&2_u32.to_le_bytes()[..], &owner, &named, &group, &base(ACL_MASK, mask), &others]
                .concat();
        }
        [&2_u32.to_le_bytes()[..], &owner, &group, &named, &base(ACL_MASK, mask), &others].concat()
    }

    #[test]
    fn write_entry_in_an_access_control_list_counts() {
        let grants = |list: &[u8]| grants_write(list, |user| user == 0);
        assert!(grants(&list(ACL_USER, NOBODY, 7, 7)) && grants(&list(ACL_GROUP, 0, 2, 7)));
        assert!(!grants(&list(ACL_USER, 0, 7, 7)), "a trusted user");
        assert!(!grants(&list(ACL_USER, NOBODY, 5, 7)) && !grants(&list(ACL_USER, NOBODY, 7, 5)));
        assert!(grants(&[]) && grants(&list(ACL_USER, 0, 7, 7)[..9]), "truncated list");
    }

    #[test]
    fn directory_writable_by_access_control_list_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("library");
        fs::write(&library, "").unwrap();
        let program = env::current_exe().unwrap();
        for open in [directory.path(), &library] {
            let writes = list(ACL_USER, NOBODY, 7, 7);
            match rustix::fs::setxattr(open, ACL, &writes, rustix::fs::XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP) => {
                    return eprintln!("SKIP: this file system has no access control lists");
                }
                set => set.unwrap(),
            }
            assert_eq!(untrusted_path(&library, &program), Some(open));
            rustix::fs::removexattr(open, ACL).unwrap();
            fs::set_permissions(open, fs::Permissions::from_mode(0o700)).unwrap();
            assert_eq!(untrusted_path(&library, &program), None);
        }
    }

    #[test]
    fn group_without_other_members_belongs_to_its_owner() {
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n\
            cy:x:1002:50::/:/bin/sh\n";
        let groups = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\nstaff:x:50:\nteam:x:60:ann,bob\nwork:x:70:ann,root\nbroken:x:\n";
        let is_own = |group, owner| is_own_group(group, owner, groups, users);
        assert!(is_own(0, 0) && is_own(1000, 1000) && is_own(70, 1000));
        assert!(!is_own(1001, 1001), "ann is in bob's group");
        assert!(!is_own(1000, 0) && !is_own(60, 1000));
        assert!(!is_own(50, 0), "it is cy's primary group");
        assert!(!is_own(1234, 1000), "unlisted group");
        assert!(!is_own_group(60, 1000, groups, ""), "unknown members");
    }
}
