//! Conditions of a query that let a scan skip parts of an indexed capture file.
//!
//! An index has the times and the flows of each part. Of the conditions of a query these are used:
//!
//! | column | condition |
//! |---|---|
//! | `time` of `packets` | comparisons with a time, `between`, `in` |
//! | `communityId` of `flows` | `=`, `in` |
//! | both addresses and both ports | each `=`, joined by `and`; the protocol too, if there is one |
//!
//! They may be joined by `and` and `or`. The engine applies all conditions to the rows again, so a
//! condition that is not understood here only costs reading.

use std::net::IpAddr;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, Operator, TryCast};
use datafusion::scalar::ScalarValue;
use strait_capture::index::Part;
use strait_table::flows::{flow_id, flow_id_between};

use super::kind::Kind;

/// Protocols with ports: TCP, UDP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 4] = [6, 17, 132, 136];

/// Condition on the parts of a file. A part that does not fulfil it has no row of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Every part may have rows.
    Unknown,
    /// First and last time in nanoseconds since the epoch.
    Times(u64, u64),
    /// Identifiers of flows, one of which a part must have.
    Flows(Vec<u64>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl Condition {
    /// Returns the condition of a query's filters on a table, all of which its rows fulfil.
    pub(super) fn of(kind: Kind, filters: &[Expr]) -> Self {
        let Some(columns) = Columns::of(kind) else { return Self::Unknown };
        let mut conjuncts = Vec::new();
        for filter in filters {
            split(filter, Operator::And, &mut conjuncts);
        }
        columns.all(&conjuncts)
    }

    /// Returns true if a part may have rows of the result; false only if it has none.
    pub(super) fn may_be_in(&self, part: &Part<'_>) -> bool {
        part.packets > 0 && self.fits(part)
    }

    fn fits(&self, part: &Part<'_>) -> bool {
        match self {
            Self::Unknown => true,
            // A later time is negative in the table.
            Self::Times(first, last) => {
                part.last_ns > i64::MAX as u64 || (part.first_ns <= *last && part.last_ns >= *first)
            }
            Self::Flows(flows) => flows.iter().any(|flow| part.may_have(*flow)),
            Self::All(all) => all.iter().all(|one| one.fits(part)),
            Self::Any(any) => any.iter().any(|one| one.fits(part)),
        }
    }
}

/// Names of the columns that an index knows.
struct Columns {
    time: Option<&'static str>,
    flow: Option<&'static str>,
    addresses: [&'static str; 2],
    ports: [&'static str; 2],
    protocol: &'static str,
}

impl Columns {
    /// Returns none for messages: their bytes can be in any part, and limits of memory depend on
    /// all packets.
    fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Packets => Some(Self {
                time: Some("time"),
                flow: None,
                addresses: ["source_address", "destination_address"],
                ports: ["source_port", "destination_port"],
                protocol: "protocol",
            }),
            // The start of a flow depends on earlier packets, so times select no parts.
            Kind::Flows => Some(Self {
                time: None,
                flow: Some("communityId"),
                addresses: ["sourceAddress", "destinationAddress"],
                ports: ["sourceTransportPort", "destinationTransportPort"],
                protocol: "protocolIdentifier",
            }),
            Kind::Messages(_) => None,
        }
    }

    /// Returns the condition of expressions that are joined by `and`.
    fn all(&self, conjuncts: &[&Expr]) -> Condition {
        let each = conjuncts.iter().map(|expr| self.one(expr)).chain(self.endpoints(conjuncts));
        let mut known: Vec<Condition> = each.filter(|one| *one != Condition::Unknown).collect();
        match known.len() {
            0 => Condition::Unknown,
            1 => known.remove(0),
            _ => Condition::All(known),
        }
    }

    fn one(&self, expr: &Expr) -> Condition {
        match expr {
            Expr::BinaryExpr(BinaryExpr { op: operator @ (Operator::And | Operator::Or), .. }) => {
                let mut parts = Vec::new();
                split(expr, *operator, &mut parts);
                if *operator == Operator::And { self.all(&parts) } else { self.any(parts.into_iter()) }
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (column(left), right.as_ref()) {
                (Some(name), Expr::Literal(value, _)) => self.compare(name, *op, value),
                _ => match (column(right), left.as_ref(), op.swap()) {
                    (Some(name), Expr::Literal(value, _), Some(op)) => self.compare(name, op, value),
                    _ => Condition::Unknown,
                },
            },
            Expr::Between(Between { expr, negated: false, low, high }) => {
                let bound = |op, side: &Expr| match (column(expr), side) {
                    (Some(name), Expr::Literal(value, _)) => self.compare(name, op, value),
                    _ => Condition::Unknown,
                };
                match (bound(Operator::GtEq, low), bound(Operator::LtEq, high)) {
                    (Condition::Unknown, other) | (other, Condition::Unknown) => other,
                    (low, high) => Condition::All(vec![low, high]),
                }
            }
            Expr::InList(InList { expr, list, negated: false }) => {
                let Some(name) = column(expr) else { return Condition::Unknown };
                let each = list.iter().map(|value| match value {
                    Expr::Literal(value, _) => self.compare(name, Operator::Eq, value),
                    _ => Condition::Unknown,
                });
                combine(each)
            }
            _ => Condition::Unknown,
        }
    }

    fn any<'a>(&self, parts: impl Iterator<Item = &'a Expr>) -> Condition {
        combine(parts.map(|part| self.one(part)))
    }

    /// Returns the condition of a comparison of a column with a value.
    fn compare(&self, name: &str, op: Operator, value: &ScalarValue) -> Condition {
        if self.time == Some(name)
            && let ScalarValue::TimestampNanosecond(Some(time), _) = value
        {
            return times(op, *time);
        }
        if self.flow == Some(name)
            && op == Operator::Eq
            && let Some(text) = text(value)
        {
            // A text that is no identifier is that of no flow.
            return Condition::Flows(flow_id(text).into_iter().collect());
        }
        Condition::Unknown
    }

    /// Returns the condition of the flow between the endpoints that the expressions name.
    fn endpoints(&self, conjuncts: &[&Expr]) -> Option<Condition> {
        let value_of = |name: &str| conjuncts.iter().find_map(|expr| equal(expr, name));
        let address = |name| text(value_of(name)?)?.parse::<IpAddr>().ok();
        let port = |name| u16::try_from(number(value_of(name)?)?).ok();
        let addresses = [address(self.addresses[0])?, address(self.addresses[1])?];
        let ports = [port(self.ports[0])?, port(self.ports[1])?];
        let protocol = value_of(self.protocol).and_then(number);
        let is_possible = |one: &u8| protocol.is_none_or(|protocol| protocol == u64::from(*one));
        // The first fragment of a packet has ports, and is in a flow without.
        let flows = WITH_PORTS.into_iter().filter(is_possible).flat_map(|protocol| {
            [Some(ports), None].map(|ports| flow_id_between(addresses, protocol, ports))
        });
        Some(Condition::Flows(flows.collect()))
    }
}

/// Returns the condition that one of several is fulfilled.
fn combine(conditions: impl Iterator<Item = Condition>) -> Condition {
    let mut any = Vec::new();
    for condition in conditions {
        match condition {
            Condition::Unknown => return Condition::Unknown,
            Condition::Any(more) => any.extend(more),
            one => any.push(one),
        }
    }
    Condition::Any(any)
}

/// Returns the times that fulfil a comparison.
fn times(op: Operator, time: i64) -> Condition {
    let at = |time: i128| u64::try_from(time.max(0)).unwrap_or(u64::MAX);
    let time = i128::from(time);
    match op {
        Operator::Eq if time >= 0 => Condition::Times(at(time), at(time)),
        Operator::Gt => Condition::Times(at(time + 1), u64::MAX),
        Operator::GtEq => Condition::Times(at(time), u64::MAX),
        Operator::Lt if time > 0 => Condition::Times(0, at(time - 1)),
        Operator::LtEq if time >= 0 => Condition::Times(0, at(time)),
        _ => Condition::Unknown,
    }
}

/// Adds the expressions that `operator` joins.
fn split<'a>(expr: &'a Expr, operator: Operator, parts: &mut Vec<&'a Expr>) {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if *op == operator => {
            split(left, operator, parts);
            split(right, operator, parts);
        }
        other => parts.push(other),
    }
}

