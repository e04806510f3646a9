//! Tests of the receiver against a kernel that fills chunks, sometimes with invalid descriptors.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::{BEFORE, Pages, ring, share};
use crate::packet::VlanTag;
use crate::xdp::Receiver;
use crate::xdp::memory::Mapped;
use crate::xdp::ring::{Consumer, Producer};

const CHUNK: u64 = 2048;

#[derive(Clone, Debug)]
enum Step {
    /// The kernel delivers this many frames, if it has chunks and room.
    Deliver(u8),
    /// The kernel writes an invalid descriptor.
    Nonsense { address: u64, len: u32 },
    /// The process takes this many frames and returns them.
    Take(u8),
    /// The process takes some frames and leaks the batch.
    Forget(u8),
}

/// Kernel's side of the fill and RX rings.
struct Kernel {
    rx: Producer<Mapped<libc::xdp_desc>>,
    fill: Consumer<Mapped<u64>>,
    pages: Pages,
    /// Addresses of the share's chunks.
    chunks: BTreeSet<u64>,
    /// Addresses of chunks taken from the fill ring.
    held: VecDeque<u64>,
    /// Frames that the process should see next.
    expected: VecDeque<(u64, Vec<u8>)>,
    nonsense: u64,
    /// Number of valid frames that do not continue in the next descriptor.
    whole: u64,
    serial: u32,
}

impl Kernel {
    fn take_fill(&mut self) {
        while let Some(address) = self.fill.pop() {
            assert_eq!(address % CHUNK, 0);
            assert!(!self.held.contains(&address), "a chunk that the kernel already has");
            self.held.push_back(address);
        }
        self.fill.release();
    }

    fn deliver(&mut self) {
        self.take_fill();
        if self.held.is_empty() || self.rx.room(1) == 0 {
            return;
        }
        let address = self.held.pop_front().unwrap() + 256;
        self.serial += 1;
        let frame = vec![self.serial as u8; 60 + self.serial as usize % 1400];
        self.pages.write(address - 4, &self.serial.to_ne_bytes());
        self.pages.write(address, &frame);
        let desc = libc::xdp_desc { addr: address, len: frame.len() as u32, options: self.serial % 2 };
        assert!(self.rx.push(desc));
        self.rx.submit();
        self.whole += u64::from(desc.options == 0);
        self.expected.push_back((address, frame));
    }

    /// Writes a descriptor of any address except chunks already on the RX ring. If it happens to
    /// name a chunk that the kernel holds, it counts as a valid frame.
    fn nonsense(&mut self, address: u64, len: u32) {
        self.take_fill();
        let start = address - address % CHUNK;
        let held = self.held.iter().position(|&held| held == start);
        let on_ring = held.is_none() && self.chunks.contains(&start);
        if on_ring || !self.rx.push(libc::xdp_desc { addr: address, len, options: 0 }) {
            return;
        }
        self.rx.submit();
        let held = held.and_then(|at| self.held.remove(at));
        if held.is_some() && address % CHUNK + u64::from(len) <= CHUNK {
            let frame = self.pages.read(address, len);
            self.whole += 1;
            self.expected.push_back((address, frame));
        } else {
            self.nonsense += 1;
        }
    }

    fn holds_all(&mut self) -> bool {
        self.take_fill();
        self.held.len() == self.chunks.len() && self.held.iter().all(|held| self.chunks.contains(held))
    }
}

fn setup(chunks: u32, rx_slots: u32) -> (Receiver, Kernel) {
    let (share, pages) = share(chunks);
    let (rx, kernel_rx) = ring(rx_slots);
    let (fill, kernel_fill) = ring(chunks.next_power_of_two());
    let receiver = Receiver::new(Consumer::new(Arc::new(rx)), Producer::new(fill), share);
    let kernel = Kernel {
        rx: Producer::new(kernel_rx),
        fill: Consumer::new(kernel_fill),
        pages,
        chunks: (0..u64::from(chunks)).map(|i| (u64::from(BEFORE) + i) * CHUNK).collect(),
        held: VecDeque::new(),
        expected: VecDeque::new(),
        nonsense: 0,
        whole: 0,
        serial: 0,
    };
    (receiver, kernel)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_u8..20).prop_map(Step::Deliver),
        1 => (0_u64..20 * CHUNK, 0_u32..3000)
            .prop_map(|(address, len)| Step::Nonsense { address, len }),
        1 => (any::<u64>(), any::<u32>()).prop_map(|(address, len)| Step::Nonsense { address, len }),
        4 => (0_u8..20).prop_map(Step::Take),
        1 => (0_u8..20).prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 0..120)
}

/// Takes up to `limit` frames, checks each against the delivered ones, and returns their number.
fn take(receiver: &mut Receiver, kernel: &mut Kernel, limit: usize, forget: bool) -> usize {
    let batch = receiver.take(limit);
    for (i, frame) in batch.frames().enumerate() {
        let (address, bytes) = kernel.expected.pop_front().expect("a frame that was never delivered");
        assert_eq!((frame.address, frame.bytes), (address, &*bytes));
        assert_eq!(frame.metadata.len() as u64, address % CHUNK);
        assert_eq!(batch.get(i).unwrap().address, address);
    }
    let count = batch.len();
    assert!(count <= limit);
    if forget {
        std::mem::forget(batch);
    }
    count
}

