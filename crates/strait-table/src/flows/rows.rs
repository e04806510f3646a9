//! Rows of the table `flows`.

use std::sync::Arc;

use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use strait_packet::protocol::ip;

use super::flow::{FlowRow, Side};
use crate::address::Addresses;
use crate::column::{Keys, Numbers, dictionary};
use crate::community_id;
use crate::extras::Extras;
use crate::packets::{InterfaceNames, Interfaces};
use crate::rows::Rows;
use crate::schema::{Column, FLOWS};

/// Rows of flows, until they are a record batch.
pub struct FlowRows {
    schema: SchemaRef,
    /// Start and end.
    times: [Numbers<TimestampNanosecondType>; 2],
    reasons: Numbers<UInt8Type>,
    protocols: Numbers<UInt8Type>,
    /// VLAN, source port, destination port, ICMP type and code, TCP flags in both directions.
    shorts: [Numbers<UInt16Type>; 6],
    /// Packets and octets in both directions, handshake.
    longs: [Numbers<Int64Type>; 5],
    /// Retransmitted, out of order, zero windows, each in both directions.
    counts: [Numbers<UInt32Type>; 6],
    addresses: Addresses,
    /// Numbers of source and destination.
    sides: [Keys; 2],
    interfaces: Interfaces,
    interface_keys: Keys,
    ids: Vec<String>,
}

impl FlowRows {
    /// Creates an empty batch.
    pub fn new(names: InterfaceNames) -> Self {
        let schema = Schema::new(FLOWS.columns.iter().map(Column::field).collect::<Vec<_>>());
        Self {
            schema: Arc::new(schema),
            times: std::array::from_fn(|_| Numbers::new(0)),
            reasons: Numbers::new(0),
            protocols: Numbers::new(0),
            shorts: std::array::from_fn(|_| Numbers::new(0)),
            longs: std::array::from_fn(|_| Numbers::new(0)),
            counts: std::array::from_fn(|_| Numbers::new(0)),
            addresses: Addresses::new(),
            sides: std::array::from_fn(|_| Keys::new(0)),
            interfaces: Interfaces::new(names),
            interface_keys: Keys::new(0),
            ids: Vec::new(),
        }
    }
}

impl FlowRow {
    pub(crate) fn is_icmp(&self) -> bool {
        matches!(self.protocol, ip::ICMP | ip::ICMPV6)
    }

    /// Returns the port of a side.
    pub(crate) fn port(&self, side: usize) -> Option<u16> {
        self.ports.filter(|_| !self.is_icmp()).map(|ports| ports[side])
    }

    /// Returns the type times 256 plus the code of ICMP.
    pub(crate) fn type_and_code(&self) -> Option<u16> {
        self.ports.filter(|_| self.is_icmp()).map(|[kind, code]| kind << 8 | code)
    }

    /// Returns the TCP flags of a direction: 0 if only the other one has packets, and none if the
    /// headers were cut.
    pub(crate) fn flags(&self, side: usize) -> Option<u16> {
        let [own, other] = [&self.sides[side], &self.sides[1 - side]];
        own.flags.or_else(|| (own.packets == 0 && other.flags.is_some()).then_some(0))
    }

    /// Returns the packets of both directions.
    pub(crate) fn packets(&self) -> u64 {
        self.sides.iter().map(|side| side.packets).sum()
    }
}

impl Rows for FlowRows {
    type Row = FlowRow;

    fn time_ns(row: &FlowRow) -> u64 {
        row.end_ns
    }

    fn lane(row: &FlowRow) -> u32 {
        row.lane
    }

