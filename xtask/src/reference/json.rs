//! The page of JSON objects: keys and types from the programs, meanings from the page itself.
//!
//! A key of the page is kept if the program prints it, or if its type ends in `or absent`. All
//! types of a key on the page are kept, because one run prints only some of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::samples::Seen;
use super::table::cell;
use super::{FOLDER, REMEDY};
use crate::problem::Problem;

const HEAD: &str = "# JSON

Keys of the objects that commands print with `--json`. `[]` stands for each element of a list. Bytes, packets and connections are
counts, `seconds` are decimal fractions. Readers should ignore unknown keys: a release may add some.
`cargo xtask reference` writes the keys and types from the programs' output; the meanings are written by hand.
";
const TABLE: &str = "| key | type | meaning |\n|---|---|---|\n";
/// Suffix of the type of a key that is not always there.
const ABSENT: &str = "or absent";
/// Keys with an object that another section describes, or with names that depend on the run.
const OPAQUE: [&str; 4] = ["ledger", "account", "fallbacks", "store"];
/// List of objects that repeat the keys of their owner.
const REPEATED: &str = "lanes[].";

/// Types and meaning by key.
type Table = BTreeMap<String, (String, String)>;

/// Section of the page: its title, the text below it, and its table.
struct Section {
    title: String,
    prose: String,
    table: Table,
}

/// Returns the page with the seen keys, and a problem for each key without a meaning.
pub(super) fn page(old: &str, seen: &Seen) -> (String, Vec<Problem>) {
    let mut sections = sections(old);
    for (title, values) in &seen.json {
        if !sections.iter().any(|section| section.title == *title) {
            sections.push(Section { title: title.clone(), prose: String::new(), table: Table::new() });
        }
        if let Some(section) = sections.iter_mut().find(|section| section.title == *title) {
            section.table = merged(&section.table, values);
        }
    }
    let mut page = HEAD.to_owned();
    let mut problems = Vec::new();
    for section in &sections {
        let _ = write!(page, "\n## {}\n\n{}{TABLE}", section.title, section.prose);
        for (key, (kind, meaning)) in &section.table {
            let _ = writeln!(page, "| `{key}` | {kind} | {} |", cell(meaning));
            if meaning.is_empty() {
                let what = format!("{}: {key} has no meaning: write it, then {REMEDY}", section.title);
                problems.push(Problem::new(Path::new(FOLDER).join("json.md"), 0, what));
            }
        }
    }
    (page, problems)
}

/// Reads the sections of a page.
fn sections(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push(Section { title: title.into(), prose: String::new(), table: Table::new() });
            continue;
        }
        let Some(section) = sections.last_mut() else { continue };
        let cells: Vec<&str> = line.split(" | ").collect();
        match cells[..] {
            [key, kind, ref meaning @ ..] if line.starts_with("| `") => {
                let key = key.trim_start_matches("| ").trim_matches('`');
                let meaning = meaning.join(" | ");
                let meaning = meaning.trim_end_matches('|').trim().replace("\\|", "|").replace("&lt;", "<");
                section.table.insert(key.into(), (kind.into(), meaning));
            }
            _ if line.starts_with('|') || line.is_empty() && section.prose.is_empty() => {}
            _ if line.is_empty() && section.prose.ends_with("\n\n") => {}
            _ => {
                section.prose.push_str(line);
                section.prose.push('\n');
            }
        }
    }
    sections
}

/// Returns the keys of `values` with the meanings of `old`.
fn merged(old: &Table, values: &[Value]) -> Table {
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for value in values {
        flatten(value, "", &mut kinds);
    }
    let tops: Vec<String> = kinds.keys().cloned().collect();
    let repeats = |key: &str| key.strip_prefix(REPEATED).is_some_and(|own| tops.iter().any(|top| top == own));
    let mut table = Table::new();
    for (key, (kind, meaning)) in old {
        if kind.ends_with(ABSENT) {
            table.insert(key.clone(), (kind.clone(), meaning.clone()));
        }
    }
    for (key, kinds) in kinds.into_iter().filter(|(key, _)| !repeats(key)) {
        let known = old.get(&key);
        let meaning = known.map_or(String::new(), |(_, meaning)| meaning.clone());
        let kind = known.map_or("", |(kind, _)| kind.as_str());
        table.insert(key, (union(kind, &kinds), meaning));
    }
    table
}

/// Adds types to a list such as `number or null`.
fn union(known: &str, seen: &[&str]) -> String {
    let mut kinds: Vec<&str> = known.split(" or ").filter(|kind| !kind.is_empty()).collect();
    for kind in seen {
        if !kinds.contains(kind) {
            let end = kinds.iter().position(|kind| ["null", "absent"].contains(kind)).unwrap_or(kinds.len());
            kinds.insert(if *kind == "null" { kinds.len() } else { end }, kind);
        }
    }
    kinds.join(" or ")
}

fn flatten<'a>(value: &'a Value, path: &str, kinds: &mut BTreeMap<String, Vec<&'a str>>) {
    let is_opaque = OPAQUE.iter().any(|name| path == *name || path.ends_with(&format!(".{name}")));
    let kind = match value {
        Value::Object(object) if !is_opaque => {
            let dot = if path.is_empty() { "" } else { "." };
            for (key, value) in object {
                flatten(value, &format!("{path}{dot}{key}"), kinds);
            }
            return;
        }
        Value::Array(elements) => {
            for element in elements {
                flatten(element, &format!("{path}[]"), kinds);
            }
            return;
        }
        Value::Object(_) => "object",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    let known = kinds.entry(path.to_owned()).or_default();
    if !known.contains(&kind) {
        known.push(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(json: &str) -> Seen {
        let values = super::super::program::values(json).unwrap();
        Seen { json: vec![("strait x --json".into(), values)], metrics: Vec::new() }
    }

    #[test]
    fn new_keys_need_a_meaning_and_known_ones_keep_theirs() {
        let (page, problems) = super::page("", &seen(r#"{"a":1,"b":{"c":null},"l":[{"d":"x"}]}"#));
        assert_eq!(problems.len(), 3);
        assert!(page.contains("| `a` | number |  |\n| `b.c` | null |  |\n| `l[].d` | text |  |\n"), "{page}");
        let written = page.replace("| `a` | number |  |", "| `a` | number | counts a | b |");
        let written = written.replace("| text |  |", "| text or absent | d |");
        let (page, problems) = super::page(&written, &seen(r#"{"a":1,"b":{"c":2}}"#));
        assert_eq!(problems.len(), 1);
        assert!(page.contains("| `a` | number | counts a \\| b |"), "{page}");
        assert!(
            page.contains("| `b.c` | number or null |  |")
                && page.contains("| `l[].d` | text or absent | d |")
        );
        let (again, _) = super::page(&page, &seen(r#"{"a":1,"b":{"c":2}}"#));
        assert_eq!(again, page);
    }

    #[test]
    fn prose_of_a_section_and_sections_that_were_not_seen_stay() {
        let old = format!("{HEAD}\n## strait y --json\n\nOne line.\n\n{TABLE}| `k` | number | kept |\n");
        let (page, problems) = super::page(&old, &Seen::default());
        assert_eq!(page, old);
        assert!(problems.is_empty());
    }

    #[test]
    fn removed_keys_are_dropped() {
        let old = format!("{HEAD}\n## strait x --json\n\n{TABLE}| `gone` | number | old |\n");
        let (page, _) = super::page(&old, &seen(r#"{"a":1}"#));
        assert!(!page.contains("gone") && page.contains("`a`"));
    }
}
