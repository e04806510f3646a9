//! What a packet socket's packets begin with, and the program that the kernel runs so that the filter sees just that.

use strait_filter::cbpf::{Program, opcode as op};
use strait_sys::interface::Interface;
use strait_sys::packet::{Cooked, Socket};

use crate::error::Error;
use crate::session::Directions;
use crate::sieve::Sieve;

/// The name that stands for all interfaces at once, as in libpcap.
pub(crate) const ANY: &str = "any";

/// The interface of that name, or all of them.
pub(crate) fn find(name: &str) -> Result<Interface, Error> {
    Ok(if name == ANY { Interface::any() } else { Interface::find(name)? })
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
        /// The index of the loopback interface: what goes out there comes in again, and is wanted once.
        loopback: u32,
    },
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

    /// What the kernel is to run for `program`, and what is to run here where it cannot.
    pub(crate) fn split(
        self,
        program: &Program,
        directions: Directions,
    ) -> Result<(Program, Option<Sieve>), Error> {
        let kernels = match self.cooked() {
            None => Some(program.clone()),
            Some(header) => program.without_header(header.header_bytes() as u32, facts(header)),
        };
        match kernels {
            Some(kernels) => Ok((self.directed(&kernels, directions)?, None)),
            None => self.split_here(program, directions),
        }
    }

    /// The same, but that all of the program runs here.
    pub(crate) fn split_here(
        self,
        program: &Program,
        directions: Directions,
    ) -> Result<(Program, Option<Sieve>), Error> {
        let sieve = match self {
            Self::Own(link_type) => Sieve::own(program.clone(), link_type),
            Self::Cooked { header, .. } => Sieve::cooked(program.clone(), header),
        };
        Ok((self.directed(&Program::accept_all(0), directions)?, Some(sieve)))
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
