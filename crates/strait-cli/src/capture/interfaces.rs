//! The list of interfaces, their capture paths, and the default interface of a capture.
//!
//! `strait capture` and `strait top` call it. It opens no capture and changes no setting.

use serde::Serialize;
use strait_capture::{Path, probe};
use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;
use strait_os::netlink::{Netlink, xdp_abilities};

use crate::Error;
use crate::output::{print_line, print_text, printable};

/// Name for all interfaces.
pub(crate) const ANY: &str = "any";
/// Address for a lookup of the default route. It is for documentation (RFC 5737), and no packet is
/// sent to it.
const ROUTED: &str = "192.0.2.1:9";
/// IPv6 address for the same lookup (RFC 3849).
const ROUTED_V6: &str = "[2001:db8::1]:9";
/// Driver name of the kernel module.
const PF_ZEROCOPY: &str = "pf_zerocopy";

/// Interface of a capture, named by the user or selected.
pub(crate) struct ChosenInterface {
    pub(crate) name: String,
    /// Reason for the selection, if the user named no interface.
    pub(crate) reason: Option<&'static str>,
}

impl ChosenInterface {
    /// Returns the named interface, by its name or its number in the list of -D. Without a name,
    /// returns the interface of the default route, else the first with a carrier, else the first
    /// that is up, else the loopback.
    ///
    /// # Errors
    /// No interface is up.
    pub(crate) fn find(named: Option<&str>) -> Result<Self, Error> {
        match named {
            Some(name) if name.parse::<usize>().is_ok() && Interface::find(name).is_err() => numbered(name),
            Some(name) => Ok(Self { name: name.to_owned(), reason: None }),
            None => default(all()?, default_route()),
        }
    }
}

fn numbered(number: &str) -> Result<ChosenInterface, Error> {
    let names = all()?.into_iter().map(|interface| interface.name).chain([ANY.to_owned()]);
    let nth = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    match nth.and_then(|nth| names.into_iter().nth(nth)) {
        Some(name) => Ok(ChosenInterface { name, reason: None }),
        None => Err(Error::Usage(format!("-i {number}: no such interface; strait capture -D lists them"))),
    }
}

/// Returns the interfaces of this namespace in order of their indices.
pub(crate) fn all() -> Result<Vec<Interface>, Error> {
    let mut indices = Interface::indices()?;
    indices.sort_unstable();
    let mut netlink = Netlink::open()?;
    // Interfaces that were removed in the meantime are skipped.
    Ok(indices.into_iter().filter_map(|index| netlink.interface_at(index).ok()).collect())
}

/// Returns the index of the interface of the default route.
pub(crate) fn default_route() -> Option<u32> {
    let mut netlink = Netlink::open().ok()?;
    let mut by = |address: &str| netlink.route(None, address.parse().ok()?).ok().map(|route| route.index);
    by(ROUTED).or_else(|| by(ROUTED_V6))
}

fn default(interfaces: Vec<Interface>, route: Option<u32>) -> Result<ChosenInterface, Error> {
    let up: Vec<_> =
        interfaces.into_iter().filter(|found| found.is_up() && found.link_type().is_some()).collect();
    let of_route = |found: &&Interface| Some(found.index) == route && !found.is_loopback();
    let (first, reason) = if let Some(found) = up.iter().find(of_route) {
        (Some(found), "the interface of the default route")
    } else if let Some(found) = up.iter().find(|found| !found.is_loopback() && found.is_running()) {
        (Some(found), "the first interface with a carrier")
    } else if let Some(found) = up.iter().find(|found| !found.is_loopback()) {
        (Some(found), "the first interface that is up")
    } else {
        (up.first(), "the only interface that is up")
    };
    match first {
        Some(found) => Ok(ChosenInterface { name: found.name.clone(), reason: Some(reason) }),
        None => Err(Error::Usage("no interface is up: name one with -i; `ip link` lists them".into())),
    }
}

/// Returns the interface that the user gave in place of a filter, as in `strait capture eth0`.
pub(super) fn interface_in_filter(words: &[String]) -> Option<&str> {
    let first = words.first().filter(|word| Interface::find(word).is_ok() || *word == ANY)?;
    // The name of an interface can also be a valid filter.
    (!strait_capture::is_filter(first)).then_some(first)
}

/// Capture paths of an interface.
#[derive(Serialize)]
struct Entry {
    number: usize,
    name: String,
    up: bool,
    running: bool,
    loopback: bool,
    driver: Option<String>,
    /// Paths of packet sockets.
    packet_sockets: Vec<&'static str>,
    /// AF_XDP modes that the driver declares, the best first.
    xdp: Vec<&'static str>,
    /// True if the kernel module pf_zerocopy drives it.
    zerocopy: bool,
    /// True if the kernel lets this user see the hooks of the tap.
    tap: bool,
}

/// Returns the paths of packet sockets, the best first.
fn packet_sockets() -> Vec<&'static str> {
    [Path::V3, Path::V2, Path::Recv].map(Path::name).into()
}

