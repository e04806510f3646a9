//! Reply to `RTM_GETROUTE`: the interface through which packets to an address leave.
//!
//! `egress.rs` requests it for a destination. Layout: `struct rtmsg` of linux/rtnetlink.h.

use super::message::{Attributes, Message, malformed};
use crate::Result;

/// `struct rtmsg`.
pub(super) const HEADER_LEN: usize = 12;
/// Offset of `rtm_type`.
const TYPE_OFFSET: usize = 7;

/// Route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the egress interface.
    pub index: u32,
    /// True if the address belongs to this machine (`RTN_LOCAL`).
    pub is_local: bool,
}

pub(super) fn parse(message: Message<'_>) -> Result<Route> {
    let (header, attributes) =
        message.body.split_at_checked(HEADER_LEN).ok_or_else(|| malformed("a truncated route"))?;
    let index = Attributes(attributes).find_u32(libc::RTA_OIF)?;
    let index = index.ok_or_else(|| malformed("a route without an interface"))?;
    Ok(Route { index, is_local: header[TYPE_OFFSET] == libc::RTN_LOCAL })
}
