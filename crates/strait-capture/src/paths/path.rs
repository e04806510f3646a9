//! The kernel packet paths by name: which interfaces, filters and directions each is for. Opening
//! them is the builder's.

use strait_filter::cbpf::Program;
use strait_sys::interface::Interface;

use crate::error::Error;
use crate::filter;
use crate::session::Directions;
use crate::session::builder::refuse_sent;

/// A kernel packet path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// The best packet-socket path: it never takes packets away from the host.
    #[default]
    Auto,
    /// `recvmmsg` on AF_PACKET.
    Recv,
    /// A TPACKET_V2 ring.
    V2,
    /// A TPACKET_V3 ring.
    V3,
    /// AF_XDP: zero-copy, else native copy, else generic. The host does not see what it captures.
    Xdp,
    /// AF_XDP with zero-copy or not at all.
    XdpZeroCopy,
    /// AF_XDP by the driver's own program, frames copied, or not at all.
    XdpNative,
    /// AF_XDP by the kernel's generic program, which every interface has.
    XdpGeneric,
    /// `PF_ZEROCOPY`: a NIC given to the module of that name. The host does not see it otherwise.
    ZeroCopy,
}

impl Path {
    /// Whether the path is for interfaces of this kind; whether the driver can do it shows when it
    /// is opened.
    pub fn suits(self, interface: &str) -> bool {
        let Ok(found) = Interface::find(interface) else { return false };
        match self {
            Self::Xdp | Self::XdpZeroCopy | Self::XdpNative | Self::XdpGeneric | Self::ZeroCopy => {
                found.is_ethernet()
            }
            Self::Auto | Self::Recv | Self::V2 | Self::V3 => found.link_type().is_some(),
        }
    }

    /// Returns true if the frames that it captures reach neither the host nor another capture.
    pub fn takes_frames(self) -> bool {
        self.is_xdp() || self == Self::ZeroCopy
    }

    fn is_xdp(self) -> bool {
        matches!(self, Self::Xdp | Self::XdpZeroCopy | Self::XdpNative | Self::XdpGeneric)
    }

    /// Refuses a filter that no session on this path takes, see [`Session::set_filter`].
    ///
    /// # Errors
    /// [`Error::Filter`]: AF_XDP cannot run it.
    pub fn check_filter(self, program: &Program) -> Result<(), Error> {
        if self.is_xdp() { filter::refuse_on_xdp(program) } else { Ok(()) }
    }

    /// Refuses directions that no session on this path captures, see [`Session::set_directions`].
    ///
    /// # Errors
    /// [`Error::Usage`]: the path sees received frames only.
    pub fn check_directions(self, directions: Directions) -> Result<(), Error> {
        match self {
            Self::ZeroCopy => refuse_sent("zerocopy", directions),
            _ if self.is_xdp() => refuse_sent("xdp", directions),
            _ => Ok(()),
        }
    }
}