impl Entry {
    fn of(number: usize, found: &Interface) -> Self {
        let driver =
            Ethtool::open(&found.name).and_then(|ethtool| ethtool.driver()).ok().map(|driver| driver.name);
        let xdp = if found.is_ethernet() { declared(found.index) } else { Vec::new() };
        Self {
            number,
            name: found.name.clone(),
            up: found.is_up(),
            running: found.is_running(),
            loopback: found.is_loopback(),
            zerocopy: driver.as_deref() == Some(PF_ZEROCOPY),
            tap: found.link_type().is_some() && probe::tcx_programs(found.index).is_ok(),
            driver,
            packet_sockets: if found.link_type().is_some() { packet_sockets() } else { Vec::new() },
            xdp,
        }
    }

    fn any(number: usize) -> Self {
        Self {
            number,
            name: ANY.into(),
            up: true,
            running: true,
            loopback: false,
            driver: None,
            packet_sockets: packet_sockets(),
            xdp: Vec::new(),
            zerocopy: false,
            tap: false,
        }
    }

    /// `1.eth0 [up, running, ice]  v3, v2, recv; tap; xdp zero-copy, native copy, generic`
    fn line(&self, width: usize) -> String {
        let states = [(self.up, "up"), (self.running && self.up, "running"), (self.loopback, "loopback")];
        let mut states: Vec<&str> = states.into_iter().filter_map(|(is, word)| is.then_some(word)).collect();
        if self.name == ANY {
            states = vec!["all interfaces"];
        } else if !self.up {
            states.push("down");
        }
        states.extend(self.driver.as_deref());
        let mut paths = Vec::new();
        if self.zerocopy {
            paths.push(Path::ZeroCopy.name().to_owned());
        }
        if !self.packet_sockets.is_empty() {
            paths.push(self.packet_sockets.join(", "));
        }
        if self.tap {
            paths.push(Path::Tap.name().to_owned());
        } else if self.name == ANY {
            // The tap is for one interface, with any privilege.
            paths.push("no tap".to_owned());
        }
        paths.push(if self.xdp.is_empty() {
            "no xdp".into()
        } else {
            format!("xdp {}", self.xdp.join(", "))
        });
        let name = format!("{}.{}", self.number, printable(&self.name));
        format!("{name:width$}  [{}]  {}", states.join(", "), paths.join("; "))
    }
}

/// Returns the AF_XDP modes of an interface. Every driver has generic mode.
fn declared(index: u32) -> Vec<&'static str> {
    let can = xdp_abilities(index).ok();
    let native = can.as_ref().is_some_and(|can| can.native && can.redirect);
    let modes =
        [(can.is_some_and(|can| can.zero_copy), "zero-copy"), (native, "native copy"), (true, "generic")];
    modes.into_iter().filter_map(|(has, mode)| has.then_some(mode)).collect()
}

/// Prints the numbered list of interfaces.
pub(super) fn list(json: bool) -> Result<(), Error> {
    let found = all()?;
    let mut entries: Vec<Entry> =
        found.iter().zip(1..).map(|(found, number)| Entry::of(number, found)).collect();
    entries.push(Entry::any(entries.len() + 1));
    if json {
        let text = serde_json::to_string(&entries).map_err(|error| Error::Failed(error.to_string()))?;
        return Ok(print_line(&text)?);
    }
    let width = entries
        .iter()
        .map(|entry| printable(&entry.name).len() + entry.number.to_string().len() + 1)
        .max()
        .unwrap_or(0);
    let lines: Vec<String> = entries.iter().map(|entry| entry.line(width) + "\n").collect();
    Ok(print_text(&lines.concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, flags: u32, operational_state: u8) -> Interface {
        Interface {
            name: name.into(),
            index,
            flags,
            operational_state,
            hardware_type: 1,
            ..Interface::default()
        }
    }

    #[test]
    fn default_interface_prefers_route_then_carrier_then_up_then_loopback() {
        const UP: u32 = 1;
        const LOOPBACK: u32 = 8;
        let lo = interface("lo", 1, UP | LOOPBACK, 0);
        let (down, idle) = (interface("down", 2, 0, 2), interface("idle", 3, UP, 2));
        let (first, second) = (interface("first", 4, UP, 6), interface("second", 5, UP, 6));
        let all = [lo, down, idle, first, second];
        let chosen = |count: usize, route| default(all[..count].to_vec(), route).map(|chosen| chosen.name);
        assert_eq!(chosen(5, Some(5)).unwrap(), "second");
        assert_eq!(chosen(5, None).unwrap(), "first");
        assert_eq!(chosen(5, Some(1)).unwrap(), "first");
        assert_eq!(chosen(3, None).unwrap(), "idle");
        assert_eq!(chosen(2, Some(2)).unwrap(), "lo");
        assert!(chosen(0, None).is_err());
    }
}
