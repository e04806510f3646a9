//! Integers in either byte order, read from a slice that is known to be long enough.
//!
//! Only the decoders call it, after they have checked a length. A read beyond the end returns
//! zeroes and never panics.

/// The byte order of a section or file, determined by its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    /// Returns the byte order in which `bytes` equal `magic`, if there is one.
    pub(crate) fn of(magic: u32, bytes: [u8; 4]) -> Option<Self> {
        if u32::from_le_bytes(bytes) == magic {
            Some(Self::Little)
        } else if u32::from_be_bytes(bytes) == magic {
            Some(Self::Big)
        } else {
            None
        }
    }

    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = array(bytes, at);
        match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        }
    }

    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = array(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        }
    }

    pub(crate) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let raw = array(bytes, at);
        match self {
            Self::Little => u64::from_le_bytes(raw),
            Self::Big => u64::from_be_bytes(raw),
        }
    }

    /// Reads two words; the upper one is first in either byte order (pcapng s4.3).
    pub(crate) fn high_low(self, bytes: &[u8], at: usize) -> u64 {
        u64::from(self.u32(bytes, at)) << 32 | u64::from(self.u32(bytes, at + 4))
    }
}

/// Returns `N` bytes from `at` on.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    debug_assert!(at + N <= bytes.len(), "the caller checks lengths first");
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}
