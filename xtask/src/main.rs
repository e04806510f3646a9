//! `cargo xtask`: the project's own checks, run by `make test`.
//!
//! `tidy` checks the sources and `layers` the dependencies of crates. Each prints one line for each
//! problem and exits 1 if there is any. `prose` counts habits of language, here or in another
//! project. `reference` writes the pages of `docs/reference`; the others change no file.
//! Contributors and continuous integration run it; it is not shipped.

mod layers;
mod modules;
mod problem;
mod prose;
mod reexports;
mod reference;
mod source;
mod tidy;
mod usage;

use std::path::Path;
use std::process::ExitCode;

use problem::Problem;
use reference::Task;
use usage::USAGE;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = source::root();
    let found = match arguments[..] {
        ["prose", ref rest @ ..] => return count_prose(rest, &root),
        ["tidy"] => tidy::check(&root),
        ["layers"] => layers::check(&root),
        ["reference"] => reference::run(&root, Task::Write),
        ["reference", "--check"] => reference::run(&root, Task::Check),
        ["reference", "--check", "--built"] => reference::run(&root, Task::CheckBuilt),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match found {
        Ok(problems) => report(arguments[0], problems),
        Err(error) => {
            eprintln!("xtask {}: {error}", arguments[0]);
            ExitCode::FAILURE
        }
    }
}

/// Prints the counts of a tree, with `--list` also every place; fails if a habit exceeds its limit.
fn count_prose(arguments: &[&str], root: &Path) -> ExitCode {
    let is_list = arguments.first() == Some(&"--list");
    let rest = &arguments[usize::from(is_list)..];
    if rest.len() > 1 {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match prose::of_tree(&prose::directory(rest.first().copied(), root)) {
        Ok(prose) => {
            if is_list {
                prose.places().for_each(|place| println!("{place}"));
            }
            println!("{prose}");
            let beyond = prose.beyond_limits().len();
            if beyond == 0 {
                return ExitCode::SUCCESS;
            }
            println!("prose: {beyond} places of habits beyond their limits");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask prose: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(name: &str, mut problems: Vec<Problem>) -> ExitCode {
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("{name}: no problems");
        return ExitCode::SUCCESS;
    }
    println!("{name}: {} to mend", problems.len());
    ExitCode::FAILURE
}
