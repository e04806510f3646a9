//! `cargo xtask prose [DIRECTORY]`: counts habits of language in comments and documents.
//!
//! Reads Rust and C comments and the prose of Markdown files, here or below a directory of another
//! project, so that both can be compared. The limits are this project's. The counts do not replace
//! a reader.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::problem::Problem;
use crate::source::{File, Result};

/// Maximum length of a comment line, in characters, with its indentation.
const COLUMNS_MAX: usize = 100;
/// Maximum per 10,000 words.
const TELL_MAX: f64 = 2.0;
const NOBODY_MAX: f64 = 3.0;
/// Maximum in percent of doc items.
const WHAT_MAX: f64 = 0.5;

const TELL: [&str; 4] = ["tell", "tells", "telling", "told"];
const NOBODY: [&str; 4] = ["nobody", "whoever", "whose", "whom"];

/// Directories without prose of the project.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "vendor"];
/// Maximum depth of directories.
const DEPTH_MAX: usize = 32;

/// Habits that are counted, with their places.
#[derive(Debug, Default)]
pub(crate) struct Prose {
    words: usize,
    doc_items: usize,
    tell: Vec<Problem>,
    nobody: Vec<Problem>,
    what: Vec<Problem>,
    same: Vec<Problem>,
    wide: Vec<Problem>,
}

/// One line of prose: its number, its text without comment marks, and its kind.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    number: usize,
    text: &'a str,
    kind: Kind,
    columns: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Comment,
    /// `///` or `//!`.
    Doc,
    Markdown,
}

/// Counts the text files below `root`, whether git tracks them or not.
pub(crate) fn of_tree(root: &Path) -> Result<Prose> {
    let mut files = Vec::new();
    collect(root, root, 0, &mut files)?;
    Ok(of_files(&files))
}

/// Counts `files`.
pub(crate) fn of_files(files: &[File]) -> Prose {
    let mut prose = Prose::default();
    for file in files {
        prose.add(file);
    }
    prose
}

fn collect(root: &Path, directory: &Path, depth: usize, files: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let is_skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
        if entry.file_type()?.is_dir() {
            if !is_skipped && depth < DEPTH_MAX {
                collect(root, &path, depth + 1, files)?;
            }
        } else if entry.file_type()?.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            files.push(File { path: path.strip_prefix(root).unwrap_or(&path).into(), text });
        }
    }
    Ok(())
}

impl Prose {
    fn add(&mut self, file: &File) {
        let lines = if file.has_extension("md") {
            markdown(&file.text)
        } else if ["rs", "c", "h"].iter().any(|extension| file.has_extension(extension)) {
            comments(&file.text)
        } else {
            return;
        };
        let mut before: Option<(usize, Kind)> = None;
        for line in &lines {
            let begins_item =
                line.kind == Kind::Doc && before != Some((line.number.wrapping_sub(1), Kind::Doc));
            self.add_line(&file.path, line, begins_item);
            before = Some((line.number, line.kind));
        }
    }

    fn add_line(&mut self, path: &Path, line: &Line<'_>, begins_item: bool) {
        let place = |what: &str| Problem::new(path, line.number, format!("{what}: {}", line.text.trim()));
        for word in
            line.text.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty())
        {
            self.words += 1;
            let word = word.to_lowercase();
            if TELL.contains(&word.as_str()) {
                self.tell.push(place(&word));
            } else if NOBODY.contains(&word.as_str()) {
                self.nobody.push(place(&word));
            }
        }
        if begins_item {
            self.doc_items += 1;
            if line.text.trim_start().starts_with("What ") {
                self.what.push(place("begins with What"));
            } else if line.text.trim_start().starts_with("The same") {
                self.same.push(place("begins with The same"));
            }
        }
        if line.kind != Kind::Markdown && line.columns > COLUMNS_MAX {
            self.wide.push(place("wide comment"));
        }
    }

    fn per_ten_thousand(&self, found: &[Problem]) -> f64 {
        found.len() as f64 * 10_000.0 / self.words.max(1) as f64
    }

    fn percent_of_items(&self, found: &[Problem]) -> f64 {
        found.len() as f64 * 100.0 / self.doc_items.max(1) as f64
    }

    /// Returns every place of a habit.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Problem> {
        [&self.tell, &self.nobody, &self.what, &self.same, &self.wide].into_iter().flatten()
    }

    /// Returns every place of a habit beyond its limit.
    pub(crate) fn beyond_limits(self) -> Vec<Problem> {
        let is_beyond = [
            self.per_ten_thousand(&self.tell) >= TELL_MAX,
            self.per_ten_thousand(&self.nobody) >= NOBODY_MAX,
            self.percent_of_items(&self.what) >= WHAT_MAX,
        ];
        let groups = [self.tell, self.nobody, self.what].into_iter().zip(is_beyond);
        let limited = groups.filter(|(_, is_beyond)| *is_beyond).map(|(found, _)| found);
        limited.chain([self.same, self.wide]).flatten().collect()
    }
}

