//! Tables and their columns: names, types, units and meanings.
//!
//! The writers, `strait capture --schema` and docs/tables.md have them from here. A change that a
//! reader of old files would notice gets a new version of its table.

use std::fmt::{self, Write as _};

use arrow_schema::{DataType, Field, TimeUnit};

/// Table of rows with one meaning.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Name of the table and of its directory.
    pub name: &'static str,
    /// Version of its columns, in the metadata of every file as `strait.schema_version`.
    pub version: u32,
    /// Content of a row.
    pub about: &'static str,
    /// Columns in the order of the files.
    pub columns: &'static [Column],
}

/// Column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// True if a row can have no value.
    pub nullable: bool,
    /// Encoding in Parquet.
    pub encoding: Encoding,
    /// Meaning, with the unit.
    pub about: &'static str,
}

/// Encoding of a column in Parquet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Each distinct value once, and indices.
    Dictionary,
    /// The values: they seldom repeat, so that a dictionary of them would be larger.
    Plain,
    /// Differences: the values ascend, or are counters of few hosts.
    Delta,
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nanoseconds since the epoch, UTC.
    Time,
    /// Unsigned integer of 8 bits.
    U8,
    /// Unsigned integer of 16 bits.
    U16,
    /// Unsigned integer of 32 bits.
    U32,
    /// Signed integer of 64 bits, for counts.
    I64,
    /// Text in UTF-8.
    Text,
    /// Bytes of a fixed number.
    Bytes(i32),
    /// Bytes of any number.
    Binary,
}

impl Kind {
    /// Returns Arrow's type. Text and bytes have each distinct value once in a batch.
    pub fn data_type(self) -> DataType {
        let dictionary = |value| DataType::Dictionary(Box::new(DataType::UInt32), Box::new(value));
        match self {
            Self::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            Self::U8 => DataType::UInt8,
            Self::U16 => DataType::UInt16,
            Self::U32 => DataType::UInt32,
            Self::I64 => DataType::Int64,
            Self::Text => dictionary(DataType::Utf8),
            Self::Bytes(length) => dictionary(DataType::FixedSizeBinary(length)),
            Self::Binary => DataType::Binary,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time => f.write_str("timestamp (ns, UTC)"),
            Self::U8 => f.write_str("uint8"),
            Self::U16 => f.write_str("uint16"),
            Self::U32 => f.write_str("uint32"),
            Self::I64 => f.write_str("int64"),
            Self::Text => f.write_str("text"),
            Self::Bytes(length) => write!(f, "{length} bytes"),
            Self::Binary => f.write_str("bytes"),
        }
    }
}

impl Column {
    const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        let encoding = if matches!(kind, Kind::Time) { Encoding::Delta } else { Encoding::Dictionary };
        Self { name, kind, nullable: false, encoding, about }
    }

    const fn or_null(self) -> Self {
        Self { nullable: true, ..self }
    }

    const fn encoded(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// Returns Arrow's field.
    pub fn field(&self) -> Field {
        Field::new(self.name, self.kind.data_type(), self.nullable)
    }
}

/// Columns that every file has in its path instead of its rows.
pub const PARTITIONS: [(&str, &str); 3] = [
    ("date", "date of the row's time, UTC: 2026-11-25"),
    ("hour", "hour of the row's time, UTC: 00 to 23"),
    ("sensor", "name of the sensor: --sensor, else the name of the host"),
];

/// Key of the table's name in the metadata of every file.
pub const TABLE_KEY: &str = "strait.table";
/// Key of its version.
pub const VERSION_KEY: &str = "strait.schema_version";

/// Every table.
pub const TABLES: [&Table; 6] = [&PACKETS, &FLOWS, &DNS, &TLS, &HTTP, &LEDGER];

