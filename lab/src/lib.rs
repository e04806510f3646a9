//! Test rigs: private networks, programs in them, and waiting without sleeping.
//!
//! Integration tests and benchmarks use it; the product does not. A [`Wire`] is two network
//! namespaces joined by a veth pair that carries only the test's frames. A [`Process`] is a program
//! that cannot outlive its guard. Nothing has a name outside the test, so a killed test leaves no
//! namespace and no link behind. A [`scenario`] scripts the clients and the origin of a proxy;
//! [`vm`] boots other kernels with emulated NICs. Rigs panic on failure: a broken rig is a failed
//! test.

mod compiler;
mod kafka;
mod moto;
mod nats;
mod process;
pub mod scenario;
pub mod vm;
mod wait;
mod wire;

pub use compiler::compile;
pub use kafka::{Kafka, StoredRecord};
pub use moto::Moto;
pub use nats::Nats;
pub use process::{Finished, Launch, Process, deleted_files};
pub use wait::{fetched_or_skip, locked_memory_or_skip, program_or_skip, root_or_skip, skip, wait_until};
pub use wire::{End, Offload, Wire, WireBuilder};

/// Errors of a rig that a test may want to inspect.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a namespace, a link or a setting.
    #[error(transparent)]
    System(#[from] strait_os::Error),
    /// A program could not be started.
    #[error("start {program}: {source}")]
    Start {
        /// Program.
        program: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A program did not meet a condition in time.
    #[error("{program} did not {action} within {seconds} s; its output:\n{output}")]
    Timeout {
        /// Program.
        program: String,
        /// Expected action.
        action: String,
        /// Time limit in seconds.
        seconds: f32,
        /// Output so far.
        output: String,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
