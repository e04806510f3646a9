//! Index of the files of a sink, built while they are written.
//!
//! [`FileSink`](super::FileSink) passes each packet after it is encoded, and the bytes of each
//! write. A file gets its index after its own name, so that an index never names an unfinished
//! file. A failure costs the index, never a packet.

use std::path::Path;

use strait_pcapng::index::{Builder, ENDS_BYTES, Identity, Place, digest};
use strait_pcapng::{Format, LinkType, Packet};

use super::error::SinkError;
use super::options::{Form, SinkOptions, Target};
use super::output::{CompleteFile, Output};
use crate::index::path_of;

/// Returns the identifier of the flow of a frame with a link type: the first eight bytes of the
/// SHA-1 in the community ID, little-endian.
pub type FlowOf = Box<dyn FnMut(&Packet<'_>, LinkType) -> Option<u64> + Send>;

/// Seconds of a pcap timestamp wrap around at this number.
const PCAP_SECONDS: u64 = 1 << 32;

/// Index of the current file, and the function that identifies flows.
pub(super) struct Indexing {
    flow_of: FlowOf,
    /// None after a failed write, until the next file.
    builder: Option<Builder>,
    ends: Ends,
    format: Format,
    link_types: Vec<LinkType>,
}

impl Indexing {
    pub(super) fn new(flow_of: FlowOf, options: &SinkOptions) -> Self {
        let link_types = options.interfaces.iter().map(|interface| interface.linktype).collect();
        Self { flow_of, builder: None, ends: Ends::default(), format: options.format, link_types }
    }

    /// Starts the index of a file with this header.
    pub(super) fn start(&mut self, header: &[u8]) {
        self.builder = Some(Builder::new(header.len() as u64));
        self.ends = Ends::default();
        self.ends.add(header);
    }

    /// Adds a packet that ends at the offset `end`.
    #[inline]
    pub(super) fn packet(&mut self, packet: &Packet<'_>, end: u64) {
        let Some(builder) = &mut self.builder else { return };
        let link_type = self.link_types.get(packet.interface as usize).copied().unwrap_or_default();
        let flow = (self.flow_of)(packet, link_type);
        let time_ns = match self.format {
            Format::Pcapng => packet.timestamp_ns,
            Format::Pcap => packet.timestamp_ns % (PCAP_SECONDS * 1_000_000_000),
        };
        builder.packet(&Place { end, time_ns, flow, describes: false });
    }

    /// Adds bytes that were written; `is_whole` is false after a failed write.
    pub(super) fn written(&mut self, bytes: &[u8], is_whole: bool) {
        self.ends.add(bytes);
        if !is_whole {
            self.builder = None;
        }
    }

    /// Writes the index of the complete file `name`, and returns its entry. The error is a
    /// sentence.
    pub(super) fn store(&mut self, name: &Path, file: &CompleteFile) -> Result<CompleteFile, String> {
        let builder = self.builder.take().ok_or("a write has failed")?;
        let (bytes, modified_ns) = file.length_and_change();
        let identity = Identity { bytes, modified_ns, digest: self.ends.digest() };
        let encoded = builder.finish(&identity).ok_or("it is too long, use --rotate-mib")?;
        let write = || -> Result<Option<CompleteFile>, SinkError> {
            let complete =
                Output::create(&Target::Path(path_of(name)), &encoded, Form::default())?.finish(false)?;
            Ok(complete.place)
        };
        write().map_err(|error| error.to_string())?.ok_or_else(|| "its name is that of a device".into())
    }
}

impl std::fmt::Debug for Indexing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexing").field("builder", &self.builder).finish_non_exhaustive()
    }
}

/// First and last bytes of a file.
#[derive(Debug, Default)]
struct Ends {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Ends {
    fn add(&mut self, bytes: &[u8]) {
        let room = ENDS_BYTES - self.head.len();
        self.head.extend(&bytes[..room.min(bytes.len())]);
        let last = &bytes[bytes.len().saturating_sub(ENDS_BYTES)..];
        let excess = (self.tail.len() + last.len()).saturating_sub(ENDS_BYTES);
        self.tail.drain(..excess);
        self.tail.extend(last);
    }

    fn digest(&self) -> u64 {
        digest(&self.head, &self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_the_first_and_the_last_bytes() {
        for lengths in [&[10, 20][..], &[ENDS_BYTES, 1], &[5, ENDS_BYTES * 3, 7], &[ENDS_BYTES - 1, 2, 2]] {
            let mut ends = Ends::default();
            let mut whole = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let bytes: Vec<u8> = (0..*length).map(|at| (at * 7 + number) as u8).collect();
                ends.add(&bytes);
                whole.extend(bytes);
            }
            let length = whole.len().min(ENDS_BYTES);
            assert_eq!(ends.head, whole[..length]);
            assert_eq!(ends.tail, whole[whole.len() - length..]);
        }
    }
}
