//! Virtual machines: other kernels and real NIC drivers, emulated, for what loopback and veth cannot show.
//!
//! A [`Guest`] boots one of the kernels that `scripts/setup-vm` fetched, in QEMU without KVM, from an initramfs of
//! busybox, the programs under test and a shell script; what the script says and its exit code come back as a
//! [`Run`]. Its NICs sit on hubs inside QEMU, so its frames reach no interface of the host. A guest that hangs is
//! killed at its deadline. Integration tests use it; nothing of it is left behind.

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
pub use parts::vm_or_skip;
