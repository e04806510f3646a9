//! Finds the installed proxies.
//!
//! As root this program runs them to ask for their version, and starts them. It therefore takes no
//! program that another user may have written.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use strait_os::process;

use crate::error::{Error, Result};

/// Directories that may be missing in a user's search path.
const DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Write permission for group and others, and `S_ISVTX`.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Returns the path of an installed program.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(DIRECTORIES.map(PathBuf::from));
    find_in(directories, program)
}

fn find_in(directories: impl Iterator<Item = PathBuf>, program: &str) -> Result<PathBuf> {
    let mut refused = None;
    for candidate in directories.map(|directory| directory.join(program)) {
        match offender(&candidate) {
            _ if !candidate.is_file() => {}
            None => return Ok(candidate),
            Some(place) => refused = refused.or(Some(place)),
        }
    }
    Err(Error::Invalid(match refused {
        Some(place) => {
            format!("{program} is not run as root: another user may have written {}", place.display())
        }
        None => format!("{program} is not installed"),
    }))
}

/// For root, returns the program, the target of a link to it, or a directory above them that
/// another user owns or can write to. That user could have planted the program.
fn offender(program: &Path) -> Option<PathBuf> {
    if !process::is_root() {
        return None;
    }
    let paths = [std::path::absolute(program), fs::canonicalize(program)];
    paths.into_iter().flatten().find_map(|path| {
        let mut places = path.ancestors().enumerate();
        places.find(|(depth, place)| !is_safe(place, *depth > 1)).map(|(_, place)| place.to_owned())
    })
}

/// Returns true if only root can write to `place`. With `may_be_sticky` a directory with the sticky
/// bit is safe too: other users cannot rename entries of root in it.
fn is_safe(place: &Path, may_be_sticky: bool) -> bool {
    fs::metadata(place).is_ok_and(|found| {
        let others = if found.gid() == 0 { OTHERS_WRITE } else { OTHERS_WRITE | GROUP_WRITES };
        let is_sticky = may_be_sticky && found.mode() & STICKY != 0;
        found.uid() == 0 && (is_sticky || found.mode() & others == 0)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::super::NOBODY;
    use super::*;

    #[test]
    fn root_runs_no_program_of_another_user() {
        if !lab::root_or_skip() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        for name in ["shared", "theirs", "links", "own"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("peer"), "").unwrap();
        }
        fs::set_permissions(path("shared"), fs::Permissions::from_mode(0o777)).unwrap();
        chown(path("theirs").join("peer"), Some(NOBODY), None).unwrap();
        fs::remove_file(path("links").join("peer")).unwrap();
        symlink(path("theirs").join("peer"), path("links").join("peer")).unwrap();
        let find_among = |names: &[&str]| find_in(names.iter().map(|name| path(name)), "peer");
        for name in ["shared", "theirs", "links"] {
            let error = find_among(&[name]).unwrap_err().to_string();
            assert!(error.contains("another user may have written"), "{name}: {error}");
        }
        let found = find_among(&["shared", "theirs", "links", "own"]).unwrap();
        assert_eq!(found, path("own").join("peer"));
        let error = find_among(&["none"]).unwrap_err().to_string();
        assert!(error.contains("peer is not installed"), "{error}");
    }
}
