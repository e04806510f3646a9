//! The page of results: how each was measured, and its claims with their bounds.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::table::cell;
use crate::source::Result;

const HEAD: &str = "# Results

Every result in `bench/results/`, with its command, commit and date, and the claims that it was measured for: a bound that was the aim, the
median of the rounds with the lowest and the highest, and whether the median meets the bound. \"Within the spread\" means that some rounds
meet it. [Performance](../performance.md) explains them. `cargo xtask reference` writes this page.
";

/// Returns the page.
pub(super) fn page(root: &Path) -> Result<String> {
    let folder = root.join("bench/results");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut page = HEAD.to_owned();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        page.push_str(&section_of(&path, |result| section(&name, result))?);
    }
    Ok(page)
}

/// Reads a result and returns its section, which `section` writes; it returns None for a result
/// that is not complete.
pub(super) fn section_of(path: &Path, section: impl FnOnce(&Value) -> Option<String>) -> Result<String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let result = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(section(&result).ok_or_else(|| format!("{}: not a result", path.display()))?)
}

/// Returns the section of a result; None if it is not complete.
fn section(name: &str, result: &Value) -> Option<String> {
    let machine = &result["machine"];
    let date = machine["date"].as_str()?.split('T').next()?;
    let (command, commit, kernel) =
        (machine["command"].as_str()?, machine["commit"].as_str()?, machine["kernel"].as_str()?);
    let commit = commit.get(..8).unwrap_or(commit);
    let rounds = result["rounds"].as_u64()?;
    let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
    let mut section = format!(
        "\n## {name}\n\n`{}`\n\n{rounds}; {kernel}; commit {commit}; {date}.\n",
        without_commit(command)
    );
    let claims = result["claims"].as_array().map_or(&[][..], Vec::as_slice);
    if !claims.is_empty() {
        section.push_str("\n| claim | bound | measured | verdict |\n|---|---|---|---|\n");
    }
    for claim in claims {
        let (text, bound, unit) =
            (claim["claim"].as_str()?, claim["bound"].as_str()?, claim["unit"].as_str()?);
        let _ = writeln!(
            section,
            "| {} | {} {unit} | {} | {} |",
            cell(text),
            cell(bound),
            measured(&claim["measured"]),
            claim["verdict"]
                .as_str()?
                .replace("short_within_spread", "short, within the spread")
                .replace('_', " ")
        );
    }
    Some(section)
}

/// Returns a command without the commit, which stands beside it.
fn without_commit(command: &str) -> String {
    let mut words = command.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "--commit" {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// Returns the median with the lowest and the highest round.
fn measured(summary: &Value) -> String {
    let figure = |name: &str| summary[name].as_f64().map(short);
    match (figure("median"), figure("min"), figure("max")) {
        (Some(median), Some(min), Some(max)) => format!("{median} ({min} to {max})"),
        _ => "-".to_owned(),
    }
}

/// Returns a number with three significant digits.
fn short(figure: f64) -> String {
    if figure == 0.0 {
        return "0".to_owned();
    }
    let digits = figure.abs().max(f64::MIN_POSITIVE).log10().floor();
    let decimals = (2.0 - digits).clamp(0.0, 6.0) as usize;
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn section_has_the_command_and_the_claims() {
        let result = json!({
            "machine": {"date": "2026-01-02T03:04:05Z", "commit": "0123456789", "kernel": "Linux",
                "command": "bench tax --commit 0123456789 --rounds 3"},
            "rounds": 3,
            "claims": [
                {"claim": "a", "bound": "<= 1", "unit": "x", "verdict": "holds",
                    "measured": {"median": 0.98765, "min": 0.0, "max": 1234.5}},
                {"claim": "b", "bound": ">= 3", "unit": "M/s", "verdict": "short_within_spread"},
            ],
        });
        let wanted = "\n## tax.json\n\n`bench tax --rounds 3`\n\n3 rounds; Linux; commit 01234567; 2026-01-02.\n\
                      \n| claim | bound | measured | verdict |\n|---|---|---|---|\n\
                      | a | &lt;= 1 x | 0.988 (0 to 1234) | holds |\n\
                      | b | >= 3 M/s | - | short, within the spread |\n";
        assert_eq!(section("tax.json", &result).as_deref(), Some(wanted));
        assert_eq!(section("tax.json", &json!({})), None);
    }
}
