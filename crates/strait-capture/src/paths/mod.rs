//! The capture paths: a folder for each.

pub(crate) mod file;
pub(crate) mod packet;
pub(crate) mod path;
pub(crate) mod xdp;
pub(crate) mod zerocopy;
