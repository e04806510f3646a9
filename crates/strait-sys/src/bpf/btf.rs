//! BTF: type identifiers of the kernel's functions and tracepoints, and offsets of members of its
//! structures.
//!
//! An XDP program calls a kernel function, and a tracing program attaches to one, by the identifier
//! of its type in `/sys/kernel/btf/vmlinux`, which differs between builds. So do the offsets at
//! which a tracing program reads. The capture engine looks up both here. A malformed file is
//! refused as a whole. Format: Documentation/bpf/btf.rst.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use super::{Attribute, Command, bpf_fd, explain};
use crate::error::{Error, Kind, Result};

const PATH: &str = "/sys/kernel/btf/vmlinux";
/// Maximum size of the file; kernels have a few million bytes.
const BYTES_MAX: u64 = 1 << 26;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 24;
/// `struct btf_type`: name, info, and size or type.
const TYPE_BYTES: usize = 12;
/// `struct btf_member`: name, type, and offset in bits.
const MEMBER_BYTES: usize = 12;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_FUNC: u32 = 12;
/// `struct btf_enum`: name and value.
const ENUMERATOR_BYTES: usize = 8;
/// Maximum depth of unnamed members, whose own members are found by name.
const UNNAMED_DEPTH_MAX: u32 = 4;

/// Types of the running kernel.
#[derive(Debug)]
pub struct Types {
    bytes: Vec<u8>,
}

impl Types {
    /// Reads the types of the running kernel.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the kernel was built without BTF.
    pub fn of_kernel() -> Result<Self> {
        let failed = |error: &std::io::Error| {
            Error::from_io("read", PATH, error)
                .with_kind(Kind::Refused)
                .remedy("needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF)")
        };
        let mut bytes = Vec::new();
        let file = File::open(PATH).map_err(|error| failed(&error))?;
        file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        Ok(Self { bytes })
    }

    /// Returns the type identifiers of the functions with these names; `None` for missing ones.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the format is unknown.
    pub fn functions<const N: usize>(&self, names: [&str; N]) -> Result<[Option<i32>; N]> {
        named(&self.bytes, KIND_FUNC, b"", names).ok_or_else(unknown_format)
    }

    /// Returns the type identifier of the structure with this name; `None` if there is none.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the format is unknown.
    pub fn structure(&self, name: &str) -> Result<Option<i32>> {
        let [found] = named(&self.bytes, KIND_STRUCT, b"", [name]).ok_or_else(unknown_format)?;
        Ok(found)
    }

    /// Returns the type identifiers of the tracepoints with these names; `None` for missing ones.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the format is unknown.
    pub fn tracepoints<const N: usize>(&self, names: [&str; N]) -> Result<[Option<i32>; N]> {
        named(&self.bytes, KIND_TYPEDEF, b"btf_trace_", names).ok_or_else(unknown_format)
    }

    /// Returns the offsets in bytes of members, given as structure and name; `None` for missing
    /// ones and for bit fields.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the format is unknown.
    pub fn members<const N: usize>(&self, names: [(&str, &str); N]) -> Result<[Option<u32>; N]> {
        members(&self.bytes, names).ok_or_else(unknown_format)
    }

    /// Returns names and values of the enumeration with this name, in the order of its definition;
    /// `None` if there is none. The kernel limits an enumeration to 65,535 values.
    ///
    /// # Errors
    /// [`Kind::Refused`] if the format is unknown.
    pub fn enumeration(&self, name: &str) -> Result<Option<Vec<(String, u32)>>> {
        let values = enumeration(&self.bytes, name).ok_or_else(unknown_format)?;
        Ok(Some(values).filter(|values| !values.is_empty()))
    }
}

/// Identifiers of the types of [`words`]: a number of 32 bits, and an array of them.
pub(super) const WORD: u32 = 1;
pub(super) const WORDS: u32 = 2;

/// Loads types that describe a map with values of `count` words.
pub(super) fn words(count: u32) -> Result<OwnedFd> {
    const KIND_INT: u32 = 1;
    const KIND_ARRAY: u32 = 3;
    let strings = b"\0u32\0";
    let types = [1, KIND_INT << 24, 4, 32, 0, KIND_ARRAY << 24, 0, WORD, WORD, count];
    let types_bytes = size_of_val(&types) as u32;
    let sections = [HEADER_BYTES as u32, 0, types_bytes, types_bytes, strings.len() as u32];
    let mut bytes = [MAGIC.to_ne_bytes(), [VERSION, 0]].concat();
    bytes.extend(sections.iter().chain(&types).flat_map(|word| word.to_ne_bytes()));
    bytes.extend(strings);
    let mut attribute = BtfLoad {
        btf: bytes.as_ptr() as u64,
        log_buf: 0,
        size: bytes.len() as u32,
        log_size: 0,
        log_level: 0,
        pad: 0,
    };
    bpf_fd(Command::BtfLoad, &mut attribute).map_err(|error| explain("load types for", "a BPF map", &error))
}

