//! Checks that crates depend only on lower layers, using cargo's own metadata, and that the files
//! of a crate form no large cycle of imports.
//!
//! The layers are those of ARCHITECTURE.md. A crate without a layer is a problem too, so that the
//! table below stays complete.

use std::path::Path;

use cargo_metadata::{DependencyKind, Package};

use crate::modules::Graph;
use crate::problem::Problem;
use crate::reexports;
use crate::source::{self, File, Result};

/// Layer of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// Unsafe interface to Linux.
    Kernel,
    /// Services of Linux in safe Rust, for all layers above but the pure one.
    System,
    /// Pure: no I/O, no clock, no threads, no dependency on the layers below.
    Pure,
    /// Engines, which move bytes and packets.
    Engine,
    /// Base of the programs: command lines, messages, exit codes. It moves no bytes.
    Base,
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
    ("strait-os", Layer::System),
    ("strait-packet", Layer::Pure),
    ("strait-filter", Layer::Pure),
    ("strait-pcapng", Layer::Pure),
    ("strait-http", Layer::Pure),
    ("strait-http2", Layer::Pure),
    ("strait-ledger", Layer::Pure),
    ("strait-capture", Layer::Engine),
    ("strait-transfer", Layer::Engine),
    ("strait-store", Layer::Engine),
    ("strait-table", Layer::Engine),
    ("strait-program", Layer::Base),
    ("strait-proxy", Layer::Service),
    ("strait-pcap", Layer::Program),
    ("strait-python", Layer::Program),
    ("strait-upload", Layer::Program),
    ("strait-query", Layer::Program),
    ("strait-cli", Layer::Program),
    ("strait-bench", Layer::Program),
    ("lab", Layer::Development),
    ("xtask", Layer::Development),
    ("tokio-send", Layer::Development),
];

/// Permitted imports that bypass an engine, with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "strait-bench",
        "strait-sys",
        "its own receivers and senders, and libpcap, are what the engines are measured against",
    ),
    (
        "strait-cli",
        "strait-pcap",
        "nothing is imported: `run` preloads the library that Cargo builds with it",
    ),
];

/// Maximum files in a cycle of imports.
const CYCLE_FILES_MAX: usize = 3;

/// Crates with layers of their own: folders from the lowest layer up. Folders of one layer do not
/// import each other.
const FOLDERS: &[(&str, &[&[&str]])] = &[(
    "strait-proxy",
    &[
        &["config"],
        &["io"],
        &["upstream", "observe"],
        &["cache"],
        &["serve", "admin"],
        &["server"],
        &["program"],
    ],
)];

/// Returns every import of the same or a higher layer, every import or re-export that bypasses an
/// engine, and every large cycle of files.
pub(crate) fn check(root: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let files = source::files(root)?;
    problems.extend(reexports::check(&files));
    let workspaces = source::workspaces(root)?;
    let members = source::packages(&workspaces);
    for package in &members {
        let manifest = package.manifest_path.as_std_path();
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest);
        let problem = |what| Problem::new(manifest, 0, what);
        problems.extend(violations(package, &members).into_iter().map(problem));
        for graph in graphs(package, root, &files) {
            problems.extend(cycle(&graph).map(problem));
            problems.extend(wrong_imports(&package.name, &graph));
        }
    }
    Ok(problems)
}

fn violations(package: &Package, members: &[&Package]) -> Vec<String> {
    let is_member = |name: &str| members.iter().any(|member| member.name.as_str() == name);
    let dependencies = package.dependencies.iter().filter(|dependency| is_member(&dependency.name));
    let mut violations = Vec::new();
    if layer(&package.name).is_none() {
        violations.push(format!("{} has no layer: add it to the table in xtask/src/layers.rs", package.name));
    }
    violations.extend(dependencies.filter_map(|dependency| {
        violation(&package.name, &dependency.name, dependency.kind == DependencyKind::Development)
    }));
    violations
}

