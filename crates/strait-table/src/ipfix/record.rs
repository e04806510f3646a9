//! Records of flows, and the templates that describe them.
//!
//! A record has no element for a value that its flow does not have: no port in the flow of a
//! fragment, no VLAN without a tag. So elements are in groups, and the number of a template has a
//! bit for each group of its records. A template is sent only if a record needs it.

use std::net::IpAddr;

use strait_packet::protocol::ip;

use crate::export::Record;
use crate::flows::FlowRow;

/// Number of the first template; smaller ones are reserved (RFC 7011 section 3.4.1).
const TEMPLATE_MIN: u16 = 256;
/// Enterprise number of elements of the reverse direction (RFC 5103 section 6.1).
const REVERSE: u32 = 29305;
/// Bit of an element's number that announces an enterprise number.
const HAS_ENTERPRISE: u16 = 0x8000;
/// Length of elements with a length of their own in each record (RFC 7011 section 7).
const VARIABLE: u16 = 0xffff;
/// Maximum length of such an element after one byte of length.
const SHORT_MAX: u8 = 254;
/// Seconds from the epoch of NTP, 1900, to that of Unix.
const NTP_EPOCH: u64 = 2_208_988_800;
/// Value of `biflowDirection`: the source has started the flow (RFC 5103 section 6.3).
const INITIATOR: u8 = 1;

/// Information element of a template.
struct Element {
    /// Number in IANA's registry.
    number: u16,
    /// Length in bytes.
    length: u16,
    is_reverse: bool,
}

const fn element(number: u16, length: u16) -> Element {
    Element { number, length, is_reverse: false }
}

const fn reverse(number: u16, length: u16) -> Element {
    Element { number, length, is_reverse: true }
}

/// Elements that a record has together or not at all.
struct Group {
    elements: &'static [Element],
    /// Appends the values. Returns false, without a change, if the flow does not have them.
    write: fn(&Record<'_>, &mut Vec<u8>) -> bool,
}

/// Groups in the order of a record.
const GROUPS: [Group; 10] = [
    Group {
        elements: &[
            element(156, 8), // flowStartNanoseconds
            element(157, 8), // flowEndNanoseconds
            // Many collectors, among them nfdump 1.7.1, ignore the two above.
            element(152, 8), // flowStartMilliseconds
            element(153, 8), // flowEndMilliseconds
            element(136, 1), // flowEndReason
            element(4, 1),   // protocolIdentifier
            element(239, 1), // biflowDirection
            element(2, 8),   // packetDeltaCount
            element(1, 8),   // octetDeltaCount
            reverse(2, 8),
            reverse(1, 8),
        ],
        write: write_counts,
    },
    // sourceIPv4Address, destinationIPv4Address
    Group { elements: &[element(8, 4), element(12, 4)], write: write_ipv4 },
    // sourceIPv6Address, destinationIPv6Address
    Group { elements: &[element(27, 16), element(28, 16)], write: write_ipv6 },
    // sourceTransportPort, destinationTransportPort
    Group { elements: &[element(7, 2), element(11, 2)], write: write_ports },
    // icmpTypeCodeIPv4
    Group { elements: &[element(32, 2)], write: |record, bytes| write_icmp(record, ip::ICMP, bytes) },
    // icmpTypeCodeIPv6
    Group { elements: &[element(139, 2)], write: |record, bytes| write_icmp(record, ip::ICMPV6, bytes) },
    // vlanId
    Group { elements: &[element(58, 2)], write: |record, bytes| write_short(record.row.vlan, bytes) },
    // tcpControlBits. The reverse direction is first, as nfdump keeps the last one of both.
    Group { elements: &[reverse(6, 2)], write: |record, bytes| write_short(record.row.flags(1), bytes) },
    Group { elements: &[element(6, 2)], write: |record, bytes| write_short(record.row.flags(0), bytes) },
    // interfaceName
    Group { elements: &[element(82, VARIABLE)], write: write_interface },
];

/// Appends a record, and returns the number of its template.
pub(super) fn write(record: &Record<'_>, bytes: &mut Vec<u8>) -> u16 {
    let mut template = TEMPLATE_MIN;
    for (bit, group) in GROUPS.iter().enumerate() {
        template += u16::from((group.write)(record, bytes)) << bit;
    }
    template
}

/// Appends the template record of a number that [`write()`] has returned.
pub(super) fn write_template(number: u16, bytes: &mut Vec<u8>) {
    let groups = GROUPS.iter().enumerate().filter(|(bit, _)| (number - TEMPLATE_MIN) >> bit & 1 == 1);
    let elements: Vec<&Element> = groups.flat_map(|(_, group)| group.elements).collect();
    bytes.extend(number.to_be_bytes());
    bytes.extend((elements.len() as u16).to_be_bytes());
    for Element { number, length, is_reverse } in elements {
        let enterprise_bit = if *is_reverse { HAS_ENTERPRISE } else { 0 };
        bytes.extend((number | enterprise_bit).to_be_bytes());
        bytes.extend(length.to_be_bytes());
        if *is_reverse {
            bytes.extend(REVERSE.to_be_bytes());
        }
    }
}

fn write_counts(record: &Record<'_>, bytes: &mut Vec<u8>) -> bool {
    let FlowRow { start_ns, end_ns, reason, protocol, sides: [forward, reverse], .. } = record.row;
    bytes.extend(ntp(*start_ns).to_be_bytes());
    bytes.extend(ntp(*end_ns).to_be_bytes());
    bytes.extend((start_ns / 1_000_000).to_be_bytes());
    bytes.extend((end_ns / 1_000_000).to_be_bytes());
    bytes.extend([*reason as u8, *protocol, INITIATOR]);
    for count in [forward.packets, forward.octets, reverse.packets, reverse.octets] {
        bytes.extend(count.to_be_bytes());
    }
    true
}

/// Returns a time as NTP has it (RFC 7011 section 6.1.9): 32 bits of seconds, whose era ends in
/// 2036, and 32 bits of a fraction. It is rounded up, so that readers that round down get the same
/// nanosecond.
fn ntp(time_ns: u64) -> u64 {
    let (seconds, nanoseconds) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    (seconds.wrapping_add(NTP_EPOCH) << 32) | (nanoseconds << 32).div_ceil(1_000_000_000)
}

fn write_ipv4(record: &Record<'_>, bytes: &mut Vec<u8>) -> bool {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (record.row.source, record.row.destination) else {
        return false;
    };
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    true
}

fn write_ipv6(record: &Record<'_>, bytes: &mut Vec<u8>) -> bool {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (record.row.source, record.row.destination) else {
        return false;
    };
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    true
}

fn write_ports(record: &Record<'_>, bytes: &mut Vec<u8>) -> bool {
    write_short(record.row.port(0), bytes) && write_short(record.row.port(1), bytes)
}

fn write_icmp(record: &Record<'_>, protocol: u8, bytes: &mut Vec<u8>) -> bool {
    record.row.protocol == protocol && write_short(record.row.type_and_code(), bytes)
}

fn write_short(value: Option<u16>, bytes: &mut Vec<u8>) -> bool {
    bytes.extend(value.iter().flat_map(|value| value.to_be_bytes()));
    value.is_some()
}

/// Appends the name of the interface. A longer name than Linux permits is left out.
fn write_interface(record: &Record<'_>, bytes: &mut Vec<u8>) -> bool {
    let Some(name) = record.interface else { return false };
    let Some(length) = u8::try_from(name.len()).ok().filter(|length| *length <= SHORT_MAX) else {
        return false;
    };
    bytes.push(length);
    bytes.extend(name.as_bytes());
    true
}