    fn packets(row: &FlowRow) -> u64 {
        row.packets()
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn len(&self) -> usize {
        self.ids.len()
    }

    fn append(&mut self, rows: &[FlowRow], _extras: &Extras) {
        let nanoseconds = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
        let [starts, ends] = &mut self.times;
        starts.extend(rows, |row| nanoseconds(row.start_ns));
        ends.extend(rows, |row| nanoseconds(row.end_ns));
        self.reasons.extend(rows, |row| row.reason as u8);
        self.protocols.extend(rows, |row| row.protocol);
        let [vlans, sources, destinations, icmp, forward, reverse] = &mut self.shorts;
        vlans.extend_optional(rows, |row| row.vlan);
        sources.extend_optional(rows, |row| row.port(0));
        destinations.extend_optional(rows, |row| row.port(1));
        icmp.extend_optional(rows, FlowRow::type_and_code);
        forward.extend_optional(rows, |row| row.flags(0));
        reverse.extend_optional(rows, |row| row.flags(1));
        let [packets, reverse_packets, octets, reverse_octets, handshakes] = &mut self.longs;
        packets.extend(rows, |row| row.sides[0].packets.cast_signed());
        reverse_packets.extend(rows, |row| row.sides[1].packets.cast_signed());
        octets.extend(rows, |row| row.sides[0].octets.cast_signed());
        reverse_octets.extend(rows, |row| row.sides[1].octets.cast_signed());
        handshakes.extend_optional(rows, |row| row.handshake_ns.map(nanoseconds));
        let of = |count: usize| match count {
            0 | 1 => |side: &Side| side.retransmitted,
            2 | 3 => |side: &Side| side.out_of_order,
            _ => |side: &Side| side.zero_windows,
        };
        for (i, counts) in self.counts.iter_mut().enumerate() {
            counts.extend(rows, |row| of(i)(&row.sides[i % 2]));
        }
        self.append_texts(rows);
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let texts = self.addresses.texts();
        let [starts, ends] = self.times.each_mut().map(|times| times.finish().with_timezone("UTC"));
        let [sources, destinations] = self.sides.each_mut().map(Numbers::finish);
        let [vlan, source_port, destination_port, icmp, flags, reverse_flags] =
            self.shorts.each_mut().map(|numbers| Arc::new(numbers.finish()) as ArrayRef);
        let longs = self.longs.each_mut().map(|numbers| Arc::new(numbers.finish()) as ArrayRef);
        let [packets, reverse_packets, octets, reverse_octets, handshake] = longs;
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(starts),
            Arc::new(ends),
            Arc::new(self.reasons.finish()),
            dictionary(self.interface_keys.finish(), self.interfaces.texts())?,
            vlan,
            dictionary(sources, Arc::clone(&texts))?,
            dictionary(destinations, texts)?,
            source_port,
            destination_port,
            Arc::new(self.protocols.finish()),
            icmp,
            self.finish_ids()?,
            packets,
            reverse_packets,
            octets,
            reverse_octets,
            flags,
            reverse_flags,
            handshake,
        ];
        arrays.extend(self.counts.iter_mut().map(|numbers| Arc::new(numbers.finish()) as ArrayRef));
        self.addresses.clear();
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}

impl FlowRows {
    /// Adds interfaces, addresses and identifiers.
    fn append_texts(&mut self, rows: &[FlowRow]) {
        let Self { interfaces, addresses, .. } = self;
        let numbers: Vec<Option<u32>> = rows.iter().map(|row| interfaces.number(row.interface)).collect();
        self.interface_keys.extend_optional(&numbers, |number| *number);
        let [sources, destinations] = &mut self.sides;
        let numbers: Vec<[u32; 2]> = rows
            .iter()
            .map(|row| [addresses.number(row.source), addresses.number(row.destination)])
            .collect();
        sources.extend(&numbers, |number| number[0]);
        destinations.extend(&numbers, |number| number[1]);
        let id = |row: &FlowRow| community_id::of(row.source, row.destination, row.protocol, row.ports);
        self.ids.extend(rows.iter().map(id));
    }

    /// Returns the identifiers, of which almost every one is distinct.
    fn finish_ids(&mut self) -> Result<ArrayRef, ArrowError> {
        let ids = std::mem::take(&mut self.ids);
        let mut keys = Keys::new(ids.len());
        let numbers: Vec<u32> = (0..ids.len() as u32).collect();
        keys.extend(&numbers, |number| *number);
        dictionary(keys.finish(), Arc::new(StringArray::from(ids)))
    }
}
