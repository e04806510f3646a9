//! Programs in C that tests need beside the one under test.

use std::path::Path;
use std::time::Duration;

use crate::Launch;

const COMPILE_LIMIT: Duration = Duration::from_mins(1);

/// Compiles `source` to `output`; a warning is an error. `arguments` come last, as libraries must.
///
/// # Panics
/// Where it does not compile, or `cc` is not there.
pub fn compile(source: &Path, arguments: &[&str], output: &Path) {
    let compiler = Launch::new("cc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(output);
    let _ = compiler.arg(source).args(arguments).run(COMPILE_LIMIT).expect("cc runs").success();
}
