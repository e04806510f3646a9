//! The table of the rules for caches in RFC 9111 and RFC 9213, `rules.txt`: each rule names tests
//! that exist, or a reason.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = include_str!("rules.txt");

/// Sections with rules for caches, and the number of their rules in the table. A rule that is
/// removed or added must be counted here.
const SECTIONS: [(&str, usize); 46] = [
    ("RFC 9111 s1.2.2", 1),
    ("RFC 9111 s3", 7),
    ("RFC 9111 s3.1", 3),
    ("RFC 9111 s3.2", 2),
    ("RFC 9111 s3.3", 3),
    ("RFC 9111 s3.4", 2),
    ("RFC 9111 s3.5", 2),
    ("RFC 9111 s4", 10),
    ("RFC 9111 s4.1", 5),
    ("RFC 9111 s4.2", 4),
    ("RFC 9111 s4.2.1", 3),
    ("RFC 9111 s4.2.2", 2),
    ("RFC 9111 s4.2.3", 1),
    ("RFC 9111 s4.2.4", 2),
    ("RFC 9111 s4.3.1", 2),
    ("RFC 9111 s4.3.2", 5),
    ("RFC 9111 s4.3.3", 1),
    ("RFC 9111 s4.3.4", 5),
    ("RFC 9111 s4.3.5", 3),
    ("RFC 9111 s4.4", 2),
    ("RFC 9111 s5.1", 2),
    ("RFC 9111 s5.2", 2),
    ("RFC 9111 s5.2.1.1", 1),
    ("RFC 9111 s5.2.1.2", 1),
    ("RFC 9111 s5.2.1.3", 1),
    ("RFC 9111 s5.2.1.5", 1),
    ("RFC 9111 s5.2.1.7", 1),
    ("RFC 9111 s5.2.2", 1),
    ("RFC 9111 s5.2.2.1", 1),
    ("RFC 9111 s5.2.2.2", 3),
    ("RFC 9111 s5.2.2.3", 2),
    ("RFC 9111 s5.2.2.4", 3),
    ("RFC 9111 s5.2.2.5", 2),
    ("RFC 9111 s5.2.2.6", 1),
    ("RFC 9111 s5.2.2.7", 3),
    ("RFC 9111 s5.2.2.8", 1),
    ("RFC 9111 s5.2.2.9", 1),
    ("RFC 9111 s5.2.2.10", 2),
    ("RFC 9111 s5.2.3", 1),
    ("RFC 9111 s5.2.4", 1),
    ("RFC 9111 s5.3", 4),
    ("RFC 9111 s5.4", 1),
    ("RFC 9111 s5.5", 1),
    ("RFC 9213 s2.1", 4),
    ("RFC 9213 s2.2", 5),
    ("RFC 9213 s2.4", 1),
];

struct Rule {
    section: &'static str,
    text: &'static str,
    tests: Vec<&'static str>,
}

fn rules() -> Vec<Rule> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let [section, text, tests] = line.split(" | ").collect::<Vec<_>>()[..] else {
                panic!("not three columns: {line}")
            };
            Rule { section, text, tests: tests.split(" & ").collect() }
        })
        .collect()
}

/// Returns the files below `folder` with a name that ends with `.extension`.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns the names of all scenarios, and of all tests in both crates.
fn names() -> (HashSet<String>, HashSet<String>) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let scenarios = files(&own.join("tests/scenarios"), "scenario");
    let scenarios = scenarios.iter().map(read).flat_map(|text| after(&text, "scenario "));
    let sources = [own.to_path_buf(), own.join("../strait-http")]
        .into_iter()
        .flat_map(|krate| [krate.join("src"), krate.join("tests")])
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| files(&folder, "rs"));
    let functions = sources.flat_map(|path| tests_in(&read(&path)));
    (scenarios.collect(), functions.collect())
}

/// Returns the names of the functions with the attribute of a test. Other attributes and comments
/// may stand between the two.
fn tests_in(text: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            names.extend(function.filter(|_| is_test).map(name_of));
            is_test = false;
        }
    }
    names
}

fn name_of(function: &str) -> String {
    function.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
}

/// Returns the rest of each line that begins with `start`.
fn after(text: &str, start: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(start)).map(str::to_owned).collect()
}

#[test]
fn each_rule_names_tests_that_exist() {
    let (scenarios, functions) = names();
    let mut missing = Vec::new();
    for rule in rules() {
        for test in &rule.tests {
            let exists = match test.split_once(' ') {
                Some(("scenario", name)) => scenarios.contains(name),
                Some(("fn", name)) => functions.contains(name),
                Some(("none:", reason)) => !reason.is_empty() && rule.tests.len() == 1,
                _ => false,
            };
            if !exists {
                missing.push(format!("{} | {} | {test}", rule.section, rule.text));
            }
        }
    }
    assert!(missing.is_empty(), "no such tests:\n{}", missing.join("\n"));
}

#[test]
fn functions_without_the_attribute_are_not_tests() {
    let text = "fn a() {}\n#[test]\nfn b() {}\nfn c() {}\n#[tokio::test(flavor = \"x\")]\n#[should_panic]\n// d\nasync fn e(f: u8) {}";
    assert_eq!(tests_in(text), ["b", "e"]);
}

#[test]
fn each_section_has_all_its_rules() {
    let mut counted = BTreeMap::new();
    for rule in rules() {
        *counted.entry(rule.section).or_insert(0) += 1;
    }
    assert_eq!(counted, BTreeMap::from(SECTIONS));
}
