//! Initramfs: a cpio archive in "newc" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::Launch;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PADDED_TO: usize = 4;
const TOOL_LIMIT: Duration = Duration::from_mins(1);

/// Archive being written; directories are added with their first file.
#[derive(Debug, Default)]
pub(super) struct Initramfs {
    archive: Vec<u8>,
    names: BTreeSet<String>,
}

impl Initramfs {
    /// Adds an executable file, unless the name exists.
    pub(super) fn file(&mut self, name: &str, bytes: &[u8]) {
        self.entry(name, PROGRAM, bytes);
    }

    /// Adds an empty directory.
    pub(super) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// Adds a program of the host as `name`, stripped of debug information, with its shared
    /// libraries.
    pub(super) fn program(&mut self, name: &str, path: &Path) {
        self.file(name, &stripped(path));
        self.libraries(path);
    }

    /// Adds the shared libraries of `path`, at the paths where it expects them.
    pub(super) fn libraries(&mut self, path: &Path) {
        let listing = Launch::new("ldd").arg(path).run(TOOL_LIMIT).expect("ldd runs");
        for library in listing.text().split_whitespace().filter(|word| word.starts_with('/')) {
            let bytes = fs::read(library).unwrap_or_else(|error| panic!("read {library}: {error}"));
            self.file(library.trim_start_matches('/'), &bytes);
        }
    }

    /// Returns the complete archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.header("TRAILER!!!", 0, &[]);
        self.archive
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        if let Some((directory, _)) = name.rsplit_once('/') {
            self.directory(directory);
        }
        if self.names.insert(name.to_owned()) {
            self.header(name, mode, bytes);
        }
    }

    fn header(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        let inode = self.names.len();
        let [size, name_size] = [bytes.len(), name.len() + 1];
        self.archive.extend_from_slice(b"070701");
        // inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name,
        // checksum
        for field in [inode, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.archive.extend_from_slice(name.as_bytes());
        self.archive.push(0);
        self.pad();
        self.archive.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.archive.resize(self.archive.len().next_multiple_of(PADDED_TO), 0);
    }
}

/// Returns a program without debug information. The programs under test are in most guests, so each
/// version of a file is stripped once.
fn stripped(path: &Path) -> Arc<Vec<u8>> {
    type Stripped = HashMap<(PathBuf, SystemTime), Arc<Vec<u8>>>;
    static STRIPPED: LazyLock<Mutex<Stripped>> = LazyLock::new(Mutex::default);
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    let modified = modified.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut all = STRIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = all.entry((path.to_owned(), modified)).or_insert_with(|| {
        let output = tempfile::NamedTempFile::new().expect("a temporary file");
        let strip = Launch::new("strip").arg("-o").arg(output.path()).arg(path).run(TOOL_LIMIT);
        let _ = strip.expect("strip runs").success();
        Arc::new(fs::read(output.path()).expect("strip has written"))
    });
    Arc::clone(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_precede_their_files_and_nothing_is_repeated() {
        let mut initramfs = Initramfs::default();
        initramfs.file("a/b/c", b"one");
        initramfs.file("a/b/c", b"two");
        initramfs.file("a/d", b"three");
        let archive = String::from_utf8(initramfs.finish()).unwrap();
        let at = |words: &str| archive.find(words).unwrap();
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0") && at("a/b/c\0") < at("a/d\0"));
        assert!(archive.contains("one") && !archive.contains("two"));
        assert_eq!(archive.len() % PADDED_TO, 0);
        assert_eq!(archive.matches("070701").count(), 5);
    }
}