/// Returns the reason why `from` must not import `to`, if there is one; `for_tests` is true for a
/// dev-dependency.
fn violation(from: &str, to: &str, for_tests: bool) -> Option<String> {
    use Layer::{Base, Development, Engine, Kernel, Program, Pure, Service, System};
    let (above, below) = (layer(from)?, layer(to)?);
    let is_exception = EXCEPTIONS.iter().any(|exception| (exception.0, exception.1) == (from, to));
    let reason = match (above, below) {
        (Development, _) => return None,
        (_, Development) if for_tests && to == "lab" => return None,
        (_, Development) => "it is for development only",
        _ if for_tests || is_exception => return None,
        (Pure, Kernel | System) => "the crate is pure",
        // A service has a program of its own, so that `strait` with capabilities stays small.
        (Program, Service) => "start the program of the service instead",
        (Base, Engine) => "the base of programs moves no bytes",
        (Base | Service | Program, Kernel) => "programs reach the kernel through engines and strait-os",
        (Kernel | System | Pure | Engine | Base | Service | Program, _) if below >= above => {
            "imports go down only"
        }
        _ => return None,
    };
    Some(format!("{from} must not depend on {to}: {reason}"))
}

/// Returns the import graph of each library and program of a crate.
fn graphs(package: &Package, root: &Path, files: &[File]) -> Vec<Graph> {
    let targets = package.targets.iter().filter(|target| !target.is_test() && !target.is_bench());
    let roots = targets.filter_map(|target| target.src_path.as_std_path().strip_prefix(root).ok());
    roots.map(|path| Graph::of(path, files)).collect()
}

/// Returns the reason why a crate's largest cycle of imports is too large.
fn cycle(graph: &Graph) -> Option<String> {
    let cycle = graph.largest_cycle();
    let files: Vec<_> = cycle.iter().map(|file| file.display().to_string()).collect();
    (cycle.len() > CYCLE_FILES_MAX).then(|| {
        format!(
            "{} files import each other in a cycle; at most {CYCLE_FILES_MAX} may: {}",
            cycle.len(),
            files.join(", ")
        )
    })
}

/// Returns every import between the folders of a crate that does not go to a lower layer, and every
/// file outside these folders.
fn wrong_imports(name: &str, graph: &Graph) -> Vec<Problem> {
    let Some((_, layers)) = FOLDERS.iter().find(|entry| entry.0 == name) else { return Vec::new() };
    let wrong = graph.imports().filter_map(|import| {
        let (from, to) = (folder(layers, import.from)?, folder(layers, import.to)?);
        let is_downward = from.0 > to.0 || from == to;
        let what = format!("{} must not import {}: imports go down only", from.1, import.to.display());
        (!is_downward).then(|| Problem::new(import.from, 0, what))
    });
    let unplaced = graph.files().filter(|file| folder(layers, file).is_none());
    let unplaced = unplaced.map(|file| Problem::new(file, 0, "not in a folder of a layer"));
    wrong.chain(unplaced).collect()
}

