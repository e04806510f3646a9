//! Finding on the route to an address: if the kernel copies sends, and why.
//!
//! It is the last of the findings for sends. It sends one datagram, to the loopback unless `--to`
//! names an address.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use rustix::io::Errno;
use strait_os::egress::Egress;
use strait_os::interface::Interface;
use strait_os::{Error, Result};
use strait_transfer::probe::{self, Sent};

use super::device::Device;
use super::finding::Recorder;

const SUBJECT: &str = "route";
/// The discard port (RFC 863).
const DISCARD: u16 = 9;

/// An address with its scope, which is the interface of a link-local address (RFC 4007 s11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    address: IpAddr,
    /// Name or index of an interface.
    scope: Option<String>,
}

impl Address {
    const LOOPBACK: Self = Self { address: IpAddr::V4(Ipv4Addr::LOCALHOST), scope: None };

    fn socket(&self) -> Result<SocketAddr> {
        let (IpAddr::V6(address), Some(scope)) = (self.address, &self.scope) else {
            return Ok(SocketAddr::new(self.address, DISCARD));
        };
        let index = scope.parse().or_else(|_| Interface::find(scope).map(|interface| interface.index))?;
        Ok(SocketAddrV6::new(address, DISCARD, 0, index).into())
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, scope) =
            text.split_once('%').map_or((text, None), |(address, scope)| (address, Some(scope)));
        let address = address.parse().map_err(|_| format!("'{address}' is not an IP address"))?;
        let is_link_local = matches!(address, IpAddr::V6(v6) if Ipv6Addr::is_unicast_link_local(&v6));
        match scope {
            None if is_link_local => Err(format!("a link-local address needs its interface: {address}%IF")),
            Some("") => Err(format!("no interface after the %: {address}%IF")),
            Some(_) if address.is_ipv4() => Err("only IPv6 addresses have an interface".into()),
            scope => Ok(Self { address, scope: scope.map(str::to_owned) }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.scope.as_ref().map_or(Ok(()), |scope| write!(f, "%{scope}"))
    }
}

/// Sends a datagram to `to` or the loopback and reports on the route.
///
/// # Errors
/// The interface in the address does not exist (a usage error).
pub(super) fn examine(to: Option<&Address>, recorder: &mut Recorder<'_>) -> Result<()> {
    let address = to.unwrap_or(&Address::LOOPBACK);
    let socket = address.socket()?;
    match (probe::route(socket), to) {
        (Ok(Sent::WithoutCopy), _) => {
            recorder.ok(SUBJECT, format!("a send to {address} goes without a copy"));
        }
        (Ok(Sent::Copied), None) => {
            recorder
                .ok(SUBJECT, "MSG_ZEROCOPY works; the loopback always copies; --to ADDRESS tests a route");
        }
        (Ok(Sent::Copied), Some(_)) => match route(socket) {
            Ok(route) => report_copy(address, &route, recorder),
            Err(error) => {
                let message =
                    format!("a send to {address} is copied; the reason is unknown: {}", error.failure());
                recorder.better(SUBJECT, message, "");
            }
        },
        (Err(error), Some(_)) if is_unreachable(&error) => {
            recorder.broken(SUBJECT, error.failure(), format!("ip route get {}", address.address));
        }
        (Err(error), _) => recorder.unknown(SUBJECT, &error),
    }
    Ok(())
}

/// Disabled offload.
struct DisabledOffload {
    /// Its name in ethtool(8).
    key: &'static str,
    /// True if the driver cannot enable it.
    is_fixed: bool,
}

/// Properties of a route that make the kernel copy a send.
struct Route {
    /// The outgoing interface.
    name: String,
    device: Device,
    /// True if the destination is an address of this machine.
    is_local: bool,
    /// Disabled offloads that a send without a copy needs.
    off: Vec<DisabledOffload>,
    /// Number of packet sockets that get each sent packet.
    captures: usize,
}

fn route(to: SocketAddr) -> Result<Route> {
    let egress = Egress::find(None, to)?;
    let off = egress.missing()?.into_iter().map(|offload| {
        let is_fixed = egress.ethtool.is_fixed(offload)?;
        Ok(DisabledOffload { key: offload.key(), is_fixed })
    });
    let off = off.collect::<Result<_>>()?;
    let Egress { interface, ethtool, is_local } = egress;
    let sockets = fs::read_to_string("/proc/net/packet").unwrap_or_default();
    Ok(Route {
        device: Device::of(&interface, &ethtool),
        captures: captures(&sockets, interface.index),
        name: interface.name,
        is_local,
        off,
    })
}

fn report_copy(address: &Address, route: &Route, recorder: &mut Recorder<'_>) {
    let Route { name, device, is_local, off, captures } = route;
    let message = format!("a send to {address} leaves by {name} and is copied");
    if *is_local || device.always_copies() {
        recorder.ok(SUBJECT, format!("{message}, as is all traffic that stays on this machine"));
    } else if !off.is_empty() {
        recorder.better(
            SUBJECT,
            format!("{message}: {}", describe_disabled(name, off)),
            enable_command(name, off),
        );
    } else if *captures > 0 {
        let message = format!(
            "{message}: a running capture also gets the packet ({captures} packet sockets on {name})"
        );
        recorder.better(SUBJECT, message, "end the capture (ss -0 -p lists it)");
    } else if device.is_virtual() {
        recorder.better(
            SUBJECT,
            format!("{message}: sg and tx are on, but a lower device may lack them"),
            "",
        );
    } else {
        recorder.better(SUBJECT, format!("{message} although sg and tx are on"), "");
    }
}

/// Lists the disabled offloads, and those that cannot be enabled.
fn describe_disabled(name: &str, off: &[DisabledOffload]) -> String {
    let keys: Vec<_> = off.iter().map(|off| off.key).collect();
    let fixed: Vec<_> = off.iter().filter(|off| off.is_fixed).map(|off| off.key).collect();
    let message = format!("{} off at {name}", keys.join(" and "));
    if fixed.is_empty() {
        message
    } else {
        format!("{message}; its driver has no {}", fixed.join(" and no "))
    }
}

/// Returns the command that enables the offloads, or nothing if one of them cannot be enabled: the
/// others would not help.
fn enable_command(name: &str, off: &[DisabledOffload]) -> String {
    if off.iter().any(|off| off.is_fixed) {
        return String::new();
    }
    let keys: Vec<_> = off.iter().map(|off| off.key).collect();
    format!("ethtool -K {name} {} on", keys.join(" on "))
}

/// Counts the packet sockets that see all packets sent by interface `index`, in the text of
/// /proc/net/packet (`packet_seq_show` in net/packet/af_packet.c).
fn captures(sockets: &str, index: u32) -> usize {
    const ETH_P_ALL: &str = "0003";
    let (all, this) = ("0", index.to_string());
    let sees = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (protocol, interface) = (fields.next(), fields.next());
        protocol == Some(ETH_P_ALL) && interface.is_some_and(|index| index == all || index == this)
    };
    sockets.lines().filter(sees).count()
}

