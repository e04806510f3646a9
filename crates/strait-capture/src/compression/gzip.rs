//! Decompresses gzip members (RFC 1952), and checks the checksum and the length of each.
//!
//! [`Decompressor`](super::Decompressor) uses it. Zeros after a member are skipped, as gzip(1)
//! does: tapes and block devices pad files with them.

use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::defect::{Defect, Progress};

/// Flags of a header (RFC 1952, section 2.3.1).
const FLAG_CHECK: u8 = 0x02;
const FLAG_EXTRA: u8 = 0x04;
const FLAG_NAME: u8 = 0x08;
const FLAG_COMMENT: u8 = 0x10;
const FLAGS_RESERVED: u8 = 0xe0;
/// Bytes of the header without optional fields.
const HEADER_BYTES: u8 = 10;
/// Bytes of checksum and length.
const TRAILER_BYTES: u8 = 8;

/// State of a file.
#[derive(Debug)]
pub(super) struct Gzip {
    place: Place,
    flags: u8,
    inflate: Decompress,
    check: Crc,
    has_member: bool,
}

/// Place in a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the first header, or after a trailer.
    Between,
    /// Fixed part of the header, at this byte.
    Fixed(u8),
    /// Length of the extra field; its first byte, once it has been read.
    ExtraLength(Option<u8>),
    /// Remaining bytes of the extra field.
    Extra(u16),
    /// Name, up to a zero.
    Name,
    /// Comment, up to a zero.
    Comment,
    /// Remaining bytes of the checksum of the header.
    HeaderCheck(u8),
    Body,
    /// Number of read bytes of the trailer, and the bytes.
    Trailer(u8, u64),
}

impl Default for Gzip {
    fn default() -> Self {
        Self {
            place: Place::Between,
            flags: 0,
            inflate: Decompress::new(false),
            check: Crc::new(),
            has_member: false,
        }
    }
}

impl Gzip {
    pub(super) fn may_end(&self) -> bool {
        self.place == Place::Between && self.has_member
    }

    /// Decompresses a part of the input. Beside a defect there can be output before it.
    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> (Progress, Option<Defect>) {
        let mut consumed = 0;
        for byte in input {
            if self.place == Place::Body {
                break;
            }
            consumed += 1;
            match self.next_place(*byte) {
                Ok(place) => self.place = place,
                Err(defect) => return (Progress { consumed, produced: 0 }, Some(defect)),
            }
        }
        if self.place != Place::Body {
            return (Progress { consumed, produced: 0 }, None);
        }
        let (mut progress, defect) = self.inflate(&input[consumed..], output);
        progress.consumed += consumed;
        (progress, defect)
    }

    fn inflate(&mut self, input: &[u8], output: &mut [u8]) -> (Progress, Option<Defect>) {
        let before = (self.inflate.total_in(), self.inflate.total_out());
        let result = self.inflate.decompress(input, output, FlushDecompress::None);
        let consumed = (self.inflate.total_in() - before.0) as usize;
        let produced = (self.inflate.total_out() - before.1) as usize;
        self.check.update(&output[..produced]);
        let defect = match result {
            Ok(Status::StreamEnd) => {
                self.place = Place::Trailer(0, 0);
                None
            }
            Ok(Status::Ok | Status::BufError) => None,
            Err(_) => Some(Defect::Damaged("the deflate stream is invalid")),
        };
        (Progress { consumed, produced }, defect)
    }

    /// Returns the place after a byte of a header or a trailer.
    fn next_place(&mut self, byte: u8) -> Result<Place, Defect> {
        Ok(match self.place {
            Place::Between if byte == 0 && self.has_member => Place::Between,
            Place::Between => self.fixed(0, byte)?,
            Place::Fixed(at) => self.fixed(at, byte)?,
            Place::ExtraLength(None) => Place::ExtraLength(Some(byte)),
            Place::ExtraLength(Some(low)) => match u16::from_le_bytes([low, byte]) {
                0 => self.after_extra(),
                length => Place::Extra(length),
            },
            Place::Extra(1) => self.after_extra(),
            Place::Extra(left) => Place::Extra(left - 1),
            Place::Name if byte == 0 => self.after_name(),
            Place::Comment if byte == 0 => self.after_comment(),
            Place::HeaderCheck(1) => self.begin_body(),
            Place::HeaderCheck(left) => Place::HeaderCheck(left - 1),
            Place::Trailer(at, bytes) => self.trailer(at + 1, bytes | u64::from(byte) << (8 * at))?,
            place @ (Place::Name | Place::Comment | Place::Body) => place,
        })
    }

    /// Checks byte `at` of the fixed part: magic number, method, flags, time, flags, system.
    fn fixed(&mut self, at: u8, byte: u8) -> Result<Place, Defect> {
        match at {
            0 if byte != 0x1f && self.has_member => {
                return Err(Defect::Damaged("bytes after the end are not gzip"));
            }
            0 if byte != 0x1f => return Err(Defect::Damaged("not gzip")),
            1 if byte != 0x8b => return Err(Defect::Damaged("not gzip")),
            2 if byte != 8 => return Err(Defect::Damaged("unknown compression method")),
            3 if byte & FLAGS_RESERVED != 0 => return Err(Defect::Damaged("unknown flags")),
            3 => self.flags = byte,
            _ => {}
        }
        Ok(if at + 1 < HEADER_BYTES {
            Place::Fixed(at + 1)
        } else if self.flags & FLAG_EXTRA != 0 {
            Place::ExtraLength(None)
        } else {
            self.after_extra()
        })
    }

    fn after_extra(&mut self) -> Place {
        if self.flags & FLAG_NAME != 0 { Place::Name } else { self.after_name() }
    }

    fn after_name(&mut self) -> Place {
        if self.flags & FLAG_COMMENT != 0 { Place::Comment } else { self.after_comment() }
    }

    fn after_comment(&mut self) -> Place {
        if self.flags & FLAG_CHECK != 0 { Place::HeaderCheck(2) } else { self.begin_body() }
    }

    fn begin_body(&mut self) -> Place {
        self.inflate.reset(false);
        self.check.reset();
        Place::Body
    }

    /// Checks the trailer when all of its bytes have been read: checksum, then length modulo 2^32.
    fn trailer(&mut self, at: u8, bytes: u64) -> Result<Place, Defect> {
        if at < TRAILER_BYTES {
            return Ok(Place::Trailer(at, bytes));
        }
        self.has_member = true;
        if bytes == u64::from(self.check.amount()) << 32 | u64::from(self.check.sum()) {
            Ok(Place::Between)
        } else {
            Err(Defect::Damaged("the checksum is wrong"))
        }
    }
}
