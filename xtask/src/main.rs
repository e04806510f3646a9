//! `cargo xtask`: the project's own checks, run by `make test`.
//!
//! `tidy` reads the sources and `layers` the crates' dependencies; each prints a line a problem and exits 1
//! if there was any. Contributors and continuous integration call it; nothing that is shipped does. It
//! changes no file.

mod layers;
mod source;
mod tidy;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

/// What xtask can do, printed where it is asked for anything else.
const USAGE: &str = "usage: cargo xtask tidy | layers";

/// Something to mend: `path:line: what`, or without a line where it concerns the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    path: PathBuf,
    /// Counted from 1; 0 means the whole file.
    line: usize,
    what: String,
}

impl Problem {
    fn new(path: impl Into<PathBuf>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.what),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = source::root();
    let found = match arguments[..] {
        ["tidy"] => tidy::check(&root),
        ["layers"] => layers::check(&root),
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

fn report(name: &str, mut problems: Vec<Problem>) -> ExitCode {
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("{name}: nothing to mend");
        return ExitCode::SUCCESS;
    }
    println!("{name}: {} to mend", problems.len());
    ExitCode::FAILURE
}
