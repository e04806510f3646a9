//! Encoder of pcapng and pcap, and the boundaries of whole blocks in encoded bytes.
//!
//! [`FileSink`](super::FileSink) encodes with it; [`Output`](super::output::Output) uses it to find
//! the whole blocks of a short write. It accesses no file.

use strait_pcapng::{Error, Format, Interface, Packet, Section, Statistics, pcap, pcapng};

use super::options::SinkOptions;

/// Type of an enhanced packet block (pcapng s4.3).
const ENHANCED_PACKET: u32 = 6;
/// Types of name resolution (pcapng s4.5) and decryption secrets blocks (s4.8).
const EXTRAS: [u32; 2] = [4, 10];
/// Bytes before a pcap packet (pcap s5).
const PCAP_RECORD_BYTES: usize = 16;

/// Encoder of the current file.
#[derive(Debug)]
pub(super) enum Blocks {
    Pcapng { encoder: pcapng::Encoder, queues: bool, closing_bytes: u64 },
    Pcap(pcap::Encoder),
}

impl Blocks {
    /// Writes the start of a file: section header and interfaces, or the pcap header.
    pub(super) fn begin(out: &mut Vec<u8>, options: &SinkOptions) -> Result<Self, Error> {
        match options.format {
            Format::Pcap => Ok(Self::begin_pcap(out, options)),
            Format::Pcapng => Self::begin_pcapng(out, options),
        }
    }

    fn begin_pcap(out: &mut Vec<u8>, options: &SinkOptions) -> Self {
        let snaplen = options.interfaces.iter().map(|interface| interface.snaplen);
        let unlimited = snaplen.clone().any(|snaplen| snaplen == 0);
        let longest = if unlimited { 0 } else { snaplen.max().unwrap_or(0) };
        let linktype = options.interfaces.first().map(|interface| interface.linktype).unwrap_or_default();
        Self::Pcap(pcap::Encoder::begin(out, linktype, longest, pcap::Precision::Nanoseconds))
    }

    fn begin_pcapng(out: &mut Vec<u8>, options: &SinkOptions) -> Result<Self, Error> {
        let os = operating_system();
        let section = Section {
            hardware: Some(std::env::consts::ARCH),
            os: Some(&os),
            application: Some(&options.application),
            comments: &options.comments,
        };
        let mut encoder = pcapng::Encoder::begin(out, &section);
        for interface in &options.interfaces {
            let described = Interface {
                linktype: interface.linktype,
                snaplen: interface.snaplen,
                name: interface.name.as_deref(),
                description: interface.description.as_deref(),
                filter: interface.filter.as_deref(),
                os: Some(&os),
                speed_bps: interface.speed_bps,
            };
            encoder.interface(out, &described)?;
        }
        let closing_bytes = (options.interfaces.len() * pcapng::STATISTICS_BYTES_MAX) as u64;
        Ok(Self::Pcapng { encoder, queues: options.queues, closing_bytes })
    }

    #[inline]
    pub(super) fn packet(&self, out: &mut Vec<u8>, packet: &Packet<'_>) -> Result<(), Error> {
        match self {
            Self::Pcapng { encoder, queues: true, .. } => encoder.packet(out, packet),
            Self::Pcapng { encoder, .. } => encoder.packet(out, &Packet { queue: None, ..*packet }),
            Self::Pcap(encoder) => encoder.packet(out, packet),
        }
    }

    /// Writes a statistics block; nothing in pcap, which has no place for counts.
    pub(super) fn statistics(&self, out: &mut Vec<u8>, statistics: &Statistics) -> Result<(), Error> {
        match self {
            Self::Pcapng { encoder, .. } => encoder.statistics(out, statistics),
            Self::Pcap(_) => Ok(()),
        }
    }

    /// Returns the maximum number of bytes that completing the file adds.
    #[inline]
    pub(super) fn closing_bytes(&self) -> u64 {
        match self {
            Self::Pcapng { closing_bytes, .. } => *closing_bytes,
            Self::Pcap(_) => 0,
        }
    }

    /// Returns the number of bytes of whole blocks at the start of `written`, a run of blocks that
    /// may be cut anywhere, and the number of packets in them.
    pub(super) fn whole(&self, written: &[u8]) -> (usize, u64) {
        let (mut end, mut packets) = (0, 0);
        while let Some((bytes, packet)) = self.first(&written[end..]) {
            end += bytes;
            packets += u64::from(packet);
        }
        (end, packets)
    }

    /// Returns the number of blocks of secrets and names in a run of whole blocks.
    pub(super) fn extra_blocks(&self, blocks: &[u8]) -> u64 {
        let (mut at, mut found) = (0, 0);
        while let Some((bytes, _)) = self.first(&blocks[at..]) {
            let is_pcapng = matches!(self, Self::Pcapng { .. });
            let is_extra = word(blocks, at).is_some_and(|kind| EXTRAS.contains(&kind));
            found += u64::from(is_pcapng && is_extra);
            at += bytes;
        }
        found
    }

    /// Returns the length of the first block if it is whole, and true if it is a packet.
    fn first(&self, written: &[u8]) -> Option<(usize, bool)> {
        let (bytes, packet) = match self {
            Self::Pcapng { .. } => (word(written, 4)? as usize, word(written, 0)? == ENHANCED_PACKET),
            Self::Pcap(_) => (PCAP_RECORD_BYTES + word(written, 8)? as usize, true),
        };
        (bytes > 0 && bytes <= written.len()).then_some((bytes, packet))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes)
}

/// Returns `Linux` with the kernel's release, if `/proc` has it.
fn operating_system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim()).trim_end().to_owned()
}