/// One row for each packet.
pub const PACKETS: Table = Table {
    name: "packets",
    version: 1,
    about: "one row for each packet",
    columns: &[
        Column::new(
            "time",
            Kind::Time,
            "time at which the kernel received the packet; in a file, its time there",
        ),
        Column::new(
            "length",
            Kind::U32,
            "length on the wire in bytes, link-layer header included, frame check sequence not",
        ),
        Column::new(
            "captured_length",
            Kind::U32,
            "captured bytes: less than length if the snaplen has cut the packet",
        ),
        Column::new("interface", Kind::Text, "name of the interface; null for packets of a file").or_null(),
        Column::new("direction", Kind::Text, "in or out, as seen from the capturing host").or_null(),
        Column::new("ether_type", Kind::U16, "Ethernet type of the payload after VLAN tags").or_null(),
        Column::new("vlan", Kind::U16, "outermost VLAN identifier").or_null(),
        Column::new("inner_vlan", Kind::U16, "second VLAN identifier").or_null(),
        Column::new("source_address", Kind::Text, "source address of the IP header").or_null(),
        Column::new("destination_address", Kind::Text, "destination address of the IP header").or_null(),
        Column::new(
            "source_port",
            Kind::U16,
            "source port of TCP, UDP, UDP-Lite or SCTP; a later fragment has none",
        )
        .or_null()
        .encoded(Encoding::Plain),
        Column::new("destination_port", Kind::U16, "destination port").or_null().encoded(Encoding::Plain),
        Column::new("protocol", Kind::U8, "IP protocol of the payload, after IPv6 extension headers")
            .or_null(),
        Column::new(
            "tcp_flags",
            Kind::U16,
            "flag bits: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128, AE 256",
        )
        .or_null(),
        Column::new("tcp_sequence", Kind::U32, "sequence number").or_null().encoded(Encoding::Plain),
        Column::new("tcp_acknowledgment", Kind::U32, "acknowledgment number")
            .or_null()
            .encoded(Encoding::Plain),
        Column::new("tcp_window", Kind::U16, "receive window, unscaled").or_null(),
        Column::new("ttl", Kind::U8, "time to live or hop limit").or_null(),
        Column::new("ip_id", Kind::U32, "identification; in IPv6 only fragments have one")
            .or_null()
            .encoded(Encoding::Delta),
        Column::new(
            "fragment_offset",
            Kind::U32,
            "offset of a fragment in bytes; null if the packet is whole",
        )
        .or_null(),
        Column::new(
            "source_address_bytes",
            Kind::Bytes(16),
            "source address as 16 bytes; IPv4 is mapped (::ffff:0:0/96)",
        )
        .or_null(),
        Column::new("destination_address_bytes", Kind::Bytes(16), "destination address as 16 bytes")
            .or_null(),
        Column::new(
            "source_mac",
            Kind::Text,
            "source address of an Ethernet header, as in 02:00:00:00:00:01",
        )
        .or_null(),
        Column::new("destination_mac", Kind::Text, "destination address of an Ethernet header").or_null(),
        Column::new("frame", Kind::Binary, "first captured bytes, as many as --frames selects")
            .encoded(Encoding::Plain),
        Column::new("process_id", Kind::U32, "process that owns the packet's socket, with --owner").or_null(),
        Column::new("process", Kind::Text, "name of the process").or_null(),
        Column::new("user", Kind::Text, "user of the process").or_null(),
        Column::new("cgroup", Kind::Text, "cgroup of the process").or_null(),
        Column::new("container", Kind::Text, "identifier of the container that the cgroup names").or_null(),
    ],
};

