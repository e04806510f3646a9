//! What a sink is asked to do, and the check that it can be meant.
//!
//! The door fills it from its options; [`FileSink::create`](super::FileSink::create) checks it
//! once.

use std::path::PathBuf;
use std::time::Duration;

use super::{Format, LinkType, SinkError};

/// The smallest file that rotation by size makes.
pub const ROTATE_BYTES_MIN: u64 = 4096;

/// The most files that a ring keeps.
pub const RING_FILES_MAX: usize = 100_000;

/// Endings of compressed files, and the programs that make them.
const COMPRESSORS: [(&str, &str); 5] =
    [(".zst", "zstd"), (".gz", "gzip"), (".lz4", "lz4"), (".xz", "xz"), (".bz2", "bzip2")];

/// Where the file goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path. An existing file is replaced when the new one is complete; a device or FIFO is
    /// written in place. With rotation by time, a file name with `%` is a format of strftime(3) in
    /// local time, and no existing file is replaced.
    Path(PathBuf),
    /// Standard output.
    Stdout,
}

impl Target {
    /// `-` is standard output.
    pub fn parse(argument: &str) -> Self {
        if argument == "-" { Self::Stdout } else { Self::Path(argument.into()) }
    }
}

/// An interface that frames come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkInterface {
    /// What the first byte of a frame is.
    pub linktype: LinkType,
    /// The most bytes captured of a frame; 0 means no limit.
    pub snaplen: u32,
    /// Its name.
    pub name: Option<String>,
    /// What a person calls it.
    pub description: Option<String>,
    /// The filter that selects its frames, as text.
    pub filter: Option<String>,
}

/// What to write, where, and in which pieces.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// Where the file goes.
    pub target: Target,
    /// pcapng, or pcap with nanoseconds.
    pub format: Format,
    /// A file is completed before it would grow past this; at least [`ROTATE_BYTES_MIN`].
    pub rotate_bytes: Option<u64>,
    /// A file is completed when a frame comes this long after the file's period began; periods
    /// count from `start_ns`.
    pub rotate_every: Option<Duration>,
    /// With rotation: how many files to keep, the one being written included.
    pub ring_files: Option<usize>,
    /// With rotation: the most files; the last takes all further frames, whatever the limits are.
    pub files_max: Option<u64>,
    /// The interfaces, in the order of the numbers that frames give.
    pub interfaces: Vec<SinkInterface>,
    /// When the capture began, in nanoseconds since the epoch: in the statistics and in the first
    /// file's name.
    pub start_ns: u64,
    /// The program that writes, for the section header.
    pub application: String,
    /// Whether a pcapng packet notes its receive queue. Eight bytes a packet.
    pub queues: bool,
}

impl SinkOptions {
    /// One pcapng file of one Ethernet interface without a name.
    pub fn new(target: Target, start_ns: u64) -> Self {
        Self {
            target,
            format: Format::Pcapng,
            rotate_bytes: None,
            rotate_every: None,
            ring_files: None,
            files_max: None,
            interfaces: vec![SinkInterface::default()],
            start_ns,
            application: concat!("strait ", env!("CARGO_PKG_VERSION")).to_owned(),
            queues: false,
        }
    }

    /// Whether there will be more than one file.
    pub(super) fn rotates(&self) -> bool {
        self.rotate_bytes.is_some() || self.rotate_every.is_some()
    }

    pub(super) fn check(&self) -> Result<(), SinkError> {
        match self.fault() {
            Some(fault) => Err(SinkError::Usage(fault)),
            None => Ok(()),
        }
    }

    fn fault(&self) -> Option<String> {
        let first = self.interfaces.first().map(|interface| interface.linktype);
        let mixed = self.interfaces.iter().any(|interface| Some(interface.linktype) != first);
        if first.is_none() {
            return Some("a capture file needs an interface".into());
        }
        if mixed && self.format == Format::Pcap {
            return Some("a pcap file holds one link type: use pcapng for these interfaces".into());
        }
        if self.rotate_bytes.is_some_and(|bytes| bytes < ROTATE_BYTES_MIN) {
            return Some(format!("rotation by size needs at least {ROTATE_BYTES_MIN} bytes a file"));
        }
        if self.rotate_every.is_some_and(|period| period.is_zero()) {
            return Some("rotation by time needs a period above 0".into());
        }
        let ring_fits = self.ring_files.is_none_or(|files| (1..=RING_FILES_MAX).contains(&files));
        if !ring_fits {
            return Some(format!("a ring keeps 1 to {RING_FILES_MAX} files"));
        }
        if self.ring_files.is_some() && !self.rotates() {
            return Some("a ring of files needs rotation by size or by time".into());
        }
        self.compressed_name()
    }

    /// A name that promises a compressed file, which is not what would be written.
    fn compressed_name(&self) -> Option<String> {
        let Target::Path(path) = &self.target else { return None };
        let name = path.to_string_lossy();
        COMPRESSORS.iter().find(|(ending, _)| name.to_ascii_lowercase().ends_with(ending)).map(
            |(ending, program)| {
                format!(
                    "{name}: capture files are not compressed as {ending} says: -w - | {program} > {name}"
                )
            },
        )
    }
}
