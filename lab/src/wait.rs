//! Waiting for conditions, and skipping tests.
//!
//! Used by every integration test. Skips go directly to standard error, past the test harness's
//! capture, in the form that `make test` counts: `SKIP <test>: <reason>`.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use strait_os::netns::Namespace;

/// Interval between two checks of a condition without an event.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until `condition` holds; returns false after `limit`.
#[must_use = "false means that the condition was not met in time"]
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Prints `SKIP <test>: <reason>` with the thread's name as the test; the test must return
/// afterwards.
pub fn skip(reason: impl AsRef<str>) {
    let current = thread::current();
    let line = format!("SKIP {}: {}\n", current.name().unwrap_or("unnamed"), reason.as_ref());
    // One write, so that lines of concurrent tests do not mix. A failure is ignored.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns true if this process may create network namespaces; otherwise skips the test.
pub fn root_or_skip() -> bool {
    match Namespace::new() {
        Ok(_) => true,
        Err(error) => {
            skip(error.to_string());
            false
        }
    }
}

/// Returns true if this process may lock `bytes` of memory; otherwise skips the test. All processes
/// of an ordinary user share the limit.
pub fn locked_memory_or_skip(bytes: u64) -> bool {
    let unlimited = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = getrlimit(Resource::Memlock).current;
    let enough = unlimited || limit.is_none_or(|limit| limit >= bytes);
    if !enough {
        skip(format!("needs CAP_IPC_LOCK, or RLIMIT_MEMLOCK of {bytes} bytes"));
    }
    enough
}

/// Returns true if `program` is installed; otherwise skips the test.
pub fn program_or_skip(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(format!("{program} is not installed; `make setup` installs it"));
    }
    found
}

/// Returns a file of `scripts/setup-programs` in the user's cache directory, or skips the test if
/// it is missing.
pub fn fetched_or_skip(file: &str) -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let file = cache.or_else(home)?.join("strait/programs").join(file);
    program_or_skip(file.to_str()?).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_when_the_condition_holds() {
        let mut looks = 0;
        assert!(wait_until(Duration::from_secs(50), || {
            looks += 1;
            looks == 3
        }));
        assert_eq!(looks, 3);
        assert!(!wait_until(Duration::ZERO, || false));
    }

    #[test]
    fn program_is_searched_on_the_path() {
        assert!(program_or_skip("sh"));
    }
}
