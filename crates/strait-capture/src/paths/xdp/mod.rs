//! The `xdp` path: one `AF_XDP` socket per queue, all on one shared UMEM, and an XDP program that
//! filters frames and redirects them to the sockets.
//!
//! [`open::open`] selects the fastest way that the interface supports. `docs/internals/af-xdp.md`
//! draws the rings, `docs/internals/xdp-program.md` the program. Frames that match the filter do
//! not reach the host; all others pass to it unchanged.

mod account;
mod attachment;
mod batch;
pub(crate) mod bind;
mod engine;
mod join;
mod open;
mod ring_size;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use self::engine::Engine;
use self::open::Required;
use crate::filter;
use crate::paths::spec::{About, Interfaces, Spec};

const ABOUT: About = About {
    name: "xdp",
    path: "xdp",
    interfaces: Interfaces::Ethernet,
    takes_frames: true,
    received_only: true,
    // A filter in this process would be too late: frames that the XDP program redirects never reach
    // the host.
    check_filter: filter::refuse_on_xdp,
};

/// The fastest mode that the interface supports.
pub(crate) const FASTEST: Spec<Engine> =
    Spec { about: ABOUT, open: |request| session::open(request, Required::Fastest) };

/// Zero-copy: the NIC writes into the UMEM. Refused if the driver does not support it.
pub(crate) const ZERO_COPY: Spec<Engine> = Spec {
    about: About { name: "xdp-zc", ..ABOUT },
    open: |request| session::open(request, Required::ZeroCopy),
};

/// Native mode: the program runs in the driver, and the kernel copies. Refused if the driver does
/// not support it.
pub(crate) const NATIVE: Spec<Engine> = Spec {
    about: About { name: "xdp-native", ..ABOUT },
    open: |request| session::open(request, Required::NativeCopy),
};

/// Generic mode: the program runs after the driver, and the kernel copies.
pub(crate) const GENERIC: Spec<Engine> = Spec {
    about: About { name: "xdp-generic", ..ABOUT },
    open: |request| session::open(request, Required::Generic),
};
