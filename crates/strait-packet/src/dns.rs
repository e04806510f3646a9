//! DNS messages (RFC 1035): the header, the questions, and the answers that a summary shows.
//!
//! Layout: identifier 2 bytes, flags 2, four counts of 2 bytes, then questions and records. Names
//! are compressed with pointers. A pointer must point to an earlier offset here, so that no name
//! can loop, and a name has a limited number of them. Names of questions are skipped without their
//! pointers. So the cost of a message grows with its length only, however its names refer to one
//! another.

use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::{Error, Header, Result, be16, split_head};

/// Bytes of the header.
pub const HEADER_LEN: usize = 12;

/// Maximum length of a name on the wire, in bytes (RFC 1035 s2.3.4).
pub const NAME_LEN_MAX: usize = 255;

/// Maximum number of pointers of a name, for each of which two bytes are sent. Encoders use one,
/// which can lead to a name with another one.
const POINTERS_MAX: usize = 32;

/// Record types with a name.
pub mod kind {
    /// IPv4 address.
    pub const A: u16 = 1;
    /// Name server.
    pub const NS: u16 = 2;
    /// Canonical name.
    pub const CNAME: u16 = 5;
    /// Pointer.
    pub const PTR: u16 = 12;
    /// IPv6 address.
    pub const AAAA: u16 = 28;

    /// Returns the name of a record type.
    pub fn name(kind: u16) -> Option<&'static str> {
        Some(match kind {
            A => "A",
            NS => "NS",
            CNAME => "CNAME",
            6 => "SOA",
            PTR => "PTR",
            13 => "HINFO",
            15 => "MX",
            16 => "TXT",
            AAAA => "AAAA",
            33 => "SRV",
            35 => "NAPTR",
            41 => "OPT",
            43 => "DS",
            46 => "RRSIG",
            47 => "NSEC",
            48 => "DNSKEY",
            50 => "NSEC3",
            64 => "SVCB",
            65 => "HTTPS",
            252 => "AXFR",
            255 => "ANY",
            257 => "CAA",
            _ => return None,
        })
    }
}

/// A view of a DNS message.
#[derive(Clone, Copy, Debug)]
pub struct Dns<'a> {
    head: &'a [u8; HEADER_LEN],
    message: &'a [u8],
}

/// A name in a message, already checked to its end.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    message: &'a [u8],
    at: usize,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Name in question.
    pub name: Name<'a>,
    /// Requested record type.
    pub kind: u16,
    /// The class; 1 is the Internet.
    pub class: u16,
}

/// A record of the answer section.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Owner name of the record.
    pub name: Name<'a>,
    /// The record type.
    pub kind: u16,
    /// The class; 1 is the Internet.
    pub class: u16,
    /// Time to live, in seconds.
    pub ttl: u32,
    /// Data of the record.
    pub data: Data<'a>,
}

/// Data of a record.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// An IPv4 address.
    A(Ipv4Addr),
    /// An IPv6 address.
    Aaaa(Ipv6Addr),
    /// A name: CNAME, NS, PTR.
    Name(Name<'a>),
    /// Any other data.
    Other(&'a [u8]),
}

impl<'a> Dns<'a> {
    /// Parses the header of a message (a UDP payload). Fails only on fewer than 12 bytes.
    pub fn parse(message: &'a [u8]) -> Result<Self> {
        let (head, _) = split_head(Header::Dns, message)?;
        Ok(Self { head, message })
    }

    /// Returns the identifier, which is equal in query and response.
    pub fn id(&self) -> u16 {
        be16(self.head, 0)
    }

    /// Returns the flags word: response, opcode, AA, TC, RD, RA, Z, AD, CD, response code.
    pub fn flags(&self) -> u16 {
        be16(self.head, 2)
    }

    /// Returns true if this is a response.
    pub fn is_response(&self) -> bool {
        self.flags() & 0x8000 != 0
    }

    /// Returns the operation code; 0 is a query.
    pub fn opcode(&self) -> u8 {
        (self.flags() >> 11) as u8 & 0x0f
    }

    /// Returns the response code; 0 is no error.
    pub fn response_code(&self) -> u8 {
        self.flags() as u8 & 0x0f
    }

    /// Returns the numbers of questions, answers, authority records and additional records in the
    /// header.
    pub fn counts(&self) -> [u16; 4] {
        [4, 6, 8, 10].map(|at| be16(self.head, at))
    }

    /// Returns the first question, or `None` if there is none.
    pub fn question(&self) -> Option<Result<Question<'a>>> {
        let [questions, ..] = self.counts();
        (questions > 0).then(|| take_question(self.message, HEADER_LEN).map(|(question, _)| question))
    }

    /// Iterates over the answers, in order. The iterator ends after an error. The questions before
    /// them are only skipped: an invalid pointer in their names is no error.
    pub fn answers(&self) -> Result<Answers<'a>> {
        let [questions, answers, ..] = self.counts();
        let mut at = HEADER_LEN;
        for _ in 0..questions {
            at = skip_question(self.message, at)?;
        }
        Ok(Answers { message: self.message, at, left: answers })
    }
}

/// An iterator over the records of the answer section.
#[derive(Clone, Debug)]
pub struct Answers<'a> {
    message: &'a [u8],
    at: usize,
    left: u16,
}

impl<'a> Iterator for Answers<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let taken = take_record(self.message, self.at);
        match &taken {
            Ok((_, next)) => self.at = *next,
            Err(_) => self.left = 0,
        }
        Some(taken.map(|(record, _)| record))
    }
}

fn take_question(message: &[u8], at: usize) -> Result<(Question<'_>, usize)> {
    let (name, at) = Name::take(message, at)?;
    let [a, b, c, d] = *fixed(message, at)?;
    let (kind, class) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Ok((Question { name, kind, class }, at + 4))
}

