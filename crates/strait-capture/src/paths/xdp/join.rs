//! Joins frames that arrive in several descriptors.
//!
//! Almost every frame has one descriptor and is lent in place. A frame that the kernel spread over
//! several chunks is copied into memory that was allocated once. A frame that continues in the next
//! batch is lent with that batch. This module does not access sockets: it receives the parts in
//! order.

use strait_filter::xdp::Metadata;
use strait_sys::xdp::RxBatch;

/// Maximum size of a joined frame, libpcap's maximum snaplen. Longer frames are cut.
const FRAME_BYTES_MAX: usize = 262_144;

/// Frame of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// Frame in one descriptor, by its index.
    Whole(usize),
    /// Joined frame.
    Joined(Joined),
}

/// Frame in the joiner's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    start: usize,
    len: usize,
    /// Size in bytes of all parts, before the cut.
    pub(super) wire_len: usize,
    pub(super) metadata: Option<Metadata>,
}

/// Memory of joined frames, for one batch.
#[derive(Debug)]
pub(super) struct Joiner {
    bytes: Vec<u8>,
    items: Vec<Item>,
    open: Option<Joined>,
    /// True if the current batch has parts to join.
    active: bool,
    /// Bytes copied since the last [`Joiner::take_copied`].
    copied: u64,
}

impl Joiner {
    /// Allocates memory for batches of at most `parts` descriptors of at most `part_bytes`.
    pub(super) fn new(parts: usize, part_bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(FRAME_BYTES_MAX + parts * part_bytes),
            items: Vec::with_capacity(parts),
            open: None,
            active: false,
            copied: 0,
        }
    }

    /// Arranges the frames of a batch. A frame that the last batch left incomplete continues in it.
    #[inline]
    pub(super) fn arrange(&mut self, batch: &RxBatch<'_>) {
        self.active = self.open.is_some() || batch.is_fragmented();
        if !self.active {
            return;
        }
        self.begin();
        for (index, part) in batch.frames().enumerate() {
            self.add(index, part.bytes, part.metadata, part.continues);
        }
    }

    /// Returns true if the next descriptor continues a frame.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the frames of the batch; none if each descriptor is a frame.
    #[inline]
    pub(super) fn items(&self) -> Option<&[Item]> {
        self.active.then_some(&self.items)
    }

    /// Returns the bytes of a joined frame.
    pub(super) fn bytes(&self, joined: &Joined) -> &[u8] {
        &self.bytes[joined.start..joined.start + joined.len]
    }

    /// Returns the number of bytes copied to join frames since the last call.
    pub(super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Removes the frames of the last batch, except one that continues.
    fn begin(&mut self) {
        self.items.clear();
        match &mut self.open {
            None => self.bytes.clear(),
            Some(open) => {
                self.bytes.drain(..open.start);
                open.start = 0;
            }
        }
    }

    fn add(&mut self, index: usize, bytes: &[u8], metadata: &[u8], continues: bool) {
        if self.open.is_none() && !continues {
            self.items.push(Item::Whole(index));
            return;
        }
        let start = self.bytes.len();
        let open =
            self.open.get_or_insert_with(|| Joined { start, len: 0, wire_len: 0, metadata: parse(metadata) });
        let copied_part = &bytes[..bytes.len().min(FRAME_BYTES_MAX - open.len)];
        self.bytes.extend_from_slice(copied_part);
        open.len += copied_part.len();
        open.wire_len += bytes.len();
        self.copied += copied_part.len() as u64;
        if !continues {
            self.items.extend(self.open.take().map(Item::Joined));
        }
    }
}

/// Reads the metadata at the end of the bytes before a frame in its chunk.
#[inline]
pub(super) fn parse(bytes_before: &[u8]) -> Option<Metadata> {
    bytes_before.last_chunk().and_then(Metadata::parse)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the joined frames of `parts`, cut into batches of the given lengths.
    fn join(parts: &[(Vec<u8>, bool)], batches: &[usize]) -> (Vec<Vec<u8>>, Joiner) {
        let mut joiner = Joiner::new(parts.len(), FRAME_BYTES_MAX);
        let capacity = joiner.bytes.capacity();
        let mut frames = Vec::new();
        let mut rest = parts;
        for len in batches.iter().copied().chain([parts.len()]) {
            let (batch, after) = rest.split_at(len.min(rest.len()));
            joiner.begin();
            for (index, (bytes, continues)) in batch.iter().enumerate() {
                joiner.add(index, bytes, &[], *continues);
            }
            frames.extend(joiner.items.iter().map(|item| match item {
                Item::Whole(index) => batch[*index].0.clone(),
                Item::Joined(joined) => joiner.bytes(joined).to_vec(),
            }));
            rest = after;
        }
        assert_eq!(joiner.bytes.capacity(), capacity, "no allocation while it runs");
        (frames, joiner)
    }

    /// Returns the frames of `parts`: a part that does not continue ends one.
    fn expected(parts: &[(Vec<u8>, bool)]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut open = Vec::new();
        for (bytes, continues) in parts {
            open.extend(bytes);
            if !continues {
                frames.push(std::mem::take(&mut open));
            }
        }
        frames
    }

    proptest! {
        #[test]
        fn frames_are_whole_however_the_batches_fall(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..60),
            batches in prop::collection::vec(0_usize..9, 0..30),
        ) {
            let (frames, _) = join(&parts, &batches);
            prop_assert_eq!(frames, expected(&parts));
        }
    }

    #[test]
    fn frame_without_end_is_cut_and_keeps_its_length() {
        let part = vec![7; FRAME_BYTES_MAX / 2 + 1];
        let parts = [(part.clone(), true), (part.clone(), true), (part.clone(), false), (vec![1], false)];
        let (frames, joiner) = join(&parts, &[1, 1]);
        assert_eq!(frames[0].len(), FRAME_BYTES_MAX);
        assert_eq!(frames[1], [1]);
        let Item::Joined(joined) = joiner.items[0] else { panic!("it was joined") };
        assert_eq!(joined.wire_len, 3 * part.len());
    }

    #[test]
    fn only_joined_frames_count_as_copied() {
        let parts = [(vec![1; 10], false), (vec![2; 20], true), (vec![3; 30], false)];
        let (_, mut joiner) = join(&parts, &[]);
        assert_eq!((joiner.take_copied(), joiner.take_copied()), (50, 0));
    }
}
