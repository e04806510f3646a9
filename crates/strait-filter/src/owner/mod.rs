//! Programs that record which process uses a socket, and the lookup of that record for a packet.
//!
//! ```text
//!   create, connect, listen, send, receive ─▶ use_program ──┐
//!                                                           ├─▶ storage of the socket: Owner
//!   open files at the start ────────────────▶ files_program ┘              │
//!                                                                          ▼
//!   packet ─▶ tap program: its socket ─────────────────────────────▶ Owner ─▶ record, selection
//! ```
//!
//! The kernel frees the storage with its socket, so a port or an address that another socket uses
//! later cannot be attributed to the process of an earlier one. A second map has the owners by
//! process, where the reader finds the details of a process that may have ended.
//!
//! The capture engine loads the programs; the tap program calls the lookup. The programs read
//! kernel structures at offsets that the caller finds in the kernel's BTF.

mod layout;
mod local;
mod lookup;
mod program;
#[cfg(test)]
mod tests;

pub use self::layout::{CHANGES, FAILURES, Offsets, Owner, STATE_BYTES};
pub use self::local::Casts;
pub use self::lookup::{Lookup, Selection};
pub(crate) use self::lookup::{STACK_BYTES, find};
pub use self::program::{FILES_FUNCTION, Use, files_program, use_program};

/// Descriptors of the maps that the programs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maps {
    /// Storage of sockets with values of [`Owner::BYTES`].
    pub storage_fd: i32,
    /// Hash of owners by process identifier.
    pub owners_fd: i32,
    /// Array of one value of [`STATE_BYTES`].
    pub state_fd: i32,
}
