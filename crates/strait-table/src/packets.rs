//! Rows of the table `packets`.
//!
//! Columns are filled one after the other from a block of [`Headers`], which is still in the cache.
//! A row costs no allocation: a batch allocates its columns once.

mod batches;
mod macs;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::types::{TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{ArrowError, Schema, SchemaRef};

pub use self::batches::PacketBatches;
use self::macs::Macs;
use crate::address::Addresses;
use crate::column::{Keys, Numbers, Texts, dictionary};
use crate::extras::{Extras, Owner};
use crate::headers::{Direction, Headers};
use crate::rows::{BATCH_ROWS, Rows};
use crate::schema::PACKETS;

/// Maximum number of interface names in a batch; further interfaces have none.
const INTERFACES_MAX: usize = 1024;

/// Bytes of frames after which a batch ends.
const FRAMES_BYTES_MAX: usize = 16 << 20;

/// Field of a row, in the order of [`PACKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Time,
    Length,
    CapturedLength,
    Interface,
    Direction,
    EtherType,
    Vlan,
    InnerVlan,
    SourceAddress,
    DestinationAddress,
    SourcePort,
    DestinationPort,
    Protocol,
    TcpFlags,
    TcpSequence,
    TcpAcknowledgment,
    TcpWindow,
    Ttl,
    IpId,
    FragmentOffset,
    SourceBytes,
    DestinationBytes,
    SourceMac,
    DestinationMac,
    Frame,
    ProcessId,
    Process,
    User,
    Cgroup,
    Container,
}

impl Field {
    /// Returns the text of an owner in this column.
    fn text_of(self, owner: Option<&Owner>) -> Option<&str> {
        let Owner { process, user, cgroup, container, .. } = owner?;
        let text = match self {
            Self::Process => process,
            Self::User => user,
            Self::Cgroup => cgroup,
            _ => container,
        };
        text.as_deref()
    }

    fn needs_extras(self) -> bool {
        use Field::{Cgroup, Container, Frame, Process, ProcessId, User};
        matches!(self, Frame | ProcessId | Process | User | Cgroup | Container)
    }
}

const FIELDS: [Field; 30] = [
    Field::Time,
    Field::Length,
    Field::CapturedLength,
    Field::Interface,
    Field::Direction,
    Field::EtherType,
    Field::Vlan,
    Field::InnerVlan,
    Field::SourceAddress,
    Field::DestinationAddress,
    Field::SourcePort,
    Field::DestinationPort,
    Field::Protocol,
    Field::TcpFlags,
    Field::TcpSequence,
    Field::TcpAcknowledgment,
    Field::TcpWindow,
    Field::Ttl,
    Field::IpId,
    Field::FragmentOffset,
    Field::SourceBytes,
    Field::DestinationBytes,
    Field::SourceMac,
    Field::DestinationMac,
    Field::Frame,
    Field::ProcessId,
    Field::Process,
    Field::User,
    Field::Cgroup,
    Field::Container,
];

/// Columns of the smallest set: who sent how much to whom.
const BASIC: [&str; 8] = [
    "time",
    "length",
    "source_address",
    "destination_address",
    "source_port",
    "destination_port",
    "protocol",
    "tcp_flags",
];
/// Columns that `headers` adds to [`BASIC`].
const HEADERS: [&str; 5] = ["tcp_sequence", "tcp_acknowledgment", "tcp_window", "ttl", "ip_id"];
/// Columns that `standard` adds to [`HEADERS`].
const STANDARD: [&str; 7] =
    ["captured_length", "interface", "direction", "ether_type", "vlan", "inner_vlan", "fragment_offset"];

/// Column that `--frames` adds.
const FRAME: [&str; 1] = ["frame"];
/// Columns that `--owner` adds.
const OWNER: [&str; 5] = ["process_id", "process", "user", "cgroup", "container"];

/// Selected columns, as indices into those of [`PACKETS`], ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns(Vec<usize>);

impl Default for Columns {
    /// Returns the set `standard`.
    fn default() -> Self {
        Self::of(&[&BASIC[..], &HEADERS, &STANDARD].concat())
    }
}

impl Columns {
    fn of(names: &[&str]) -> Self {
        let is_named = |index: &usize| names.contains(&PACKETS.columns[*index].name);
        Self((0..PACKETS.columns.len()).filter(is_named).collect())
    }

