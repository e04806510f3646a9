//! Paths of cgroups of version 2 by their identifiers, which are inode numbers.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::iter;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::container::{Container, Places};

/// Maximum number of cgroups that a search visits.
const CGROUPS_MAX: usize = 1 << 15;
/// Maximum number of ancestor processes whose mounts are read.
const ANCESTORS_MAX: usize = 64;
/// Type of a file system that is the hierarchy (linux/magic.h).
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
/// Time between two searches. A search reads all directories.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);

type Found = (Option<Arc<str>>, Option<Arc<Container>>);

/// Root of the hierarchy of version 2.
pub(super) struct Root {
    path: PathBuf,
    /// Directory through which the path leads, if the hierarchy is mounted elsewhere only.
    directory: Option<File>,
}

impl Root {
    /// Finds the hierarchy where this process has it mounted, else where its nearest ancestor
    /// process has: `ip netns exec` hides it by another mount of /sys. A mount of its own, made
    /// without the options of the first, would take them from the whole hierarchy.
    pub(super) fn find() -> Option<Self> {
        if let Some(path) = mount_point("self").filter(|path| open_hierarchy(path).is_some()) {
            return Some(Self { path, directory: None });
        }
        // Opened now, because the privilege to follow the link of another process may be dropped.
        let directory = ancestors().find_map(|(child, process)| {
            // The number of a process that has ended may have another one.
            mounted_for(&process).filter(|_| parent(&child).as_ref() == Some(&process))
        })?;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd()).into();
        Some(Self { path, directory: Some(directory) })
    }

    /// Opens the directory.
    pub(super) fn open(&self) -> io::Result<File> {
        self.directory.as_ref().map_or_else(|| File::open(&self.path), File::try_clone)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The mounted hierarchy, and the paths found so far.
pub(super) struct Cgroups {
    root: Option<Root>,
    known: HashMap<u64, Found>,
    searched: Option<Instant>,
}

impl Cgroups {
    /// Finds the hierarchy of version 2. Without one, cgroups have no paths.
    pub(super) fn mounted() -> Self {
        Self { root: Root::find(), known: HashMap::new(), searched: None }
    }

    /// Returns path and container of a cgroup, to which the process `pid` belonged.
    pub(super) fn find(&mut self, id: u64, pid: u32) -> Found {
        if let Some(found) = self.known.get(&id) {
            return found.clone();
        }
        if self.known.len() >= CGROUPS_MAX {
            self.known.clear();
        }
        let Some(root) = self.root.as_ref().map(|root| root.path.clone()) else { return (None, None) };
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
        // The root may be a link, which only this process can name.
        let read = if directory == root { fs::metadata } else { fs::symlink_metadata };
        read(directory).is_ok_and(|found| found.uid() == 0 && found.mode() & WRITABLE_BY_OTHERS == 0)
    };
    let directory = under(root, path);
    directory.ancestors().take_while(|ancestor| ancestor.starts_with(root)).all(is_of_root)
}

/// Returns the identifiers of the cgroups of containers with this name or identifier, with the
/// cgroups below them.
pub(super) fn of_container(wanted: &str) -> Vec<u64> {
    let Some(found) = Root::find() else { return Vec::new() };
    let root = found.path();
    let is_wanted = |directory: &PathBuf| {
        container(root, &relative(root, directory)).is_some_and(|container| container.is_called(wanted))
    };
    walk(root).into_iter().filter(is_wanted).filter_map(|directory| inode(&directory)).collect()
}

/// Returns the mount point of the hierarchy for a process, as it is named in /proc/PID/mounts.
fn mount_point(process: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string(format!("/proc/{process}/mounts")).ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(directory))
    })
}

/// Opens the hierarchy where another process has it mounted, if this one may.
fn mounted_for(process: &str) -> Option<File> {
    let path = mount_point(process)?;
    open_hierarchy(&under(Path::new(&format!("/proc/{process}/root")), path.to_str()?))
}

/// Opens a directory of the hierarchy of version 2. Another mount may hide its mount point, and a
/// process may have placed a file or a link there.
fn open_hierarchy(path: &Path) -> Option<File> {
    // Without DIRECTORY, the open of a named pipe waits for its writer.
    let directory =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let kind = rustix::fs::fstatfs(&directory).ok()?.f_type;
    (kind as u64 == CGROUP2_SUPER_MAGIC).then(|| directory.into())
}

/// Returns the numbers of the ancestor processes, each after that of its child, the nearest first.
fn ancestors() -> impl Iterator<Item = (String, String)> {
    let with_parent = |child: String| parent(&child).map(|parent| (child, parent));
    iter::successors(with_parent("self".into()), move |(_, process)| with_parent(process.clone()))
        .take(ANCESTORS_MAX)
}

/// Returns the number of a process's parent.
fn parent(process: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
    (parent != "0").then(|| parent.to_owned())
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

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType};

    use super::*;

    #[test]
    fn only_a_directory_of_the_hierarchy_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for other in [directory.path(), &pipe, &directory.path().join("missing")] {
            assert!(open_hierarchy(other).is_none(), "{}", other.display());
        }
        match mount_point("self") {
            Some(path) => assert!(open_hierarchy(&path).is_some(), "{}", path.display()),
            None => lab::skip("no hierarchy of version 2 is mounted"),
        }
    }

    #[test]
    fn each_ancestor_is_the_parent_of_the_one_before() {
        let ancestors: Vec<_> = ancestors().collect();
        let nearest = std::os::unix::process::parent_id();
        assert_eq!(
            ancestors.first().map(|(_, process)| process.clone()),
            (nearest != 0).then(|| nearest.to_string())
        );
        assert!(ancestors.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ancestors:?}");
    }
}
