//! Error of this crate: the defect, and its byte offset in the file.
//!
//! Offsets count from the first byte that the decoder was fed. Encoders use the two last variants
//! only.

/// Why bytes are not a capture file, or why a record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ended inside a block. Everything before `start` was delivered.
    #[error("cut at byte {end}: the {what} that starts at byte {start} is not whole")]
    Truncated {
        /// `file header`, `block` or `packet record`.
        what: &'static str,
        /// Where it starts.
        start: u64,
        /// Where the input ends.
        end: u64,
    },
    /// The input is empty.
    #[error("empty: not even a file header")]
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
    /// A relative of pcap with other record headers.
    #[error("{variant} is not supported; convert it with `editcap -F pcapng IN OUT`")]
    Variant {
        /// Its name.
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
        /// Where the block starts.
        offset: u64,
        /// The magic's four bytes.
        magic: [u8; 4],
    },
    /// A block length is not a multiple of 4 (pcapng s3.1).
    #[error("block at byte {offset}: length {len} is not a multiple of 4")]
    Unaligned {
        /// Where the block starts.
        offset: u64,
        /// The length it gives.
        len: u32,
    },
    /// A block is too short for its fixed fields.
    #[error("block at byte {offset}: length {len} is less than the {min} bytes of a block of type {kind:#x}")]
    TooShort {
        /// Where the block starts.
        offset: u64,
        /// The length it gives.
        len: u32,
        /// The least length of such a block.
        min: u32,
        /// Its type.
        kind: u32,
    },
    /// A block is longer than [`BLOCK_BYTES_MAX`](crate::BLOCK_BYTES_MAX).
    #[error("block at byte {offset}: length {len} is over the limit of {max} bytes")]
    TooLong {
        /// Where the block starts.
        offset: u64,
        /// The length it gives.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// The two lengths of a block differ (pcapng s3.1).
    #[error("block at byte {offset}: its length is {len} at its start and {trailer} at its end")]
    Trailer {
        /// Where the block starts.
        offset: u64,
        /// The length at its start.
        len: u32,
        /// The length at its end.
        trailer: u32,
    },
    /// A packet says that it has more captured bytes than its block has room for.
    #[error("packet at byte {offset}: {captured} captured bytes in a block with room for {room}")]
    CapturedOverrun {
        /// Where the block starts.
        offset: u64,
        /// Captured bytes that it claims.
        captured: u32,
        /// Bytes that the block has for them.
        room: u32,
    },
    /// A packet has more captured bytes than [`SNAPLEN_MAX`](crate::SNAPLEN_MAX).
    #[error("packet at byte {offset}: {captured} captured bytes are over the limit of {max}")]
    CapturedTooLong {
        /// Where the block or record starts.
        offset: u64,
        /// Captured bytes that it claims.
        captured: u32,
        /// The limit.
        max: u32,
    },
    /// A block refers to an interface that its section has not described (pcapng s4.2).
    #[error("block at byte {offset}: interface {interface} of {known} in this section")]
    UnknownInterface {
        /// Where the block starts.
        offset: u64,
        /// The interface that it names.
        interface: u32,
        /// How many the section has described so far.
        known: u32,
    },
    /// A file describes more than [`INTERFACES_MAX`](crate::INTERFACES_MAX) interfaces.
    #[error("block at byte {offset}: more than {max} interfaces")]
    TooManyInterfaces {
        /// Where the block starts.
        offset: u64,
        /// The limit.
        max: u32,
    },
    /// An option runs over the end of its block (pcapng s3.5).
    #[error("block at byte {offset}: option {code} needs {need} bytes where {room} are left")]
    OptionOverrun {
        /// Where the block starts.
        offset: u64,
        /// The option's code.
        code: u16,
        /// Bytes that the option needs, header and padding included.
        need: u32,
        /// Bytes that are left.
        room: u32,
    },
    /// An option of fixed length has another one (pcapng s3.5).
    #[error("block at byte {offset}: option {code} has {len} bytes, not {expected}")]
    OptionLength {
        /// Where the block starts.
        offset: u64,
        /// The option's code.
        code: u16,
        /// The length it has.
        len: u16,
        /// The length that it should have.
        expected: u16,
    },
    /// A timestamp resolution that 64-bit arithmetic cannot hold.
    #[error("block at byte {offset}: timestamp resolution {value:#04x} is finer than this reader can count")]
    Resolution {
        /// Where the block starts.
        offset: u64,
        /// The value of `if_tsresol`.
        value: u8,
    },
    /// A packet to be written has more bytes than [`SNAPLEN_MAX`](crate::SNAPLEN_MAX).
    #[error("a packet of {bytes} captured bytes is over the limit of {max}")]
    PacketTooLong {
        /// Its captured bytes.
        bytes: usize,
        /// The limit.
        max: u32,
    },
    /// A record to be written refers to an interface that was not written, or there are too many of
    /// them.
    #[error("interface {interface} of {known}")]
    NoSuchInterface {
        /// The interface it names.
        interface: u32,
        /// How many were written.
        known: u32,
    },
}

/// `0a 0d 0d 0a`.
fn hex(bytes: [u8; 4]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(" ")
}