/// One row for each flow that has ended. The names are those of IPFIX's information elements, and
/// of RFC 5103 for the opposite direction, where there is one. A new column goes to the end: its
/// position is the number of a field in Protobuf.
pub const FLOWS: Table = Table {
    name: "flows",
    version: 1,
    about: "one row for each flow that has ended, in both directions",
    columns: &[
        Column::new("flowStartNanoseconds", Kind::Time, "time of the first packet"),
        Column::new("flowEndNanoseconds", Kind::Time, "time of the last packet, which selects the file"),
        Column::new(
            "flowEndReason",
            Kind::U8,
            "1 idle, 2 active timeout, 3 ended by TCP, 4 end of the capture, 5 evicted from the full table",
        ),
        Column::new(
            "interfaceName",
            Kind::Text,
            "name of the interface of the first packet; null for packets of a file",
        )
        .or_null(),
        Column::new("vlanId", Kind::U16, "outermost VLAN identifier").or_null(),
        Column::new(
            "sourceAddress",
            Kind::Text,
            "IPv4 or IPv6 address that sent the first packet; with a SYN response first, its receiver",
        ),
        Column::new("destinationAddress", Kind::Text, "the other address"),
        Column::new("sourceTransportPort", Kind::U16, "port of the source; fragments have none").or_null(),
        Column::new("destinationTransportPort", Kind::U16, "port of the destination").or_null(),
        Column::new("protocolIdentifier", Kind::U8, "IP protocol, after IPv6 extension headers"),
        Column::new("icmpTypeCode", Kind::U16, "type times 256 plus code of ICMP and ICMPv6").or_null(),
        Column::new("communityId", Kind::Text, "community ID version 1, with seed 0")
            .encoded(Encoding::Plain),
        Column::new("packetDeltaCount", Kind::I64, "packets from the source"),
        Column::new("reversePacketDeltaCount", Kind::I64, "packets to the source"),
        Column::new("octetDeltaCount", Kind::I64, "bytes from the source, with IP headers"),
        Column::new("reverseOctetDeltaCount", Kind::I64, "bytes to the source, with IP headers"),
        Column::new(
            "tcpControlBits",
            Kind::U16,
            "TCP flag bits of all packets from the source; null if their TCP headers are cut",
        )
        .or_null(),
        Column::new(
            "reverseTcpControlBits",
            Kind::U16,
            "TCP flag bits of all packets to the source; null if their TCP headers are cut",
        )
        .or_null(),
        Column::new(
            "handshakeNanoseconds",
            Kind::I64,
            "time from the SYN to the ACK that completes the handshake: one round trip",
        )
        .or_null(),
        Column::new("retransmitted", Kind::U32, "segments from the source that were sent again"),
        Column::new("reverseRetransmitted", Kind::U32, "segments to the source that were sent again"),
        Column::new(
            "outOfOrder",
            Kind::U32,
            "segments from the source that arrived after later ones, within a round trip",
        ),
        Column::new("reverseOutOfOrder", Kind::U32, "such segments to the source"),
        Column::new("zeroWindows", Kind::U32, "packets from the source with a receive window of 0"),
        Column::new("reverseZeroWindows", Kind::U32, "such packets to the source"),
    ],
};

/// Columns of the first packet, which every table of messages begins with, and `$column`s.
macro_rules! message_columns {
    ($($column:expr),* $(,)?) => {
        &[
            Column::new("time", Kind::Time, "time of the first packet of the message"),
            Column::new("source_address", Kind::Text, "address of the sender"),
            Column::new("destination_address", Kind::Text, "address of the receiver"),
            Column::new("source_port", Kind::U16, "port of the sender"),
            Column::new("destination_port", Kind::U16, "port of the receiver"),
            Column::new("protocol", Kind::U8, "IP protocol: 6 is TCP, 17 is UDP"),
            Column::new("community_id", Kind::Text, "identifier of the flow, as communityId in flows"),
            $($column,)*
        ]
    };
}

/// One row for each message of DNS.
pub const DNS: Table = Table {
    name: "dns",
    version: 1,
    about: "one row for each query and each response of DNS, its multicast variant and LLMNR",
    columns: message_columns![
        Column::new("message", Kind::Text, "query or response"),
        Column::new("transaction_id", Kind::U16, "identifier, the same in query and response"),
        Column::new("opcode", Kind::U8, "operation: 0 is a query"),
        Column::new("response_code", Kind::U8, "result of a response: 0 is no error, 3 is NXDOMAIN")
            .or_null(),
        Column::new("flags", Kind::U16, "flag bits: CD 16, AD 32, RA 128, RD 256, TC 512, AA 1024"),
        Column::new("query", Kind::Text, "name in the first question, without the last dot").or_null(),
        Column::new("query_type", Kind::Text, "requested record type, as in AAAA or TYPE64").or_null(),
        Column::new("query_class", Kind::U16, "class of the question: 1 is the Internet").or_null(),
        Column::new("answer_count", Kind::U16, "number of answers in the header"),
        Column::new("answers", Kind::Text, "addresses and names in the answers, of other records the type")
            .or_null(),
        Column::new("ttl", Kind::U32, "smallest time to live of the answers, in seconds").or_null(),
    ],
};

/// One row for each hello of TLS.
pub const TLS: Table = Table {
    name: "tls",
    version: 1,
    about: "one row for each hello of a client and of a server, over TCP and in QUIC",
    columns: message_columns![
        Column::new("message", Kind::Text, "client or server: the sender of the hello"),
        Column::new("version", Kind::Text, "highest offered version, or the selected one, as in 1.3"),
        Column::new("server_name", Kind::Text, "name of the server that the client requests (SNI)").or_null(),
        Column::new(
            "alpn",
            Kind::Text,
            "offered application protocols, or the selected one, as in h2,http/1.1"
        )
        .or_null(),
        Column::new("cipher_suite", Kind::U16, "selected cipher suite; null for a client").or_null(),
        Column::new("ja3", Kind::Text, "fingerprint JA3 of a client, JA3S of a server"),
        Column::new("ja4", Kind::Text, "fingerprint JA4 of a client").or_null(),
    ],
};

