//! The broker's network namespace, whose packets its callers may capture.

use std::cell::OnceCell;
use std::os::fd::AsFd as _;

use rustix::net::{AddressFamily, SocketType, socket};
use strait_filter::tap::Confinement;
use strait_sys::Kind;
use strait_sys::bpf::btf::Types;
use strait_sys::socket::namespace_cookie;

use crate::error::Error;
use crate::paths::tap::broker::unmade;

/// Network namespace.
pub(super) struct Namespace {
    /// Number of the namespace.
    pub(super) cookie: u64,
    confinement: OnceCell<Confinement>,
}

impl Namespace {
    /// Returns the namespace of this thread.
    pub(super) fn own() -> Result<Self, Error> {
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None).map_err(unmade)?;
        Ok(Self::with(namespace_cookie(socket.as_fd())?))
    }

    pub(super) fn with(cookie: u64) -> Self {
        Self { cookie, confinement: OnceCell::new() }
    }

    /// Returns the check by which a program copies no packet of another namespace. Reads the types
    /// of the kernel once.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the kernel was built without them.
    pub(super) fn confinement(&self) -> Result<Confinement, Error> {
        if let Some(confinement) = self.confinement.get() {
            return Ok(*confinement);
        }
        let types = Types::of_kernel()?;
        let [to_sk_buff] = types.functions([Confinement::FUNCTION])?;
        let to_sk_buff = to_sk_buff.ok_or_else(|| missing(Confinement::FUNCTION))?;
        let mut offsets = [0; 3];
        let found = types.members(Confinement::MEMBERS)?;
        for ((offset, found), (structure, member)) in offsets.iter_mut().zip(found).zip(Confinement::MEMBERS)
        {
            let found = found.and_then(|found| i16::try_from(found).ok());
            *offset = found.ok_or_else(|| missing(format!("{structure}.{member}")))?;
        }
        Ok(*self.confinement.get_or_init(|| Confinement { cookie: self.cookie, to_sk_buff, offsets }))
    }
}

fn missing(name: impl Into<String>) -> strait_sys::Error {
    strait_sys::Error::new(Kind::Refused, "find in the kernel's BTF", name, "this kernel has none")
        .remedy("use another path than tap")
}
