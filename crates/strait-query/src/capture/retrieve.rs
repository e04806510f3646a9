//! Writes the packets that a query selects to a pcapng file.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;

use strait_capture::file::{FileInterface, FileReader, PacketRef};
use strait_pcapng::pcapng::Encoder;
use strait_pcapng::{Interface, LinkType, Packet, Section};
use strait_program::Error;
use strait_program::replace::Replacement;

use super::SharedDefects;
use super::parts::{Extent, IndexedFile, Packets};
use super::read::row;
use super::selection::Selection;
use crate::error::of_file;
use crate::interrupt::Interrupt;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// Number of packets that were written, and of the parts of files that were read for them.
#[derive(Debug, Default)]
pub(crate) struct Retrieved {
    pub(crate) packets: u64,
    /// Parts of the files that have an index.
    pub(crate) extent: Extent,
    /// Number of files that were read completely.
    pub(crate) whole: u64,
    /// The first of these files, with the reason.
    pub(crate) first_whole: String,
    /// True if one of these files can have an index: it is not compressed.
    pub(crate) can_index: bool,
}

/// Writes the selected packets of the files in the order of the files. A file with an index is read
/// in part. A defect of a file is recorded, and its earlier packets count.
///
/// # Errors
/// The file cannot be written; a signal has interrupted the query.
pub(crate) fn write(
    (path, interrupt): (&Path, Interrupt),
    files: &[String],
    selection: &Selection,
    defects: &SharedDefects,
) -> Result<Retrieved, Error> {
    let mut out = Out::create(path, interrupt)?;
    let mut retrieved = Retrieved::default();
    for file in files {
        if let Err(error) = copy_file(file, selection, &mut out, &mut retrieved)? {
            defects.with(|defects| defects.add_unread(error));
        }
    }
    retrieved.packets = out.complete()?;
    Ok(retrieved)
}

/// Copies the selected packets of a file. The inner error is a defect of the file.
fn copy_file(
    file: &str,
    selection: &Selection,
    out: &mut Out<'_>,
    retrieved: &mut Retrieved,
) -> Result<Result<(), String>, Error> {
    let reason = match IndexedFile::open(file, |part| selection.may_be_in(part)) {
        Ok(mut parts) => {
            let before = out.mark()?;
            match copy(&mut parts, selection, out)? {
                Ok(()) => {
                    retrieved.extent.add(parts.extent());
                    return Ok(Ok(()));
                }
                Err(reason) => {
                    out.restore(before)?;
                    reason
                }
            }
        }
        Err(reason) => reason.to_string(),
    };
    let mut reader = match FileReader::open(file) {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(error.to_string())),
    };
    retrieved.whole += 1;
    retrieved.can_index |= reader.compression().is_none();
    if retrieved.first_whole.is_empty() {
        retrieved.first_whole = format!("{file}: {reason}");
    }
    copy(&mut reader, selection, out)
}

/// Copies the selected packets of a reader. The inner error is a defect of the file or its index.
fn copy(
    packets: &mut impl Packets,
    selection: &Selection,
    out: &mut Out<'_>,
) -> Result<Result<(), String>, Error> {
    // Number of each interface of this file in the output.
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    loop {
        out.interrupt.check()?;
        let interface = match packets.next() {
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error.to_string())),
            Ok(Some(packet)) if !selection.has(&row(&packet)) => continue,
            Ok(Some(packet)) => {
                if let Some(number) = numbers.get(&packet.interface) {
                    out.packet(&packet, *number)?;
                    continue;
                }
                out.keep(&packet);
                packet.interface
            }
        };
        // The reader lends its packet or its interfaces.
        let number = match packets.interfaces().get(interface as usize) {
            Some(found) => out.interface(found)?,
            None => return Ok(Err("a packet has no interface".into())),
        };
        numbers.insert(interface, number);
        out.kept(number)?;
    }
}

