//! Virtual machines: other kernels and emulated NICs with real drivers, for tests that loopback and
//! veth do not cover.
//!
//! A [`Guest`] boots a kernel fetched by `scripts/setup-vm`, in QEMU without KVM, from an initramfs
//! of busybox, the programs under test and a shell script; a [`Run`] holds the script's output and
//! exit code. Its NICs are on hubs inside QEMU, so its frames reach no interface of the host. A
//! guest that hangs is killed at its time limit. Integration tests use it, and leave nothing
//! behind.

mod guest;
mod initramfs;
mod kernel;
mod meter;
mod nic;
mod parts;

pub use guest::{Guest, Run};
pub use kernel::Kernel;
pub use meter::Mark;
pub use nic::Nic;
pub use parts::{part, vm_or_skip};