#[repr(C)]
struct BtfLoad {
    btf: u64,
    log_buf: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

// SAFETY: mirrors the head of the struct for BPF_BTF_LOAD in linux/bpf.h; `pad` fills its end.
unsafe impl Attribute for BtfLoad {}

fn unknown_format() -> Error {
    Error::new(Kind::Refused, "read", PATH, "its format is unknown")
}

/// One type of the file.
#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// True if offsets of members have the size of a bit field in their upper 8 bits.
    has_bit_fields: bool,
    trailer: &'a [u8],
}

/// Iterator over the types, from identifier 1 on: 0 is void, which the file omits. An item is
/// `None` if the file is malformed there.
struct Iter<'a>(&'a [u8]);

impl<'a> Iterator for Iter<'a> {
    type Item = Option<Type<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let parsed = parse(self.0);
        self.0 = parsed.map_or(&[], |(_, rest)| rest);
        Some(parsed.map(|(parsed, _)| parsed))
    }
}

/// Parses the first type. Returns it and the bytes after it.
fn parse(types: &[u8]) -> Option<(Type<'_>, &[u8])> {
    let (name, info) = (u32_at(types, 0)?, u32_at(types, 4)?);
    let kind = info >> 24 & 0x1f;
    let rest = types.get(TYPE_BYTES..)?;
    let (trailer, rest) = rest.split_at_checked(trailer_bytes(kind, (info & 0xffff) as usize)?)?;
    Some((Type { name, kind, has_bit_fields: info >> 31 != 0, trailer }, rest))
}

/// Finds types of this kind, with names after `prefix`, in given bytes; returns `None` if they are
/// not BTF.
fn named<const N: usize>(
    bytes: &[u8],
    kind: u32,
    prefix: &[u8],
    names: [&str; N],
) -> Option<[Option<i32>; N]> {
    let (types, strings) = sections(bytes)?;
    let mut found = [None; N];
    for (id, parsed) in (1..).zip(Iter(types)) {
        let parsed = parsed?;
        if parsed.kind == kind
            && let Some(name) = strings.get(parsed.name as usize..)?.strip_prefix(prefix)
        {
            for (name_wanted, slot) in names.iter().zip(&mut found) {
                if is_text(name, name_wanted) {
                    slot.get_or_insert(id);
                }
            }
        }
    }
    Some(found)
}

/// Finds members of structures in given bytes; returns `None` if they are not BTF.
fn members<const N: usize>(bytes: &[u8], names: [(&str, &str); N]) -> Option<[Option<u32>; N]> {
    let (types, strings) = sections(bytes)?;
    let types: Vec<Type<'_>> = Iter(types).collect::<Option<_>>()?;
    let mut found = [None; N];
    for structure in types.iter().filter(|parsed| parsed.kind == KIND_STRUCT) {
        let name = strings.get(structure.name as usize..)?;
        for ((wanted, member), slot) in names.iter().zip(&mut found) {
            if slot.is_none() && is_text(name, wanted) {
                *slot = member_offset(&types, strings, structure, member, 0);
            }
        }
    }
    Some(found)
}

/// Finds the values of an enumeration in given bytes, none if it is missing; returns `None` if they
/// are not BTF.
fn enumeration(bytes: &[u8], wanted: &str) -> Option<Vec<(String, u32)>> {
    let (types, strings) = sections(bytes)?;
    let mut found: Option<&[u8]> = None;
    for parsed in Iter(types) {
        let parsed = parsed?;
        if parsed.kind == KIND_ENUM && is_text(strings.get(parsed.name as usize..)?, wanted) {
            found.get_or_insert(parsed.trailer);
        }
    }
    let values = found.unwrap_or_default().chunks_exact(ENUMERATOR_BYTES).map(|value| {
        let name = strings.get(u32_at(value, 0)? as usize..)?.split(|byte| *byte == 0).next()?;
        Some((String::from_utf8_lossy(name).into_owned(), u32_at(value, 4)?))
    });
    values.collect()
}

