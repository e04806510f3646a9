//! Test rigs: private networks, programs in them, and waiting without sleeping.
//!
//! Integration tests and benchmarks build on it, the product never does. A [`Wire`] is two network namespaces
//! joined by a veth pair on which nothing moves but what the test sends; a [`Process`] is a program that
//! cannot outlive its guard. Nothing here has a name outside the test: a test killed at any moment leaves no
//! namespace and no link behind. A [`scenario`] is what a proxy's clients and origin send and must get;
//! [`vm`] boots other kernels with NICs of their own. Rigs panic where a test would have to: a broken rig is a failed test.

mod compiler;
mod process;
pub mod scenario;
pub mod vm;
mod wait;
mod wire;

pub use compiler::compile;
pub use process::{Finished, Launch, Process};
pub use wait::{program_or_skip, root_or_skip, skip, wait_until};
pub use wire::{End, Offload, Wire, WireBuilder};

/// What can go wrong with a rig where a test may want to look on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a namespace, a link or a setting.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// A program could not be started.
    #[error("start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program did not do in time what was awaited.
    #[error("{program} did not {awaited} within {seconds} s; it said:\n{output}")]
    Late {
        /// The program.
        program: String,
        /// What was awaited.
        awaited: String,
        /// For how long, in seconds.
        seconds: f32,
        /// All that it wrote so far.
        output: String,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
