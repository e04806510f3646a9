//! Interface and direction of each packet in a capture on several interfaces, in tcpdump's format.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::netdevice;
use strait_capture::{Direction, Frame};
use strait_packet::summary::link_type;
use strait_program::output::printable;

use super::source::Input;

/// Maximum number of cached names. Further interfaces are looked up for each packet.
const NAMES_MAX: usize = 1024;

/// Source of the names of interfaces.
pub(super) enum Origin {
    /// All interfaces: the header of a packet has the number of its interface.
    All {
        /// Cached names.
        names: HashMap<u32, String>,
        /// Socket for the lookup; none for a file, where a number belongs to another machine.
        socket: Option<Arc<OwnedFd>>,
    },
    /// Several inputs, and the position of that of the current batch.
    Listed { names: Vec<String>, current: usize },
}

impl Origin {
    /// Creates it if packets can be of several interfaces.
    pub(super) fn of(inputs: &[Input], socket: Option<Arc<OwnedFd>>) -> Option<Self> {
        match inputs {
            [input] if input.link_type == u32::from(link_type::LINUX_SLL2) => {
                Some(Self::All { names: HashMap::new(), socket })
            }
            [] | [_] => None,
            _ => {
                let names = inputs.iter().map(|input| printable(&input.name)).collect();
                Some(Self::Listed { names, current: 0 })
            }
        }
    }

    /// Selects the interface of the next packets.
    pub(super) fn begin_batch(&mut self, input: usize) {
        if let Self::Listed { current, .. } = self {
            *current = input;
        }
    }

    /// Writes interface and direction of `frame`: `eth0  In  `.
    pub(super) fn write(&mut self, line: &mut String, frame: &Frame<'_>) {
        match self {
            Self::All { names, socket } => write_cooked(line, frame, names, socket.as_deref()),
            Self::Listed { names, current } => {
                let direction = match frame.direction {
                    Direction::In => "In",
                    Direction::Out => "Out",
                    Direction::Unknown => "?",
                };
                write_origin(line, names.get(*current).map_or("?", String::as_str), direction);
            }
        }
    }
}

fn write_origin(line: &mut String, name: &str, direction: &str) {
    // Writing to a String cannot fail.
    let _ = write!(line, "{name:<5} {direction:<3} ");
}

/// Writes the origin in the cooked header of a packet.
fn write_cooked(
    line: &mut String,
    frame: &Frame<'_>,
    names: &mut HashMap<u32, String>,
    socket: Option<&OwnedFd>,
) {
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
    match (names.get(&index), socket) {
        (Some(name), _) => write_origin(line, name, direction),
        (None, None) => write_origin(line, &format!("if{index}"), direction),
        (None, Some(socket)) => {
            let name = netdevice::index_to_name(socket, index).unwrap_or_else(|_| format!("if{index}"));
            // Another namespace may have given it any bytes.
            let name = printable(&name);
            write_origin(line, &name, direction);
            if names.len() < NAMES_MAX {
                names.insert(index, name);
            }
        }
    }
}
