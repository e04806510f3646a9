//! Imports only go down: the house's floors, checked against cargo's own view of the crates.
//!
//! The floors are those of ARCHITECTURE.md. A crate that is on none of them is a problem too, so the table
//! below cannot fall behind the workspace.

use std::path::Path;

use cargo_metadata::{DependencyKind, Package};

use crate::Problem;
use crate::source::{self, Result};

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Floor {
    /// The Linux boundary.
    Kernel,
    /// Pure: no I/O, no clock, no threads, and no floor 0.
    Pure,
    /// Engines: they move bytes and packets.
    Engine,
    /// Services built of engines.
    Service,
    /// What users start or load.
    Door,
    /// For development; on top of everything, and nothing is on top of it.
    Development,
}

/// Every crate of the workspace, those still to come included.
const FLOORS: &[(&str, Floor)] = &[
    ("strait-sys", Floor::Kernel),
    ("strait-packet", Floor::Pure),
    ("strait-filter", Floor::Pure),
    ("strait-pcapng", Floor::Pure),
    ("strait-http", Floor::Pure),
    ("strait-ledger", Floor::Pure),
    ("strait-capture", Floor::Engine),
    ("strait-transfer", Floor::Engine),
    ("strait-store", Floor::Engine),
    ("strait-proxy", Floor::Service),
    ("strait-bench", Floor::Service),
    ("strait-pcap", Floor::Door),
    ("strait-cli", Floor::Door),
    ("lab", Floor::Development),
    ("bench", Floor::Development),
    ("xtask", Floor::Development),
    ("tokio-send", Floor::Development),
];

/// Imports that pass over an engine, with the reason.
const SHORT_CUTS: &[(&str, &str, &str)] = &[
    ("strait-bench", "strait-sys", "it makes network namespaces, and measures processes and libpcap"),
    (
        "strait-cli",
        "strait-pcap",
        "nothing is imported: `run` preloads the library that Cargo builds with it",
    ),
    ("strait-cli", "strait-sys", "`demo` makes network namespaces, `doctor` probes the kernel"),
];

/// Every import that goes sideways, up, or past an engine.
pub(crate) fn check(root: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for workspace in source::workspaces(root)?.iter().take(1) {
        let members = workspace.workspace_packages();
        for package in &members {
            let manifest = package.manifest_path.as_std_path();
            let manifest = manifest.strip_prefix(root).unwrap_or(manifest);
            let complain = |what| Problem::new(manifest, 0, what);
            problems.extend(complaints(package, &members).into_iter().map(complain));
        }
    }
    Ok(problems)
}

fn complaints(package: &Package, members: &[&Package]) -> Vec<String> {
    let is_member = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    let dependencies = package.dependencies.iter().filter(|dependency| is_member(&dependency.name));
    let mut complaints = Vec::new();
    if floor(&package.name).is_none() {
        complaints
            .push(format!("{} is on no floor: add it to the table in xtask/src/layers.rs", package.name));
    }
    complaints.extend(dependencies.filter_map(|dependency| {
        complaint(&package.name, &dependency.name, dependency.kind == DependencyKind::Development)
    }));
    complaints
}

/// Why `from` may not import `to`, if it may not; `for_tests` if it is a dev-dependency.
fn complaint(from: &str, to: &str, for_tests: bool) -> Option<String> {
    use Floor::{Development, Door, Engine, Kernel, Pure, Service};
    let (above, below) = (floor(from)?, floor(to)?);
    let short_cut = SHORT_CUTS.iter().any(|cut| (cut.0, cut.1) == (from, to));
    let reason = match (above, below) {
        (Development, _) => return None,
        (_, Development) if for_tests && to == "lab" => return None,
        (_, Development) => "it is for development only",
        _ if for_tests || short_cut => return None,
        (Pure, Kernel) => "floor 1 is pure",
        (Service | Door, Kernel) => "faces reach the kernel through engines",
        (Kernel | Pure | Engine | Service | Door, _) if below >= above => "imports go down only",
        _ => return None,
    };
    Some(format!("{from} must not depend on {to}: {reason}"))
}

fn floor(name: &str) -> Option<Floor> {
    FLOORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORMAL: bool = false;
    const FOR_TESTS: bool = true;

    #[test]
    fn imports_that_go_down_are_fine() {
        for (from, to) in [
            ("strait-capture", "strait-sys"),
            ("strait-capture", "strait-filter"),
            ("strait-cli", "strait-proxy"),
            ("strait-cli", "strait-sys"),
            ("strait-pcap", "strait-capture"),
            ("bench", "lab"),
            ("lab", "strait-sys"),
        ] {
            assert_eq!(complaint(from, to, NORMAL), None);
        }
    }

    #[test]
    fn imports_that_do_not_are_named_with_the_reason() {
        for (from, to, reason) in [
            ("strait-packet", "strait-sys", "floor 1 is pure"),
            ("strait-filter", "strait-packet", "imports go down only"),
            ("strait-sys", "strait-capture", "imports go down only"),
            ("strait-capture", "strait-transfer", "imports go down only"),
            ("strait-pcap", "strait-cli", "imports go down only"),
            ("strait-proxy", "strait-sys", "faces reach the kernel through engines"),
            ("strait-cli", "lab", "it is for development only"),
        ] {
            let said = complaint(from, to, NORMAL).unwrap();
            assert_eq!(said, format!("{from} must not depend on {to}: {reason}"));
        }
    }

    #[test]
    fn tests_may_use_the_lab_and_other_crates_but_no_benchmark() {
        assert_eq!(complaint("strait-capture", "lab", FOR_TESTS), None);
        assert_eq!(complaint("strait-filter", "strait-sys", FOR_TESTS), None);
        assert!(complaint("strait-capture", "bench", FOR_TESTS).is_some());
    }

    #[test]
    fn a_crate_on_no_floor_is_a_problem() {
        let workspaces = source::workspaces(&source::root()).unwrap();
        let mut stranger = (*workspaces[0].workspace_packages()[0]).clone();
        stranger.name = "stranger".parse().unwrap();
        let said = complaints(&stranger, &[]);
        assert_eq!(said, ["stranger is on no floor: add it to the table in xtask/src/layers.rs"]);
    }
}
