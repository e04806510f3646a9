//! Waiting for a condition, and saying why a test cannot run here.
//!
//! Every integration test uses it. Skips go straight to standard error, past the test harness's capture, in
//! the one form that `make test` counts: `SKIP <test>: <reason>`.

use std::env;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use strait_sys::netns::Namespace;

/// Between two looks at a condition that has no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Looks at `condition` until it holds; false if it does not within `limit`.
#[must_use = "a condition that never came true is a failed test"]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Prints `SKIP <test>: <reason>`; the test returns after it. The test's name is its thread's.
pub fn skip(reason: impl AsRef<str>) {
    let current = thread::current();
    let line = format!("SKIP {}: {}\n", current.name().unwrap_or("unnamed"), reason.as_ref());
    // One write, so that lines of tests that run side by side do not mix. Nothing to do if it fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether this process may make network namespaces; if not, the test is skipped.
pub fn root_or_skip() -> bool {
    match Namespace::new() {
        Ok(_) => true,
        Err(error) => {
            skip(error.to_string());
            false
        }
    }
}

/// Whether `program` is installed; if not, the test is skipped.
pub fn program_or_skip(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(format!("{program} is not installed; `make setup` installs it"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        assert!(wait_until(Duration::from_secs(50), || {
            looks += 1;
            looks == 3
        }));
        assert_eq!(looks, 3);
        assert!(!wait_until(Duration::ZERO, || false));
    }

    #[test]
    fn a_program_is_looked_for_on_the_path() {
        assert!(program_or_skip("sh"));
    }
}
