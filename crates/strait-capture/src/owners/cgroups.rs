//! Paths of cgroups of version 2 by their identifiers, which are inode numbers.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::container::{Container, Places};

/// Maximum number of cgroups that a search visits.
const CGROUPS_MAX: usize = 1 << 15;
/// Time between two searches. A search reads all directories.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);

type Found = (Option<Arc<str>>, Option<Arc<Container>>);

/// The mounted hierarchy, and the paths found so far.
pub(super) struct Cgroups {
    root: Option<PathBuf>,
    known: HashMap<u64, Found>,
    searched: Option<Instant>,
}

impl Cgroups {
    /// Finds the hierarchy of version 2. Without one, cgroups have no paths.
    pub(super) fn mounted() -> Self {
        Self { root: root(), known: HashMap::new(), searched: None }
    }

    /// Returns path and container of a cgroup, to which the process `pid` belonged.
    pub(super) fn find(&mut self, id: u64, pid: u32) -> Found {
        if let Some(found) = self.known.get(&id) {
            return found.clone();
        }
        if self.known.len() >= CGROUPS_MAX {
            self.known.clear();
        }
        let Some(root) = self.root.clone() else { return (None, None) };
        // The process may have ended, its identifier may have another process, and a process can
        // move: the path counts only if it leads to the cgroup.
        let path = path_of_process(pid).filter(|path| inode(&under(&root, path)) == Some(id));
        let path = path.or_else(|| self.search(&root, id));
        let Some(path) = path else { return (None, None) };
        let container = container(&root, &path).map(Arc::new);
        let found = (Some(path.into()), container);
        self.known.insert(id, found.clone());
        found
    }

    /// Searches the hierarchy for a cgroup.
    fn search(&mut self, root: &Path, id: u64) -> Option<String> {
        if self.searched.is_some_and(|searched| searched.elapsed() < SEARCH_PERIOD) {
            return None;
        }
        self.searched = Some(Instant::now());
        walk(root)
            .into_iter()
            .find(|directory| inode(directory) == Some(id))
            .map(|path| relative(root, &path))
    }
}

/// Returns the container that the path of a cgroup names.
fn container(root: &Path, path: &str) -> Option<Container> {
    let mut container = Container::of_path(path).filter(|_| is_of_root(root, path))?;
    container.add_names(Places::here());
    Some(container)
}

/// Returns true if a cgroup and those above it belong to root. A user to whom one was delegated can
/// make cgroups below it with any name.
fn is_of_root(root: &Path, path: &str) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let is_of_root = |directory: &Path| {
        fs::symlink_metadata(directory)
            .is_ok_and(|found| found.uid() == 0 && found.mode() & WRITABLE_BY_OTHERS == 0)
    };
    let directory = under(root, path);
    directory.ancestors().take_while(|ancestor| ancestor.starts_with(root)).all(is_of_root)
}

/// Returns the identifiers of the cgroups of containers with this name or identifier, with the
/// cgroups below them.
pub(super) fn of_container(wanted: &str) -> Vec<u64> {
    let Some(root) = root() else { return Vec::new() };
    let is_wanted = |directory: &PathBuf| {
        container(&root, &relative(&root, directory)).is_some_and(|container| container.is_called(wanted))
    };
    walk(&root).into_iter().filter(is_wanted).filter_map(|directory| inode(&directory)).collect()
}

/// Returns the mount point of the hierarchy, as it is named in /proc/mounts.
pub(super) fn root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(directory))
    })
}

/// Returns the directories of a hierarchy, each before those below it.
fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next) {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let directories: Vec<_> = directories.map(|entry| entry.path()).collect();
        found.extend(directories);
        if found.len() > CGROUPS_MAX {
            break;
        }
        next += 1;
    }
    found
}

/// Returns the path of a process in the hierarchy of version 2 (cgroups(7), /proc/pid/cgroup).
fn path_of_process(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn under(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn relative(root: &Path, directory: &Path) -> String {
    let path = directory.strip_prefix(root).unwrap_or(directory);
    format!("/{}", path.display())
}

fn inode(directory: &Path) -> Option<u64> {
    fs::metadata(directory).ok().map(|metadata| metadata.ino())
}
