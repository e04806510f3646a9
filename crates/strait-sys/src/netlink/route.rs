//! The answer to `RTM_GETROUTE`: by which interface packets to an address leave.
//!
//! `egress.rs` asks it of an address that is sent to. Layout: `struct rtmsg` of linux/rtnetlink.h.

use super::message::{Attributes, Message, malformed};
use crate::error::Result;

/// `struct rtmsg`.
pub(super) const HEADER_LEN: usize = 12;
/// Where its `rtm_type` is.
const TYPE_AT: usize = 7;

/// Where packets to an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface by which they leave.
    pub index: u32,
    /// Whether the address is this machine's own (`RTN_LOCAL`).
    pub is_local: bool,
}

pub(super) fn parse(message: Message<'_>) -> Result<Route> {
    let (header, attributes) =
        message.body.split_at_checked(HEADER_LEN).ok_or_else(|| malformed("a route is cut short"))?;
    let index = Attributes(attributes).find_u32(libc::RTA_OIF)?;
    let index = index.ok_or_else(|| malformed("a route without an interface"))?;
    Ok(Route { index, is_local: header[TYPE_AT] == libc::RTN_LOCAL })
}