/// One row for each head of HTTP/1.
pub const HTTP: Table = Table {
    name: "http",
    version: 1,
    about: "one row for each head of a request and of a response of HTTP/1",
    columns: message_columns![
        Column::new("message", Kind::Text, "request or response"),
        Column::new("version", Kind::Text, "1.0 or 1.1"),
        Column::new("method", Kind::Text, "method of a request").or_null(),
        Column::new("host", Kind::Text, "field Host of a request").or_null(),
        Column::new("target", Kind::Text, "target of a request: path and query, or a URL").or_null(),
        Column::new("user_agent", Kind::Text, "field User-Agent of a request").or_null(),
        Column::new("status", Kind::U16, "status of a response").or_null(),
        Column::new("content_type", Kind::Text, "field Content-Type").or_null(),
        Column::new("content_length", Kind::I64, "field Content-Length").or_null(),
    ],
};

/// One row for each lane and interval of a capture.
pub const LEDGER: Table = Table {
    name: "ledger",
    version: 1,
    about: "one row for each lane and interval of a capture; sums over a capture equal its ledger",
    columns: &[
        Column::new("time", Kind::Time, "end of the interval"),
        Column::new("interval_start", Kind::Time, "start of the interval"),
        Column::new("capture", Kind::Text, "identifier of the capture, the same in the names of its files"),
        Column::new("interface", Kind::Text, "name of the interface, or of the file"),
        Column::new("path", Kind::Text, "path of the capture: recv, v2, v3, tap, xdp, zerocopy, file"),
        Column::new(
            "lane",
            Kind::U32,
            "receive queue or fanout member; null for counts of the interface as a whole",
        )
        .or_null(),
        Column::new("received", Kind::I64, "packets that reached the path, before the filter"),
        Column::new("delivered", Kind::I64, "packets delivered to the tables"),
        Column::new("filtered", Kind::I64, "packets that the filter did not match"),
        Column::new("lost_nic_missed", Kind::I64, "lost: the NIC had no receive descriptor free"),
        Column::new("lost_ring_full", Kind::I64, "lost: the ring or the queue of the socket was full"),
        Column::new("lost_fill_empty", Kind::I64, "lost: AF_XDP found no free chunk"),
        Column::new("lost_sink", Kind::I64, "lost: the tables were too slow, or their disk was full"),
        Column::new("lost_unread", Kind::I64, "lost: in the ring when a failure ended the capture"),
        Column::new("lost_other", Kind::I64, "lost at a place without a counter"),
        Column::new("bytes", Kind::I64, "captured bytes of delivered packets, and of those lost in the sink"),
        Column::new("wire_bytes", Kind::I64, "bytes on the wire of these packets"),
    ],
};

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, about, columns } = self;
        writeln!(f, "{name}, version {version}: {about}")?;
        columns.iter().try_for_each(|Column { name, kind, nullable, about, .. }| {
            let kind = if *nullable { format!("{kind} or null") } else { kind.to_string() };
            writeln!(f, "  {name:<30}{kind:<20}  {about}")
        })
    }
}

/// Returns the text of all tables for a terminal.
pub fn text() -> String {
    let mut text = String::from("in the path of every file\n");
    // Writing to a String cannot fail.
    for (name, about) in PARTITIONS {
        let _ = writeln!(text, "  {name:<52}{about}");
    }
    for table in TABLES {
        let _ = write!(text, "\n{table}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_md_has_every_column_with_its_type_and_meaning() {
        let page = include_str!("../../../docs/tables.md");
        let rows = |table: &Table| {
            let row = |column: &Column| {
                let null = if column.nullable { " or null" } else { "" };
                format!("| `{}` | {}{null} | {} |\n", column.name, column.kind, column.about)
            };
            table.columns.iter().map(row).collect::<String>()
        };
        for table in TABLES {
            let heading = format!("## {}\n\nVersion {}: {}.\n", table.name, table.version, table.about);
            assert!(page.contains(&heading), "{heading}");
            assert!(page.contains(&rows(table)), "the rows of {}:\n{}", table.name, rows(table));
        }
    }

    #[test]
    fn names_are_unique_and_fit_the_printed_table() {
        for table in TABLES {
            let mut names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            assert!(names.iter().all(|name| name.len() < 30), "{names:?}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.columns.len());
        }
    }
}
