//! Binding of `PF_ZEROCOPY` sockets, for captures and for senders.

use rustix::io::Errno;
use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;
use strait_sys::pf_zerocopy::Socket;

use crate::error::Error;

/// The module's driver, and the way to bind a NIC to it.
const DRIVER: &str = "pf_zerocopy";
const BIND_REMEDY: &str =
    "bind its NIC to the driver pf_zerocopy (driver_override): see docs/guide/zerocopy.md";

/// Binds `socket` to the first queue of `interface` that has no socket.
///
/// # Errors
/// Those of [`bind`]; EBUSY if all queues have a socket.
pub(crate) fn bind_any(socket: &Socket, interface: &Interface) -> Result<(), Error> {
    let queues = interface.queues()?.tx;
    let mut bound = bind(socket, interface, 0);
    for queue in 1..queues {
        match bound {
            Err(error) if error.is_one_of(&[Errno::BUSY]) => bound = bind(socket, interface, queue),
            bound => return bound,
        }
    }
    bound
}

/// Binds `socket` to a queue of `interface`.
///
/// # Errors
/// Those of [`Socket::bind`]. The remedy names the cause of EOPNOTSUPP.
pub(crate) fn bind(socket: &Socket, interface: &Interface, queue: u32) -> Result<(), Error> {
    let queue =
        u16::try_from(queue).map_err(|_| Error::Usage(format!("queue {queue}: the number is too large")))?;
    Ok(socket.bind(interface.index, queue).map_err(|error| {
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
