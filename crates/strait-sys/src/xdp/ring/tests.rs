//! Tests of the ring against an oracle and, with `--cfg loom`, under every interleaving of two
//! threads.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::{Consumer, Contiguous, Index, Producer, Region};

/// Ring memory on the heap.
#[derive(Debug)]
struct Heap<'a> {
    producer: &'a AtomicU32,
    consumer: &'a AtomicU32,
    flags: &'a AtomicU32,
    slots: &'a [UnsafeCell<u64>],
}

// SAFETY: the tests choose a power of two as the slice's length; indices are checked.
unsafe impl Region for Heap<'_> {
    type Index = AtomicU32;
    type Slot = u64;

    fn producer(&self) -> &AtomicU32 {
        self.producer
    }

    fn consumer(&self) -> &AtomicU32 {
        self.consumer
    }

    fn flags(&self) -> &AtomicU32 {
        self.flags
    }

    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    unsafe fn read(&self, index: u32) -> u64 {
        // SAFETY: the tests that use it run on one thread.
        unsafe { *self.slots[index as usize].get() }
    }

    unsafe fn write(&self, index: u32, slot: u64) {
        // SAFETY: the tests that use it run on one thread.
        unsafe { *self.slots[index as usize].get() = slot }
    }
}

// SAFETY: a slice is contiguous, and an `UnsafeCell` has the layout of its content.
unsafe impl Contiguous for Heap<'_> {
    fn slot(&self) -> *mut u64 {
        UnsafeCell::raw_get(self.slots.as_ptr())
    }
}

/// Memory of a ring with indices that start at `start`.
#[derive(Debug)]
struct Memory {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Vec<UnsafeCell<u64>>,
}

impl Memory {
    fn new(slots: usize, start: u32) -> Self {
        Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            slots: (0..slots).map(|_| UnsafeCell::new(u64::MAX)).collect(),
        }
    }

    fn view(&self) -> Heap<'_> {
        let Self { producer, consumer, flags, slots } = self;
        Heap { producer, consumer, flags, slots }
    }
}

/// One step of either side.
#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Submit,
    Pop(u8),
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0_u8..12).prop_map(Step::Push),
        Just(Step::Submit),
        (0_u8..12).prop_map(Step::Pop),
        Just(Step::Release),
    ];
    prop::collection::vec(step, 0..200)
}

/// Model of the ring.
#[derive(Debug, Default)]
struct Oracle {
    /// Pushed, not yet submitted.
    staged: VecDeque<u64>,
    /// Submitted, not yet popped.
    visible: VecDeque<u64>,
    /// Popped, not yet released.
    held: usize,
    next: u64,
}

impl Oracle {
    fn room(&self, slots: usize) -> usize {
        slots - self.staged.len() - self.visible.len() - self.held
    }

    fn push(&mut self, ring: &mut Producer<Heap<'_>>, slots: usize) {
        let fits = self.room(slots) > 0;
        assert_eq!(ring.push(self.next), fits, "full exactly when the oracle is");
        if fits {
            self.staged.push_back(self.next);
            self.next += 1;
        }
    }

    fn pop(&mut self, ring: &mut Consumer<Heap<'_>>) {
        let popped = ring.pop();
        assert_eq!(popped, self.visible.pop_front());
        self.held += usize::from(popped.is_some());
    }
}

proptest! {
    #[test]
    fn a_ring_behaves_as_its_oracle(
        steps in steps(),
        slots in prop::sample::select(vec![1_usize, 2, 4, 16]),
        // Indices run freely: they often start just below the wrap.
        start in prop_oneof![Just(0_u32), (0_u32..20).prop_map(|back| u32::MAX - back), any::<u32>()],
    ) {
        let memory = Memory::new(slots, start);
        let (mut producer, mut consumer) = (Producer::new(memory.view()), Consumer::new(memory.view()));
        let mut oracle = Oracle::default();
        for step in steps {
            match step {
                Step::Push(count) => (0..count).for_each(|_| oracle.push(&mut producer, slots)),
                Step::Submit => {
                    producer.submit();
                    oracle.visible.append(&mut oracle.staged);
                }
                Step::Pop(count) => (0..count).for_each(|_| oracle.pop(&mut consumer)),
                Step::Release => {
                    consumer.release();
                    oracle.held = 0;
                }
            }
            prop_assert_eq!(producer.room(u32::MAX) as usize, oracle.room(slots));
            prop_assert_eq!(consumer.ready(u32::MAX) as usize, oracle.visible.len());
            prop_assert_eq!(producer.pending() as usize, slots - oracle.room(slots));
        }
    }

    #[test]
    fn invalid_index_is_limited(
        slots in prop::sample::select(vec![1_u32, 2, 8, 64]),
        produced: u32,
        consumed: u32,
    ) {
        let memory = Memory::new(slots as usize, 7);
        let (mut producer, mut consumer) = (Producer::new(memory.view()), Consumer::new(memory.view()));
        memory.producer.store(produced, Ordering::Relaxed);
        memory.consumer.store(consumed, Ordering::Relaxed);
        prop_assert!(consumer.ready(u32::MAX) <= slots);
        prop_assert!(producer.room(u32::MAX) <= slots);
        let popped = std::iter::from_fn(|| consumer.pop()).take(10 * slots as usize).count();
        prop_assert_eq!(popped as u32, produced.wrapping_sub(7).min(10 * slots));
        let pushed = (0..10 * slots).take_while(|&i| producer.push(u64::from(i))).count();
        prop_assert!(pushed as u32 <= slots);
    }
}

