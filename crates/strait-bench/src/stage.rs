//! The staging ring of D3: each packet is copied once, into memory that later stages of an analysis would read.

/// Bytes of a staging ring: more than a second-level cache, as a ring that holds milliseconds of traffic is.
const BYTES: usize = 4 << 20;

/// A ring of bytes that is written and never waits for a reader.
#[derive(Debug)]
pub(crate) struct Stage {
    ring: Box<[u8]>,
    at: usize,
}

impl Stage {
    /// A ring whose pages are all there.
    pub(crate) fn new() -> Self {
        // Not zero, or the pages would come with the first packets.
        Self { ring: vec![0xff; BYTES].into_boxed_slice(), at: 0 }
    }

    /// Copies a packet behind the one before, or to the start where it does not fit any more. What is longer than the
    /// ring is cut.
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
        // Else the compiler may find that nobody reads it.
        std::hint::black_box(&self.ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_stand_one_behind_the_other_and_start_again_at_the_end() {
        let mut stage = Stage::new();
        stage.push(b"one");
        stage.push(b"two");
        assert_eq!(&stage.ring[..7], b"onetwo\xff");
        stage.at = BYTES - 2;
        stage.push(b"three");
        assert_eq!((&stage.ring[..5], stage.at), (&b"three"[..], 5));
    }

    #[test]
    fn a_packet_longer_than_the_ring_is_cut() {
        let mut stage = Stage::new();
        stage.push(&vec![7; BYTES + 1]);
        assert_eq!(stage.at, BYTES);
    }
}
