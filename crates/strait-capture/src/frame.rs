//! What every path lends: one frame, with the same meaning of each field on each path.

/// A captured frame, borrowed from its ring. It cannot outlive its batch.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The captured bytes from the link-layer header on, VLAN tags in place, cut to the snaplen.
    pub bytes: &'a [u8],
    /// Length on the wire in bytes, VLAN tags included, frame check sequence not.
    pub wire_len: u32,
    /// When the kernel took the frame, in nanoseconds since the epoch (`CLOCK_REALTIME`).
    pub timestamp_ns: u64,
    /// Index of the interface that it came from; for a file, the interface's number in it.
    pub interface: u32,
    /// Receive queue or fanout member.
    pub queue: u32,
    /// The outermost VLAN tag, where the path knows it apart from the bytes.
    pub vlan: Option<Vlan>,
    /// Whether this host received or sent it.
    pub direction: Direction,
    /// The flow hash that the NIC or the kernel computed; 0 where there is none, or none was asked
    /// for.
    pub rx_hash: u32,
    /// When the NIC took the frame, in nanoseconds of the NIC's own clock; 0 where it does not say,
    /// or was not asked.
    pub hardware_ns: u64,
}

/// An 802.1Q or 802.1ad tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: u16,
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
}

impl<'a> Frame<'a> {
    /// A frame that this host received, of which nothing more is known.
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
        }
    }

    /// Makes it the frame of `bytes`, all else alike.
    #[inline]
    pub(crate) fn replace(&mut self, bytes: &'a [u8]) {
        self.bytes = bytes;
        self.wire_len = bytes.len() as u32;
        self.vlan = None;
        // Read out of line: almost no frame has a tag.
        if Vlan::is_in(bytes) {
            self.read_vlan();
        }
    }

    #[cold]
    #[inline(never)]
    fn read_vlan(&mut self) {
        self.vlan = Vlan::in_frame(self.bytes);
    }
}

impl Vlan {
    /// The outermost tag of a frame, where it stands as on the wire.
    #[inline]
    pub(crate) fn in_frame(bytes: &[u8]) -> Option<Self> {
        let &[high, low, tci_high, tci_low] = bytes.get(12..16)?.first_chunk()?;
        let tag =
            Self { tci: u16::from_be_bytes([tci_high, tci_low]), tpid: u16::from_be_bytes([high, low]) };
        Self::is_in(bytes).then_some(tag)
    }

    /// Whether there is one.
    #[inline]
    fn is_in(bytes: &[u8]) -> bool {
        const C_TAG: u16 = 0x8100_u16.to_be();
        const S_TAG: u16 = 0x88a8_u16.to_be();
        let tpid = bytes.get(12..16).and_then(<[u8]>::first_chunk);
        // Compared in the order in which it stands.
        tpid.is_some_and(|tpid| matches!(u16::from_ne_bytes(*tpid), C_TAG | S_TAG))
    }
}

/// Which way a frame went, seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
    /// A file that does not say.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_from_the_frame() {
        let mut frame = [0; 60];
        frame[12..16].copy_from_slice(&[0x88, 0xa8, 0x60, 0x64]);
        assert_eq!(Vlan::in_frame(&frame), Some(Vlan { tci: 0x6064, tpid: 0x88a8 }));
        frame[12] = 8;
        assert_eq!(Vlan::in_frame(&frame), None);
        assert_eq!(Vlan::in_frame(&[0x81; 15]), None, "too short for a tag");
    }
}
