//! Fuzzes readers of netlink answers: no datagram makes one panic, and a datagram that is cut
//! inside its first header is an error.
//!
//! Input: a byte that selects raw bytes (most are refused) or a body that gets a valid header; a
//! byte for the kind of that header; the rest is the datagram or the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_os::netlink::parse;

/// Kinds of messages that the readers distinguish: RTM_NEWLINK, RTM_DELLINK, RTM_NEWROUTE,
/// RTM_NEWSTATS, SOCK_DIAG_BY_FAMILY, a generic family's id, NLMSG_ERROR, NLMSG_DONE.
const KINDS: [u16; 8] = [16, 17, 24, 92, 20, 28, 2, 3];
/// `NLM_F_ACK_TLVS`: attributes follow an error.
const WITH_ATTRIBUTES: u16 = 0x200;
/// `sizeof(struct nlmsghdr)`.
const HEADER_BYTES: usize = 16;

fuzz_target!(|data: &[u8]| {
    let [choice, kind, rest @ ..] = data else { return };
    if choice & 1 == 0 {
        return read(rest);
    }
    let kind = KINDS[usize::from(*kind) % KINDS.len()];
    let mut datagram = Vec::with_capacity(HEADER_BYTES + rest.len());
    datagram.extend(((HEADER_BYTES + rest.len()) as u32).to_ne_bytes());
    datagram.extend(kind.to_ne_bytes());
    datagram.extend(WITH_ATTRIBUTES.to_ne_bytes());
    datagram.extend([0; 8]);
    datagram.extend(rest);
    read(&datagram);
    assert!(parse::interface(&datagram[..HEADER_BYTES - 1]).is_err());
});

/// Calls every reader.
fn read(datagram: &[u8]) {
    if let Ok(interface) = parse::interface(datagram) {
        assert!(interface.name.len() <= 3 * datagram.len() && !interface.name.contains('\0'));
    }
    let _ = (parse::link(datagram), parse::stats(datagram), parse::xdp(datagram), parse::route(datagram));
    let _ = (parse::family(datagram), parse::xdp_abilities(datagram), parse::link_event(datagram));
    if let Ok(sockets) = parse::packet_sockets(datagram) {
        assert!(sockets.len() <= datagram.len() / HEADER_BYTES);
    }
}
