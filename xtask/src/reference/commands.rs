//! The page of commands: the help text of each.

use std::fmt::Write;

use super::program::Program;
use crate::source::Result;

const HEAD: &str = "# Commands

The help text of every command, as the program prints it. `cargo xtask reference` writes this page.
";

/// Command without its help on the page: its program takes too long to compile.
const NOT_BUILT: &str = "query";
/// Maximum level of subcommands.
const DEPTH_MAX: usize = 3;

pub(super) fn page(program: &Program) -> Result<String> {
    let mut page = HEAD.to_owned();
    write_command(program, &[], &mut page)?;
    Ok(page)
}

fn write_command(program: &Program, words: &[&str], page: &mut String) -> Result<()> {
    let help = program.text(&[words, &["--help"]].concat())?;
    let name = ["strait"].iter().chain(words).copied().collect::<Vec<_>>().join(" ");
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"))?;
    if words.len() < DEPTH_MAX {
        for command in subcommands(&help).into_iter().filter(|command| *command != NOT_BUILT) {
            write_command(program, &[words, &[command]].concat(), page)?;
        }
    }
    Ok(())
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
    fn subcommands_are_found() {
        let help = "Usage: x\n\nCommands:\n  one   First\n          more\n  two   Second\n  help  Help\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help), ["one", "two"]);
        assert!(subcommands("Usage: x\n").is_empty());
    }
}