/// File that is being written.
struct Out<'a> {
    path: &'a Path,
    interrupt: Interrupt,
    file: Replacement,
    encoder: Encoder,
    buffer: Vec<u8>,
    /// Numbers of interfaces with the same description.
    numbers: HashMap<InterfaceKey, u32>,
    /// First packet of an interface, until the interface is described.
    first: Option<(Vec<u8>, Packet<'static>)>,
    packets: u64,
    /// Bytes in the file.
    written: u64,
}

/// State of a file to which it can return.
struct Mark {
    written: u64,
    packets: u64,
    encoder: Encoder,
    numbers: HashMap<InterfaceKey, u32>,
}

/// Link type, snaplen and name of an interface.
type InterfaceKey = (u32, u32, Option<String>);

impl<'a> Out<'a> {
    fn create(path: &'a Path, interrupt: Interrupt) -> Result<Self, Error> {
        let file = Replacement::create(path).map_err(|error| of_file("create", path, error))?;
        let mut buffer = Vec::with_capacity(2 * WRITE_BYTES);
        let application = Some(concat!("strait ", env!("CARGO_PKG_VERSION")));
        let encoder = Encoder::begin(&mut buffer, &Section { application, ..Section::default() });
        Ok(Self {
            path,
            interrupt,
            file,
            encoder,
            buffer,
            numbers: HashMap::new(),
            first: None,
            packets: 0,
            written: 0,
        })
    }

    /// Returns the state of the file.
    fn mark(&mut self) -> Result<Mark, Error> {
        self.flush()?;
        let (encoder, numbers) = (self.encoder.clone(), self.numbers.clone());
        Ok(Mark { written: self.written, packets: self.packets, encoder, numbers })
    }

    /// Returns to an earlier state.
    fn restore(&mut self, mark: Mark) -> Result<(), Error> {
        self.file.truncate(mark.written).map_err(|error| of_file("write", self.path, error))?;
        self.buffer.clear();
        self.first = None;
        (self.written, self.packets) = (mark.written, mark.packets);
        (self.encoder, self.numbers) = (mark.encoder, mark.numbers);
        Ok(())
    }

    /// Returns the number of an interface, which is described before its first packet.
    fn interface(&mut self, found: &FileInterface) -> Result<u32, Error> {
        let key = (found.link_type, found.snaplen, found.name.clone());
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let interface = Interface {
            linktype: LinkType(u16::try_from(found.link_type).unwrap_or(u16::MAX)),
            snaplen: found.snaplen,
            name: found.name.as_deref(),
            ..Interface::default()
        };
        let number = self.encoder.interface(&mut self.buffer, &interface);
        let number = number.map_err(|error| of_file("write", self.path, error))?;
        self.numbers.insert(key, number);
        Ok(number)
    }

    /// Copies a packet until its interface is known.
    fn keep(&mut self, packet: &PacketRef<'_>) {
        self.first = Some((packet.bytes.to_vec(), record(packet, &[], 0)));
    }

    /// Writes the packet that was copied.
    fn kept(&mut self, interface: u32) -> Result<(), Error> {
        let Some((bytes, packet)) = self.first.take() else { return Ok(()) };
        self.record(&Packet { bytes: &bytes, interface, ..packet })
    }

    fn packet(&mut self, packet: &PacketRef<'_>, interface: u32) -> Result<(), Error> {
        self.record(&record(packet, packet.bytes, interface))
    }

    fn record(&mut self, packet: &Packet<'_>) -> Result<(), Error> {
        let encoded = self.encoder.packet(&mut self.buffer, packet);
        encoded.map_err(|error| of_file("write", self.path, error))?;
        self.packets += 1;
        if self.buffer.len() < WRITE_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.write_all(&self.buffer).map_err(|error| of_file("write", self.path, error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn complete(mut self) -> Result<u64, Error> {
        self.flush()?;
        self.file.complete().map_err(|error| of_file("write", self.path, error))?;
        Ok(self.packets)
    }
}

fn record<'a>(packet: &PacketRef<'_>, bytes: &'a [u8], interface: u32) -> Packet<'a> {
    Packet {
        timestamp_ns: packet.timestamp_ns,
        bytes,
        wire_len: packet.wire_len,
        interface,
        direction: packet.direction.known(),
        queue: packet.queue,
        comment: None,
    }
}
