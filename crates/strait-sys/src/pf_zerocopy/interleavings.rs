//! Receive ring under every interleaving of the kernel and the reader: `RUSTFLAGS="--cfg loom"
//! cargo test -p strait-sys --lib --release loom`
//!
//! The reader's side is that of [`Shared`]. The kernel's side follows
//! `kmod/pf_zerocopy/datapath.h`, with one order of slots. Slots are loom's cells, so that the test
//! fails if both sides can access one at the same time, or without an order.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use super::ring::{READABLE, Shared, WRITABLE};

const SLOTS: u32 = 2;

struct Memory {
    read: AtomicU32,
    write: AtomicU32,
    states: [AtomicU32; SLOTS as usize],
    slots: [UnsafeCell<u32>; SLOTS as usize],
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            read: AtomicU32::new(0),
            write: AtomicU32::new(0),
            states: [AtomicU32::new(WRITABLE), AtomicU32::new(WRITABLE)],
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn slot(&self, index: u32) -> &UnsafeCell<u32> {
        &self.slots[(index % SLOTS) as usize]
    }
}

impl Shared for Memory {
    type Word = AtomicU32;

    fn mask(&self) -> u32 {
        SLOTS - 1
    }

    fn state(&self, index: u32) -> &AtomicU32 {
        &self.states[(index % SLOTS) as usize]
    }

    fn position(&self) -> &AtomicU32 {
        &self.read
    }

    fn kernel_position(&self) -> &AtomicU32 {
        &self.write
    }
}

/// The kernel and its NIC, which has the slots from `head` up to, not including, `tail`.
struct Nic {
    memory: Arc<Memory>,
    head: u32,
    tail: u32,
}

impl Nic {
    fn new(memory: &Arc<Memory>) -> Self {
        let mut nic = Self { memory: Arc::clone(memory), head: 0, tail: 0 };
        nic.refill();
        nic
    }

    /// `zc_refill()`: the NIC never gets the last slot.
    fn refill(&mut self) {
        let last = self.memory.after(self.head, SLOTS - 1);
        while self.tail != last && self.memory.has_state(self.tail, WRITABLE) {
            self.tail = self.memory.after(self.tail, 1);
        }
    }

    /// Writes a frame into a slot, and makes it readable as `zc_take()` does. Returns false if the
    /// NIC has no slot.
    fn receive(&mut self, frame: u32) -> bool {
        if self.head == self.tail {
            return false;
        }
        // SAFETY: loom fails the test if the reader accesses the slot meanwhile.
        self.memory.slot(self.head).with_mut(|slot| unsafe { *slot = frame });
        self.memory.set_state(self.head, READABLE);
        self.head = self.memory.after(self.head, 1);
        true
    }

    /// Receives `frames`, each in a poll of its own.
    fn run(mut self, frames: std::ops::RangeInclusive<u32>) {
        for frame in frames {
            while !self.receive(frame) {
                thread::yield_now();
                self.refill();
            }
            self.memory.publish_written(self.head);
            self.refill();
        }
    }
}

/// Reads the readable slots from `next` on, and returns them to the NIC.
fn read(memory: &Memory, next: &mut u32, frames: &mut Vec<u32>) {
    for _ in 0..memory.readable(*next) {
        assert!(memory.has_state(*next, READABLE), "a slot before the kernel's index is readable");
        // SAFETY: loom fails the test if the NIC writes the slot meanwhile.
        frames.push(memory.slot(*next).with(|slot| unsafe { *slot }));
        memory.set_state(*next, WRITABLE);
        *next = memory.after(*next, 1);
    }
    memory.publish_position(*next);
}

#[test]
fn loom_reader_gets_every_frame_once_and_in_order() {
    // Four frames through two slots: each slot is used again, and the ring can be full.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let memory = Memory::new();
        let nic = Nic::new(&memory);
        let kernel = thread::spawn(move || nic.run(1..=4));
        let (mut next, mut frames) = (0, Vec::new());
        while frames.len() < 4 {
            read(&memory, &mut next, &mut frames);
            thread::yield_now();
        }
        assert_eq!(frames, [1, 2, 3, 4]);
        kernel.join().unwrap();
    });
}

#[test]
fn loom_full_ring_is_not_read_as_empty() {
    loom::model(|| {
        let memory = Memory::new();
        let nic = Nic::new(&memory);
        let kernel = thread::spawn(move || nic.run(1..=2));
        let (mut next, mut frames) = (0, Vec::new());
        read(&memory, &mut next, &mut frames);
        kernel.join().unwrap();
        read(&memory, &mut next, &mut frames);
        assert_eq!(frames, [1, 2], "all are readable once the kernel has ended");
    });
}
