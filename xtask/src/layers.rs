//! Checks that crates depend only on lower layers, using cargo's own metadata.
//!
//! The layers are those of ARCHITECTURE.md. A crate without a layer is a problem too, so that the
//! table below stays complete.

use std::path::Path;

use cargo_metadata::{DependencyKind, Package};

use crate::Problem;
use crate::source::{self, Result};

/// Layer of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// Interface to Linux.
    Kernel,
    /// Pure: no I/O, no clock, no threads, no dependency on the kernel layer.
    Pure,
    /// Engines: move bytes and packets.
    Engine,
    /// Services: built from engines.
    Service,
    /// Programs and libraries that users start or load.
    Program,
    /// Development only: may depend on all other layers, and no other layer on it.
    Development,
}

/// Layer of every crate of the workspace.
const LAYERS: &[(&str, Layer)] = &[
    ("strait-sys", Layer::Kernel),
    ("strait-packet", Layer::Pure),
    ("strait-filter", Layer::Pure),
    ("strait-pcapng", Layer::Pure),
    ("strait-http", Layer::Pure),
    ("strait-ledger", Layer::Pure),
    ("strait-capture", Layer::Engine),
    ("strait-transfer", Layer::Engine),
    ("strait-store", Layer::Engine),
    ("strait-proxy", Layer::Service),
    ("strait-bench", Layer::Service),
    ("strait-pcap", Layer::Program),
    ("strait-cli", Layer::Program),
    ("lab", Layer::Development),
    ("bench", Layer::Development),
    ("xtask", Layer::Development),
    ("tokio-send", Layer::Development),
];

/// Permitted imports that bypass an engine, with the reason.
const SHORT_CUTS: &[(&str, &str, &str)] = &[
    ("strait-bench", "strait-sys", "it makes network namespaces, and measures processes and libpcap"),
    (
        "strait-cli",
        "strait-pcap",
        "nothing is imported: `run` preloads the library that Cargo builds with it",
    ),
    ("strait-cli", "strait-sys", "`demo` makes network namespaces, `doctor` probes the kernel"),
];

/// Returns every import that goes sideways, up, or past an engine.
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
    if layer(&package.name).is_none() {
        complaints.push(format!("{} has no layer: add it to the table in xtask/src/layers.rs", package.name));
    }
    complaints.extend(dependencies.filter_map(|dependency| {
        complaint(&package.name, &dependency.name, dependency.kind == DependencyKind::Development)
    }));
    complaints
}

/// Returns the reason why `from` must not import `to`, if there is one; `for_tests` is true for a
/// dev-dependency.
fn complaint(from: &str, to: &str, for_tests: bool) -> Option<String> {
    use Layer::{Development, Engine, Kernel, Program, Pure, Service};
    let (above, below) = (layer(from)?, layer(to)?);
    let short_cut = SHORT_CUTS.iter().any(|cut| (cut.0, cut.1) == (from, to));
    let reason = match (above, below) {
        (Development, _) => return None,
        (_, Development) if for_tests && to == "lab" => return None,
        (_, Development) => "it is for development only",
        _ if for_tests || short_cut => return None,
        (Pure, Kernel) => "layer 1 is pure",
        (Service | Program, Kernel) => "faces reach the kernel through engines",
        (Kernel | Pure | Engine | Service | Program, _) if below >= above => "imports go down only",
        _ => return None,
    };
    Some(format!("{from} must not depend on {to}: {reason}"))
}

fn layer(name: &str) -> Option<Layer> {
    LAYERS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NORMAL: bool = false;
    const FOR_TESTS: bool = true;

    #[test]
    fn downward_imports_are_allowed() {
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
    fn other_imports_are_reported_with_the_reason() {
        for (from, to, reason) in [
            ("strait-packet", "strait-sys", "layer 1 is pure"),
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
    fn crate_without_layer_is_reported() {
        let workspaces = source::workspaces(&source::root()).unwrap();
        let mut stranger = (*workspaces[0].workspace_packages()[0]).clone();
        stranger.name = "stranger".parse().unwrap();
        let said = complaints(&stranger, &[]);
        assert_eq!(said, ["stranger has no layer: add it to the table in xtask/src/layers.rs"]);
    }
}