/// Returns the offset of a member in bytes, also that of a member of an unnamed member.
fn member_offset(types: &[Type<'_>], strings: &[u8], of: &Type<'_>, wanted: &str, depth: u32) -> Option<u32> {
    for member in of.trailer.chunks_exact(MEMBER_BYTES) {
        let (name, id, bits) = (u32_at(member, 0)?, u32_at(member, 4)?, u32_at(member, 8)?);
        let is_bit_field = of.has_bit_fields && bits >> 24 != 0;
        let bytes = if of.has_bit_fields { bits & 0xff_ffff } else { bits } / 8;
        if is_text(strings.get(name as usize..)?, wanted) {
            return (!is_bit_field).then_some(bytes);
        }
        let inner = types.get((id as usize).wrapping_sub(1));
        if let Some(inner) =
            inner.filter(|inner| name == 0 && [KIND_STRUCT, KIND_UNION].contains(&inner.kind))
            && depth < UNNAMED_DEPTH_MAX
            && let Some(offset) = member_offset(types, strings, inner, wanted, depth + 1)
        {
            return bytes.checked_add(offset);
        }
    }
    None
}

/// Returns the sections of types and of strings.
fn sections(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = bytes.get(..HEADER_BYTES)?;
    let magic = u16::from_ne_bytes([header[0], header[1]]);
    if magic != MAGIC || header[2] != VERSION {
        return None;
    }
    let body = bytes.get(u32_at(header, 4)? as usize..)?;
    let section = |at: usize| {
        let (start, len) = (u32_at(header, at)? as usize, u32_at(header, at + 4)? as usize);
        body.get(start..start.checked_add(len)?)
    };
    Some((section(8)?, section(16)?))
}

/// Returns the bytes that follow a type of this kind with `members` members; `None` for unknown
/// kinds.
fn trailer_bytes(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Integer, variable, declaration tag.
        1 | 14 | 17 => 4,
        // Array.
        3 => 12,
        // Structure, union, data section, 64-bit enumeration.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumeration, function prototype.
        6 | 13 => 8 * members,
        // Pointer, forward, type name, qualifiers, function, floating point, type tag.
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn is_text(bytes: &[u8], text: &str) -> bool {
    bytes.strip_prefix(text.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    //! Tests with a small hand-made file, and with the running kernel's.

    use super::{HEADER_BYTES, KIND_FUNC, Types, enumeration, members, named};

    fn functions<const N: usize>(bytes: &[u8], names: [&str; N]) -> Option<[Option<i32>; N]> {
        named(bytes, KIND_FUNC, b"", names)
    }

    /// Types: an integer, a function "other", a structure of one member, a function "wanted".
    fn small() -> Vec<u8> {
        let types: [u32; 16] =
            [0, 1 << 24, 4, 32, 1, 12 << 24, 1, 0, 4 << 24 | 1, 4, 0, 1, 0, 7, 12 << 24, 1];
        let strings = b"\0other\0wanted\0";
        let header = [24, 0, 64, 64, strings.len() as u32];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(header.iter().chain(&types).flat_map(|word| word.to_le_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn functions_are_found_by_their_whole_name() {
        let found = functions(&small(), ["wanted", "want", "other", "absent"]);
        assert_eq!(found, Some([Some(4), None, Some(2), None]));
    }

    #[test]
    fn malformed_file_is_refused_without_panic() {
        let whole = small();
        for len in 0..whole.len() {
            assert_eq!(functions(&whole[..len], ["wanted"]), None, "cut at {len}");
        }
        for at in 0..whole.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let _ = functions(&bytes, ["wanted"]);
            }
        }
    }

    #[test]
    fn members_are_found_in_their_structure() {
        let wanted = [("wanted", "other"), ("other", "wanted"), ("other", "other")];
        // The structure of the small file has no names.
        let mut named = small();
        for (word, value) in [(7, 7_u32), (10, 1), (12, 64)] {
            named[HEADER_BYTES + 4 * word..][..4].copy_from_slice(&value.to_le_bytes());
        }
        assert_eq!(members(&named, wanted), Some([Some(8), None, None]));
    }

    #[test]
    fn values_of_an_enumeration_have_their_names() {
        let strings = b"\0reasons\0FIRST\0SECOND\0";
        let types: [u32; 7] = [1, 6 << 24 | 2, 4, 9, 0, 15, 7];
        let header = [24, 0, 28, 28, strings.len() as u32];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(header.iter().chain(&types).flat_map(|word| word.to_le_bytes()));
        bytes.extend(strings);
        let values = vec![("FIRST".to_owned(), 0), ("SECOND".to_owned(), 7)];
        assert_eq!(enumeration(&bytes, "reasons"), Some(values));
        assert_eq!(enumeration(&bytes, "reason"), Some(Vec::new()));
        for len in 0..bytes.len() {
            assert_eq!(enumeration(&bytes[..len], "reasons"), None, "cut at {len}");
        }
        // The name of the second value is outside.
        bytes[HEADER_BYTES + 20] = 0xff;
        assert_eq!(enumeration(&bytes, "reasons"), None);
    }

    #[test]
    fn the_running_kernel_has_functions_and_members() {
        let types = match Types::of_kernel() {
            Ok(types) => types,
            Err(error) => return eprintln!("SKIP BTF: {error}"),
        };
        for found in [
            types.functions(["inet_bind", "no_such_function_at_all"]),
            types.tracepoints(["inet_sock_set_state", "no_such_tracepoint_at_all"]),
        ] {
            let found = found.unwrap();
            assert!(found[0].is_some() && found[1].is_none(), "{found:?}");
        }
        let structures = ["sk_buff", "no_such_structure_at_all"].map(|name| types.structure(name).unwrap());
        assert!(structures[0].is_some() && structures[1].is_none(), "{structures:?}");
        let names = [("task_struct", "tgid"), ("socket", "sk"), ("socket", "no_such_member")];
        let found = types.members(names).unwrap();
        assert!(found[0] > Some(0) && found[1] > Some(0) && found[2].is_none(), "{found:?}");
    }
}