/// Returns the layer of a file, from 0, and its folder.
fn folder<'a>(layers: &[&[&'a str]], file: &Path) -> Option<(usize, &'a str)> {
    let first = file.iter().skip_while(|part| *part != "src").nth(1);
    let is_above = |name: &&str| first.is_some_and(|part| part == *name);
    let find =
        |(index, names): (usize, &&[&'a str])| Some((index, *names.iter().find(|name| is_above(name))?));
    layers.iter().enumerate().find_map(find)
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
            ("strait-os", "strait-sys"),
            ("strait-capture", "strait-sys"),
            ("strait-capture", "strait-os"),
            ("strait-capture", "strait-filter"),
            ("strait-cli", "strait-os"),
            ("strait-cli", "strait-program"),
            ("strait-program", "strait-os"),
            ("strait-bench", "strait-sys"),
            ("strait-pcap", "strait-capture"),
            ("xtask", "lab"),
            ("lab", "strait-os"),
        ] {
            assert_eq!(violation(from, to, NORMAL), None);
        }
    }

    #[test]
    fn other_imports_are_reported_with_the_reason() {
        for (from, to, reason) in [
            ("strait-packet", "strait-sys", "the crate is pure"),
            ("strait-packet", "strait-os", "the crate is pure"),
            ("strait-os", "strait-packet", "imports go down only"),
            ("strait-sys", "strait-os", "imports go down only"),
            ("strait-filter", "strait-packet", "imports go down only"),
            ("strait-sys", "strait-capture", "imports go down only"),
            ("strait-capture", "strait-transfer", "imports go down only"),
            ("strait-pcap", "strait-cli", "imports go down only"),
            ("strait-proxy", "strait-sys", "programs reach the kernel through engines and strait-os"),
            ("strait-cli", "strait-sys", "programs reach the kernel through engines and strait-os"),
            ("strait-program", "strait-sys", "programs reach the kernel through engines and strait-os"),
            ("strait-program", "strait-capture", "the base of programs moves no bytes"),
            ("strait-cli", "lab", "it is for development only"),
            ("strait-cli", "strait-proxy", "start the program of the service instead"),
            ("strait-cli", "strait-bench", "imports go down only"),
        ] {
            let message = violation(from, to, NORMAL).unwrap();
            assert_eq!(message, format!("{from} must not depend on {to}: {reason}"));
        }
    }

    #[test]
    fn tests_may_use_the_lab_and_other_crates_but_not_xtask() {
        assert_eq!(violation("strait-capture", "lab", FOR_TESTS), None);
        assert_eq!(violation("strait-filter", "strait-sys", FOR_TESTS), None);
        assert!(violation("strait-capture", "xtask", FOR_TESTS).is_some());
    }

    #[test]
    fn upward_imports_and_files_outside_folders_are_reported() {
        let files = [
            ("src/lib.rs", "mod cache;\nmod io;\nmod observe;\nmod stray;\nmod upstream;"),
            ("src/stray.rs", ""),
            ("src/cache/mod.rs", "use crate::io::Socket;\nuse crate::upstream::fetch;"),
            ("src/io/mod.rs", "use crate::cache::Object;"),
            ("src/observe/mod.rs", "use crate::upstream::Pool;"),
            ("src/upstream/mod.rs", ""),
        ];
        let files = files.map(|(path, text)| File { path: path.into(), text: text.into() });
        let graph = Graph::of(Path::new("src/lib.rs"), &files);
        let mut messages: Vec<_> =
            wrong_imports("strait-proxy", &graph).iter().map(ToString::to_string).collect();
        messages.sort();
        assert_eq!(
            messages,
            [
                "src/io/mod.rs: io must not import src/cache/mod.rs: imports go down only",
                "src/observe/mod.rs: observe must not import src/upstream/mod.rs: imports go down only",
                "src/stray.rs: not in a folder of a layer",
            ]
        );
        assert!(wrong_imports("strait-cli", &graph).is_empty());
    }

    #[test]
    fn large_cycle_is_reported_with_its_files() {
        let names = ["a", "b", "c", "d"];
        let next = |index: usize| names[(index + 1) % names.len()];
        let mut files =
            vec![File { path: "lib.rs".into(), text: names.map(|it| format!("mod {it};")).concat() }];
        files.extend(names.iter().enumerate().map(|(index, name)| File {
            path: format!("{name}.rs").into(),
            text: format!("use crate::{}::f;", next(index)),
        }));
        let graph = Graph::of(Path::new("lib.rs"), &files);
        let message = "4 files import each other in a cycle; at most 3 may: a.rs, b.rs, c.rs, d.rs";
        assert_eq!(cycle(&graph).as_deref(), Some(message));
        files[3].text.clear();
        assert_eq!(cycle(&Graph::of(Path::new("lib.rs"), &files)), None);
    }

    #[test]
    fn crate_without_layer_is_reported() {
        let workspaces = source::workspaces(&source::root()).unwrap();
        let mut unlisted = (*workspaces[0].workspace_packages()[0]).clone();
        unlisted.name = "unlisted".parse().unwrap();
        let messages = violations(&unlisted, &[]);
        assert_eq!(messages, ["unlisted has no layer: add it to the table in xtask/src/layers.rs"]);
    }
}
