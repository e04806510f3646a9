//! BTF: type identifiers of the kernel's functions.
//!
//! An XDP program calls a kernel function by the identifier of its type in
//! `/sys/kernel/btf/vmlinux`, which differs between builds. The capture engine looks up the
//! metadata functions here. Only names of functions are read; a malformed file is refused as a
//! whole. Format: Documentation/bpf/btf.rst.

use std::fs::File;
use std::io::Read;

use crate::error::{Error, Kind, Result};

const PATH: &str = "/sys/kernel/btf/vmlinux";
/// Maximum size of the file; kernels have a few million bytes.
const BYTES_MAX: u64 = 1 << 26;

const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 24;
/// `struct btf_type`: name, info, and size or type.
const TYPE_BYTES: usize = 12;
const KIND_FUNC: u32 = 12;

/// Returns the type identifiers of the running kernel's functions with these names; `None` for
/// missing ones.
///
/// # Errors
/// [`Kind::Refused`] if the kernel was built without BTF.
pub fn kernel_functions<const N: usize>(names: [&str; N]) -> Result<[Option<i32>; N]> {
    let failed = |error: &std::io::Error| {
        Error::from_io("read", PATH, error)
            .with_kind(Kind::Refused)
            .remedy("needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF)")
    };
    let mut bytes = Vec::new();
    let file = File::open(PATH).map_err(|error| failed(&error))?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    functions(&bytes, names).ok_or_else(|| Error::new(Kind::Refused, "read", PATH, "its format is unknown"))
}

/// Finds functions in given bytes; returns `None` if they are not BTF.
fn functions<const N: usize>(bytes: &[u8], names: [&str; N]) -> Option<[Option<i32>; N]> {
    let (mut types, strings) = sections(bytes)?;
    let mut found = [None; N];
    // Identifier 0 is void, which the file omits.
    for id in 1.. {
        if types.is_empty() {
            break;
        }
        let (name, info) = (u32_at(types, 0)?, u32_at(types, 4)?);
        let kind = info >> 24 & 0x1f;
        if kind == KIND_FUNC {
            let name = strings.get(name as usize..)?;
            for (name_wanted, slot) in names.iter().zip(&mut found) {
                if is_text(name, name_wanted) {
                    slot.get_or_insert(id);
                }
            }
        }
        types = types.get(TYPE_BYTES + trailer_bytes(kind, (info & 0xffff) as usize)?..)?;
    }
    Some(found)
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

    use super::{functions, kernel_functions};

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
    fn the_running_kernel_has_functions() {
        match kernel_functions(["bpf_xdp_metadata_rx_hash", "no_such_function_at_all"]) {
            Ok(found) => assert_eq!(found[1], None),
            Err(error) => eprintln!("SKIP BTF: {error}"),
        }
    }
}
