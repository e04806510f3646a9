//! Tests of the transmitter against a kernel that sends and completes in any order.

use proptest::prelude::*;

use super::{Pages, ring, share};
use crate::xdp::Transmitter;
use crate::xdp::memory::Mapped;
use crate::xdp::ring::{Consumer, Producer};

const CHUNK: usize = 2048;

#[derive(Clone, Debug)]
enum Step {
    /// Writes a frame of this length in place.
    Push(u16),
    /// Copies a frame of this length, fragmented if necessary.
    PushFrame(u16),
    Submit,
    /// The kernel takes this many descriptors.
    Send(u8),
    /// The kernel completes the chunk at this index of those it holds.
    Complete(u8),
    /// The kernel completes an invalid address.
    Nonsense(u64),
    Collect,
}

struct Kernel {
    tx: Consumer<Mapped<libc::xdp_desc>>,
    completion: Producer<Mapped<u64>>,
    pages: Pages,
    /// Addresses taken from the TX ring and not completed.
    held: Vec<u64>,
    /// Frame being reassembled from fragments.
    gathered: Vec<u8>,
    sent: Vec<Vec<u8>>,
}

impl Kernel {
    fn send(&mut self) {
        let Some(desc) = self.tx.pop() else { return };
        self.tx.release();
        assert!(!self.held.contains(&desc.addr), "a chunk that the kernel already has");
        self.gathered.extend(self.pages.read(desc.addr, desc.len));
        self.held.push(desc.addr);
        if desc.options & libc::XDP_PKT_CONTD == 0 {
            self.sent.push(std::mem::take(&mut self.gathered));
        }
    }

    fn complete(&mut self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let address = self.held.swap_remove(at % self.held.len());
        assert!(self.completion.push(address), "there is a slot for each chunk");
        self.completion.submit();
    }
}

fn setup(chunks: u32, tx_slots: u32) -> (Transmitter, Kernel) {
    let (share, pages) = share(chunks);
    let (tx, kernel_tx) = ring(tx_slots);
    // Room for invalid completions besides the chunks.
    let (completion, kernel_completion) = ring(256);
    let kernel = Kernel {
        tx: Consumer::new(kernel_tx),
        completion: Producer::new(kernel_completion),
        pages,
        held: Vec::new(),
        gathered: Vec::new(),
        sent: Vec::new(),
    };
    (Transmitter::new(Producer::new(tx), Consumer::new(completion), share), kernel)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u16..2048).prop_map(Step::Push),
        2 => (0_u16..9000).prop_map(Step::PushFrame),
        2 => Just(Step::Submit),
        3 => (1_u8..8).prop_map(Step::Send),
        3 => any::<u8>().prop_map(Step::Complete),
        1 => (1_u64 << 20..u64::MAX).prop_map(Step::Nonsense),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 0..150)
}

fn frame(serial: usize, len: u16) -> Vec<u8> {
    (0..usize::from(len)).map(|i| (i / CHUNK + i + serial) as u8).collect()
}

fn push(transmitter: &mut Transmitter, frame: &[u8]) -> bool {
    let Some(buffer) = transmitter.buffer() else { return false };
    buffer[..frame.len()].copy_from_slice(frame);
    transmitter.push(frame.len());
    true
}

proptest! {
    #[test]
    fn frames_are_sent_in_order_and_no_chunk_has_two_owners(
        steps in steps(),
        chunks in 1_u32..12,
        tx_slots in prop::sample::select(vec![1_u32, 4, 16]),
    ) {
        let (mut transmitter, mut kernel) = setup(chunks, tx_slots);
        let mut queued: Vec<Vec<u8>> = Vec::new();
        let mut nonsense = 0;
        for step in steps {
            match step {
                Step::Push(len) => {
                    let frame = frame(queued.len(), len);
                    if push(&mut transmitter, &frame) {
                        queued.push(frame);
                    }
                }
                Step::PushFrame(len) => {
                    let frame = frame(queued.len(), len);
                    let before = transmitter.pending();
                    if transmitter.push_frame(&frame) {
                        queued.push(frame);
                    } else {
                        prop_assert!(transmitter.pending() <= before, "all of a frame or nothing");
                    }
                }
                Step::Submit => transmitter.submit(),
                Step::Send(count) => (0..count).for_each(|_| kernel.send()),
                Step::Complete(at) => kernel.complete(at.into()),
                Step::Nonsense(address) => {
                    nonsense += u64::from(kernel.completion.push(address));
                    kernel.completion.submit();
                }
                Step::Collect => drop(transmitter.collect()),
            }
            prop_assert!(transmitter.pending() <= chunks);
        }
        transmitter.submit();
        for _ in 0..256 {
            kernel.send();
            kernel.complete(0);
            transmitter.collect();
        }
        prop_assert_eq!(kernel.sent, queued);
        prop_assert_eq!(transmitter.pending(), 0);
        prop_assert_eq!(transmitter.queued(), 0);
        prop_assert_eq!(transmitter.invalid_completions(), nonsense);
        let free = (0..=chunks).take_while(|_| { kernel.tx.ready(1); push(&mut transmitter, b"x") }).count();
        prop_assert_eq!(free as u32, chunks.min(tx_slots), "every chunk is free again");
    }
}

#[test]
fn open_buffer_survives_a_full_ring() {
    let (mut transmitter, mut kernel) = setup(2, 4);
    transmitter.buffer().unwrap()[..3].copy_from_slice(b"abc");
    assert_eq!(&transmitter.buffer().unwrap()[..3], b"abc", "the same buffer until it is pushed");
    transmitter.push(3);
    assert_eq!(transmitter.room(8), 1);
    transmitter.buffer().unwrap();
    assert_eq!(transmitter.room(8), 1, "the open buffer counts as free");
    assert!(push(&mut transmitter, b"d"));
    assert_eq!(transmitter.room(8), 0);
    assert!(transmitter.buffer().is_none(), "both chunks are queued");
    transmitter.submit();
    kernel.send();
    kernel.complete(0);
    assert!(transmitter.buffer().is_some(), "a completion is collected when one is needed");
    assert_eq!(kernel.sent, [b"abc"]);
}

#[test]
fn a_frame_longer_than_all_chunks_is_refused() {
    let (mut transmitter, _kernel) = setup(4, 8);
    assert!(!transmitter.push_frame(&[0; 5 * CHUNK]));
    assert_eq!(transmitter.pending(), 0);
    assert!(transmitter.push_frame(&[0; 4 * CHUNK]));
}