    /// Parses a list of columns and of the sets `basic`, `headers`, `standard` and `all`.
    ///
    /// # Errors
    /// A name is unknown. The row's time must be included, as it selects the file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut names: Vec<&str> = vec!["time"];
        for word in text.split(',') {
            match word {
                "basic" => names.extend(BASIC),
                "headers" => names.extend(BASIC.iter().chain(&HEADERS)),
                "standard" => names.extend(BASIC.iter().chain(&HEADERS).chain(&STANDARD)),
                "all" => {
                    let names_of = PACKETS.columns.iter().map(|column| column.name);
                    names.extend(names_of.filter(|name| !FRAME.contains(name) && !OWNER.contains(name)));
                }
                name if FRAME.contains(&name) => {
                    return Err(format!("{name}: --frames N adds this column, with N bytes of each packet"));
                }
                name if OWNER.contains(&name) => return Err(format!("{name}: --owner adds this column")),
                name if PACKETS.columns.iter().any(|column| column.name == name) => names.push(name),
                unknown => {
                    return Err(format!(
                        "{unknown}: no such column; give basic, headers, standard, all or names of strait capture --schema"
                    ));
                }
            }
        }
        Ok(Self::of(&names))
    }

    /// Adds the column `frame`.
    #[must_use]
    pub fn with_frame(self) -> Self {
        self.with(&FRAME)
    }

    /// Adds the columns of the owner.
    #[must_use]
    pub fn with_owner(self) -> Self {
        self.with(&OWNER)
    }

    fn with(mut self, names: &[&str]) -> Self {
        self.0.extend(Self::of(names).0);
        self.0.sort_unstable();
        self.0.dedup();
        self
    }

    /// Returns true if a column needs [`Extras`].
    pub(crate) fn need_extras(&self) -> bool {
        self.fields().any(Field::needs_extras)
    }

    /// Returns Arrow's schema.
    pub fn schema(&self) -> SchemaRef {
        let fields = self.0.iter().filter_map(|index| PACKETS.columns.get(*index));
        Arc::new(Schema::new(fields.map(crate::schema::Column::field).collect::<Vec<_>>()))
    }

    fn fields(&self) -> impl Iterator<Item = Field> {
        self.0.iter().filter_map(|index| FIELDS.get(*index).copied())
    }
}

/// Function that returns the name of an interface.
pub type InterfaceNames = Arc<dyn Fn(u32) -> Option<String> + Send + Sync>;

/// Values of a column, by their type.
enum Values {
    Time(Numbers<TimestampNanosecondType>),
    U8(Numbers<UInt8Type>),
    U16(Numbers<UInt16Type>),
    U32(Numbers<UInt32Type>),
    /// Index into the distinct texts of the column.
    Keys(Keys),
    /// Addresses of Ethernet, and their texts.
    Mac(Macs),
    /// Bytes of frames.
    Frames(BinaryBuilder),
    /// Texts of owners.
    Texts(Texts),
    /// The column has the keys of [`PacketRows::addresses`].
    Address,
}

/// Rows of packets, until they are a record batch.
pub struct PacketRows {
    schema: SchemaRef,
    columns: Vec<(Field, Values)>,
    rows: usize,
    addresses: Addresses,
    /// Numbers of source and destination addresses, if a column needs them.
    sides: Option<[Keys; 2]>,
    /// Numbers of a block, before they are added to the columns.
    scratch: Vec<Option<u32>>,
    interfaces: Interfaces,
    /// Maximum bytes of a frame.
    frame_bytes: u32,
    /// Bytes of frames in the batch.
    bytes: usize,
}

impl PacketRows {
    /// Creates an empty batch of `capacity` rows, with at most `frame_bytes` bytes of a frame.
    pub fn new(columns: &Columns, names: InterfaceNames, capacity: usize, frame_bytes: u32) -> Self {
        let needs_addresses = columns.fields().any(|field| {
            use Field::{DestinationAddress, DestinationBytes, SourceAddress, SourceBytes};
            matches!(field, SourceAddress | DestinationAddress | SourceBytes | DestinationBytes)
        });
        Self {
            schema: columns.schema(),
            columns: columns.fields().map(|field| (field, Values::of(field, capacity))).collect(),
            rows: 0,
            addresses: Addresses::new(),
            sides: needs_addresses.then(|| [Keys::new(capacity), Keys::new(capacity)]),
            scratch: Vec::new(),
            interfaces: Interfaces::new(names),
            frame_bytes,
            bytes: 0,
        }
    }

    fn append_extras(&mut self, rows: &[Headers], extras: &Extras) {
        for (field, values) in self.columns.iter_mut().filter(|(field, _)| field.needs_extras()) {
            let owners = rows.iter().map(|row| extras.owner(row));
            match values {
                Values::Frames(frames) => {
                    for row in rows {
                        let frame = extras.frame(row, self.frame_bytes);
                        frames.append_value(frame);
                        self.bytes += frame.len();
                    }
                }
                Values::Texts(texts) => owners.for_each(|owner| texts.push(field.text_of(owner))),
                Values::U32(numbers) => {
                    let ids: Vec<Option<u32>> =
                        owners.map(|owner| owner.map(|owner| owner.process_id)).collect();
                    numbers.extend_optional(&ids, |id| *id);
                }
                _ => {}
            }
        }
    }

