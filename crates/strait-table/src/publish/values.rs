//! Values of a flow in the order of the columns of the table `flows`, for every format of messages.

use crate::community_id;
use crate::export::Record;
use crate::flows::{FlowRow, Side};
use crate::schema::FLOWS;

/// Value of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Number(u64),
    Text(&'a str),
    /// Nanoseconds since the epoch.
    Time(u64),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<u64>> From<Option<T>> for Value<'_> {
    fn from(number: Option<T>) -> Self {
        number.map_or(Self::Null, |number| Self::Number(number.into()))
    }
}

impl<'a> Value<'a> {
    /// Returns a number or a time.
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) | Self::Time(number) => Some(number),
            Self::Null | Self::Text(_) => None,
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// Number of columns.
pub(super) const COLUMNS: usize = FLOWS.columns.len();

/// Texts of a flow that are made from its values.
pub(super) struct Texts {
    pub(super) source: String,
    pub(super) destination: String,
    /// Community ID.
    pub(super) id: String,
}

impl Texts {
    pub(super) fn of(row: &FlowRow) -> Self {
        let [source, destination] = [row.source, row.destination].map(|address| address.to_string());
        let id = community_id::of(row.source, row.destination, row.protocol, row.ports);
        Self { source, destination, id }
    }
}

/// Returns the values in the order of the columns.
pub(super) fn values<'a>(record: &Record<'a>, texts: &'a Texts) -> [Value<'a>; COLUMNS] {
    let row: &FlowRow = record.row;
    let [to, back] = &row.sides;
    let of = |count: fn(&Side) -> u32| [to, back].map(|side| Value::Number(count(side).into()));
    let [retransmitted, reverse_retransmitted] = of(|side| side.retransmitted);
    let [out_of_order, reverse_out_of_order] = of(|side| side.out_of_order);
    let [zero_windows, reverse_zero_windows] = of(|side| side.zero_windows);
    [
        Value::Time(row.start_ns),
        Value::Time(row.end_ns),
        u64::from(row.reason as u8).into(),
        record.interface.map_or(Value::Null, Value::Text),
        row.vlan.into(),
        Value::Text(&texts.source),
        Value::Text(&texts.destination),
        row.port(0).into(),
        row.port(1).into(),
        u64::from(row.protocol).into(),
        row.type_and_code().into(),
        Value::Text(&texts.id),
        to.packets.into(),
        back.packets.into(),
        to.octets.into(),
        back.octets.into(),
        row.flags(0).into(),
        row.flags(1).into(),
        row.handshake_ns.into(),
        retransmitted,
        reverse_retransmitted,
        out_of_order,
        reverse_out_of_order,
        zero_windows,
        reverse_zero_windows,
    ]
}
