//! Checks statements of ARCHITECTURE.md, SECURITY.md and CONTRIBUTING.md against the project.
//!
//! A code span that names a file, a crate, a test, a make target or a task must name an existing
//! one. A table row that ends in a constant must give its value. The code map must have every
//! crate, ordered by layer, and the table of fuzz targets every target. Other statements are not
//! checked.

use std::collections::BTreeSet;
use std::path::Path;

use cargo_metadata::Metadata;

use super::constants;
use super::links::prose;
use crate::problem::Problem;
use crate::source::{self, File};

const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
/// Endings of file names in code spans without a folder.
const EXTENSIONS: [&str; 4] = [".md", ".toml", ".rs", ".c"];
const FUZZ_TARGETS: &str = "fuzz/fuzz_targets";

/// Parts of the project that the documents make statements about.
struct Project<'a> {
    files: &'a [File],
    workspaces: &'a [Metadata],
    root: &'a Path,
}

/// Returns every statement that does not hold.
pub(crate) fn check(root: &Path, files: &[File], workspaces: &[Metadata]) -> Vec<Problem> {
    let project = Project { files, workspaces, root };
    let documents = files.iter().filter(|file| DOCUMENTS.iter().any(|name| file.path == Path::new(name)));
    let mut problems = Vec::new();
    for document in documents {
        for (number, line) in prose(&document.text) {
            let problem = |what| Problem::new(&document.path, number, what);
            problems.extend(spans(line).into_iter().filter_map(|span| project.violation(span)).map(problem));
            problems.extend(project.limit(line).map(problem));
        }
        if document.path == Path::new("ARCHITECTURE.md") {
            problems.extend(project.code_map(document));
        }
        if document.path == Path::new("SECURITY.md") {
            problems.extend(project.fuzz_targets(document));
        }
    }
    problems
}

impl Project<'_> {
    /// Returns a message if a code span looks like a name of the project and nothing has that name.
    fn violation(&self, span: &str) -> Option<String> {
        let words: Vec<&str> = span.split_whitespace().collect();
        let is_there = match words[..] {
            ["make", target, ..] => self.has_line("Makefile", &format!("{target}:")),
            ["cargo", "xtask", task, ..] => crate::usage::USAGE.contains(task),
            [path, ..] if path.starts_with("scripts/") => self.has_path(path),
            [name] if is_path(name) => self.has_path(name),
            [name] if is_test(name) => self.has_function(name),
            [name] if name.starts_with("strait-") => self.has_package(name),
            _ => true,
        };
        (!is_there).then(|| format!("`{span}` names nothing in this project"))
    }

    fn has_path(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        self.root.join(name).exists()
            || self.files.iter().any(|file| !name.contains('/') && file.path.ends_with(name))
    }

    fn has_line(&self, path: &str, start: &str) -> bool {
        let file = self.files.iter().find(|file| file.path == Path::new(path));
        file.is_some_and(|file| file.text.lines().any(|line| line.starts_with(start)))
    }

    /// Returns true if a function, or a file that is a test by itself, has this name.
    fn has_function(&self, name: &str) -> bool {
        let declaration = format!("fn {name}(");
        self.files.iter().any(|file| {
            file.path.file_stem().is_some_and(|stem| stem == name)
                || file.has_extension("rs") && file.text.contains(&declaration)
        })
    }

    fn has_package(&self, name: &str) -> bool {
        let packages = self.workspaces.iter().flat_map(Metadata::workspace_packages);
        packages.into_iter().any(|package| {
            package.name.as_str() == name || package.targets.iter().any(|target| target.name == name)
        })
    }

    /// Compares the limit in a row `| ... | 32 KiB | `strait_http::HEAD_BYTES_MAX` |` with the
    /// constant.
    fn limit(&self, line: &str) -> Option<String> {
        let cells = cells(line)?;
        let [.., stated, constant] = cells[..] else { return None };
        let (owner, name) = constant.strip_prefix('`')?.strip_suffix('`')?.split_once("::")?;
        if !name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
            return None;
        }
        let folder = match owner {
            "xtask" => "xtask".into(),
            owner => format!("crates/{}", owner.replace('_', "-")),
        };
        let values = constants::find(self.files, Path::new(&folder), name);
        if values.is_empty() {
            return Some(format!("{folder} has no constant {name}"));
        }
        let stated_value = constants::parse(stated);
        let holds = stated_value.is_some() && values.contains(&stated_value);
        (!holds).then(|| format!("{stated} is not the value of {owner}::{name}: {values:?}"))
    }

    /// Checks that the code map has every crate of the workspace, in ascending order of layers.
    fn code_map(&self, document: &File) -> Vec<Problem> {
        let rows: Vec<(usize, Vec<&str>)> = rows(document, "Code map");
        let mut problems = Vec::new();
        let mut layer = 0;
        for (number, row) in &rows {
            let Some(own) = row.get(1).and_then(|cell| cell.parse().ok()) else { continue };
            if own < layer {
                problems.push(Problem::new(&document.path, *number, "the layers are out of order"));
            }
            layer = own;
        }
        for package in source::packages(self.workspaces) {
            let folder = package.manifest_path.as_std_path().parent();
            let folder = folder.and_then(|folder| folder.strip_prefix(self.root).ok());
            let Some(folder) = folder.and_then(Path::to_str) else { continue };
            let is_mapped =
                |row: &[&str]| spans(row[0]).iter().any(|span| Path::new(span) == Path::new(folder));
            if !rows.iter().any(|(_, row)| is_mapped(row)) {
                problems.push(Problem::new(&document.path, 0, format!("the code map lacks {folder}")));
            }
        }
        problems
    }

    /// Checks that the section of fuzzed inputs, the manifest and the folder have the same targets.
    fn fuzz_targets(&self, document: &File) -> Vec<Problem> {
        let rows = rows(document, "Fuzzed inputs");
        let stated: BTreeSet<&str> =
            rows.iter().filter_map(|(_, row)| spans(row[0]).first().copied()).collect();
        let is_target = |file: &&File| {
            file.path.starts_with(FUZZ_TARGETS)
                && file.text.lines().any(|line| line.starts_with("fuzz_target!("))
        };
        let files = self.files.iter().filter(is_target);
        let files: BTreeSet<&str> = files.filter_map(|file| file.path.file_stem()?.to_str()).collect();
        // The second workspace is `fuzz`.
        let built: BTreeSet<&str> = self
            .workspaces
            .get(1)
            .map(Metadata::workspace_packages)
            .unwrap_or_default()
            .into_iter()
            .flat_map(|package| package.targets.iter().map(|target| target.name.as_str()))
            .collect();
        let difference = |names: &BTreeSet<&str>, what: &str| {
            let names: Vec<&str> = names.symmetric_difference(&files).copied().collect();
            (!names.is_empty()).then(|| {
                let what = format!("{what} and {FUZZ_TARGETS} differ: {}", names.join(", "));
                Problem::new(&document.path, 0, what)
            })
        };
        difference(&stated, "the table of fuzz targets")
            .into_iter()
            .chain(difference(&built, "fuzz/Cargo.toml"))
            .collect()
    }
}