fn is_unreachable(error: &Error) -> bool {
    let errno = error.errno().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::super::args::Area;
    use super::super::finding::{Finding, State};
    use super::*;

    fn judged(device: Device, is_local: bool, off: Vec<&'static str>, captures: usize) -> Finding {
        let off = off.into_iter().map(|key| DisabledOffload { key, is_fixed: false }).collect();
        judged_with(device, is_local, off, captures)
    }

    fn judged_with(device: Device, is_local: bool, off: Vec<DisabledOffload>, captures: usize) -> Finding {
        let mut findings = Vec::new();
        let route = Route { name: "a".into(), device, is_local, off, captures };
        report_copy(&"192.0.2.7".parse().unwrap(), &route, &mut Recorder::new(Area::Send, &mut findings));
        findings.remove(0)
    }

    #[test]
    fn command_is_given_only_for_disabled_offloads() {
        let nic = judged(Device::Nic, false, vec!["sg", "tx"], 1);
        assert_eq!((nic.state, nic.fix.as_deref()), (State::Better, Some("ethtool -K a sg on tx on")));
        assert_eq!(judged(Device::Nic, false, vec!["tx"], 0).fix.as_deref(), Some("ethtool -K a tx on"));
        let fixed = |is_fixed| {
            vec![DisabledOffload { key: "sg", is_fixed: true }, DisabledOffload { key: "tx", is_fixed }]
        };
        for (is_fixed, lacks) in [(true, "no sg and no tx"), (false, "no sg")] {
            let without = judged_with(Device::Nic, false, fixed(is_fixed), 0);
            let message = format!("sg and tx off at a; its driver has {lacks}");
            assert!(without.message.ends_with(&message) && without.fix.is_none(), "{without:?}");
        }
        let captured = judged(Device::Nic, false, vec![], 2);
        assert!(captured.message.contains("a running capture") && captured.fix.unwrap().contains("ss -0"));
        assert_eq!(judged(Device::Nic, false, vec![], 0).fix, None);
        for local in [judged(Device::Veth, false, vec!["sg"], 1), judged(Device::Nic, true, vec![], 1)] {
            assert!(
                local.state == State::Ok
                    && local.fix.is_none()
                    && local.message.contains("stays on this machine")
            );
        }
    }

    #[test]
    fn captures_are_sockets_for_all_protocols_on_the_interface_or_on_all_interfaces() {
        let sockets = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            0000000000000000 3      3    0003   2     1 0      0      31\n\
            0000000000000000 3      3    0003   0     1 0      0      32\n\
            0000000000000000 3      2    88cc   2     1 0      0      33\n\
            0000000000000000 3      3    0000   2     1 0      0      34\n";
        assert_eq!((captures(sockets, 2), captures(sockets, 3)), (2, 1));
        assert_eq!(captures("", 2), 0);
    }

    #[test]
    fn link_local_address_needs_its_interface() {
        let refused = |text: &str| text.parse::<Address>().unwrap_err();
        assert_eq!(refused("fe80::1"), "a link-local address needs its interface: fe80::1%IF");
        assert!(refused("fe80::1%").contains("%IF") && refused("192.0.2.7%lo").contains("only IPv6"));
        assert!(refused("example").contains("is not an IP address"));
        let scoped: Address = "fe80::1%lo".parse().unwrap();
        assert_eq!(scoped.to_string(), "fe80::1%lo");
        assert!(matches!(scoped.socket().unwrap(), SocketAddr::V6(to) if to.scope_id() > 0));
        assert!("fe80::1%no-such-if0".parse::<Address>().unwrap().socket().is_err());
        assert_eq!("::1".parse::<Address>().unwrap().socket().unwrap(), "[::1]:9".parse().unwrap());
    }
}