    /// Adds the numbers of the source and destination addresses.
    fn append_addresses(&mut self, rows: &[Headers]) {
        let Self { sides: Some([sources, destinations]), addresses, scratch, .. } = self else { return };
        for (keys, is_source) in [(sources, true), (destinations, false)] {
            scratch.clear();
            scratch.extend(rows.iter().map(|row| {
                let internet = row.internet.as_ref()?;
                Some(addresses.number(if is_source { internet.source } else { internet.destination }))
            }));
            keys.extend_optional(scratch, |number| *number);
        }
    }

    fn append_interfaces(&mut self, rows: &[Headers]) {
        let Some((_, Values::Keys(keys))) =
            self.columns.iter_mut().find(|(field, _)| *field == Field::Interface)
        else {
            return;
        };
        self.scratch.clear();
        self.scratch.extend(rows.iter().map(|row| self.interfaces.number(row.interface)));
        keys.extend_optional(&self.scratch, |number| *number);
    }
}

impl Rows for PacketRows {
    type Row = Headers;

    fn time_ns(row: &Headers) -> u64 {
        row.time_ns
    }

    fn lane(row: &Headers) -> u32 {
        row.lane
    }

    fn packets(_row: &Headers) -> u64 {
        1
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn len(&self) -> usize {
        self.rows
    }

    /// Returns true also if the frames of the batch have many bytes.
    fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.bytes >= FRAMES_BYTES_MAX
    }

    fn append(&mut self, rows: &[Headers], extras: &Extras) {
        self.append_extras(rows, extras);
        self.append_addresses(rows);
        self.append_interfaces(rows);
        let columns = self.columns.iter_mut().filter(|(field, _)| !field.needs_extras());
        columns.for_each(|(field, values)| values.append(*field, rows));
        self.rows += rows.len();
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        (self.rows, self.bytes) = (0, 0);
        let sides = self.sides.as_mut().map(|sides| sides.each_mut().map(Numbers::finish));
        let (texts, bytes) = (self.addresses.texts(), self.addresses.bytes());
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (field, values) in &mut self.columns {
            let (side, addresses) = match field {
                Field::SourceAddress => (0, &texts),
                Field::DestinationAddress => (1, &texts),
                Field::SourceBytes => (0, &bytes),
                Field::DestinationBytes => (1, &bytes),
                Field::Interface => {
                    arrays.push(values.finish(self.interfaces.texts())?);
                    continue;
                }
                _ => {
                    arrays.push(values.finish(directions())?);
                    continue;
                }
            };
            if let Some(keys) = sides.as_ref().and_then(|sides| sides.get(side)) {
                arrays.push(dictionary(keys.clone(), Arc::clone(addresses))?);
            }
        }
        self.addresses.clear();
        RecordBatch::try_new(Arc::clone(&self.schema), arrays)
    }
}

impl Values {
    fn of(field: Field, capacity: usize) -> Self {
        match field {
            Field::Time => Self::Time(Numbers::new(capacity)),
            Field::Protocol | Field::Ttl => Self::U8(Numbers::new(capacity)),
            Field::EtherType
            | Field::Vlan
            | Field::InnerVlan
            | Field::SourcePort
            | Field::DestinationPort
            | Field::TcpFlags
            | Field::TcpWindow => Self::U16(Numbers::new(capacity)),
            Field::Length
            | Field::CapturedLength
            | Field::TcpSequence
            | Field::TcpAcknowledgment
            | Field::IpId
            | Field::FragmentOffset
            | Field::ProcessId => Self::U32(Numbers::new(capacity)),
            Field::Interface | Field::Direction => Self::Keys(Keys::new(capacity)),
            Field::SourceMac | Field::DestinationMac => Self::Mac(Macs::new(capacity)),
            Field::Frame => Self::Frames(BinaryBuilder::new()),
            Field::Process | Field::User | Field::Cgroup | Field::Container => {
                Self::Texts(Texts::new(capacity))
            }
            Field::SourceAddress
            | Field::DestinationAddress
            | Field::SourceBytes
            | Field::DestinationBytes => Self::Address,
        }
    }

    fn append(&mut self, field: Field, rows: &[Headers]) {
        match self {
            Self::Time(times) => {
                times.extend(rows, |row| i64::try_from(row.time_ns).unwrap_or(i64::MAX));
            }
            Self::U8(numbers) => append_u8(numbers, field, rows),
            Self::U16(numbers) => append_u16(numbers, field, rows),
            Self::U32(numbers) => append_u32(numbers, field, rows),
            Self::Keys(keys) if field == Field::Direction => keys.extend_optional(rows, |row| {
                row.direction.map(|direction| u32::from(direction == Direction::Out))
            }),
            Self::Mac(macs) => {
                let side = usize::from(field == Field::DestinationMac);
                macs.extend(rows, |row| row.macs.map(|macs| macs[side]));
            }
            // Filled by `PacketRows`.
            Self::Keys(_) | Self::Address | Self::Frames(_) | Self::Texts(_) => {}
        }
    }