proptest! {
    #[test]
    fn every_frame_is_received_once_in_order_and_no_chunk_is_lost(
        steps in steps(),
        chunks in 1_u32..12,
        rx_slots in prop::sample::select(vec![1_u32, 2, 8]),
    ) {
        let (mut receiver, mut kernel) = setup(chunks, rx_slots);
        prop_assert!(kernel.holds_all(), "all chunks start on the fill ring");
        for step in steps {
            match step {
                Step::Deliver(count) => (0..count).for_each(|_| kernel.deliver()),
                Step::Nonsense { address, len } => kernel.nonsense(address, len),
                Step::Take(limit) => drop(take(&mut receiver, &mut kernel, limit.into(), false)),
                Step::Forget(limit) => drop(take(&mut receiver, &mut kernel, limit.into(), true)),
            }
        }
        while receiver.waiting() > 0 {
            take(&mut receiver, &mut kernel, 64, false);
        }
        prop_assert!(receiver.take(1).is_empty());
        prop_assert!(kernel.expected.is_empty());
        prop_assert_eq!(receiver.invalid_descriptors(), kernel.nonsense);
        prop_assert_eq!(receiver.count().frames(), kernel.whole);
        prop_assert!(kernel.holds_all(), "and all of them are back there");
    }
}

#[test]
fn chunks_stay_out_of_the_fill_ring_until_the_batch_drops() {
    let (mut receiver, mut kernel) = setup(4, 8);
    (0..4).for_each(|_| kernel.deliver());
    let batch = receiver.take(8);
    assert_eq!(batch.len(), 4);
    kernel.take_fill();
    assert!(kernel.held.is_empty(), "four frames are borrowed");
    drop(batch);
    kernel.take_fill();
    assert_eq!(kernel.held.len(), 4);
}

#[test]
fn metadata_precedes_the_frame_and_fragments_are_flagged() {
    let (mut receiver, mut kernel) = setup(4, 8);
    (0..2).for_each(|_| kernel.deliver());
    assert_eq!((receiver.waiting(), receiver.waiting_frames(), receiver.count().frames()), (2, 1, 2));
    let batch = receiver.take(8);
    assert!(batch.is_fragmented());
    let seen: BTreeMap<u32, bool> = batch
        .frames()
        .map(|frame| {
            let (_, serial) = frame.metadata.split_last_chunk::<4>().unwrap();
            (u32::from_ne_bytes(*serial), frame.continues)
        })
        .collect();
    assert_eq!(seen, BTreeMap::from([(1, true), (2, false)]));
    drop(batch);
    assert_eq!(receiver.count().frames(), 1);
    assert!(!receiver.take(8).is_fragmented());
}

#[test]
fn metadata_does_not_outlive_its_frame() {
    let (mut receiver, mut kernel) = setup(1, 1);
    receiver.set_metadata_bytes(16);
    kernel.pages.write(u64::from(BEFORE) * CHUNK + 256 - 16, &[9; 16]);
    kernel.deliver();
    drop(receiver.take(1));
    kernel.take_fill();
    let address = kernel.held[0] + 256;
    assert_eq!(kernel.pages.read(address - 16, 8), [0; 8], "where its magic was");
    assert_eq!(kernel.pages.read(address, 1), [1], "the frame itself is left alone");
}

#[test]
fn restored_tag_moves_the_metadata() {
    let (mut receiver, mut kernel) = setup(1, 1);
    receiver.set_metadata_bytes(16);
    kernel.deliver();
    let (address, frame) = kernel.expected[0].clone();
    kernel.pages.write(address, &[7; 12]);
    kernel.pages.write(address - 16, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    let mut batch = receiver.take(1);
    batch.restore_vlan(5, VlanTag { tci: 1, tpid: 2 });
    batch.restore_vlan(0, VlanTag { tci: 0x2064, tpid: 0x8100 });
    let tagged = batch.get(0).unwrap();
    assert_eq!(tagged.bytes, [&[7; 12][..], &[0x81, 0x00, 0x20, 0x64], &frame[12..]].concat());
    assert!(tagged.metadata.ends_with(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]));
    drop(batch);
    assert_eq!(kernel.pages.read(address - 20, 12), [0, 0, 0, 0, 0, 0, 0, 0, 9, 10, 11, 12]);
}

#[test]
fn chunk_returned_twice_is_borrowed_once() {
    let (mut receiver, mut kernel) = setup(4, 8);
    kernel.deliver();
    let (address, _) = kernel.expected[0];
    assert!(kernel.rx.push(libc::xdp_desc { addr: address, len: 60, options: 0 }));
    kernel.rx.submit();
    assert_eq!(take(&mut receiver, &mut kernel, 8, false), 1);
    assert_eq!(receiver.invalid_descriptors(), 1);
    assert!(kernel.holds_all());
}

#[test]
fn frame_is_taken_before_its_slot_of_the_fill_ring_is_free() {
    let (mut receiver, mut kernel) = setup(4, 4);
    // The kernel has read the slot, and tells so only after the frame is on the RX ring.
    let address = kernel.fill.pop().unwrap() + 256;
    kernel.pages.write(address, &[7; 60]);
    assert!(kernel.rx.push(libc::xdp_desc { addr: address, len: 60, options: 0 }));
    kernel.rx.submit();
    assert_eq!(receiver.take(4).frames().map(|frame| frame.bytes.to_vec()).collect::<Vec<_>>(), [[7; 60]]);
    assert_eq!((receiver.invalid_descriptors(), receiver.waiting()), (0, 0));
    kernel.fill.release();
    assert_eq!(receiver.take(4).len(), 0);
    assert!(kernel.holds_all());
}
