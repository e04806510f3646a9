//! Drops of an interval, and the sums since the start.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use serde_json::{Value, json};
use strait_capture::drops::{Missed, Monitor, Names, PLACES_MAX, Place};
use strait_ledger::Grouped;
use strait_packet::protocol::{ether_type, ip};

use crate::Error;
use crate::output::printable;

/// Maximum rows of a report. The places with most packets are shown.
const ROWS_MAX: usize = 50;
/// Maximum number of cached names of interfaces; further ones are looked up each time.
const NAMES_MAX: usize = 1024;

/// Counts at the last report, and the rows of the interval before it.
pub(super) struct Table {
    /// Packets at each place since the start; at most [`PLACES_MAX`].
    counts: HashMap<Place, u64>,
    /// Packets of the interval and of all, by place, most first.
    rows: Vec<(Place, u64, u64)>,
    /// Packets of the interval and of all that have no place.
    uncounted: (u64, u64),
    seconds: f64,
    kernel: Arc<Names>,
    namespace: u32,
    names: HashMap<u32, String>,
    /// Looks up names in the namespace of the command.
    socket: Option<OwnedFd>,
}

impl Table {
    /// `namespace` is the inode number of this thread's network namespace.
    pub(super) fn new(kernel: Arc<Names>, namespace: u32) -> Self {
        Self {
            counts: HashMap::new(),
            rows: Vec::new(),
            uncounted: (0, 0),
            seconds: 0.0,
            kernel,
            namespace,
            names: HashMap::new(),
            socket: socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok(),
        }
    }

    /// Reads the counts at the end of an interval.
    pub(super) fn take(&mut self, monitor: &Monitor, elapsed: Duration) -> Result<(), Error> {
        let counts = monitor.counts()?;
        self.rows = rows(&self.counts, &counts);
        self.counts = counts;
        let uncounted = monitor.missed()?.uncounted;
        self.uncounted = (uncounted.saturating_sub(self.uncounted.1), uncounted);
        self.seconds = elapsed.as_secs_f64();
        Ok(())
    }

