//! Tests of the program `strait-query` on captures that they make.

mod errors;
mod index;
mod lake;
mod library;
mod output;
mod pcap;
mod scan;
mod sql;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::traffic::Traffic;

/// Directory with the capture of [`traffic::scenes`].
pub(crate) struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        traffic::scenes().write(&scene.path("scenes.pcap"));
        scene
    }

    /// Returns a scene, and the path of one more capture with that traffic.
    fn with_large(traffic: &Traffic) -> (Self, PathBuf) {
        let scene = Self::new();
        let path = scene.path("large.pcap");
        traffic.write(&path);
        (scene, path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn capture(&self) -> String {
        text(&self.path("scenes.pcap"))
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Runs the program.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait-query")).args(arguments).output().unwrap()
}

/// Runs the program, which must succeed, and returns its output.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program, which must fail with this exit code, and returns its message of one line.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    let line = errors.trim_end_matches('\n');
    assert!(!line.contains('\n'), "{arguments:?}: {errors}");
    line.strip_prefix("strait-query: ").unwrap().to_owned()
}