/// Returns the code spans of a line.
fn spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Returns the cells of a table row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inside.split('|').map(str::trim).collect())
}

/// Returns the rows of the tables below a heading, without the head row and the rule.
fn rows<'a>(document: &'a File, heading: &str) -> Vec<(usize, Vec<&'a str>)> {
    let lines = prose(&document.text).skip_while(|(_, line)| line.trim_start_matches('#').trim() != heading);
    let section = lines.skip(1).take_while(|(_, line)| !line.starts_with('#'));
    section
        .filter_map(|(number, line)| Some((number, cells(line)?)))
        .skip(1)
        .filter(|(_, cells)| !cells.iter().all(|cell| cell.chars().all(|c| c == '-')))
        .collect()
}

/// Returns true for `folder/file` and `file.md`, false for absolute paths and patterns.
fn is_path(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let is_relative = name.starts_with(|c: char| c.is_alphanumeric() || c == '.');
    let looks_so = name.contains('/') || EXTENSIONS.iter().any(|extension| name.ends_with(extension));
    is_relative && looks_so && name.chars().all(is_plain)
}

/// Returns true for the name of a test: three words or more.
fn is_test(name: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.split('_').count() >= 3 && name.split('_').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_project<R>(act: impl FnOnce(&Project<'_>) -> R) -> R {
        let root = source::root();
        let files = source::files(&root).unwrap();
        let workspaces = source::workspaces(&root).unwrap();
        act(&Project { files: &files, workspaces: &workspaces, root: &root })
    }

    #[test]
    fn spans_that_name_something_pass_and_others_do_not() {
        with_project(|project| {
            for span in
                ["crates/strait-sys", "main.rs", "make test", "cargo xtask tidy", "strait-http", "a b"]
            {
                assert_eq!(project.violation(span), None, "{span}");
            }
            let this = "spans_that_name_something_pass_and_others_do_not";
            assert_eq!(project.violation(this), None);
            let none = ["crates/none", "none.md", "make none", "cargo xtask none", "strait-none"];
            let no_test = concat!("no_such", "_test");
            for span in none.into_iter().chain([no_test]) {
                assert!(project.violation(span).is_some(), "{span}");
            }
        });
    }

    #[test]
    fn stated_limit_is_compared_with_its_constant() {
        with_project(|project| {
            let row = |value: &str| format!("| lines of a file | {value} | `xtask::FILE_LINES_MAX` |");
            assert_eq!(project.limit(&row("600 lines")), None);
            assert!(project.limit(&row("601 lines")).is_some());
            assert!(project.limit("| a | 1 | `xtask::NO_SUCH_LIMIT` |").is_some());
            assert_eq!(project.limit("| a | b | c |"), None);
        });
    }

    #[test]
    fn tables_of_crates_and_fuzz_targets_are_compared() {
        with_project(|project| {
            let text = "## Code map\n\n| a | b |\n|---|---|\n| `crates/strait-cli` | 4 |\n| `xtask` | 3 |\n";
            let document = File { path: "ARCHITECTURE.md".into(), text: text.into() };
            let messages: Vec<String> = project.code_map(&document).iter().map(ToString::to_string).collect();
            assert!(
                messages.contains(&"ARCHITECTURE.md:6: the layers are out of order".into()),
                "{messages:?}"
            );
            assert!(messages.contains(&"ARCHITECTURE.md: the code map lacks crates/strait-sys".into()));
            assert!(!messages.iter().any(|line| line.ends_with("xtask")));
            let text = "## Fuzzed inputs\n\n| a | b |\n|---|---|\n| `none` | x |\n";
            let document = File { path: "SECURITY.md".into(), text: text.into() };
            assert_eq!(project.fuzz_targets(&document).len(), 1);
        });
    }
}
