//! Compares the manifest of `strait-query`, which is a workspace of its own, with that of the
//! workspace: Cargo lets a package inherit only from its own workspace.

use std::path::Path;

use crate::problem::Problem;
use crate::source::File;

const MANIFEST: &str = "crates/strait-query/Cargo.toml";
/// Keys of the package that must be those of the workspace.
const KEYS: [&str; 4] = ["version", "edition", "rust-version", "license"];

/// Returns every key and every lint that differs.
pub(crate) fn check(files: &[File]) -> Vec<Problem> {
    let find = |path: &str| files.iter().find(|file| file.path == Path::new(path));
    let (Some(root), Some(own)) = (find("Cargo.toml"), find(MANIFEST)) else { return Vec::new() };
    let problem = |what| Problem::new(MANIFEST, 0, what);
    let mut problems = Vec::new();
    for key in KEYS {
        let (expected, found) =
            (value(&root.text, "[workspace.package]", key), value(&own.text, "[package]", key));
        if expected != found {
            problems.push(problem(format!("{key} is not that of Cargo.toml")));
        }
    }
    for section in ["[workspace.lints.rust]", "[workspace.lints.clippy]"] {
        if lines(&root.text, section).ne(lines(&own.text, section)) {
            problems.push(problem(format!("{section} is not that of Cargo.toml")));
        }
    }
    problems
}

/// Returns the lines of a section with values.
fn lines<'a>(text: &'a str, section: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().skip_while(move |line| *line != section).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn value<'a>(text: &'a str, section: &'a str, key: &str) -> Option<&'a str> {
    lines(text, section).find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(own: &str) -> Vec<String> {
        let root = "[workspace.package]\nversion = \"1\"\n\n[workspace.lints.rust]\n# why\na = 1\n[x]\n";
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [file("Cargo.toml", root), file(MANIFEST, own)];
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn other_version_and_other_lints_are_reported() {
        let same = "[package]\nversion = \"1\"\n[workspace.lints.rust]\na = 1\n";
        assert!(messages(same).is_empty());
        let message = |what: &str| format!("{MANIFEST}: {what} is not that of Cargo.toml");
        assert_eq!(messages(&same.replace("\"1\"", "\"2\"")), [message("version")]);
        assert_eq!(messages(&same.replace("a = 1", "a = 2")), [message("[workspace.lints.rust]")]);
    }
}
