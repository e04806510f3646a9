//! Tests of the rings against an oracle: the test acts as the kernel and the NIC by the rules of
//! `pf_zerocopy.h`, over memory that it shares with the ring under test.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::ring::{DESCRIPTORS_OFFSET, Descriptor, READABLE, Ring, Shared as _, WRITABLE};
use super::{Receiver, SLOT_BYTES, Transmitter};
use crate::mmap::Mapping;

const SLOTS: u32 = 8;

/// Both sides of a ring of [`SLOTS`] slots, all writable: the kernel's and that of this process.
fn sides() -> [Ring; 2] {
    let [shared_bytes, buffer_bytes] = [Ring::shared_bytes(SLOTS), SLOTS as usize * SLOT_BYTES];
    let files = [shared_bytes, buffer_bytes].map(|bytes| {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        (file, bytes)
    });
    let side = || {
        let [shared, buffer] =
            [0, 1].map(|i: usize| Mapping::shared(files[i].0.as_fd(), files[i].1, 0).unwrap());
        Ring::new(shared, buffer, SLOTS)
    };
    let sides = [side(), side()];
    for slot in 0..SLOTS {
        sides[0].set_state(slot, WRITABLE);
        sides[0].descriptor(slot).addr.store(sides[1].memory(slot) as u64, Ordering::Relaxed);
    }
    sides
}

/// Model of the kernel's receiving and sending side.
struct Nic {
    ring: Ring,
    /// Next descriptor to hand over, and next one to take back.
    head: u32,
    tail: u32,
    /// Slots that wait for a frame, in the NIC's order.
    posted: VecDeque<u32>,
    /// Slot of each descriptor.
    held: [u32; SLOTS as usize],
    /// Address of the buffer in the process.
    start: u64,
}

impl Nic {
    fn new(ring: Ring) -> Self {
        let start = ring.descriptor(0).addr.load(Ordering::Relaxed);
        let held = std::array::from_fn(|slot| slot as u32);
        let mut nic = Self { ring, head: 0, tail: 0, posted: VecDeque::new(), held, start };
        nic.refill();
        nic
    }

    /// Takes back the slots that the process has returned.
    fn refill(&mut self) {
        // The NIC never has the last slot.
        while self.posted.len() + 1 < SLOTS as usize && self.ring.has_state(self.tail, WRITABLE) {
            self.posted.push_back(self.held[self.tail as usize]);
            self.tail = self.ring.after(self.tail, 1);
        }
    }

    /// Posts the next slot again, as for a frame that this process does not get.
    fn reject(&mut self) {
        self.posted.rotate_left(1.min(self.posted.len()));
    }

    /// Writes a frame into the next slot; returns false if no slot is writable. The reader gets it
    /// after [`Self::publish`].
    fn receive(&mut self, frame: &[u8], timestamp_ns: u64) -> bool {
        let Some(slot) = self.posted.pop_front() else { return false };
        let memory = self.ring.memory(slot);
        // SAFETY: the NIC owns the slot while it is writable, and no frame is longer.
        unsafe { memory.copy_from(frame.as_ptr(), frame.len()) };
        self.held[self.head as usize] = slot;
        let descriptor = self.ring.descriptor(self.head);
        descriptor.addr.store(self.start + u64::from(slot) * SLOT_BYTES as u64, Ordering::Relaxed);
        descriptor.length.store(frame.len() as u32, Ordering::Relaxed);
        descriptor.timestamp_ns.store(timestamp_ns, Ordering::Relaxed);
        self.ring.set_state(self.head, READABLE);
        self.head = self.ring.after(self.head, 1);
        true
    }

    /// Publishes the received frames, and posts returned slots, as a run of NAPI does at its end.
    fn publish(&mut self) {
        self.ring.publish_written(self.head);
        self.refill();
    }

    /// Sends the next frame, and returns it.
    fn send(&mut self) -> Option<Vec<u8>> {
        if !self.ring.has_state(self.head, READABLE) {
            return None;
        }
        let length = self.ring.descriptor(self.head).length.load(Ordering::Relaxed) as usize;
        // SAFETY: the NIC owns the slot while it is readable, and no frame is longer.
        let frame = unsafe { std::slice::from_raw_parts(self.ring.memory(self.head), length) }.to_vec();
        self.ring.set_state(self.head, WRITABLE);
        self.head = self.ring.after(self.head, 1);
        Some(frame)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A frame of this length arrives.
    Arrive(usize),
    /// A run of NAPI ends.
    Publish,
    /// A damaged frame arrives, or one that the filter rejects.
    Rejected,
    /// The reader takes at most this many frames.
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..=SLOT_BYTES).prop_map(Step::Arrive),
        2 => Just(Step::Publish),
        1 => Just(Step::Rejected),
        2 => (0..2 * SLOTS as usize).prop_map(Step::Take),
    ]
}

