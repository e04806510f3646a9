//! Table of paths: finds the longest one that a request's path is equal to or below. Without I/O.

use std::collections::HashMap;

use rapidhash::fast::RandomState;

/// Maximum length in bytes of a path in the table.
pub(crate) const PATH_BYTES_MAX: usize = 1024;

/// Paths with their values. A lookup costs at most two probes for each segment, whatever the number
/// of paths.
#[derive(Clone, Debug)]
pub(crate) struct Prefixes<T> {
    exact: HashMap<Box<[u8]>, T, RandomState>,
    /// For a path with all paths below it.
    below: HashMap<Box<[u8]>, T, RandomState>,
    root: Option<T>,
    /// Bit for each length that a prefix has, so that few prefixes of a path are looked up. Empty
    /// without prefixes: most of many sites have none.
    lengths: Box<[u64]>,
    /// Length of the longest prefix.
    bytes_max: usize,
    /// Maximum of slashes in a prefix. A request's path may have more; these are not looked at.
    slashes_max: usize,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        let (exact, below) = (HashMap::default(), HashMap::default());
        Self { exact, below, root: None, lengths: Box::default(), bytes_max: 0, slashes_max: 0 }
    }
}

impl<T: Copy> Prefixes<T> {
    /// Adds the path alone. Returns false, and changes nothing, if it is there already.
    pub(crate) fn add_exact(&mut self, path: &str, value: T) -> bool {
        let is_new = !self.exact.contains_key(path.as_bytes());
        self.exact.entry(path.as_bytes().into()).or_insert(value);
        is_new
    }

    /// Adds a path with all paths below it. Returns false, and changes nothing, if it is there
    /// already.
    pub(crate) fn add(&mut self, path: &str, value: T) -> bool {
        if path == "/" {
            let is_new = self.root.is_none();
            self.root.get_or_insert(value);
            return is_new;
        }
        let is_new = !self.below.contains_key(path.as_bytes());
        self.below.entry(path.as_bytes().into()).or_insert(value);
        self.bytes_max = self.bytes_max.max(path.len());
        self.slashes_max = self.slashes_max.max(path.matches('/').count());
        if self.lengths.is_empty() {
            self.lengths = vec![0; PATH_BYTES_MAX / 64 + 1].into();
        }
        if let Some(word) = self.lengths.get_mut(path.len() / 64) {
            *word |= 1 << (path.len() % 64);
        }
        is_new
    }

    /// Returns the value that was added with this path alone, or with it and all paths below it.
    pub(crate) fn of(&self, path: &str, is_exact: bool) -> Option<T> {
        match path.as_bytes() {
            path if is_exact => self.exact.get(path).copied(),
            b"/" => self.root,
            path => self.below.get(path).copied(),
        }
    }

    /// Returns the value of the prefix that the first `len` bytes of a path are.
    fn prefix(&self, path: &[u8], len: usize) -> Option<T> {
        let word = self.lengths.get(len / 64)?;
        let prefix = path.get(..len).filter(|_| (word >> (len % 64)) & 1 == 1)?;
        self.below.get(prefix).copied()
    }

    /// Returns the value for all paths, if there is no other.
    pub(crate) fn only(&self) -> Option<T> {
        self.root.filter(|_| self.below.is_empty() && self.exact.is_empty())
    }

    /// Returns the value of the longest matching path; that of an exact one before all others.
    pub(crate) fn find(&self, path: &[u8]) -> Option<T> {
        if let Some(exact) = self.exact.get(path) {
            return Some(*exact);
        }
        let mut found = self.root;
        if self.below.is_empty() {
            return found;
        }
        let near = path.get(..=self.bytes_max).unwrap_or(path);
        let slashes = near.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for at in slashes.skip(1).take(self.slashes_max) {
            found = self.prefix(path, at + 1).or_else(|| self.prefix(path, at)).or(found);
        }
        self.prefix(path, path.len()).or(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(paths: &[&str]) -> Prefixes<usize> {
        let mut table = Prefixes::default();
        for (index, path) in paths.iter().enumerate() {
            let is_new = match path.strip_prefix('=') {
                Some(exact) => table.add_exact(exact, index),
                None => table.add(path, index),
            };
            assert!(is_new, "{path}");
        }
        table
    }

    #[test]
    fn longest_path_at_a_segment_is_found() {
        let table = table(&["/", "/a", "/a/b/", "/a/b/c", "=/a/b/c", "/d/"]);
        for (path, expected) in [
            ("/", 0),
            ("/x", 0),
            ("/a", 1),
            ("/a/", 1),
            ("/ab", 0),
            ("/a/b", 1),
            ("/a/b/", 2),
            ("/a/b/x", 2),
            ("/a/b/c", 4),
            ("/a/b/c/", 3),
            ("/a/b/cd", 2),
            ("/d", 0),
            ("/d/e/f/g/h", 5),
            ("//a", 0),
        ] {
            assert_eq!(table.find(path.as_bytes()), Some(expected), "{path}");
        }
        let mut table = table.clone();
        assert_eq!(
            (table.of("/a", false), table.of("/a", true), table.of("/", false)),
            (Some(1), None, Some(0))
        );
        assert_eq!((table.of("/a/b/c", true), table.of("/a/b/c", false)), (Some(4), Some(3)));
        assert!(!table.add("/a", 9) && !table.add_exact("/a/b/c", 9) && !table.add("/", 9));
        assert_eq!((table.find(b"/a"), table.find(b"/"), table.only()), (Some(1), Some(0), None));
    }

    #[test]
    fn path_without_a_prefix_is_not_found() {
        assert_eq!(table(&["/a", "=/b"]).find(b"/c"), None);
        assert_eq!(table(&[]).find(b"/"), None);
        assert_eq!(table(&["/"]).only(), Some(0));
    }

    proptest! {
        /// Compares with a search through all paths.
        #[test]
        fn table_finds_what_a_search_finds(
            paths in prop::collection::hash_set("(/[ab]{0,2}){1,4}", 0..12),
            path in "(/[ab]{0,2}){1,6}",
        ) {
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            let is_match = |prefix: &str| match path.strip_prefix(prefix) {
                Some(rest) => rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'),
                None => false,
            };
            let matching = paths.iter().enumerate().filter(|(_, prefix)| is_match(prefix));
            let expected = matching.max_by_key(|(_, prefix)| prefix.len()).map(|(index, _)| index);
            prop_assert_eq!(table(&paths).find(path.as_bytes()), expected);
        }
    }
}
