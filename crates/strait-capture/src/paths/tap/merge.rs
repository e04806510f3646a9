//! Frames of several rings, in the order of their timestamps.
//!
//! A batch takes only frames with a timestamp before its start. So no frame of another CPU with an
//! earlier timestamp can be published later, but for one: a program reads the clock a few
//! instructions before it publishes the record. Frames of different CPUs can therefore be out of
//! order by less than a microsecond, unless an interrupt or a hypervisor delays a program. Frames
//! of one CPU are always in order.
//!
//! A CPU has two rings. While its spill ring has frames, all of them are later than those of its
//! first ring. The spill rings are polled before the first rings: a frame that is found in one then
//! has its predecessors among those found in the first ring.

use strait_filter::tap::layout::Record;
use strait_sys::bpf::RingReader;

/// Ring with the position of its next frame.
pub(super) struct Cursor {
    pub(super) reader: RingReader,
    /// Position after the last frame that was taken. Frames before it are lent or were returned.
    next: u64,
}

impl Cursor {
    pub(super) fn new(reader: RingReader) -> Self {
        Self { next: reader.consumed(), reader }
    }

    /// Returns true if frames were published that were not taken.
    #[inline]
    pub(super) fn is_ready(&mut self) -> bool {
        self.reader.poll() > self.next
    }

    /// Returns the record at `position`.
    #[inline]
    fn record(&self, position: u64) -> Option<Record> {
        let header = self.reader.bytes(position, Record::BYTES)?;
        Some(Record::parse(header.first_chunk()?))
    }

    /// Returns the space of taken frames to the program.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.next != self.reader.consumed() {
            self.reader.advance(self.next);
        }
    }
}

/// Frame in a ring.
#[derive(Clone, Copy)]
pub(super) struct Item {
    ring: u32,
    /// Number of captured bytes.
    captured: u32,
    position: u64,
}

impl Item {
    /// Returns the frame's header and its captured bytes.
    #[inline]
    pub(super) fn read(self, cursors: &[Cursor]) -> Option<(Record, &[u8])> {
        let cursor = cursors.get(self.ring as usize)?;
        // In one slice: the bytes of a record that starts at the end of the ring follow it in the
        // spare bytes, and are not at the start of the ring.
        let whole = cursor.reader.bytes(self.position, Record::BYTES + self.captured as usize)?;
        let (header, bytes) = whole.split_first_chunk()?;
        Some((Record::parse(header), bytes))
    }
}

/// Ring with frames to take, and the header of the next one.
#[derive(Clone, Copy)]
struct Head {
    ring: usize,
    record: Record,
}

/// Merge of rings. Its memory is reused from batch to batch.
pub(super) struct Merge {
    heads: Vec<Head>,
    items: Vec<Item>,
}

impl Merge {
    /// Returns a merge of `rings` rings for batches of at most `batch_max` frames.
    pub(super) fn new(rings: usize, batch_max: usize) -> Self {
        Self { heads: Vec::with_capacity(rings), items: Vec::with_capacity(batch_max) }
    }

    /// Takes the frames stamped up to `until_ns`, the earliest first and at most `limit`. Returns
    /// the timestamp of the last one; 0 if there is none. In `cursors`, spill rings come before
    /// first rings.
    pub(super) fn take(&mut self, cursors: &mut [Cursor], until_ns: u64, limit: usize) -> u64 {
        let limit = limit.min(self.items.capacity());
        self.items.clear();
        self.heads.clear();
        for (ring, cursor) in cursors.iter_mut().enumerate() {
            if cursor.is_ready()
                && let Some(record) = cursor.record(cursor.next)
                && record.timestamp_ns <= until_ns
            {
                self.heads.push(Head { ring, record });
            }
        }
        let mut last_ns = 0;
        while self.items.len() < limit
            && let Some((at, yield_ns)) = self.earliest(until_ns)
        {
            let next;
            (last_ns, next) = self.take_run(cursors, at, yield_ns, limit);
            match next.filter(|next| next.timestamp_ns <= until_ns) {
                Some(next) => self.heads[at].record = next,
                None => drop(self.heads.swap_remove(at)),
            }
        }
        last_ns
    }

