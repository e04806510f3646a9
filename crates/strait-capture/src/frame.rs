//! Frame lent by every path, with one meaning of each field on all of them.

/// Link header, two VLAN tags and frame check sequence beyond the MTU.
pub(crate) const LINK_OVERHEAD: u32 = 14 + 8 + 4;
/// Maximum size of a frame: receive offload has joined its segments, or segmentation offload has
/// not cut it yet.
pub(crate) const FRAME_BYTES_MAX: u32 = 65_536 + LINK_OVERHEAD;

/// Captured frame, borrowed from its ring. It cannot outlive its batch.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Captured bytes from the link-layer header on, VLAN tags in place, cut to the snaplen.
    pub bytes: &'a [u8],
    /// Length on the wire in bytes, VLAN tags included, frame check sequence not.
    pub wire_len: u32,
    /// Time at which the kernel received the frame, in nanoseconds since the epoch
    /// (`CLOCK_REALTIME`).
    pub timestamp_ns: u64,
    /// Index of the frame's interface; in a file, the number of the interface.
    pub interface: u32,
    /// Receive queue or fanout member.
    pub queue: u32,
    /// Outermost VLAN tag.
    pub vlan: Option<Vlan>,
    /// Direction as seen from this host.
    pub direction: Direction,
    /// Flow hash by the NIC or the kernel; 0 if there is none or it was not requested.
    pub rx_hash: u32,
    /// Time at which the NIC received the frame, in nanoseconds of the NIC's clock; 0 if the NIC
    /// does not report it or it was not requested.
    pub hardware_ns: u64,
    /// Process that owns the frame's socket, by its identifier in the initial namespace of
    /// processes; 0 if it is unknown or was not requested. See
    /// [`Owners::of`](crate::owners::Owners::of).
    pub owner: u32,
}

/// 802.1Q or 802.1ad tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: u16,
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
}

impl<'a> Frame<'a> {
    /// Returns a received frame without further properties.
    #[inline]
    pub(crate) fn received(bytes: &'a [u8], timestamp_ns: u64, interface: u32) -> Self {
        Self {
            bytes,
            wire_len: bytes.len() as u32,
            timestamp_ns,
            interface,
            queue: 0,
            vlan: Vlan::in_frame(bytes),
            direction: Direction::In,
            rx_hash: 0,
            hardware_ns: 0,
            owner: 0,
        }
    }

    /// Replaces the bytes, and updates the properties that depend on them.
    #[inline]
    pub(crate) fn replace(&mut self, bytes: &'a [u8]) {
        self.bytes = bytes;
        self.wire_len = bytes.len() as u32;
        self.vlan = None;
        // Out of line, because almost no frame has a tag.
        if Vlan::is_in(bytes) {
            self.vlan = Vlan::in_tagged_frame(bytes);
        }
    }
}

impl Vlan {
    /// Returns the outermost tag in the bytes of a frame.
    #[inline]
    pub(crate) fn in_frame(bytes: &[u8]) -> Option<Self> {
        let &[high, low, tci_high, tci_low] = bytes.get(12..16)?.first_chunk()?;
        let tag =
            Self { tci: u16::from_be_bytes([tci_high, tci_low]), tpid: u16::from_be_bytes([high, low]) };
        Self::is_in(bytes).then_some(tag)
    }

    #[cold]
    #[inline(never)]
    fn in_tagged_frame(bytes: &[u8]) -> Option<Self> {
        Self::in_frame(bytes)
    }

    /// Returns true if the bytes have a tag.
    #[inline]
    fn is_in(bytes: &[u8]) -> bool {
        const C_TAG: u16 = 0x8100_u16.to_be();
        const S_TAG: u16 = 0x88a8_u16.to_be();
        let tpid = bytes.get(12..16).and_then(<[u8]>::first_chunk);
        // Compare in network order, which saves a byte swap per frame.
        tpid.is_some_and(|tpid| matches!(u16::from_ne_bytes(*tpid), C_TAG | S_TAG))
    }
}

/// Direction of a frame, as seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
    /// Not recorded in the file.
    Unknown,
}

impl Direction {
    /// Returns the direction as files and tables have it; none if it is unknown.
    #[inline]
    pub fn known(self) -> Option<strait_pcapng::Direction> {
        match self {
            Self::In => Some(strait_pcapng::Direction::In),
            Self::Out => Some(strait_pcapng::Direction::Out),
            Self::Unknown => None,
        }
    }
}

impl From<Option<strait_pcapng::Direction>> for Direction {
    fn from(known: Option<strait_pcapng::Direction>) -> Self {
        match known {
            Some(strait_pcapng::Direction::In) => Self::In,
            Some(strait_pcapng::Direction::Out) => Self::Out,
            None => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_tag_is_read_from_the_bytes() {
        let mut frame = [0; 60];
        frame[12..16].copy_from_slice(&[0x88, 0xa8, 0x60, 0x64]);
        assert_eq!(Vlan::in_frame(&frame), Some(Vlan { tci: 0x6064, tpid: 0x88a8 }));
        frame[12] = 8;
        assert_eq!(Vlan::in_frame(&frame), None);
        assert_eq!(Vlan::in_frame(&[0x81; 15]), None, "too short for a tag");
    }
}
