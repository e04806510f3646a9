//! `cargo xtask tidy`: checks beyond those of the compiler and of clippy.
//!
//! It checks lengths of files and functions, file headers, forbidden words, habits of prose, lints
//! disabled without a reason, unreachable files, links, statements of documents about files, tests
//! and limits, and the manifest of the separate workspace. Each check is a function from files to
//! problems.

mod claims;
mod constants;
mod dead;
mod links;
mod rust;
mod separate;
mod text;

use std::path::Path;

use crate::problem::Problem;
use crate::prose;
use crate::source::{self, Result};

/// Returns every problem in the project under `root`.
pub(crate) fn check(root: &Path) -> Result<Vec<Problem>> {
    let files = source::files(root)?;
    let workspaces = source::workspaces(root)?;
    let mut problems = Vec::new();
    for file in &files {
        problems.extend(text::check(file));
        if file.has_extension("rs") {
            problems.extend(rust::check(file));
        }
        if file.has_extension("md") {
            problems.extend(links::check(root, file));
        }
    }
    problems.extend(prose::of_files(&files).beyond_limits());
    problems.extend(links::unlisted(&files));
    problems.extend(claims::check(root, &files, &workspaces));
    problems.extend(dead::check(root, &files, &workspaces));
    problems.extend(dead::crates_without_lints(root, &workspaces));
    problems.extend(separate::check(&files));
    Ok(problems)
}
