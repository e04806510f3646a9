//! First header of a packet socket's packets, and the kernel's program for a filter that was
//! compiled for this header.

use std::fmt::Display;

use strait_filter::cbpf::{Program, opcode as op};
use strait_os::interface::Interface;
use strait_sys::packet::{Cooked, Socket};

use crate::directions::Directions;
use crate::error::Error;
use crate::userspace_filter::UserspaceFilter;

/// Name of all interfaces together, as in libpcap.
pub(crate) const ANY: &str = "any";

/// Returns the interface of this name, or all of them.
pub(crate) fn find(name: &str) -> Result<Interface, Error> {
    Ok(if name == ANY { Interface::any() } else { Interface::find(name)? })
}

/// Returns true if both names refer to the same interface, which may have alternative names
/// (ip-link(8), altname), or if one name means all interfaces.
pub fn is_shared(one: &str, two: &str) -> bool {
    let index = |name| Interface::find(name).map(|found| found.index).ok();
    one == two || [one, two].contains(&ANY) || index(one).is_some_and(|found| index(two) == Some(found))
}

/// Makes `interface` promiscuous until the returned socket closes. The socket receives nothing.
pub(crate) fn promiscuous(interface: &Interface) -> Result<Socket, Error> {
    let socket = Socket::open(&interface.name)?;
    socket.set_promiscuous(interface.index)?;
    Ok(socket)
}

/// Interfaces of a capture, and the link header of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// One interface with its own header, by pcap's `LINKTYPE_*`.
    Own(u32),
    /// All interfaces, with one cooked header for all link types.
    Cooked {
        header: Cooked,
        /// Index of the loopback interface. It receives each frame that it sends, so only one of
        /// the two copies is captured.
        loopback: u32,
    },
}

/// Filter, divided between the kernel and this process.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// Program for the kernel. It does not cut frames if the userspace filter needs them whole.
    pub(crate) kernels: Program,
    /// Filter that runs in this process.
    pub(crate) userspace: Option<UserspaceFilter>,
    /// Reason for the filter in this process, for the user.
    pub(crate) userspace_reason: Option<String>,
}

impl Link {
    /// Returns the link of `interface`; index 0 means all interfaces.
    pub(crate) fn of(interface: &Interface) -> Result<Self, Error> {
        if interface.index == 0 {
            // Without a loopback interface of this name both copies of its frames are captured.
            let loopback = Interface::find("lo").map_or(0, |lo| lo.index);
            return Ok(Self::Cooked { header: Cooked::Sll2, loopback });
        }
        let Interface { name, hardware_type, .. } = interface;
        interface.link_type().map(Self::Own).ok_or_else(|| {
            Error::Usage(format!(
                "{name}: neither Ethernet nor plain IP (ARPHRD type {hardware_type}): capture on {ANY}"
            ))
        })
    }

    /// Returns pcap's `LINKTYPE_*`.
    pub(crate) fn link_type(self) -> u32 {
        match self {
            Self::Own(link_type) => link_type,
            Self::Cooked { header, .. } => header.link_type(),
        }
    }

    pub(crate) fn cooked(self) -> Option<Cooked> {
        match self {
            Self::Own(_) => None,
            Self::Cooked { header, .. } => Some(header),
        }
    }

    /// Divides `program` between the kernel and this process.
    pub(crate) fn split(self, program: &Program, directions: Directions) -> Result<Split, Error> {
        let kernels = match self.cooked() {
            None => Some(program.clone()),
            Some(header) => program.without_header(header.header_bytes() as u32, loadable_fields(header)),
        };
        let Some(kernels) = kernels else {
            return self.split_to_userspace(
                program,
                directions,
                &"it reads bytes of the cooked header, which the kernel does not have",
            );
        };
        let kernels = self.directed(&kernels, directions)?;
        match kernels.refusal() {
            None => Ok(Split { kernels, userspace: None, userspace_reason: None }),
            Some(refusal) => self.split_to_userspace(program, directions, refusal),
        }
    }

    /// Like [`Self::split`], but the whole program runs in this process. `reason` is shown to the
    /// user.
    pub(crate) fn split_to_userspace(
        self,
        program: &Program,
        directions: Directions,
        reason: &dyn Display,
    ) -> Result<Split, Error> {
        let userspace = match self {
            Self::Own(link_type) => UserspaceFilter::own(program.clone(), link_type),
            Self::Cooked { header, .. } => UserspaceFilter::cooked(program.clone(), header),
        };
        let kernels = self.directed(&Program::accept_all(0), directions)?;
        Ok(Split { kernels, userspace: Some(userspace), userspace_reason: Some(reason.to_string()) })
    }

    /// Returns the program limited to frames of these directions, without the duplicates of the
    /// loopback interface.
    fn directed(self, program: &Program, directions: Directions) -> Result<Program, Error> {
        let program = match (self, directions) {
            (_, Directions::Out) => program.only_pkttype_outgoing(),
            (Self::Cooked { loopback, .. }, Directions::Both) if loopback != 0 => {
                program.without_pkttype_outgoing_on(loopback)
            }
            (_, Directions::In | Directions::Both) => Ok(program.clone()),
        };
        program.map_err(|error| Error::Filter(error.to_string()))
    }
}

/// Fields of a cooked header that the kernel can load: offset, size and `SKF_AD_*`.
fn loadable_fields(header: Cooked) -> &'static [(u32, u16, u32)] {
    match header {
        Cooked::Sll => &[(0, op::H, op::SKF_AD_PKTTYPE), (14, op::H, op::SKF_AD_PROTOCOL)],
        Cooked::Sll2 => &[
            (0, op::H, op::SKF_AD_PROTOCOL),
            (4, op::W, op::SKF_AD_IFINDEX),
            (8, op::H, op::SKF_AD_HATYPE),
            (10, op::B, op::SKF_AD_PKTTYPE),
        ],
    }
}

#[cfg(test)]
mod tests {
    use strait_packet::summary::link_type as packet;
    use strait_pcapng::LinkType as File;
    use strait_sys::link_type as kernel;

    #[test]
    fn link_types_have_one_number_each() {
        for (packet, file, kernel) in [
            (packet::NULL, File::NULL, None),
            (packet::ETHERNET, File::ETHERNET, Some(kernel::ETHERNET)),
            (packet::RAW, File::RAW, Some(kernel::RAW)),
            (packet::LINUX_SLL, File::LINUX_SLL, Some(kernel::LINUX_SLL)),
            (packet::LINUX_SLL2, File::LINUX_SLL2, Some(kernel::LINUX_SLL2)),
        ] {
            assert_eq!(packet, file.0);
            assert!(kernel.is_none_or(|kernel| kernel == u32::from(packet)), "{packet}");
        }
    }
}
