//! The program `strait` in virtual machines: real zero-copy, which needs a NIC that reaches the
//! program's memory.
//!
//! `make test-vm` runs it, with the release build: emulation is slow, and what is metered is what
//! users get.

mod cost;
mod doctor;
mod drop_in;
mod pf_zerocopy;
mod record;
mod send;
mod tls;
mod xdp;

use std::path::Path;
use std::time::Duration;

use lab::vm::{Guest, Kernel, Run};

/// What a program that is no guest may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(100);

/// The program under test.
fn strait() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_strait"))
}

/// A guest with `strait` in it.
fn guest(kernel: Kernel) -> Guest {
    Guest::new(kernel).program(strait()).libpcap().file("/rig.sh", include_bytes!("rig.sh"))
}

/// Runs `script` with the functions of `rig.sh`; it must end with 0.
fn run(guest: Guest, script: &str) -> Run {
    guest.run(&format!(". /rig.sh\n{script}")).unwrap().success()
}

/// Asserts that `run` has said all of `words`.
fn assert_said(run: &Run, words: &[&str]) {
    for word in words {
        assert!(run.said.contains(word), "missing: {word}\n{}", run.said);
    }
}
