//! Common part of the `AF_PACKET` paths `recv`, `v2` and `v3`: socket, counters, doorbell, waiting.
//!
//! Each path's folder implements [`ring::Ring`] for its ring; [`engine::Engine`] is compiled for
//! each. The ring modules of `strait-sys` own the memory; this one decides when to wait and reads
//! the kernel's counters.

mod counts;
mod doorbell;
pub(crate) mod engine;
mod fanout;
pub(crate) mod frames;
pub(crate) mod open;
pub(crate) mod ring;
pub(crate) mod shape;
mod source;
#[cfg(test)]
mod tests;

use strait_filter::cbpf::Program;

use self::engine::Engine;
use self::ring::Ring;
use crate::error::Error;
use crate::paths::spec::{About, Interfaces, Spec};

/// Description common to the paths.
pub(crate) const ABOUT: About = About {
    name: "",
    path: "",
    interfaces: Interfaces::Any,
    takes_frames: false,
    received_only: false,
    check_filter: any_filter,
};

/// Returns the specification of the path of ring `R`.
pub(crate) const fn spec<R: Ring>() -> Spec<Engine<R>> {
    Spec { about: About { name: R::PATH, path: R::PATH, ..ABOUT }, open: open::open::<R> }
}

/// Accepts every filter: one that the kernel refuses runs in this process.
#[allow(clippy::unnecessary_wraps, reason = "paths may refuse filters")]
fn any_filter(_: &Program) -> Result<(), Error> {
    Ok(())
}
