//! Error of this crate: the defect, and its byte offset in the file.
//!
//! Offsets count from the first byte of the file. Encoders use only the last three variants.

/// Reason for refusing the bytes of a file, or a record to be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends within a block. Everything before `start` was delivered.
    #[error("cut at byte {end}: the {what} that starts at byte {start} is incomplete")]
    Truncated {
        /// `file header`, `block` or `packet record`.
        what: &'static str,
        /// Offset of its start.
        start: u64,
        /// Offset of the end of the input.
        end: u64,
    },
    /// The input is empty.
    #[error("the file is empty")]
    Empty,
    /// The first four bytes belong to neither format.
    #[error(
        "not a pcap or pcapng file: it starts with the bytes {}; give a file of tcpdump -w, Wireshark or strait capture -w",
        hex(*magic)
    )]
    NotACapture {
        /// The first four bytes.
        magic: [u8; 4],
    },
    /// The file is compressed.
    #[error("compressed with {program}: unpack it first (`{program} -dc FILE | ... -`)")]
    Compressed {
        /// The program that unpacks it.
        program: &'static str,
    },
    /// A variant of pcap with other record headers.
    #[error("{variant} is not supported; convert it with `editcap -F pcapng IN OUT`")]
    Variant {
        /// Name of the variant.
        variant: &'static str,
    },
    /// A pcap version other than 2.4.
    #[error("pcap version {major}.{minor} is not supported, only 2.4")]
    PcapVersion {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// The byte-order magic of a section header is neither one (pcapng s4.1).
    #[error("block at byte {offset}: byte-order magic is {}, not 1a 2b 3c 4d in either order", hex(*magic))]
    ByteOrder {
        /// Offset of the block.
        offset: u64,
        /// The four bytes of the magic number.
        magic: [u8; 4],
    },
    /// A block length is not a multiple of 4 (pcapng s3.1).
    #[error("block at byte {offset}: length {len} is not a multiple of 4")]
    Unaligned {
        /// Offset of the block.
        offset: u64,
        /// Length in its header.
        len: u32,
    },
    /// A block is too short for its fixed fields.
    #[error("block at byte {offset}: length {len} is less than the {min} bytes of a block of type {kind:#x}")]
    TooShort {
        /// Offset of the block.
        offset: u64,
        /// Length in its header.
        len: u32,
        /// Minimum length of such a block.
        min: u32,
        /// Type of the block.
        kind: u32,
    },
    /// A block is longer than [`BLOCK_BYTES_MAX`](crate::BLOCK_BYTES_MAX).
    #[error("block at byte {offset}: length {len} exceeds the limit of {max} bytes")]
    TooLong {
        /// Offset of the block.
        offset: u64,
        /// Length in its header.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// The two lengths of a block differ (pcapng s3.1).
    #[error("block at byte {offset}: its length is {len} at its start and {trailer} at its end")]
    Trailer {
        /// Offset of the block.
        offset: u64,
        /// The length at its start.
        len: u32,
        /// The length at its end.
        trailer: u32,
    },
    /// The captured length of a packet exceeds its block.
    #[error(
        "packet at byte {offset}: the captured length is {captured} bytes, but the block has room for {room}"
    )]
    CapturedOverrun {
        /// Offset of the block.
        offset: u64,
        /// Captured length in its header.
        captured: u32,
        /// Bytes of the block that are left for them.
        room: u32,
    },
    /// A packet has more captured bytes than [`SNAPLEN_MAX`](crate::SNAPLEN_MAX).
    #[error("packet at byte {offset}: {captured} captured bytes exceed the limit of {max}")]
    CapturedTooLong {
        /// Offset of the block or record.
        offset: u64,
        /// Captured length in its header.
        captured: u32,
        /// The limit.
        max: u32,
    },
    /// A block refers to an interface that its section has not described (pcapng s4.2).
    #[error("block at byte {offset}: no interface {interface}, the section has {known}")]
    UnknownInterface {
        /// Offset of the block.
        offset: u64,
        /// Number of the interface in the block.
        interface: u32,
        /// Number of interfaces that the section has described so far.
        known: u32,
    },
    /// A file describes more than [`INTERFACES_MAX`](crate::INTERFACES_MAX) interfaces.
    #[error("block at byte {offset}: more than {max} interfaces")]
    TooManyInterfaces {
        /// Offset of the block.
        offset: u64,
        /// The limit.
        max: u32,
    },
    /// An option extends beyond the end of its block (pcapng s3.5).
    #[error("block at byte {offset}: option {code} needs {need} bytes, but {room} are left")]
    OptionOverrun {
        /// Offset of the block.
        offset: u64,
        /// The option's code.
        code: u16,
        /// Bytes that the option needs, including header and padding.
        need: u32,
        /// Bytes that are left.
        room: u32,
    },
    /// An option of fixed length has another length (pcapng s3.5).
    #[error("block at byte {offset}: option {code} has {len} bytes, not {expected}")]
    OptionLength {
        /// Offset of the block.
        offset: u64,
        /// The option's code.
        code: u16,
        /// Its length.
        len: u16,
        /// The required length.
        expected: u16,
    },
    /// A timestamp resolution that 64-bit arithmetic cannot hold.
    #[error("block at byte {offset}: timestamp resolution {value:#04x} is finer than 64 bits can hold")]
    Resolution {
        /// Offset of the block.
        offset: u64,
        /// The value of `if_tsresol`.
        value: u8,
    },
    /// A packet to be written has more bytes than [`SNAPLEN_MAX`](crate::SNAPLEN_MAX).
    #[error("a packet of {bytes} captured bytes exceeds the limit of {max}")]
    PacketTooLong {
        /// Number of its captured bytes.
        bytes: usize,
        /// The limit.
        max: u32,
    },
    /// Secrets to be written have more bytes than [`SECRETS_BYTES_MAX`](crate::SECRETS_BYTES_MAX).
    #[error("secrets of {bytes} bytes exceed the limit of {max}")]
    SecretsTooLong {
        /// Number of their bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A record to be written refers to an interface that was not written, or there are too many
    /// interfaces.
    #[error("no interface {interface}: {known} were written")]
    NoSuchInterface {
        /// Number of the interface in the record.
        interface: u32,
        /// Number of interfaces that were written.
        known: u32,
    },
}

/// `0a 0d 0d 0a`.
fn hex(bytes: [u8; 4]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(" ")
}
