//! What a packet socket's packets begin with, and the program that the kernel runs so that the
//! filter sees just that.

use std::fmt::Display;

use strait_filter::cbpf::{Program, opcode as op};
use strait_sys::interface::Interface;
use strait_sys::packet::{Cooked, Socket};

use crate::directions::Directions;
use crate::error::Error;
use crate::userspace_filter::UserspaceFilter;

/// The name that stands for all interfaces at once, as in libpcap.
pub(crate) const ANY: &str = "any";

/// The interface of that name, or all of them.
pub(crate) fn find(name: &str) -> Result<Interface, Error> {
    Ok(if name == ANY { Interface::any() } else { Interface::find(name)? })
}

/// Returns true if both names are of one interface, which may have several (ip-link(8), altname),
/// or one stands for all.
pub fn is_shared(one: &str, two: &str) -> bool {
    let index = |name| Interface::find(name).map(|found| found.index).ok();
    one == two || [one, two].contains(&ANY) || index(one).is_some_and(|found| index(two) == Some(found))
}

/// Keeps `interface` promiscuous until the socket closes, which receives nothing.
pub(crate) fn promiscuous(interface: &Interface) -> Result<Socket, Error> {
    let socket = Socket::open(&interface.name)?;
    socket.set_promiscuous(interface.index)?;
    Ok(socket)
}

/// Where packets come from and what they begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// One interface, its own header: the `LINKTYPE_*` of pcap.
    Own(u32),
    /// All interfaces, one header for all kinds of link.
    Cooked {
        header: Cooked,
        /// The index of the loopback interface: what goes out there comes in again, and is wanted
        /// once.
        loopback: u32,
    },
}

/// A filter, divided between the kernel and this process.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// The program for the kernel; it keeps frames whole if the userspace filter is to see them.
    pub(crate) kernels: Program,
    /// The filter where it runs in this process.
    pub(crate) userspace: Option<UserspaceFilter>,
    /// Why it does.
    pub(crate) why_here: Option<String>,
}

impl Link {
    /// Of `interface`, whose index 0 stands for all.
    pub(crate) fn of(interface: &Interface) -> Result<Self, Error> {
        if interface.index == 0 {
            // A namespace whose loopback was renamed: the frames that it receives are as good as any.
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

    /// As a `LINKTYPE_*` of pcap.
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
            Some(header) => program.without_header(header.header_bytes() as u32, facts(header)),
        };
        let Some(kernels) = kernels else {
            return self.split_here(program, directions, &"it asks for bytes of the cooked header");
        };
        let kernels = self.directed(&kernels, directions)?;
        match kernels.refusal() {
            None => Ok(Split { kernels, userspace: None, why_here: None }),
            Some(refusal) => self.split_here(program, directions, refusal),
        }
    }

    /// Like [`Self::split`], but all of the program runs in this process; `why` is for the user.
    pub(crate) fn split_here(
        self,
        program: &Program,
        directions: Directions,
        why: &dyn Display,
    ) -> Result<Split, Error> {
        let userspace = match self {
            Self::Own(link_type) => UserspaceFilter::own(program.clone(), link_type),
            Self::Cooked { header, .. } => UserspaceFilter::cooked(program.clone(), header),
        };
        let kernels = self.directed(&Program::accept_all(0), directions)?;
        Ok(Split { kernels, userspace: Some(userspace), why_here: Some(why.to_string()) })
    }

    /// The program for frames of these directions, and each frame once.
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

/// What the kernel knows of a cooked header, field by field: offset, size and `SKF_AD_*`.
fn facts(header: Cooked) -> &'static [(u32, u16, u32)] {
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