#[test]
fn cached_index_avoids_loads_of_the_shared_one() {
    let memory = Memory::new(8, 0);
    let (mut producer, mut consumer) = (Producer::new(memory.view()), Consumer::new(memory.view()));
    for value in 0..8 {
        assert!(producer.push(value));
    }
    producer.submit();
    assert_eq!(consumer.ready(1), 8);
    assert_eq!(consumer.pop(), Some(0));
    // The shared index moves, but enough slots are cached, so it is not loaded.
    memory.producer.store(100, Ordering::Relaxed);
    assert_eq!(consumer.ready(7), 7);
    assert_eq!(consumer.ready(8), 8, "more than cached: loaded, and limited by the ring");
}

proptest! {
    #[test]
    fn runs_equal_single_slots(
        rounds in prop::collection::vec((0_u32..12, 0_u32..12), 0..60),
        slots in prop::sample::select(vec![1_usize, 2, 4, 16]),
        start in any::<u32>(),
    ) {
        let memory = Memory::new(slots, start);
        let (mut producer, mut consumer) = (Producer::new(memory.view()), Consumer::new(memory.view()));
        let (mut next, mut expected) = (0_u32, VecDeque::<u64>::new());
        for (pushed, limit) in rounds {
            let free = slots - expected.len();
            let free_to_the_end = slots - (start as usize + next as usize) % slots;
            let run = producer.free_slots(pushed);
            prop_assert_eq!(run.len(), (pushed as usize).min(free).min(free_to_the_end));
            for slot in run.iter_mut() {
                *slot = next.into();
                expected.push_back(next.into());
                next += 1;
            }
            let pushed = run.len() as u32;
            producer.count_written(pushed);
            producer.submit();
            let to_the_end = slots - (start as usize + next as usize - expected.len()) % slots;
            let wanted = expected.len().min(limit as usize).min(to_the_end);
            let run: Vec<u64> = expected.drain(..wanted).collect();
            prop_assert_eq!(&consumer.hold(limit), &run);
            prop_assert_eq!(consumer.held(), &run);
            consumer.release();
            prop_assert!(consumer.held().is_empty());
        }
    }
}

#[test]
fn wakeup_flag_is_read_from_the_kernel() {
    let memory = Memory::new(2, 0);
    let producer = Producer::new(memory.view());
    assert!(!producer.needs_wakeup());
    memory.flags.store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    assert!(producer.needs_wakeup());
}

#[test]
fn index_is_loaded_and_stored_unchanged() {
    let index = AtomicU32::new(1);
    Index::store(&index, 5, Ordering::Release);
    assert_eq!(Index::load(&index, Ordering::Acquire), 5);
}

#[cfg(loom)]
mod interleavings {
    //! `RUSTFLAGS="--cfg loom" cargo test -p strait-sys --lib --release loom`

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    use super::super::{Consumer, Producer, Region};

    const SLOTS: usize = 2;

    /// Ring memory with loom's access checks; concurrent accesses to a slot fail the test.
    #[derive(Debug)]
    struct Memory {
        producer: AtomicU32,
        consumer: AtomicU32,
        flags: AtomicU32,
        slots: [UnsafeCell<u64>; SLOTS],
    }

    #[derive(Clone, Debug)]
    struct Watched(Arc<Memory>);

    impl Watched {
        fn new(start: u32) -> Self {
            Self(Arc::new(Memory {
                producer: AtomicU32::new(start),
                consumer: AtomicU32::new(start),
                flags: AtomicU32::new(0),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            }))
        }
    }

    // SAFETY: two slots; loom checks every access.
    unsafe impl Region for Watched {
        type Index = AtomicU32;
        type Slot = u64;

        fn producer(&self) -> &AtomicU32 {
            &self.0.producer
        }

        fn consumer(&self) -> &AtomicU32 {
            &self.0.consumer
        }

        fn flags(&self) -> &AtomicU32 {
            &self.0.flags
        }

        fn slots(&self) -> u32 {
            SLOTS as u32
        }

        unsafe fn read(&self, index: u32) -> u64 {
            // SAFETY: loom fails the test if another thread writes meanwhile.
            self.0.slots[index as usize].with(|slot| unsafe { *slot })
        }

        unsafe fn write(&self, index: u32, value: u64) {
            // SAFETY: loom fails the test if another thread accesses it meanwhile.
            self.0.slots[index as usize].with_mut(|slot| unsafe { *slot = value });
        }
    }

    fn produce(memory: Watched, values: u64) {
        let mut ring = Producer::new(memory);
        for value in 1..=values {
            while !ring.push(value) {
                loom::thread::yield_now();
            }
            ring.submit();
        }
    }

    fn consume(memory: Watched, values: u64) {
        let mut ring = Consumer::new(memory);
        for expected in 1..=values {
            let value = loop {
                match ring.pop() {
                    Some(value) => break value,
                    None => loom::thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
            ring.release();
        }
    }

    #[test]
    fn loom_every_value_arrives_once_and_in_order() {
        // Three values through two slots: the second round reuses a slot, and the indices wrap.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let memory = Watched::new(u32::MAX - 1);
            let other = memory.clone();
            let producer = loom::thread::spawn(move || produce(other, 3));
            consume(memory, 3);
            producer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_batch_is_seen_whole_or_not_at_all() {
        loom::model(|| {
            let memory = Watched::new(0);
            let other = memory.clone();
            let producer = loom::thread::spawn(move || {
                let mut ring = Producer::new(other);
                assert!(ring.push(1) && ring.push(2));
                ring.submit();
            });
            let mut ring = Consumer::new(memory);
            let seen: Vec<u64> = std::iter::from_fn(|| ring.pop()).collect();
            assert!(seen.is_empty() || seen == [1, 2], "half a batch: {seen:?}");
            producer.join().unwrap();
        });
    }
}