proptest! {
    #[test]
    fn reader_sees_exactly_the_arrived_frames(steps in prop::collection::vec(step(), 1..200)) {
        let [kernels, ours] = sides();
        let mut nic = Nic::new(kernels);
        let mut receiver = Receiver::new(ours);
        let (mut expected, mut number) = (VecDeque::new(), 0_u64);
        // Frames of a run of NAPI that has not ended.
        let mut arriving = VecDeque::new();
        for step in steps {
            number += 1;
            match step {
                Step::Arrive(length) => {
                    let frame = vec![number as u8; length];
                    if nic.receive(&frame, number) {
                        arriving.push_back((frame, number));
                    }
                }
                Step::Publish => {
                    nic.publish();
                    expected.append(&mut arriving);
                }
                Step::Rejected => nic.reject(),
                Step::Take(limit) => {
                    let ready = receiver.ready();
                    prop_assert_eq!(receiver.waiting() as usize, expected.len());
                    let batch = receiver.take(limit);
                    prop_assert!(batch.len() <= limit);
                    prop_assert_eq!(!batch.is_empty(), ready && limit > 0);
                    for index in 0..batch.len() {
                        let frame = batch.get(index).unwrap();
                        let (bytes, timestamp_ns) = expected.pop_front().unwrap();
                        prop_assert_eq!((frame.bytes, frame.timestamp_ns), (&bytes[..], timestamp_ns));
                    }
                    prop_assert!(batch.get(batch.len()).is_none());
                }
            }
        }
        nic.publish();
        expected.append(&mut arriving);
        while receiver.ready() {
            let count = receiver.take(usize::MAX).len();
            expected.drain(..count);
        }
        prop_assert!(expected.is_empty());
        prop_assert_eq!(receiver.waiting(), 0);
    }

    #[test]
    fn pushed_frames_are_sent_in_order(steps in prop::collection::vec(0..5_u8, 1..200)) {
        let [kernels, ours] = sides();
        let mut nic = Nic::new(kernels);
        let mut transmitter = Transmitter::new(ours);
        let (mut queued, mut number) = (VecDeque::new(), 0_u8);
        for step in steps {
            if step < 2 {
                number = number.wrapping_add(1);
                let room = queued.len() + 1 < SLOTS as usize;
                prop_assert_eq!(transmitter.has_room(), room);
                if let Some(buffer) = transmitter.buffer() {
                    let length = 60 + usize::from(number);
                    buffer[..length].fill(number);
                    transmitter.push(length);
                    queued.push_back(vec![number; length]);
                }
            } else if step == 2 && !queued.is_empty() {
                transmitter.take_back();
                queued.pop_back();
            } else {
                prop_assert_eq!(nic.send(), queued.pop_front());
            }
            prop_assert_eq!(transmitter.pending(), queued.len());
        }
    }
}

#[test]
fn borrowed_frames_stay_while_others_arrive() {
    let [kernels, ours] = sides();
    let mut nic = Nic::new(kernels);
    let mut receiver = Receiver::new(ours);
    for i in 0..SLOTS as u8 {
        assert!(nic.receive(&[i; 60], 0));
        nic.publish();
    }
    let batch = receiver.take(3);
    nic.refill();
    assert!(!nic.receive(&[99; 60], 0), "every slot is readable or lent");
    assert_eq!(batch.get(2).unwrap().bytes, [2; 60]);
    drop(batch);
    nic.refill();
    assert!(nic.receive(&[99; 60], 0), "the slots have come back");
    nic.publish();
    assert_eq!(receiver.waiting(), SLOTS - 2);
}

#[test]
fn length_beyond_the_slot_is_cut() {
    let [kernels, ours] = sides();
    let mut nic = Nic::new(kernels);
    let mut receiver = Receiver::new(ours);
    assert!(nic.receive(&[1; 60], 0));
    nic.publish();
    nic.ring.descriptor(0).length.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(receiver.take(1).get(0).unwrap().bytes.len(), SLOT_BYTES);
}

/// `struct zerocopy_desc` and `struct zerocopy_ring` (`kmod/pf_zerocopy/pf_zerocopy.h`).
#[test]
fn layout_matches_the_module() {
    assert_eq!((size_of::<Descriptor>(), align_of::<Descriptor>()), (32, 8));
    assert_eq!(std::mem::offset_of!(Descriptor, timestamp_ns), 8);
    assert_eq!(std::mem::offset_of!(Descriptor, length), 16);
    assert_eq!(DESCRIPTORS_OFFSET, 128);
}
