//! Tests of `strait` in virtual machines: true zero-copy needs a NIC with DMA to the program's
//! memory.
//!
//! `make test-vm` gives them the programs of the release build, as emulation is slow and the
//! measured program should be the released one.

mod cost;
mod doctor;
mod drop_in;
mod pf_zerocopy;
mod record;
mod send;
mod tap;
mod tls;
mod xdp;

use std::env;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lab::vm::{Guest, Kernel, Run};

/// Variable that names the folder of the programs under test, by default that of this build.
const PROGRAMS: &str = "STRAIT_VM_PROGRAMS";

/// The program under test. The other programs and the library are beside it.
fn strait() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_strait"));
        env::var_os(PROGRAMS).map_or(built, |folder| Path::new(&folder).join("strait"))
    });
    &PROGRAM
}

/// Returns a guest that contains `strait`.
fn guest(kernel: Kernel) -> Guest {
    Guest::new(kernel).program(strait()).libpcap().file("/rig.sh", include_bytes!("rig.sh"))
}

/// Runs `script` with the functions of `rig.sh`, and asserts that it exits with 0.
fn run(guest: Guest, script: &str) -> Run {
    guest.run(&format!(". /rig.sh\n{script}")).unwrap().success()
}

/// Asserts that the output of `run` contains all of `words`.
fn assert_output(run: &Run, words: &[&str]) {
    for word in words {
        assert!(run.output.contains(word), "missing: {word}\n{}", run.output);
    }
}
