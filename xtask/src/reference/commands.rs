//! The page of commands: the help text of each.

use std::fmt::Write;

use super::program::Program;
use crate::source::Result;

const HEAD: &str = "# Commands

The help text of every command, as the program prints it. `cargo xtask reference` writes this page.
";

/// Command of a program that is built separately.
const SEPARATE: &str = "query";

/// Maximum level of subcommands.
const DEPTH_MAX: usize = 3;

/// Returns the page. It keeps the sections of `old` about a program that is built separately, if
/// this program is missing.
pub(super) fn page(program: &Program, old: &str) -> Result<String> {
    let mut page = HEAD.to_owned();
    write_command(program, &[], (&mut page, old))?;
    Ok(page)
}

fn write_command(program: &Program, words: &[&str], (page, old): (&mut String, &str)) -> Result<()> {
    let help = match program.text(&[words, &["--help"]].concat()) {
        Err(_) if words == [SEPARATE] => {
            page.push_str(&sections(old, &format!("## strait {SEPARATE}")));
            return Ok(());
        }
        help => help?,
    };
    let name = ["strait"].iter().chain(words).copied().collect::<Vec<_>>().join(" ");
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"))?;
    if words.len() < DEPTH_MAX {
        for command in subcommands(&help) {
            write_command(program, &[words, &[command]].concat(), (page, old))?;
        }
    }
    Ok(())
}

/// Returns the sections of a page with headings that start with `heading`.
fn sections(page: &str, heading: &str) -> String {
    let sections = page.split("\n## ").skip(1).map(|section| format!("\n## {}", section.trim_end()));
    sections
        .filter(|section| section.trim_start().starts_with(heading))
        .map(|section| section + "\n")
        .collect()
}

/// Returns the names in the section `Commands:` of a help text, without `help`.
fn subcommands(help: &str) -> Vec<&str> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    section
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_a_command_are_found() {
        let page = "# Commands\n\n## strait\n\na\n\n## strait query\n\nb\n\n## strait query man\n\nc\n\n## strait run\n";
        assert_eq!(sections(page, "## strait query"), "\n## strait query\n\nb\n\n## strait query man\n\nc\n");
    }

    #[test]
    fn subcommands_are_found() {
        let help = "Usage: x\n\nCommands:\n  one   First\n          more\n  two   Second\n  help  Help\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help), ["one", "two"]);
        assert!(subcommands("Usage: x\n").is_empty());
    }
}