/// Returns the offset after the question that starts at `at`.
fn skip_question(message: &[u8], at: usize) -> Result<usize> {
    let mut labels = Labels::new(message, at);
    let after = loop {
        match labels.token()? {
            Token::Label(_) => {}
            Token::End => break labels.at,
            Token::Pointer(_) => break labels.at + 2,
        }
    };
    fixed::<4>(message, after)?;
    Ok(after + 4)
}

fn take_record(message: &[u8], at: usize) -> Result<(Record<'_>, usize)> {
    let (name, at) = Name::take(message, at)?;
    let head: &[u8; 10] = fixed(message, at)?;
    let (kind, class) = (be16(head, 0), be16(head, 2));
    let ttl = crate::error::be32(head, 4);
    let start = at + 10;
    let end = start + usize::from(be16(head, 8));
    let bytes = crate::error::part(Header::Dns, message, start, end)?;
    let data = match (kind, bytes) {
        (kind::A, &[a, b, c, d]) => Data::A(Ipv4Addr::new(a, b, c, d)),
        (kind::AAAA, bytes) if bytes.len() == 16 => Data::Aaaa(Ipv6Addr::from(*fixed::<16>(message, start)?)),
        (kind::NS | kind::CNAME | kind::PTR, _) => Data::Name(Name::take(message, start)?.0),
        (_, bytes) => Data::Other(bytes),
    };
    Ok((Record { name, kind, class, ttl, data }, end))
}

fn fixed<const N: usize>(message: &[u8], at: usize) -> Result<&[u8; N]> {
    let rest = message.get(at..).unwrap_or(&[]);
    let truncated = Error::Truncated { header: Header::Dns, needed: at + N, had: message.len() };
    rest.first_chunk().ok_or(truncated)
}

impl<'a> Name<'a> {
    /// Checks the name that starts at `at`, and returns it with the offset after it. Fails on a
    /// name that is cut, is longer than 255 bytes, has a reserved label type, has a pointer that
    /// does not point backward, or has more than 32 pointers.
    fn take(message: &'a [u8], at: usize) -> Result<(Self, usize)> {
        let mut steps = Labels::new(message, at);
        while steps.step()?.is_some() {}
        Ok((Self { message, at }, steps.after_jump.unwrap_or(steps.at)))
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, at } = *self;
        let mut labels = Labels::new(message, at);
        let mut is_root = true;
        while let Ok(Some(label)) = labels.step() {
            label.iter().try_for_each(|byte| write_byte(f, *byte))?;
            f.write_char('.')?;
            is_root = false;
        }
        if is_root { f.write_char('.') } else { Ok(()) }
    }
}

/// Writes a byte of a label: graphic characters unchanged, dots and all other bytes as `\ddd` (RFC
/// 1035 s5.1).
fn write_byte(f: &mut fmt::Formatter<'_>, byte: u8) -> fmt::Result {
    match byte {
        b'.' | b'\\' => write!(f, "\\{}", char::from(byte)),
        0x21..=0x7e => f.write_char(char::from(byte)),
        other => write!(f, "\\{other:03}"),
    }
}

/// Iterator over the labels of a name.
struct Labels<'a> {
    message: &'a [u8],
    at: usize,
    /// Start of the current run of labels: the next pointer must point before it.
    run_start: usize,
    len: usize,
    pointers: usize,
    after_jump: Option<usize>,
}

/// Part of a name.
enum Token<'a> {
    Label(&'a [u8]),
    /// Target of a pointer, which has not been followed.
    Pointer(u16),
    End,
}

impl<'a> Labels<'a> {
    fn new(message: &'a [u8], at: usize) -> Self {
        Self { message, at, run_start: at, len: 0, pointers: 0, after_jump: None }
    }

    /// Returns the next label; `None` after the last.
    fn step(&mut self) -> Result<Option<&'a [u8]>> {
        loop {
            match self.token()? {
                Token::Label(label) => return Ok(Some(label)),
                Token::Pointer(pointer) => self.jump(pointer)?,
                Token::End => return Ok(None),
            }
        }
    }

    /// Returns the next part of the name. Stays at a pointer.
    fn token(&mut self) -> Result<Token<'a>> {
        let [first] = *fixed::<1>(self.message, self.at)?;
        match first {
            0 => {
                self.at += 1;
                Ok(Token::End)
            }
            1..=63 => self.label(usize::from(first)).map(Token::Label),
            192..=255 => Ok(Token::Pointer(be16(fixed::<2>(self.message, self.at)?, 0) & 0x3fff)),
            value => Err(invalid("label type", u32::from(value), "a length or a pointer")),
        }
    }

    fn label(&mut self, len: usize) -> Result<&'a [u8]> {
        let start = self.at + 1;
        let label = crate::error::part(Header::Dns, self.message, start, start + len)?;
        self.at = start + len;
        self.len += len + 1;
        if self.len >= NAME_LEN_MAX {
            return Err(invalid("name length", self.len as u32 + 1, "at most 255"));
        }
        Ok(label)
    }

    fn jump(&mut self, pointer: u16) -> Result<()> {
        let target = usize::from(pointer);
        if target >= self.run_start {
            return Err(invalid("name pointer", u32::from(pointer), "an earlier offset"));
        }
        self.pointers += 1;
        if self.pointers > POINTERS_MAX {
            return Err(invalid("number of pointers", self.pointers as u32, "at most 32"));
        }
        self.after_jump.get_or_insert(self.at + 2);
        (self.at, self.run_start) = (target, target);
        Ok(())
    }
}

fn invalid(field: &'static str, value: u32, expected: &'static str) -> Error {
    Error::Invalid { header: Header::Dns, field, value, expected }
}
