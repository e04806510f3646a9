//! Parts fetched by `scripts/setup-vm`, and how to run programs from them.
//!
//! QEMU and its helpers are unpacked with all their libraries, including the C library and its
//! loader, which starts them. The host's packages have no effect and are not changed.

use std::env;
use std::path::PathBuf;

use crate::{Launch, skip};

/// Returns the folder of a part, which is a line of `scripts/setup-vm`.
pub fn part(name: &str) -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache"), PathBuf::from);
    cache.join("strait/vm").join(name)
}

/// Returns true if virtual machines can run here; otherwise skips the test.
pub fn vm_or_skip() -> bool {
    let missing = ["qemu", "dpdk", "linux-7.2", "linux-6.12"]
        .iter()
        .find(|name| !part(name).join("packages").is_file());
    if let Some(name) = missing {
        skip(format!("{name} for virtual machines is not there; `scripts/setup-vm` fetches it"));
    }
    missing.is_none()
}

/// The dynamic loader in the part `qemu`.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// Launches a program of the part `qemu`, such as `usr/bin/zstd`, with its own libraries. It ends
/// with the thread that has started it, also if the test is killed.
pub(super) fn launch(program: &str) -> Launch<'static> {
    let loader = part("qemu").join(LOADER);
    with_libraries(Launch::new("setpriv").args(["--pdeathsig=KILL", "--"]).arg(loader), program)
}

/// Launches a program like [`launch`], but not to end with a thread: what starts in a namespace is
/// started by a thread that ends at once.
pub(super) fn launch_for_namespace(program: &str) -> Launch<'static> {
    with_libraries(Launch::new(part("qemu").join(LOADER)), program)
}

/// Adds the program and its libraries to a launch of the loader.
fn with_libraries(loader: Launch<'static>, program: &str) -> Launch<'static> {
    let root = part("qemu");
    let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|path| root.join(path));
    loader
        .arg("--library-path")
        .arg(env::join_paths(libraries).expect("a path without colons"))
        .arg(root.join(program))
}
