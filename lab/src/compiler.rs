//! C programs that tests need.

use std::path::Path;
use std::time::Duration;

use crate::Launch;

const COMPILE_LIMIT: Duration = Duration::from_mins(1);

/// Compiles `source` to `output` with warnings as errors. `arguments` come last, as libraries must.
///
/// # Panics
/// Panics if the program does not compile or `cc` is missing.
pub fn compile(source: &Path, arguments: &[&str], output: &Path) {
    let compiler = Launch::new("cc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(output);
    let _ = compiler.arg(source).args(arguments).run(COMPILE_LIMIT).expect("cc runs").success();
}