    /// Returns the report as text; nothing if there was no drop.
    pub(super) fn text(&mut self) -> String {
        let mut text = String::new();
        let (uncounted, _) = self.uncounted;
        if self.rows.is_empty() && uncounted == 0 {
            return text;
        }
        let rows = std::mem::take(&mut self.rows);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>10}  {:<24} {:<12} {:<16} function",
            "packets", "reason", "protocol", "interface"
        );
        for (place, packets, _) in rows.iter().take(ROWS_MAX) {
            let interface = self.interface_text(place);
            let _ = writeln!(
                text,
                "{:>10}  {:<24} {:<12} {:<16} {}",
                Grouped(*packets).to_string(),
                self.kernel.reason(place.reason),
                protocol(place),
                interface,
                function(&self.kernel, place)
            );
        }
        if let Some(others) = rows.get(ROWS_MAX..).filter(|others| !others.is_empty()) {
            let packets = Grouped(others.iter().map(|(_, packets, _)| packets).sum()).to_string();
            let _ = writeln!(text, "{packets:>10}  at {} more places", others.len());
        }
        if uncounted > 0 {
            let packets = Grouped(uncounted).to_string();
            let _ = writeln!(text, "{packets:>10}  at further places than {}", Grouped(PLACES_MAX.into()));
        }
        text.push('\n');
        self.rows = rows;
        text
    }

    /// Returns the report as JSON.
    pub(super) fn json(&mut self, missed: Missed, headerless: u64) -> Value {
        let rows = std::mem::take(&mut self.rows);
        let drops: Vec<Value> = rows.iter().map(|row| self.row_json(row)).collect();
        json!({
            "seconds": self.seconds,
            "packets": rows.iter().map(|(_, packets, _)| packets).sum::<u64>(),
            "total": self.total(),
            "drops": drops,
            "uncounted": self.uncounted.0,
            "missed": { "uncounted": missed.uncounted, "nested": missed.nested, "lost": missed.lost, "headerless": headerless },
        })
    }

    fn row_json(&mut self, (place, packets, total): &(Place, u64, u64)) -> Value {
        let interface = self.interface(place);
        let function = self.kernel.function(place.location);
        json!({
            "packets": packets,
            "total": total,
            "reason": self.kernel.reason(place.reason),
            "protocol": protocol(place),
            "interface": interface,
            "ifindex": place.ifindex,
            "namespace": place.namespace,
            "function": function.map(|function| function.name),
            "offset": function.map(|function| function.offset),
            "location": format!("{:#x}", place.location),
        })
    }

    /// Describes a drop in one line: `NO_SOCKET at udp_rcv+0x5a, interface eth0`.
    pub(super) fn describe(&mut self, place: &Place) -> String {
        let (reason, function) = (self.kernel.reason(place.reason), function(&self.kernel, place));
        format!("{reason} at {function}, interface {}", self.interface_text(place))
    }

    /// Returns the name of the interface, if it is in the namespace of the command.
    fn interface(&mut self, place: &Place) -> Option<String> {
        if place.ifindex == 0 || place.namespace != self.namespace {
            return None;
        }
        if let Some(name) = self.names.get(&place.ifindex) {
            return Some(name.clone());
        }
        let name = printable(&netdevice::index_to_name(self.socket.as_ref()?, place.ifindex).ok()?);
        if self.names.len() < NAMES_MAX {
            self.names.insert(place.ifindex, name.clone());
        }
        Some(name)
    }

    fn interface_text(&mut self, place: &Place) -> String {
        match (self.interface(place), place) {
            (Some(name), _) => name,
            (None, Place { ifindex: 0, namespace, .. }) if *namespace == self.namespace => "-".into(),
            (None, Place { ifindex, namespace: 0, .. }) => format!("{ifindex}@?"),
            (None, Place { ifindex, namespace, .. }) => format!("{ifindex}@{namespace}"),
        }
    }

    fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the sums since the start.
    pub(super) fn totals(&self, missed: Missed, headerless: u64) -> Totals {
        Totals { packets: self.total(), places: self.counts.len(), missed, headerless }
    }
}

/// Returns the drops of an interval: place, packets and their sum since the start.
fn rows(before: &HashMap<Place, u64>, counts: &HashMap<Place, u64>) -> Vec<(Place, u64, u64)> {
    let row = |(place, total): (&Place, &u64)| {
        let packets = total.saturating_sub(before.get(place).copied().unwrap_or(0));
        (packets > 0).then_some((*place, packets, *total))
    };
    let mut rows: Vec<_> = counts.iter().filter_map(row).collect();
    rows.sort_unstable_by_key(|(place, packets, _)| (Reverse(*packets), *place));
    rows
}

/// Sums of a run, displayed as one line.
pub(super) struct Totals {
    packets: u64,
    places: usize,
    missed: Missed,
    /// Packets that are not in the file.
    headerless: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missed { uncounted, nested, lost } = self.missed;
        let places = if self.places == 1 { "place" } else { "places" };
        write!(f, "the kernel dropped {} packets at {} {places}", Grouped(self.packets), self.places)?;
        if uncounted > 0 {
            write!(f, "; {} packets at further places than {PLACES_MAX}", Grouped(uncounted))?;
        }
        if nested > 0 {
            write!(f, "; {} packets not seen during another drop", Grouped(nested))?;
        }
        if lost > 0 {
            write!(f, "; {} packets counted, but not copied: the ring was full", Grouped(lost))?;
        }
        if self.headerless > 0 {
            write!(f, "; {} packets without a known header are not in the file", Grouped(self.headerless))?;
        }
        Ok(())
    }
}

