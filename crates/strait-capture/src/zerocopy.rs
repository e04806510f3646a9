//! Binding of `PF_ZEROCOPY` sockets, for captures and for senders.

use rustix::io::Errno;
use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;
use strait_sys::pf_zerocopy::Socket;

use crate::error::Error;

/// The module's driver, and the way to bind a NIC to it.
const DRIVER: &str = "pf_zerocopy";
const BIND_REMEDY: &str =
    "bind its NIC to the driver pf_zerocopy (driver_override): see docs/internals/pf-zerocopy.md";

/// Binds `socket` to `interface`.
///
/// # Errors
/// Those of [`Socket::bind`]. The remedy names the cause of EOPNOTSUPP.
pub(crate) fn bind(socket: &Socket, interface: &Interface) -> Result<(), Error> {
    Ok(socket.bind(interface.index).map_err(|error| {
        let is_unsupported = error.is_one_of(&[Errno::OPNOTSUPP]);
        if is_unsupported { error.remedy(explain_unsupported(&interface.name)) } else { error }
    })?)
}

/// Determines which of the two causes of EOPNOTSUPP made [`Socket::bind`] fail.
fn explain_unsupported(interface: &str) -> String {
    match Ethtool::open(interface).and_then(|ethtool| ethtool.driver()) {
        Ok(driver) if driver.name == DRIVER => {
            "the NIC's DMA goes through bounce buffers (swiotlb), which is a copy: boot without swiotlb=force, \
             or with an IOMMU"
                .into()
        }
        Ok(driver) => format!("the driver {} has the interface: {BIND_REMEDY}", driver.name),
        Err(_) => BIND_REMEDY.into(),
    }
}
