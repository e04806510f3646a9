//! `cargo xtask reference [--check [--built]]`: pages of `docs/reference/` about the output of the
//! programs, and about the results of benchmarks.
//!
//! It builds the programs, runs them, and writes their options, configuration, metrics and JSON
//! keys. The meanings in the tables of `json.md` are written by people and kept. With `--check` it
//! changes nothing and returns each page that differs; with `--built` it runs the programs that the
//! tests have built. Root or a user namespace lets it see the JSON of commands that send packets;
//! without it these sections stay as they are. So does that of `strait query`, unless
//! `scripts/query` has built this program.

mod commands;
mod configuration;
mod instructions;
mod json;
mod metrics;
mod program;
mod results;
mod samples;
mod table;

use std::fs;
use std::path::Path;

use program::Program;

use crate::problem::Problem;
use crate::source::Result;

const FOLDER: &str = "docs/reference";
const REMEDY: &str = "run `cargo xtask reference`";

/// Task with the pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Build the programs and write the pages.
    Write,
    /// Build the programs and compare the pages.
    Check,
    /// Compare the pages with programs that exist: a build without tests has other features of
    /// dependencies, and would compile half of the workspace again.
    CheckBuilt,
}

/// Writes the pages, or only compares them. Returns the pages that differ, and the keys without a
/// meaning.
pub(crate) fn run(root: &Path, task: Task) -> Result<Vec<Problem>> {
    let program = match task {
        Task::Write | Task::Check => Program::build(root)?,
        Task::CheckBuilt => Program::built(root)?,
    };
    let old_json = read(root, "json.md");
    let seen = samples::take(&program, root)?;
    let (json, mut problems) = json::page(&old_json, &seen);
    let pages = [
        ("commands.md", commands::page(&program, &read(root, "commands.md"))?),
        ("configuration.md", configuration::page(&program.text(&["proxy", "--print-default-config"])?)),
        ("metrics.md", metrics::page(&read(root, "metrics.md"), &seen.metrics)),
        ("json.md", json),
        ("instructions.md", instructions::page(root)?),
        ("results.md", results::page(root)?),
    ];
    for (name, text) in pages {
        if text == read(root, name) {
            continue;
        }
        let path = Path::new(FOLDER).join(name);
        if task == Task::Write {
            fs::write(root.join(&path), text)?;
            println!("wrote {}", path.display());
        } else {
            problems.push(Problem::new(path, 0, format!("differs from its source: {REMEDY}")));
        }
    }
    Ok(problems)
}

fn read(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(FOLDER).join(name)).unwrap_or_default()
}