/// Returns the protocol of the packets: `IPv4 udp`, `ARP`, `other`, `IPv4 other`, or `-` if it is
/// unknown.
fn protocol(place: &Place) -> String {
    let ether = match place.ether_type {
        0 => return "-".into(),
        Place::OTHER_TYPE => return "other".into(),
        kind => ether_type::name(kind).map_or_else(|| format!("{kind:#06x}"), str::to_owned),
    };
    match place.ip_protocol {
        0 => ether,
        Place::OTHER_PROTOCOL => format!("{ether} other"),
        inner => match ip::name(inner) {
            Some(name) => format!("{ether} {name}"),
            None => format!("{ether} {inner}"),
        },
    }
}

fn function(kernel: &Names, place: &Place) -> String {
    match kernel.function(place.location) {
        Some(function) => format!("{}+{:#x}", function.name, function.offset),
        None => format!("{:#x}", place.location),
    }
}

#[cfg(test)]
mod tests {
    use strait_capture::drops::{ETHER_TYPES, IP_PROTOCOLS};

    use super::*;

    fn place(ether_type: u16, ip_protocol: u8) -> Place {
        Place { ether_type, ip_protocol, ..Place::default() }
    }

    #[test]
    fn protocols_are_named() {
        let names = [(0, 0), (0x0806, 0), (0x0800, 17), (0x86dd, 58), (0x86dd, 44), (4, 0)]
            .map(|(ether_type, inner)| protocol(&place(ether_type, inner)));
        assert_eq!(names, ["-", "ARP", "IPv4 udp", "IPv6 icmp6", "IPv6 44", "0x0004"]);
        let others = [place(Place::OTHER_TYPE, 0), place(0x0800, Place::OTHER_PROTOCOL)];
        assert_eq!(others.map(|place| protocol(&place)), ["other", "IPv4 other"]);
        for kind in (0..=u16::MAX).filter(|kind| ether_type::name(*kind).is_some()) {
            assert!(ETHER_TYPES.contains(&kind), "{kind:#06x}");
        }
        for inner in (0..=u8::MAX).filter(|inner| ip::name(*inner).is_some()) {
            assert!(IP_PROTOCOLS.contains(&inner), "{inner}");
        }
    }

    #[test]
    fn packets_without_a_place_have_a_row() {
        let mut table = Table::new(Arc::default(), 1);
        assert_eq!(table.text(), "");
        table.uncounted = (1234, 5678);
        assert!(table.text().contains("     1,234  at further places than 4,096\n"), "{}", table.text());
        assert_eq!(table.json(Missed::default(), 0)["uncounted"], 1234);
    }

    #[test]
    fn only_interfaces_of_the_own_namespace_are_named() {
        const OWN: u32 = 4_026_531_840;
        let mut table = Table::new(Arc::default(), OWN);
        let mut text =
            |ifindex, namespace| table.interface_text(&Place { ifindex, namespace, ..Place::default() });
        assert_eq!([text(1, OWN), text(0, OWN)], ["lo", "-"]);
        assert_eq!([text(1, 0), text(0, 0), text(1, OWN + 1)], ["1@?", "0@?", "1@4026531841"]);
    }

    #[test]
    fn rows_are_the_drops_of_the_interval() {
        let (a, b) = (place(0x0800, 6), place(0x0800, 17));
        let (none, one) = (HashMap::new(), HashMap::from([(a, 5)]));
        let two = HashMap::from([(a, 7), (b, 9)]);
        assert_eq!(rows(&none, &one), [(a, 5, 5)]);
        assert_eq!(rows(&one, &two), [(b, 9, 9), (a, 2, 7)]);
        assert_eq!(rows(&two, &two), []);
    }

    #[test]
    fn totals_name_each_loss() {
        let missed = Missed { uncounted: 1, nested: 2, lost: 3000 };
        let text = Totals { packets: 1_000_000, places: 4, missed, headerless: 5 }.to_string();
        assert!(text.starts_with("the kernel dropped 1,000,000 packets at 4 places; 1 packets"), "{text}");
        assert!(text.ends_with("; 5 packets without a known header are not in the file"), "{text}");
        assert!(text.contains("; 2 packets not seen") && text.contains("; 3,000 packets counted"), "{text}");
    }
}