    /// Returns the frames of the last [`Merge::take`].
    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the head with the earliest frame, and the timestamp up to which its ring can be read
    /// before another ring has an earlier frame.
    #[inline]
    fn earliest(&self, until_ns: u64) -> Option<(usize, u64)> {
        let (mut first, mut yield_ns) = (0, until_ns);
        let mut first_ns = self.heads.first()?.record.timestamp_ns;
        for (at, head) in self.heads.iter().enumerate().skip(1) {
            let head_ns = head.record.timestamp_ns;
            // With equal timestamps, the frame of a first ring precedes the frame of a spill ring.
            if head_ns < first_ns || (head_ns == first_ns && head.ring > self.heads[first].ring) {
                yield_ns = yield_ns.min(first_ns);
                (first, first_ns) = (at, head_ns);
            } else {
                yield_ns = yield_ns.min(head_ns);
            }
        }
        Some((first, yield_ns))
    }

    /// Takes frames of the head `at` up to `yield_ns`, at least one. Returns the timestamp of the
    /// last frame, and the next record of the ring.
    #[inline]
    fn take_run(
        &mut self,
        cursors: &mut [Cursor],
        at: usize,
        yield_ns: u64,
        limit: usize,
    ) -> (u64, Option<Record>) {
        let Head { ring, mut record } = self.heads[at];
        let cursor = &mut cursors[ring];
        loop {
            self.items.push(Item { ring: ring as u32, captured: record.captured, position: cursor.next });
            cursor.next += record.stride() as u64;
            let last_ns = record.timestamp_ns;
            match cursor.record(cursor.next) {
                Some(next) if next.timestamp_ns <= yield_ns && self.items.len() < limit => record = next,
                next => return (last_ns, next),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use strait_filter::tap::layout;
    use strait_sys::Kind;
    use strait_sys::bpf::{Map, RingLayout, Rings};

    use super::*;

    const RING_BYTES: u32 = 4096;
    const SIZES: layout::Sizes =
        layout::Sizes { ring_bytes: RING_BYTES, spill_bytes: RING_BYTES, frame_bytes_max: 64 };
    const VALUE_BYTES: usize = SIZES.value_bytes();

    /// Returns a map for `rings` rings; `None` without privilege.
    fn map(rings: u32) -> Option<Map> {
        match Map::mappable_array("test", VALUE_BYTES as u32, rings) {
            Err(error) if error.kind() == Kind::Refused => {
                lab::skip(error.to_string());
                None
            }
            map => Some(map.unwrap()),
        }
    }

    /// Returns readers of the first rings of a map.
    fn readers(map: &Map) -> Vec<Cursor> {
        let layout = RingLayout {
            producer: layout::PRODUCER,
            consumer: layout::CONSUMER,
            wakeup: layout::WAKEUP,
            data: layout::DATA,
            ring_bytes: RING_BYTES as usize,
            end: VALUE_BYTES,
        };
        let (_, readers) = Rings::map(map, &[layout]).unwrap();
        readers.into_iter().map(Cursor::new).collect()
    }

    /// Returns rings of records with these timestamps and without bytes; `None` without privilege.
    fn cursors(rings: &[&[u64]]) -> Option<Vec<Cursor>> {
        let map = map(rings.len() as u32)?;
        for (ring, times) in rings.iter().enumerate() {
            let mut value = vec![0; VALUE_BYTES];
            let mut at = layout::DATA;
            for time in *times {
                value[at + 8..at + 16].copy_from_slice(&time.to_ne_bytes());
                at += Record::BYTES;
            }
            let produced = (at - layout::DATA) as u64;
            value[layout::PRODUCER..layout::PRODUCER + 8].copy_from_slice(&produced.to_ne_bytes());
            map.set(ring as u32, &value).unwrap();
        }
        Some(readers(&map))
    }

    fn take(merge: &mut Merge, cursors: &mut [Cursor], until_ns: u64, limit: usize) -> Vec<u64> {
        let last_ns = merge.take(cursors, until_ns, limit);
        let times = merge.items().iter().map(|item| item.read(cursors).unwrap().0.timestamp_ns);
        let times: Vec<_> = times.collect();
        assert_eq!(times.last().copied().unwrap_or(0), last_ns);
        times
    }

    #[test]
    fn frames_of_all_rings_are_in_the_order_of_their_times() {
        let rings: [&[u64]; 4] = [&[1, 4, 5, 9], &[2, 3, 10], &[], &[6, 7, 7, 8]];
        let Some(mut cursors) = cursors(&rings) else { return };
        let mut merge = Merge::new(4, 100);
        let times = take(&mut merge, &mut cursors, 100, usize::MAX);
        assert_eq!(times, [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10]);
        assert!(take(&mut merge, &mut cursors, 100, usize::MAX).is_empty());
    }

    /// A coarse clock gives frames on both sides of a spill the same time.
    #[test]
    fn frames_of_a_first_ring_come_before_those_of_a_spill_ring_with_the_same_time() {
        let Some(mut cursors) = cursors(&[&[5, 5, 5], &[4], &[4, 5, 5]]) else { return };
        let mut merge = Merge::new(3, 100);
        assert_eq!(take(&mut merge, &mut cursors, 100, usize::MAX), [4, 4, 5, 5, 5, 5, 5]);
        let rings: Vec<_> = merge.items().iter().map(|item| item.ring).collect();
        assert_eq!(rings, [2, 1, 2, 2, 0, 0, 0]);
    }

    #[test]
    fn batch_ends_at_its_limit_and_before_later_frames() {
        let Some(mut cursors) = cursors(&[&[1, 4, 5, 9], &[2, 3, 10]]) else { return };
        let mut merge = Merge::new(2, 3);
        assert_eq!(take(&mut merge, &mut cursors, 100, 2), [1, 2]);
        cursors.iter_mut().for_each(Cursor::release);
        assert_eq!(take(&mut merge, &mut cursors, 100, usize::MAX), [3, 4, 5], "no more than its memory");
        cursors.iter_mut().for_each(Cursor::release);
        assert_eq!(take(&mut merge, &mut cursors, 9, usize::MAX), [9]);
        assert!(take(&mut merge, &mut cursors, 9, usize::MAX).is_empty());
        assert!(cursors[1].is_ready(), "the frame of time 10 stays");
        let consumed = |cursor: &Cursor| cursor.reader.consumed() / Record::BYTES as u64;
        assert_eq!(cursors.iter().map(consumed).collect::<Vec<_>>(), [3, 2], "frames not released stay");
    }

    #[test]
    fn bytes_of_a_record_at_the_end_of_a_ring_follow_its_header() {
        let ring_bytes = u64::from(RING_BYTES);
        for start in [ring_bytes - 24, ring_bytes - 16, ring_bytes - 8] {
            let Some(map) = map(1) else { return };
            let mut cursors = readers(&map);
            let mut value = vec![0; VALUE_BYTES];
            let mut publish = |position: u64, captured: u32, produced: u64| {
                let at = layout::DATA + position as usize;
                value[at..at + 4].copy_from_slice(&captured.to_ne_bytes());
                value[at + 24..at + 24 + captured as usize].fill(7);
                value[layout::PRODUCER..layout::PRODUCER + 8].copy_from_slice(&produced.to_ne_bytes());
                map.set(0, &value).unwrap();
            };
            // A long record up to there, which is returned.
            publish(0, start as u32 - 24, start);
            let mut merge = Merge::new(1, 10);
            merge.take(&mut cursors, 0, 1);
            cursors[0].release();
            publish(start, 8, start + 32);
            merge.take(&mut cursors, 0, 1);
            let (record, bytes) = merge.items()[0].read(&cursors).unwrap();
            assert_eq!((record.captured, bytes), (8, &[7; 8][..]), "{start}");
        }
    }
}
