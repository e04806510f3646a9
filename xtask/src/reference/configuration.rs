//! The page of configuration keys, from the configuration that the proxy prints.
//!
//! Comments above a key describe it; comments above a section describe the section. A key after
//! `#` without a blank has no default, and a section after it is an example.

use std::fmt::Write;

const HEAD: &str = "# Configuration

The keys of `strait proxy --config FILE`, from `strait proxy --print-default-config`. `cargo xtask reference` writes this page.
`strait proxy --check-config --config FILE` checks a file. Options of the command line override it.
";

pub(super) fn page(printed: &str) -> String {
    let mut page = Page { text: HEAD.into(), section: String::new(), is_example: false, comment: Vec::new() };
    for line in printed.lines() {
        page.add(line);
    }
    page.text
}

struct Page<'a> {
    text: String,
    section: String,
    /// True in a section that is an example.
    is_example: bool,
    /// Comment lines since the last key or empty line.
    comment: Vec<&'a str>,
}

impl<'a> Page<'a> {
    fn add(&mut self, line: &'a str) {
        let example = line.strip_prefix('#').filter(|rest| rest.starts_with('['));
        let line = example.unwrap_or(line);
        if line.is_empty() {
            let prose = self.taken();
            if !prose.is_empty() {
                self.push(&format!("\n{prose}\n"));
            }
        } else if let Some(comment) = line.strip_prefix("# ") {
            self.comment.push(comment);
        } else if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let prose = self.taken();
            let heading = line.replace('[', "\\[").replace(']', "\\]");
            self.push(&format!("\n## {heading}\n"));
            if !prose.is_empty() {
                self.push(&format!("\n{prose}\n"));
            }
            self.is_example = example.is_some();
            self.section = format!("{}.", section.trim_matches(['[', ']']));
        } else if let Some((key, value)) = line.split_once(" = ") {
            let prose = self.taken();
            let (key, stated) = match key.strip_prefix('#') {
                Some(key) if self.is_example => (key, format!("Example: `{value}`")),
                Some(key) => (key, format!("No default. Example: `{value}`")),
                None => (key, format!("Default: `{value}`")),
            };
            let section = &self.section;
            let entry = format!("\n### {section}{key}\n\n{prose}\n\n{stated}\n");
            self.push(&entry);
        }
    }

    fn push(&mut self, text: &str) {
        let _ = self.text.write_str(text);
    }

    /// Takes the comment as Markdown, with its line breaks.
    fn taken(&mut self) -> String {
        let prose = std::mem::take(&mut self.comment).join("\n");
        // Markdown would interpret a name in angle brackets or a star as markup.
        prose.replace('<', "&lt;").replace('*', "\\*")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_section_comment_and_default() {
        let page = page(
            "# About all.\n\n# One.\na = 1\n\n# The section.\n[s]\n# Two,\n# long.\n#b = \"x\"\n#[[t.u]]\n#c = 2\n",
        );
        let text = page.strip_prefix(HEAD).unwrap();
        assert_eq!(
            text,
            "\nAbout all.\n\n### a\n\nOne.\n\nDefault: `1`\n\n## \\[s\\]\n\nThe section.\n\
             \n### s.b\n\nTwo,\nlong.\n\nNo default. Example: `\"x\"`\n\
             \n## \\[\\[t.u\\]\\]\n\n### t.u.c\n\n\n\nExample: `2`\n"
        );
    }
}
