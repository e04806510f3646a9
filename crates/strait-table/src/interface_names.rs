//! Names of the interfaces in the numbers of packets.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use strait_packet::summary::link_type;

use crate::packets::InterfaceNames;

/// Returns the function for packets of a file, whose interfaces belong to another machine.
pub fn no_names() -> InterfaceNames {
    Arc::new(|_| None)
}

/// Returns the function for a capture on `interface`, with packets of this link type
/// (`LINKTYPE_*`). A capture on all interfaces looks up each number.
pub fn interface_names(interface: &str, link_type: u32) -> InterfaceNames {
    if link_type == u32::from(link_type::LINUX_SLL2) {
        return Arc::new(|index| {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
            netdevice::index_to_name(&socket, index).ok()
        });
    }
    let name = interface.to_owned();
    Arc::new(move |_| Some(name.clone()))
}

/// Returns the function for a capture on several interfaces with these numbers and names.
pub fn listed_names(interfaces: Vec<(u32, String)>) -> InterfaceNames {
    Arc::new(move |index| {
        let found = interfaces.iter().find(|(number, _)| *number == index);
        found.map(|(_, name)| name.clone())
    })
}

/// Returns the function that looks up each number with `socket`, any socket of the network
/// namespace of the interfaces.
pub fn looked_up_names(socket: Arc<OwnedFd>) -> InterfaceNames {
    Arc::new(move |index| netdevice::index_to_name(&*socket, index).ok())
}