impl fmt::Display for Prose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "words in comments and documents     {:8}", self.words)?;
        writeln!(f, "doc items                           {:8}", self.doc_items)?;
        let rate = |found: &[Problem]| self.per_ten_thousand(found);
        writeln!(
            f,
            "tell, told                          {:8}  {:.1} in 10,000 words",
            self.tell.len(),
            rate(&self.tell)
        )?;
        writeln!(
            f,
            "nobody, whoever, whose, whom        {:8}  {:.1} in 10,000 words",
            self.nobody.len(),
            rate(&self.nobody)
        )?;
        let percent = self.percent_of_items(&self.what);
        writeln!(f, "doc items that begin with What      {:8}  {percent:.1} %", self.what.len())?;
        writeln!(f, "doc items that begin with The same  {:8}", self.same.len())?;
        write!(f, "comments over {COLUMNS_MAX} columns           {:8}", self.wide.len())
    }
}

/// Returns the comment lines of Rust or C. A comment is alone on its line, or follows code and a
/// space: a string with `//` in it, such as an address, is not a comment.
fn comments(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut is_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        let columns = line.chars().count();
        let mut push = |text, kind| lines.push(Line { number, text, kind, columns });
        if is_block {
            is_block = !trimmed.contains("*/");
            push(trimmed.trim_start_matches('*').trim_end_matches("*/"), Kind::Comment);
        } else if let Some(text) = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")) {
            push(text, Kind::Doc);
        } else if let Some(text) = trimmed.strip_prefix("//") {
            push(text, Kind::Comment);
        } else if let Some(text) = trimmed.strip_prefix("/*") {
            is_block = !text.contains("*/");
            push(text.trim_start_matches('*').trim_end_matches("*/"), Kind::Comment);
        } else if let Some((code, text)) = line.split_once(" // ")
            && code.matches('"').count().is_multiple_of(2)
        {
            push(text, Kind::Comment);
        }
    }
    lines
}

/// Returns the lines of a Markdown file outside of its fenced blocks.
fn markdown(text: &str) -> Vec<Line<'_>> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(Line { number, text: line, kind: Kind::Markdown, columns: line.chars().count() });
        }
    }
    lines
}

/// Returns the directory given on the command line, or the project.
pub(crate) fn directory(argument: Option<&str>, root: &Path) -> PathBuf {
    argument.map_or_else(|| root.into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prose(path: &str, text: &str) -> Prose {
        of_files(&[File { path: path.into(), text: text.into() }])
    }

    #[test]
    fn comments_are_counted_and_code_is_not() {
        let text = "/// What it is.\n/// What follows.\nfn told() {} // nobody's told\nlet a = \"// whose\";\n/* whom\n * tell\n */\n";
        let prose = prose("a.rs", text);
        assert_eq!((prose.doc_items, prose.what.len(), prose.tell.len(), prose.nobody.len()), (1, 1, 2, 1));
    }

    #[test]
    fn doc_item_begins_where_no_doc_line_stands_before() {
        let prose = prose("a.rs", "//! The same.\n\n/// The same with more.\nfn a() {}\n/// Other.\n");
        assert_eq!((prose.doc_items, prose.same.len()), (3, 2));
    }

    #[test]
    fn fenced_blocks_of_markdown_are_no_prose() {
        let prose = prose("a.md", "one two\n```\ntold\n```\ntold\n");
        assert_eq!((prose.words, prose.tell.len()), (3, 1));
    }

    #[test]
    fn comments_have_a_widest_line() {
        let line = format!("// {}\n", "x".repeat(COLUMNS_MAX - 3));
        assert_eq!(prose("a.rs", &line).wide.len(), 0);
        assert_eq!(prose("a.rs", &format!(" {line}")).wide.len(), 1);
        assert_eq!(prose("a.rs", &format!(" {line}")).beyond_limits().len(), 1);
    }
}
