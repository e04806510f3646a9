//! Finds Rust files that no `mod` and no Cargo target reaches, and crates without the workspace's
//! lints.
//!
//! `tidy` runs it once on all files. Files under `tests/ui` are test inputs and count as reached.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::Metadata;
use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::problem::Problem;
use crate::source::{self, File};

/// Crates with their own lints: they contain the unsafe code.
const OWN_LINTS: [&str; 2] = ["strait-sys", "strait-pcap"];

/// Returns every Rust file that is not part of a target.
pub(crate) fn check(root: &Path, files: &[File], workspaces: &[Metadata]) -> Vec<Problem> {
    let targets = workspaces
        .iter()
        .flat_map(|workspace| workspace.workspace_packages())
        .flat_map(|package| &package.targets);
    let starts = targets.filter_map(|target| target.src_path.as_std_path().strip_prefix(root).ok());
    let reached = reach(files, starts.map(Path::to_path_buf));
    let is_input = |path: &Path| path.to_string_lossy().contains("tests/ui/");
    let rust = files.iter().filter(|file| file.has_extension("rs"));
    rust.filter(|file| !reached.contains(&file.path) && !is_input(&file.path))
        .map(|file| Problem::new(&file.path, 0, "no mod and no Cargo target reaches it"))
        .collect()
}

/// Returns every crate with a manifest that does not use the workspace's lints, which forbid unsafe
/// code.
pub(crate) fn crates_without_lints(root: &Path, workspaces: &[Metadata]) -> Vec<Problem> {
    let manifests = source::packages(workspaces)
        .into_iter()
        .filter(|package| !OWN_LINTS.contains(&package.name.as_str()))
        .map(|package| &package.manifest_path);
    let lacks = |path: &Path| !fs::read_to_string(path).is_ok_and(|text| takes_lints(&text));
    manifests
        .filter(|manifest| lacks(manifest.as_std_path()))
        .map(|manifest| manifest.as_std_path().strip_prefix(root).unwrap_or(manifest.as_std_path()))
        .map(|manifest| Problem::new(manifest, 0, "lacks [lints] workspace = true"))
        .collect()
}

fn takes_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]");
    lines.nth(1) == Some("workspace = true")
}

/// Follows `mod` declarations from the targets' root files.
fn reach(files: &[File], starts: impl Iterator<Item = PathBuf>) -> HashSet<PathBuf> {
    let texts: HashMap<&Path, &str> =
        files.iter().map(|file| (file.path.as_path(), file.text.as_str())).collect();
    let mut reached = HashSet::new();
    let mut open: Vec<(PathBuf, bool)> = starts.map(|path| (path, true)).collect();
    while let Some((path, is_root)) = open.pop() {
        let Some(parsed) = texts.get(path.as_path()).and_then(|text| syn::parse_file(text).ok()) else {
            continue;
        };
        if !reached.insert(path.clone()) {
            continue;
        }
        let directory = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let is_folder = is_root || path.file_name().is_some_and(|name| name == "mod.rs");
        let folder = if is_folder { directory.clone() } else { path.with_extension("") };
        follow(&parsed.items, &folder, &directory, &mut |candidate| {
            if texts.contains_key(candidate.as_path()) {
                open.push((candidate, false));
            }
        });
    }
    reached
}

/// Calls `found` with every possible file of the `mod` items: `folder/name.rs`,
/// `folder/name/mod.rs`, `#[path]` relative to `directory`.
fn follow(items: &[Item], folder: &Path, directory: &Path, found: &mut impl FnMut(PathBuf)) {
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) => Some(module),
        _ => None,
    });
    for module in modules {
        let name = module.ident.to_string();
        let name = name.trim_start_matches("r#");
        match (&module.content, path_attribute(module)) {
            (Some((_, inner)), _) => follow(inner, &folder.join(name), &folder.join(name), found),
            (None, Some(path)) => found(directory.join(path)),
            (None, None) => {
                found(folder.join(name).with_extension("rs"));
                found(folder.join(name).join("mod.rs"));
            }
        }
    }
}

fn path_attribute(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> =
            files.iter().map(|&(path, text)| File { path: path.into(), text: text.into() }).collect();
        let starts = std::iter::once(PathBuf::from("src/lib.rs"));
        let mut reached: Vec<String> =
            reach(&files, starts).iter().map(|path| path.display().to_string()).collect();
        reached.sort();
        reached
    }

    #[test]
    fn modules_are_followed_in_every_layout() {
        let files = [
            ("src/lib.rs", "mod a; mod b; mod inline { mod c; } #[path = \"other/d.rs\"] mod d; mod r#e;"),
            ("src/a.rs", "mod deep;"),
            ("src/a/deep.rs", ""),
            ("src/b/mod.rs", "mod deep;"),
            ("src/b/deep.rs", ""),
            ("src/inline/c.rs", ""),
            ("src/other/d.rs", ""),
            ("src/e.rs", ""),
        ];
        assert_eq!(reached(&files).len(), files.len());
    }

    #[test]
    fn undeclared_file_is_not_reached() {
        let files = [
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", ""),
            ("src/b.rs", ""),
            ("src/deep.rs", ""),
            ("src/a/x.rs", ""),
        ];
        assert_eq!(reached(&files), ["src/a.rs", "src/lib.rs"]);
    }

    #[test]
    fn dead_file_is_reported_unless_it_is_test_input() {
        let file = |path: &str| File { path: path.into(), text: "//! h\n".into() };
        let files = [file("src/dead.rs"), file("tests/ui/refused.rs"), file("notes.md")];
        let messages: Vec<String> =
            check(Path::new("."), &files, &[]).iter().map(ToString::to_string).collect();
        assert_eq!(messages, ["src/dead.rs: no mod and no Cargo target reaches it"]);
    }

    #[test]
    fn missing_workspace_lints_are_found() {
        assert!(takes_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        assert!(!takes_lints("[package]\nname = \"a\"\n\n[dependencies]\nworkspace = true\n"));
        assert!(!takes_lints("[lints.rust]\nunsafe_code = \"warn\"\n"));
    }
}
