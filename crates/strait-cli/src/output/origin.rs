//! Interface and direction of each packet in a capture on all interfaces, in tcpdump's format.

use std::collections::HashMap;
use std::fmt::Write;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use strait_capture::Frame;
use strait_packet::summary::link_type;

/// Maximum number of cached names. Further interfaces are looked up for each packet.
const NAMES_MAX: usize = 1024;

/// Cached names of interfaces.
pub(super) struct Origin {
    names: HashMap<u32, String>,
}

impl Origin {
    /// Creates it if the header of this link type names an interface.
    pub(super) fn of(link_type: u32) -> Option<Self> {
        (link_type == u32::from(link_type::LINUX_SLL2)).then(|| Self { names: HashMap::new() })
    }

    /// Writes interface and direction of `frame`: `eth0  In  `.
    pub(super) fn write(&mut self, line: &mut String, frame: &Frame<'_>) {
        let (Some(index), Some(kind)) = (frame.bytes.get(4..8), frame.bytes.get(10)) else { return };
        let index = u32::from_be_bytes(index.try_into().expect("four bytes"));
        let direction = match kind {
            0 => "In",
            1 => "B",
            2 => "M",
            3 => "P",
            4 => "Out",
            _ => "?",
        };
        let name = match self.names.get(&index) {
            Some(name) => name.clone(),
            // In a file the index belongs to another machine.
            None if index != frame.interface => format!("if{index}"),
            None => self.look_up(index),
        };
        // Writing to a String cannot fail.
        let _ = write!(line, "{name:<5} {direction:<3} ");
    }

    fn look_up(&mut self, index: u32) -> String {
        let name = socket(AddressFamily::INET, SocketType::DGRAM, None)
            .and_then(|socket| netdevice::index_to_name(&socket, index))
            .unwrap_or_else(|_| format!("if{index}"));
        if self.names.len() < NAMES_MAX {
            self.names.insert(index, name.clone());
        }
        name
    }
}
