//! Sizes of generated frames, and their order.
//!
//! Sizes include the four bytes of frame check sequence that the NIC adds, as in RFC 2544. Size 64
//! is a buffer of 60 bytes, size 1518 one of 1514.

use std::str::FromStr;

use crate::error::Error;

/// Bytes of the frame check sequence, which the buffers do not contain.
pub const FCS_LEN: usize = 4;

/// The smallest size: an Ethernet frame has at least 64 bytes.
pub const SIZE_MIN: u16 = 64;

/// The largest size: an MTU of 9000, with header and frame check sequence.
pub const SIZE_MAX: u16 = 9018;

/// Maximum number of slots of a pattern.
pub const SIZES_MAX: usize = 64;

/// The simple Internet mix, 7 : 4 : 1, with the slots of each size distributed evenly.
const IMIX: [u16; 12] = [64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64];

/// A pattern of sizes that repeats: at least one slot, at most [`SIZES_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    slots: Vec<u16>,
}

impl Sizes {
    /// Returns a pattern of these sizes in turn, each from [`SIZE_MIN`] to [`SIZE_MAX`].
    pub fn new(slots: &[u16]) -> Result<Self, Error> {
        let count = slots.len() as u64;
        if !(1..=SIZES_MAX).contains(&slots.len()) {
            let max = SIZES_MAX as u64;
            return Err(Error::OutOfRange { what: "number of frame sizes", value: count, min: 1, max });
        }
        slots.iter().try_for_each(|size| check(u64::from(*size)))?;
        Ok(Self { slots: slots.to_vec() })
    }

    /// Returns the simple Internet mix: seven frames of 64 bytes, four of 594, one of 1518.
    pub fn imix() -> Self {
        Self { slots: IMIX.to_vec() }
    }

    /// Returns the sizes in turn, including the frame check sequence.
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }
}

impl Default for Sizes {
    /// Returns frames of 64 bytes, for the maximum packet rate of a link.
    fn default() -> Self {
        Self { slots: vec![SIZE_MIN] }
    }
}

impl FromStr for Sizes {
    type Err = Error;

    /// Parses `64`, `64,512,1518` or `imix`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        let slots: Vec<u16> = text.split(',').take(SIZES_MAX + 1).map(read_size).collect::<Result<_, _>>()?;
        Self::new(&slots)
    }
}

fn read_size(text: &str) -> Result<u16, Error> {
    let expected = "a number of bytes, several with commas between them, or imix";
    let size: u64 = text.trim().parse().map_err(|_| Error::Malformed { what: "frame size", expected })?;
    check(size)?;
    Ok(size as u16)
}

fn check(value: u64) -> Result<(), Error> {
    let (min, max) = (u64::from(SIZE_MIN), u64::from(SIZE_MAX));
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(Error::OutOfRange { what: "frame size", value, min, max })
    }
}
