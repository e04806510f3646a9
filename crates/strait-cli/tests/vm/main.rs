//! Tests of `strait` in virtual machines: true zero-copy needs a NIC with DMA to the program's
//! memory.
//!
//! `make test-vm` gives them the programs of the release build, as emulation is slow and the
//! measured program should be the released one.

mod cost;
mod doctor;
mod drop_in;
mod drops;
mod peers;
mod pf_zerocopy;
mod rates;
mod record;
mod send;
mod tap;
mod tls;
mod tls_cost;
mod xdp;

use std::env;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread::{self, ScopedJoinHandle};

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

/// Runs guests at the same time, as they mostly wait: `run` for each of `machines`. Returns their
/// results by machine.
fn at_once<M: Copy + Sync + Send, V: Send>(machines: &[M], run: impl Fn(M) -> V + Sync) -> Vec<(M, V)> {
    let run = &run;
    thread::scope(|scope| {
        let start = |&machine: &M| (machine, scope.spawn(move || run(machine)));
        let threads: Vec<_> = machines.iter().map(start).collect();
        threads.into_iter().map(|(machine, thread)| (machine, join(thread))).collect()
    })
}

/// Returns the result of `thread`, or panics as it did.
fn join<V>(thread: ScopedJoinHandle<'_, V>) -> V {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns the value for `key`.
fn of<'a, K: PartialEq, V>(values: &'a [(K, V)], key: &K) -> &'a V {
    &values.iter().find(|(of, _)| of == key).expect("a machine of these tests").1
}

/// Returns `run` with the output from the line `part NAME` up to the next such line.
fn part(run: &Run, name: &str) -> Run {
    let start = format!("part {name}\n");
    let (_, rest) = run.output.split_once(&start).unwrap_or_else(|| panic!("no {name}:\n{}", run.output));
    let output = rest.split_once("\npart ").map_or(rest, |(part, _)| part);
    Run { output: output.to_owned(), ..run.clone() }
}

/// Asserts that the output of `run` contains all of `words`.
fn assert_output(run: &Run, words: &[&str]) {
    for word in words {
        assert!(run.output.contains(word), "missing: {word}\n{}", run.output);
    }
}
