//! Staging ring of D3: each packet is copied once, into memory for later stages of an analysis.

/// Size of the ring in bytes: larger than a second-level cache, like a ring that holds milliseconds
/// of traffic.
const BYTES: usize = 4 << 20;

/// Ring of bytes that overwrites its oldest data.
#[derive(Debug)]
pub(crate) struct Stage {
    ring: Box<[u8]>,
    at: usize,
}

impl Stage {
    /// Creates a ring with all its pages allocated.
    pub(crate) fn new() -> Self {
        // Not zero: zeroed pages would be allocated with the first packets.
        Self { ring: vec![0xff; BYTES].into_boxed_slice(), at: 0 }
    }

    /// Copies a packet after the previous one, or to the start if it does not fit. A packet longer
    /// than the ring is cut.
    #[inline]
    pub(crate) fn push(&mut self, packet: &[u8]) {
        let packet = &packet[..packet.len().min(BYTES)];
        if self.at + packet.len() > BYTES {
            self.at = 0;
        }
        self.ring[self.at..self.at + packet.len()].copy_from_slice(packet);
        self.at += packet.len();
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Keeps the compiler from removing the copies, which are never read.
        std::hint::black_box(&self.ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_adjacent_and_wrap_to_the_start() {
        let mut stage = Stage::new();
        stage.push(b"one");
        stage.push(b"two");
        assert_eq!(&stage.ring[..7], b"onetwo\xff");
        stage.at = BYTES - 2;
        stage.push(b"three");
        assert_eq!((&stage.ring[..5], stage.at), (&b"three"[..], 5));
    }

    #[test]
    fn packet_longer_than_the_ring_is_cut() {
        let mut stage = Stage::new();
        stage.push(&vec![7; BYTES + 1]);
        assert_eq!(stage.at, BYTES);
    }
}