    /// Returns the column; `texts` are those that keys select from.
    fn finish(&mut self, texts: ArrayRef) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Time(times) => Arc::new(times.finish().with_timezone("UTC")),
            Self::U8(numbers) => Arc::new(numbers.finish()),
            Self::U16(numbers) => Arc::new(numbers.finish()),
            Self::U32(numbers) => Arc::new(numbers.finish()),
            Self::Keys(keys) => dictionary(keys.finish(), texts)?,
            Self::Mac(macs) => macs.finish()?,
            Self::Frames(frames) => Arc::new(frames.finish()),
            Self::Texts(texts) => texts.finish()?,
            Self::Address => texts,
        })
    }
}

fn append_u8(numbers: &mut Numbers<UInt8Type>, field: Field, rows: &[Headers]) {
    match field {
        Field::Protocol => {
            numbers.extend_optional(rows, |row| row.internet.map(|internet| internet.protocol));
        }
        _ => numbers.extend_optional(rows, |row| row.internet.map(|internet| internet.ttl)),
    }
}

fn append_u16(numbers: &mut Numbers<UInt16Type>, field: Field, rows: &[Headers]) {
    match field {
        Field::EtherType => numbers.extend_optional(rows, |row| row.ether_type),
        Field::Vlan => numbers.extend_optional(rows, |row| row.vlan),
        Field::InnerVlan => numbers.extend_optional(rows, |row| row.inner_vlan),
        Field::SourcePort => numbers.extend_optional(rows, |row| row.ports.map(|[source, _]| source)),
        Field::DestinationPort => {
            numbers.extend_optional(rows, |row| row.ports.map(|[_, destination]| destination));
        }
        Field::TcpFlags => numbers.extend_optional(rows, |row| row.tcp.map(|tcp| tcp.flags)),
        _ => numbers.extend_optional(rows, |row| row.tcp.map(|tcp| tcp.window)),
    }
}

fn append_u32(numbers: &mut Numbers<UInt32Type>, field: Field, rows: &[Headers]) {
    match field {
        Field::Length => numbers.extend(rows, |row| row.length),
        Field::CapturedLength => numbers.extend(rows, |row| row.captured_length),
        Field::TcpSequence => numbers.extend_optional(rows, |row| row.tcp.map(|tcp| tcp.sequence)),
        Field::TcpAcknowledgment => {
            numbers.extend_optional(rows, |row| row.tcp.map(|tcp| tcp.acknowledgment));
        }
        Field::IpId => {
            numbers.extend_optional(rows, |row| row.internet.and_then(|internet| internet.identification));
        }
        _ => numbers.extend_optional(rows, |row| row.internet.and_then(|internet| internet.fragment_offset)),
    }
}

/// Returns the texts of directions, in the order of their keys.
fn directions() -> ArrayRef {
    Arc::new(StringArray::from(vec!["in", "out"]))
}

/// Names of interfaces, each with a number.
pub(crate) struct Interfaces {
    names: InterfaceNames,
    numbers: HashMap<u32, Option<u32>>,
    texts: Vec<String>,
    /// Last interface: almost every packet is of the same one.
    last: Option<(u32, Option<u32>)>,
}

impl Interfaces {
    pub(crate) fn new(names: InterfaceNames) -> Self {
        Self { names, numbers: HashMap::new(), texts: Vec::new(), last: None }
    }

    pub(crate) fn number(&mut self, interface: u32) -> Option<u32> {
        if let Some((last, number)) = self.last
            && last == interface
        {
            return number;
        }
        let number = match self.numbers.get(&interface) {
            Some(number) => *number,
            None => self.look_up(interface),
        };
        self.last = Some((interface, number));
        number
    }

    fn look_up(&mut self, interface: u32) -> Option<u32> {
        if self.numbers.len() >= INTERFACES_MAX {
            return None;
        }
        let number = (self.names)(interface).map(|name| {
            let known = self.texts.iter().position(|text| *text == name);
            let number = known.unwrap_or_else(|| {
                self.texts.push(name);
                self.texts.len() - 1
            });
            number as u32
        });
        self.numbers.insert(interface, number);
        number
    }

    /// Returns the name of an interface.
    pub(crate) fn name(&mut self, interface: u32) -> Option<&str> {
        let number = self.number(interface)?;
        self.texts.get(number as usize).map(String::as_str)
    }

    pub(crate) fn texts(&self) -> ArrayRef {
        Arc::new(StringArray::from(self.texts.clone()))
    }
}

#[cfg(test)]
mod tests;
