//! Starts `strait bench`, which executes the `strait-bench` of these tests.

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use lab::{Finished, Launch};
use strait_bench::child::Launcher;

/// Time limit of a program on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(5);

/// Returns the programs that benchmarks start. Cargo builds `strait-bench` for these tests. The
/// programs of other packages are beside it after a build of the workspace; missing ones are built.
pub(crate) fn launcher() -> Launcher {
    static BUILT: Once = Once::new();
    let own = Path::new(env!("CARGO_BIN_EXE_strait-bench"));
    let strait = own.with_file_name("strait");
    let folder = own.parent().expect("a program is in a directory");
    if !strait.exists() || !own.with_file_name("strait-proxy").exists() {
        BUILT.call_once(|| build(folder));
    }
    Launcher { own: own.to_owned(), strait }
}

fn build(folder: &Path) {
    let target = folder.parent().expect("Cargo's target directory has one for each profile");
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--target-dir"]).arg(target);
    build.args(["--package", "strait-cli", "--package", "strait-proxy"]);
    build.args(folder.ends_with("release").then_some("--release"));
    assert!(build.status().expect("cargo runs").success(), "{build:?}");
}

/// Returns `strait bench` with `arguments`.
pub(crate) fn bench(arguments: &[&str]) -> Launch<'static> {
    Launch::new(launcher().strait).arg("bench").args(arguments)
}

/// Runs `strait bench` with `arguments` to its end.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    bench(arguments).run(LIMIT).unwrap()
}

/// Makes tests of sends take turns: their bytes and CPU time are compared.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