/// Returns the value with which an expression compares a column for equality.
fn equal<'a>(expr: &'a Expr, name: &str) -> Option<&'a ScalarValue> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Literal(value, _), other) | (other, Expr::Literal(value, _))
            if column(other) == Some(name) =>
        {
            Some(value)
        }
        _ => None,
    }
}

/// Returns the name of a column, also below a cast that keeps its values.
fn column(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Column(column) => Some(&column.name),
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            column(expr).filter(|_| keeps_values(field.data_type()))
        }
        _ => None,
    }
}

/// Returns true for types that have all values of texts, of small numbers, or of times. A cast
/// between kinds compares with no literal that is used here.
fn keeps_values(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Int32
        | DataType::UInt32
        | DataType::Int64
        | DataType::UInt64
        | DataType::Timestamp(TimeUnit::Nanosecond, _) => true,
        DataType::Dictionary(_, value) => keeps_values(value),
        _ => false,
    }
}

fn text(value: &ScalarValue) -> Option<&str> {
    match value {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => {
            text.as_deref()
        }
        ScalarValue::Dictionary(_, value) => self::text(value),
        _ => None,
    }
}

fn number(value: &ScalarValue) -> Option<u64> {
    match value {
        ScalarValue::UInt8(number) => number.map(u64::from),
        ScalarValue::UInt16(number) => number.map(u64::from),
        ScalarValue::UInt32(number) => number.map(u64::from),
        ScalarValue::UInt64(number) => *number,
        ScalarValue::Int8(number) => number.and_then(|number| number.try_into().ok()),
        ScalarValue::Int16(number) => number.and_then(|number| number.try_into().ok()),
        ScalarValue::Int32(number) => number.and_then(|number| number.try_into().ok()),
        ScalarValue::Int64(number) => number.and_then(|number| number.try_into().ok()),
        _ => None,
    }
}
