//! Options of a sink and their check.
//!
//! Programs fill them from the command line; [`FileSink::create`](super::FileSink::create) checks
//! them once.

use std::path::PathBuf;
use std::time::Duration;

use strait_pcapng::{COMMENT_BYTES_MAX, Format, LinkType};

use super::error::SinkError;
use crate::compression::Compression;

/// Minimum limit of rotation by size.
pub const ROTATE_BYTES_MIN: u64 = 4096;

/// Maximum number of files that a ring keeps.
pub const RING_FILES_MAX: usize = 100_000;

/// Maximum number of comments on a capture.
pub const COMMENTS_MAX: usize = 16;

/// Suffixes of compressed files that are not written, and the programs that write such files.
const COMPRESSORS: [(&str, &str); 2] = [(".xz", "xz"), (".bz2", "bzip2")];

/// Destination of the file.
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
    /// Parses an argument; `-` is standard output.
    pub fn parse(argument: &str) -> Self {
        if argument == "-" { Self::Stdout } else { Self::Path(argument.into()) }
    }
}

/// Form of a file on disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Form {
    pub(super) compression: Option<Compression>,
    /// True if only its owner may read it.
    pub(super) is_private: bool,
}

/// Interface of captured frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkInterface {
    /// Link type of its frames.
    pub linktype: LinkType,
    /// Maximum number of bytes captured of a frame; 0 means no limit.
    pub snaplen: u32,
    /// Name.
    pub name: Option<String>,
    /// Description for users.
    pub description: Option<String>,
    /// Text of the filter that selects its frames.
    pub filter: Option<String>,
    /// Speed of the link in bits per second, if the kernel reports it.
    pub speed_bps: Option<u64>,
}

/// Options of a sink: destination, format and rotation.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// Destination of the file.
    pub target: Target,
    /// pcapng, or pcap with nanoseconds.
    pub format: Format,
    /// Compression of the files.
    pub compression: Option<Compression>,
    /// A file is completed before it would grow past this; at least [`ROTATE_BYTES_MIN`]. Bytes of
    /// a compressed file are those after compression.
    pub rotate_bytes: Option<u64>,
    /// A file is completed by the first frame that is captured this long after the start of the
    /// file's period; the first period starts at `start_ns`.
    pub rotate_every: Option<Duration>,
    /// With rotation: number of files to keep, including the current one.
    pub ring_files: Option<usize>,
    /// With rotation: maximum number of files. All further frames go to the last one, regardless of
    /// the other limits.
    pub files_max: Option<u64>,
    /// Interfaces, in the order of the numbers in frames.
    pub interfaces: Vec<SinkInterface>,
    /// Start of the capture in nanoseconds since the epoch, for the statistics and the first file's
    /// name.
    pub start_ns: u64,
    /// Name of the writing program, for the section header.
    pub application: String,
    /// Comments on the capture, for the section header of each pcapng file: at most
    /// [`COMMENTS_MAX`], of at most [`COMMENT_BYTES_MAX`] bytes.
    pub comments: Vec<String>,
    /// True to write the receive queue with each pcapng packet, which takes eight bytes.
    pub queues: bool,
    /// True to create the files with mode 0600, less the umask: they will hold secrets. Without it
    /// they get this mode before their first block of secrets. Standard output, a device or a FIFO
    /// keeps its mode.
    pub is_private: bool,
}

impl SinkOptions {
    /// Returns the options of one pcapng file of one Ethernet interface without a name. The name of
    /// the file selects its compression.
    pub fn new(target: Target, start_ns: u64) -> Self {
        let compression = match &target {
            Target::Path(path) => Compression::of_name(path),
            Target::Stdout => None,
        };
        Self {
            target,
            format: Format::Pcapng,
            compression,
            rotate_bytes: None,
            rotate_every: None,
            ring_files: None,
            files_max: None,
            interfaces: vec![SinkInterface::default()],
            start_ns,
            application: concat!("strait ", env!("CARGO_PKG_VERSION")).to_owned(),
            comments: Vec::new(),
            queues: false,
            is_private: false,
        }
    }

    /// Returns the form of the files.
    pub(super) fn form(&self) -> Form {
        Form { compression: self.compression, is_private: self.is_private }
    }

    /// Returns true if there may be more than one file.
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
        if let Some(fault) = self.fault_of_comments() {
            return Some(fault);
        }
        let ring_fits = self.ring_files.is_none_or(|files| (1..=RING_FILES_MAX).contains(&files));
        if !ring_fits {
            return Some(format!("a ring must have 1 to {RING_FILES_MAX} files"));
        }
        if self.ring_files.is_some() && !self.rotates() {
            return Some("a ring of files needs rotation by size or by time".into());
        }
        self.compressed_name()
    }

    fn fault_of_comments(&self) -> Option<String> {
        let (count, longest) =
            (self.comments.len(), self.comments.iter().map(String::len).max().unwrap_or(0));
        if count > 0 && self.format == Format::Pcap {
            return Some("only pcapng holds comments: leave them out, or give a name in .pcapng".into());
        }
        if count > COMMENTS_MAX {
            return Some(format!("{count} comments: give at most {COMMENTS_MAX}"));
        }
        if longest > COMMENT_BYTES_MAX {
            return Some(format!("a comment has {longest} bytes: give at most {COMMENT_BYTES_MAX}"));
        }
        // Each file has them in its header: half of it is for packets.
        let bytes: u64 = self.comments.iter().map(|comment| comment.len() as u64).sum();
        let is_too_much = self.rotate_bytes.is_some_and(|limit| bytes > limit / 2);
        is_too_much
            .then(|| format!("the comments have {bytes} bytes, more than half a file: give a larger limit"))
    }

    /// Returns the error of a name with a suffix of compressed files that are not written.
    fn compressed_name(&self) -> Option<String> {
        let Target::Path(path) = &self.target else { return None };
        let name = path.to_string_lossy();
        COMPRESSORS.iter().find(|(ending, _)| name.to_ascii_lowercase().ends_with(ending)).map(
            |(ending, program)| {
                format!(
                    "{name}: {ending} files are not supported: give a name in .zst, .gz or .lz4, or use -w - | {program} > {name}"
                )
            },
        )
    }
}
