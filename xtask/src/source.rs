//! The project's files and crates, as git and cargo know them.
//!
//! Every check starts here. It reads nothing outside the repository.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand, Package};

/// Result with an error that is only printed.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Text file of the project.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path relative to the project's root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl File {
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|found| found == extension)
    }

    /// Returns its lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Returns the project's root: the parent of this crate.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the project").into()
}

/// Returns every text file that git tracks, or would track if added.
pub(crate) fn files(root: &Path) -> Result<Vec<File>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    if !listing.status.success() {
        return Err(String::from_utf8_lossy(&listing.stderr).trim().into());
    }
    let names = String::from_utf8(listing.stdout)?;
    let read = |name: &str| {
        // A file may be deleted but not committed. A file that is not UTF-8 is not text.
        let text = fs::read_to_string(root.join(name)).ok()?;
        Some(File { path: name.into(), text })
    };
    Ok(names.split_terminator('\0').filter_map(read).collect())
}

/// Package of the fuzz targets, which may import every crate.
const FUZZ: &str = "strait-fuzz";

/// Returns every package of these workspaces but the fuzz targets.
pub(crate) fn packages(workspaces: &[Metadata]) -> Vec<&Package> {
    let packages = workspaces.iter().flat_map(Metadata::workspace_packages);
    packages.filter(|package| package.name != FUZZ).collect()
}

/// Returns the metadata of the workspace, and of the workspaces of `fuzz` and `strait-query` if
/// they exist.
pub(crate) fn workspaces(root: &Path) -> Result<Vec<Metadata>> {
    ["Cargo.toml", "fuzz/Cargo.toml", "crates/strait-query/Cargo.toml"]
        .iter()
        .map(|manifest| root.join(manifest))
        .filter(|manifest| manifest.exists())
        .map(|manifest| Ok(MetadataCommand::new().manifest_path(manifest).no_deps().exec()?))
        .collect()
}
