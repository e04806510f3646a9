//! The `xdp` path: one `AF_XDP` socket a queue on one shared UMEM, fed by an XDP program that
//! filters.
//!
//! [`open::open`] tries the fastest way that the interface has. `docs/internals/af-xdp.md` draws
//! the rings, `docs/internals/xdp-program.md` the program. Frames that match the filter are taken
//! away from the host; all others go on to it untouched.

mod account;
mod batch;
pub(crate) mod bind;
mod engine;
mod intake;
mod join;
mod open;
mod ring_size;
mod session;
mod stamp;
#[cfg(test)]
mod tests;

pub(crate) use self::engine::Engine;
use self::open::Insist;
use crate::filter;
use crate::paths::spec::{About, Interfaces, Spec};

const ABOUT: About = About {
    name: "xdp",
    path: "xdp",
    interfaces: Interfaces::Ethernet,
    takes_frames: true,
    received_only: true,
    // In this process a filter would come too late: frames that the XDP program matches never reach
    // the host.
    check_filter: filter::refuse_on_xdp,
};

/// The fastest way that the interface has.
pub(crate) const FASTEST: Spec<Engine> =
    Spec { about: ABOUT, open: |request| session::open(request, Insist::Nothing) };

/// The NIC writes into the UMEM, or the path is refused.
pub(crate) const ZERO_COPY: Spec<Engine> = Spec {
    about: About { name: "xdp-zc", ..ABOUT },
    open: |request| session::open(request, Insist::ZeroCopy),
};

/// The driver's own program runs and the kernel copies, or the path is refused.
pub(crate) const NATIVE: Spec<Engine> = Spec {
    about: About { name: "xdp-native", ..ABOUT },
    open: |request| session::open(request, Insist::NativeCopy),
};

/// The kernel's generic program runs and the kernel copies.
pub(crate) const GENERIC: Spec<Engine> = Spec {
    about: About { name: "xdp-generic", ..ABOUT },
    open: |request| session::open(request, Insist::Generic),
};
