//! Finds Markdown links to missing files and headings, and pages that are missing in the book.
//!
//! `tidy` runs it on every Markdown file. Links to the web are not checked. The book is built from
//! `docs/` alone, so its pages cannot link to Markdown files elsewhere.

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::problem::Problem;
use crate::source::File;

/// Folder of the book, and its table of contents.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns every relative link of `file` with a missing target.
pub(crate) fn check(root: &Path, file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in prose(&file.text) {
        for target in targets(line) {
            if let Some(what) = violation(root, file, target) {
                problems.push(Problem::new(&file.path, number, what));
            }
        }
    }
    problems
}

/// Returns every page of the book that its table of contents does not list.
pub(crate) fn unlisted(files: &[File]) -> Vec<Problem> {
    let Some(summary) = files.iter().find(|file| file.path == Path::new(SUMMARY)) else {
        return Vec::new();
    };
    let listed: HashSet<PathBuf> =
        summary.text.lines().flat_map(targets).map(|target| Path::new(BOOK).join(target)).collect();
    let is_page = |file: &&File| file.has_extension("md") && file.path.starts_with(BOOK);
    files
        .iter()
        .filter(is_page)
        .filter(|file| file.path != summary.path && !listed.contains(&file.path))
        .map(|file| Problem::new(&file.path, 0, format!("{SUMMARY} does not list it")))
        .collect()
}

/// Returns the reason why `target` is not a valid link in `file`, if there is one.
fn violation(root: &Path, file: &File, target: &str) -> Option<String> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = file.path.parent().unwrap_or(Path::new(""));
    let path = if path.is_empty() { file.path.clone() } else { normal(&folder.join(path)) };
    let (full, is_own) = (root.join(&path), path == file.path);
    if !is_own && !full.exists() {
        return Some(format!("links to {target}, which does not exist"));
    }
    let is_markdown = path.extension().is_some_and(|extension| extension == "md");
    if is_markdown && file.path.starts_with(BOOK) && !path.starts_with(BOOK) {
        return Some(format!("links to {target}, which is not a page of the book: name the file instead"));
    }
    if heading.is_empty() || !is_markdown {
        return None;
    }
    let text = if is_own { file.text.clone() } else { fs::read_to_string(full).unwrap_or_default() };
    let is_there = anchors(&text).contains(heading);
    (!is_there).then(|| format!("links to {target}, but no heading gives that anchor"))
}

/// Resolves `..` without looking at the file system, so that paths stay relative to the root.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Returns the anchors of a page: of each heading in lower case, with `-` for blanks and without
/// punctuation, as GitHub and mdBook make them. A repeated heading gets a number.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let is_heading = |line: &&str| line.starts_with('#');
    for heading in prose(text).map(|(_, line)| line).filter(is_heading) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
        let anchor: String = heading.chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Returns the lines outside of fenced code, with their numbers from 1.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the relative link targets of a line, `[text](file#heading)` or `[label]: file`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let reference = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let reference = reference.and_then(|(_, target)| target.split_whitespace().next());
    inline
        .chain(reference)
        .map(|target| target.trim_matches(['<', '>']))
        .filter(|target| !target.is_empty() && !target.contains(':'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn problems(text: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        check(&root, &file("tidy/a.md", text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_are_found_in_each_form() {
        assert_eq!(targets("see [a](a.md) and [b](../b.md#head \"title\")."), ["a.md", "../b.md#head"]);
        assert_eq!(targets("[a]: a.md"), ["a.md"]);
        assert_eq!(targets("[head](#head)"), ["#head"]);
        assert!(targets("[web](https://example.org/a) [mail](mailto:a@example.org)").is_empty());
    }

    #[test]
    fn link_to_a_missing_file_is_reported() {
        assert_eq!(problems("[a](none.md)\n"), ["tidy/a.md:1: links to none.md, which does not exist"]);
        assert_eq!(
            problems("[a][l]\n\n[l]: none.md\n"),
            ["tidy/a.md:3: links to none.md, which does not exist"]
        );
        assert!(problems("[a](../main.rs) [b](../tidy) [c](../main.rs#top)\n").is_empty());
    }

    #[test]
    fn link_to_a_missing_heading_is_reported() {
        let headings = "# One, `two`: 3\n\n## Same\n## Same\n";
        let page = file("a.md", headings);
        let to = |target| violation(Path::new("."), &page, target);
        assert!(["#one-two-3", "#same", "a.md#same-1"].iter().all(|target| to(target).is_none()));
        assert_eq!(to("#same-2").as_deref(), Some("links to #same-2, but no heading gives that anchor"));
    }

    #[test]
    fn headings_of_this_project_are_found() {
        let root = crate::source::root();
        let in_contributing = |target| violation(&root, &file("README.md", ""), target);
        assert_eq!(in_contributing("CONTRIBUTING.md#tests"), None);
        assert!(in_contributing("CONTRIBUTING.md#no-such-heading").is_some());
        let from_the_book = violation(&root, &file("docs/sources.md", ""), "../CONTRIBUTING.md");
        assert!(from_the_book.is_some_and(|what| what.ends_with("name the file instead")));
    }

    #[test]
    fn page_without_an_entry_in_the_summary_is_reported() {
        let pages = [
            file(SUMMARY, "- [a](guide/a.md)\n"),
            file("docs/guide/a.md", "# a\n"),
            file("docs/guide/b.md", "# b\n"),
            file("README.md", "# c\n"),
        ];
        let found: Vec<String> = unlisted(&pages).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/guide/b.md: docs/SUMMARY.md does not list it"]);
    }

    #[test]
    fn code_is_not_read_as_links() {
        assert!(problems("```\nx[1](none.md)\n```\n").is_empty());
    }
}
