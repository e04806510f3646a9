//! Finds Markdown links to missing files.
//!
//! `tidy` runs it on every Markdown file. Links to the web and to headings are not checked.

use std::path::Path;

use crate::Problem;
use crate::source::File;

/// Returns every relative link of `file` with a missing target.
pub(crate) fn check(root: &Path, file: &File) -> Vec<Problem> {
    let folder = root.join(&file.path);
    let folder = folder.parent().unwrap_or(root);
    let leads_nowhere = |target: &str| !folder.join(target).exists();
    let mut problems = Vec::new();
    let mut in_code = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let targets = if in_code { Vec::new() } else { targets(line) };
        for target in targets.into_iter().filter(|target| leads_nowhere(target)) {
            problems.push(Problem::new(&file.path, number, format!("links to {target}, which is not there")));
        }
    }
    problems
}

/// Returns the link targets of a line, `[text](file)` or `[label]: file`, without `#heading`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let reference = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let reference = reference.and_then(|(_, target)| target.split_whitespace().next());
    inline
        .chain(reference)
        .map(|target| target.split('#').next().unwrap_or_default().trim_matches(['<', '>']))
        .filter(|target| !target.is_empty() && !target.contains(':'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let file = File { path: "tidy/a.md".into(), text: text.into() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        check(&root, &file).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_are_found_in_each_form() {
        assert_eq!(targets("see [a](a.md) and [b](../b.md#head \"title\")."), ["a.md", "../b.md"]);
        assert_eq!(targets("[a]: a.md"), ["a.md"]);
        assert!(
            targets("[web](https://example.org/a) [head](#head) [mail](mailto:a@example.org)").is_empty()
        );
    }

    #[test]
    fn link_to_a_missing_file_is_reported() {
        assert_eq!(problems("[a](none.md)\n"), ["tidy/a.md:1: links to none.md, which is not there"]);
        assert_eq!(
            problems("[a][l]\n\n[l]: none.md\n"),
            ["tidy/a.md:3: links to none.md, which is not there"]
        );
        assert!(problems("[a](../main.rs) [b](../tidy) [c](../main.rs#top)\n").is_empty());
    }

    #[test]
    fn code_is_not_read_as_links() {
        assert!(problems("```\nx[1](none.md)\n```\n").is_empty());
    }
}
