//! The `tap` path: a program on the interface's tcx hooks copies the frames that match the filter
//! into rings, and lets all frames pass.
//!
//! The host's traffic is as without a capture: no other program is replaced, no frame is held,
//! cloned or changed. The filter runs in the program. `docs/internals/tap.md` draws the rings and
//! the program, and explains the order in which both sides access them.

mod attachment;
mod batch;
pub mod broker;
mod counts;
mod engine;
pub(crate) mod memory;
mod merge;
mod open;
mod server;
mod source;
#[cfg(test)]
mod tests;

use strait_filter::cbpf::Program;

pub(crate) use self::engine::Engine;
pub use self::memory::TapRings;
pub use self::server::serve_broker;
use crate::error::Error;
use crate::paths::spec::{About, Interfaces, Spec};

/// Name of the path.
const PATH: &str = "tap";

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> = Spec {
    about: About {
        name: PATH,
        path: PATH,
        interfaces: Interfaces::Any,
        takes_frames: false,
        received_only: false,
        check_filter: any_filter,
    },
    open: open::open,
};

/// Accepts every filter: one that the program cannot run runs in this process.
#[allow(clippy::unnecessary_wraps, reason = "paths may refuse filters")]
fn any_filter(_: &Program) -> Result<(), Error> {
    Ok(())
}
