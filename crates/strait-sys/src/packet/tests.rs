//! Tests of the receive rings against an oracle: the test acts as the kernel over plain memory and
//! keeps a queue of written frames. In any order of operations, the reader must see exactly that
//! queue.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::{Frame, VlanTag, v2, v3};
use crate::mmap::Mapping;

/// Frame that the kernel wrote and the reader must see.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    bytes: Vec<u8>,
    wire_len: u32,
    timestamp_ns: u64,
    vlan: Option<VlanTag>,
}

impl Expected {
    fn of(frame: &Frame<'_>) -> Self {
        let (wire_len, timestamp_ns, vlan) = (frame.wire_len, frame.timestamp_ns, frame.vlan);
        Self { bytes: frame.bytes.to_vec(), wire_len, timestamp_ns, vlan }
    }
}

/// Frame on arrival; its number makes its bytes unique.
#[derive(Clone, Debug)]
struct Arrival {
    number: u32,
    len: usize,
    vlan: Option<VlanTag>,
}

impl Arrival {
    /// Returns the bytes without the tag, as the kernel stores them.
    fn bytes(&self) -> Vec<u8> {
        (0..self.len).map(|i| (self.number as usize * 31 + i * 7) as u8).collect()
    }

    /// Non-zero in both parts, as all but one in a billion timestamps are.
    fn seconds(&self) -> u32 {
        1_700_000_000 + self.number
    }

    fn expected(&self) -> Expected {
        let mut bytes = self.bytes();
        if let Some(tag) = self.vlan {
            let tag = [tag.tpid.to_be_bytes(), tag.tci.to_be_bytes()].concat();
            bytes.splice(12..12, tag);
        }
        let timestamp_ns = u64::from(self.seconds()) * 1_000_000_000 + 7;
        Expected { wire_len: bytes.len() as u32 + 100, bytes, timestamp_ns, vlan: self.vlan }
    }

    fn wire_len(&self) -> u32 {
        self.len as u32 + 100
    }

    fn vlan_status(&self) -> u32 {
        self.vlan.map_or(0, |_| libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID)
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// A frame arrives; complete at once, or half-written until `Finish`.
    Arrive { len: usize, vlan: Option<VlanTag>, finish: bool },
    /// The half-written frames are completed.
    Finish,
    /// The retire timer expires.
    Timeout,
    /// The reader takes at most this many frames if the ring has a limit.
    Read { limit: usize, early: bool },
}

fn operation() -> impl Strategy<Value = Operation> {
    let vlan = prop::option::weighted(
        0.3,
        (1..4095_u16, prop::bool::ANY)
            .prop_map(|(tci, service)| VlanTag { tci, tpid: if service { 0x88a8 } else { 0x8100 } }),
    );
    prop_oneof![
        6 => (14..1500_usize, vlan, prop::bool::weighted(0.8))
            .prop_map(|(len, vlan, finish)| Operation::Arrive { len, vlan, finish }),
        1 => Just(Operation::Finish),
        1 => Just(Operation::Timeout),
        3 => (1..20_usize, any::<bool>()).prop_map(|(limit, early)| Operation::Read { limit, early }),
    ]
}

fn address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 8,
        sll_ifindex: 3,
        sll_hatype: 1,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [1; 8],
    }
}

/// Kernel's side of a TPACKET_V2 ring (tpacket_rcv).
struct KernelV2 {
    memory: *mut u8,
    geometry: v2::Geometry,
    head: usize,
}

impl KernelV2 {
    const MAC: u16 = 86;

    /// Writes a frame to the next slot; returns false if the reader still has it.
    fn arrive(&mut self, arrival: &Arrival) -> bool {
        let slot = self.head * self.geometry.slot_bytes;
        // SAFETY: the slot lies in the ring's memory, and the test runs reader and kernel in one
        // thread.
        unsafe {
            let slot = self.memory.add(slot);
            if slot.cast::<u32>().read() != 0 {
                return false;
            }
            let data = slot.add(usize::from(Self::MAC));
            std::ptr::copy_nonoverlapping(arrival.bytes().as_ptr(), data, arrival.len);
            slot.add(32).cast::<libc::sockaddr_ll>().write(address());
            let header = slot.cast::<libc::tpacket2_hdr>();
            (*header).tp_len = arrival.wire_len();
            (*header).tp_snaplen = arrival.len as u32;
            (*header).tp_mac = Self::MAC;
            (*header).tp_sec = arrival.seconds();
            (*header).tp_nsec = 7;
            (*header).tp_vlan_tci = arrival.vlan.map_or(0, |tag| tag.tci);
            (*header).tp_vlan_tpid = arrival.vlan.map_or(0, |tag| tag.tpid);
            (*header).tp_status = libc::TP_STATUS_USER | arrival.vlan_status();
        }
        self.head = (self.head + 1) % self.geometry.slots;
        true
    }
}

/// Kernel's side of a TPACKET_V3 ring (`__packet_lookup_frame_in_block`, `prb_*`).
struct KernelV3 {
    memory: *mut u8,
    geometry: v3::Geometry,
    block: usize,
    offset: usize,
    packets: u32,
    frozen: bool,
    /// Claimed and unfinished frames: their address and later content.
    unfinished: Vec<(*mut u8, Arrival)>,
}

impl KernelV3 {
    const MAC: u16 = 102;
    const FIRST: usize = 48;

    fn header(&self) -> *mut libc::tpacket_block_desc {
        // SAFETY: the block lies in the ring's memory.
        unsafe { self.memory.add(self.block * self.geometry.block_bytes).cast() }
    }

    fn in_use(&self) -> bool {
        // SAFETY: as in `header`; one thread.
        unsafe { (*self.header()).hdr.bh1.block_status & libc::TP_STATUS_USER != 0 }
    }

    fn open(&mut self) {
        (self.offset, self.packets, self.frozen) = (Self::FIRST, 0, false);
        // SAFETY: as in `header`; the kernel owns the block.
        unsafe {
            (*self.header()).version = 1;
            (*self.header()).hdr.bh1.num_pkts = 0;
            (*self.header()).hdr.bh1.offset_to_first_pkt = Self::FIRST as u32;
        }
    }

    fn retire(&mut self, status: u32) {
        self.finish();
        // SAFETY: as in `header`; the kernel owns the block until the status is stored.
        unsafe {
            (*self.header()).hdr.bh1.num_pkts = self.packets;
            (*self.header()).hdr.bh1.blk_len = self.offset as u32;
            (*self.header()).hdr.bh1.block_status = libc::TP_STATUS_USER | status;
        }
        self.block = (self.block + 1) % self.geometry.blocks;
        self.frozen = self.in_use();
        if !self.frozen {
            self.open();
        }
    }

    fn timeout(&mut self) {
        if !self.frozen && self.packets > 0 {
            self.retire(libc::TP_STATUS_BLK_TMO);
        }
    }

    /// Claims room for a frame and writes it, or leaves it half-written; returns false if no block
    /// is free.
    fn arrive(&mut self, arrival: &Arrival, finish: bool) -> bool {
        let len = (usize::from(Self::MAC) + arrival.len).next_multiple_of(8);
        if self.frozen && !self.in_use() {
            self.open();
        }
        if !self.frozen && self.offset + len >= self.geometry.block_bytes {
            self.retire(0);
        }
        if self.frozen {
            return false;
        }
        // SAFETY: offset + len is within the block, which the kernel owns.
        let at = unsafe { self.header().cast::<u8>().add(self.offset) };
        // SAFETY: as above; prb_fill_curr_block writes these fields when it claims the room.
        unsafe {
            let header = at.cast::<libc::tpacket3_hdr>();
            (*header).tp_next_offset = len as u32;
            (*header).tp_status = arrival.vlan_status();
            (*header).hv1.tp_vlan_tci = arrival.vlan.map_or(0, |tag| u32::from(tag.tci));
            (*header).hv1.tp_vlan_tpid = arrival.vlan.map_or(0, |tag| tag.tpid);
            (*header).hv1.tp_rxhash = 0;
        }
        self.offset += len;
        self.packets += 1;
        self.unfinished.push((at, arrival.clone()));
        if finish {
            self.finish();
        }
        true
    }

    fn finish(&mut self) {
        for (at, arrival) in self.unfinished.drain(..) {
            // SAFETY: the frame's room was claimed, and its block is not retired before its frames
            // are finished.
            unsafe {
                let data = at.add(usize::from(Self::MAC));
                std::ptr::copy_nonoverlapping(arrival.bytes().as_ptr(), data, arrival.len);
                let header = at.cast::<libc::tpacket3_hdr>();
                (*header).tp_status |= libc::TP_STATUS_USER;
                (*header).tp_len = arrival.wire_len();
                (*header).tp_snaplen = arrival.len as u32;
                (*header).tp_mac = Self::MAC;
                (*header).tp_net = Self::MAC + 14;
                (*header).tp_sec = arrival.seconds();
                (*header).tp_nsec = 7;
                at.add(48).cast::<libc::sockaddr_ll>().write(address());
            }
        }
    }
}

proptest! {
    #[test]
    fn a_v2_reader_sees_every_frame_once_in_order(operations in prop::collection::vec(operation(), 1..300)) {
        let geometry = v2::Geometry::new(1 << 16, 1514);
        let memory = Mapping::anonymous(geometry.ring_bytes(), false).unwrap();
        let mut kernel = KernelV2 { memory: memory.as_ptr(), geometry, head: 0 };
        let mut ring = v2::Ring::from_mapping(memory, geometry);
        let mut queue = VecDeque::new();
        for (number, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Arrive { len, vlan, .. } => {
                    let arrival = Arrival { number: number as u32, len, vlan };
                    let room = kernel.arrive(&arrival);
                    prop_assert_eq!(room, queue.len() < geometry.slots);
                    if room {
                        queue.push_back(arrival.expected());
                    }
                }
                Operation::Read { limit, .. } => {
                    prop_assert_eq!(ring.ready(), !queue.is_empty());
                    let mut batch = ring.take(limit);
                    prop_assert_eq!(batch.len(), limit.min(queue.len()));
                    // Two passes over one batch see the same frames.
                    let first: Vec<_> = batch.frames().map(|frame| Expected::of(&frame)).collect();
                    let second: Vec<_> = batch.frames().map(|frame| Expected::of(&frame)).collect();
                    prop_assert_eq!(&first, &second);
                    prop_assert_eq!(first, queue.drain(..batch.len()).collect::<Vec<_>>());
                }
                Operation::Finish | Operation::Timeout => {}
            }
        }
    }

    #[test]
    fn a_v3_reader_sees_every_whole_frame_once_in_order(operations in prop::collection::vec(operation(), 1..800)) {
        let geometry = v3::Geometry::new(1 << 19, 1 << 17, Duration::from_millis(8));
        let memory = Mapping::anonymous(geometry.ring_bytes(), false).unwrap();
        let mut kernel = KernelV3 {
            memory: memory.as_ptr(),
            geometry,
            block: 0,
            offset: 0,
            packets: 0,
            frozen: false,
            unfinished: Vec::new(),
        };
        kernel.open();
        let mut ring = v3::Ring::from_mapping(memory, geometry);
        let mut queue = VecDeque::new();
        for (number, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Arrive { len, vlan, finish } => {
                    let arrival = Arrival { number: number as u32, len, vlan };
                    if kernel.arrive(&arrival, finish) {
                        queue.push_back(arrival.expected());
                    }
                }
                Operation::Finish => kernel.finish(),
                Operation::Timeout => kernel.timeout(),
                Operation::Read { early, .. } => {
                    ring.set_early(if early { v3::Early::Always } else { v3::Early::Never });
                    let whole = queue.len() - kernel.unfinished.len();
                    let ready = ring.ready();
                    prop_assert!(!ready || whole > 0);
                    let mut batch = ring.take(usize::MAX);
                    prop_assert_eq!(batch.is_empty(), !ready);
                    prop_assert!(batch.len() <= whole);
                    let count = batch.len();
                    let seen: Vec<_> = batch.frames().map(|frame| Expected::of(&frame)).collect();
                    prop_assert_eq!(seen, queue.drain(..count).collect::<Vec<_>>());
                }
            }
        }
        // After the timer has retired the last block, no frame is left.
        kernel.finish();
        kernel.timeout();
        while ring.ready() {
            for frame in ring.take(usize::MAX).frames() {
                prop_assert_eq!(Some(Expected::of(&frame)), queue.pop_front());
            }
        }
        prop_assert!(queue.is_empty());
    }
}

/// An idle reader must not wait for the retire timer: the doorbell depends on it.
#[cfg(target_arch = "x86_64")]
#[test]
fn only_complete_frames_of_the_open_block_are_ready() {
    let geometry = v3::Geometry::new(1 << 19, 1 << 17, Duration::from_millis(8));
    let memory = Mapping::anonymous(geometry.ring_bytes(), false).unwrap();
    let (memory_start, unfinished) = (memory.as_ptr(), Vec::new());
    let mut kernel = KernelV3 {
        memory: memory_start,
        geometry,
        block: 0,
        offset: 0,
        packets: 0,
        frozen: false,
        unfinished,
    };
    kernel.open();
    let mut ring = v3::Ring::from_mapping(memory, geometry);
    ring.set_early(v3::Early::Quiet);
    assert!(kernel.arrive(&Arrival { number: 1, len: 60, vlan: None }, true));
    assert!(kernel.arrive(&Arrival { number: 2, len: 60, vlan: None }, false));
    assert!(ring.ready());
    assert_eq!(ring.take(usize::MAX).len(), 1);
    assert!(!ring.ready());
    kernel.finish();
    assert!(ring.ready());
}

/// Bytes of a frame that receive offload joined, including its link header.
const JOINED_FRAME_BYTES: usize = 65_562;

#[test]
fn a_v2_slot_for_joined_segments_wastes_less_than_a_page() {
    let geometry = v2::Geometry::new(64 << 20, JOINED_FRAME_BYTES);
    assert_eq!(geometry.slot_bytes, (JOINED_FRAME_BYTES + 80).next_multiple_of(rustix::param::page_size()));
    assert!(geometry.ring_bytes() <= 64 << 20 && geometry.ring_bytes() > 62 << 20, "{geometry:?}");
}

proptest! {
    #[test]
    fn v2_geometry_meets_the_kernels_conditions(ring_bytes in 1usize << 18..1 << 31, frame_bytes in 1usize..300_000) {
        // The conditions of packet_set_ring (af_packet.c).
        let geometry = v2::Geometry::new(ring_bytes, frame_bytes);
        let request = geometry.request();
        prop_assert_eq!(request.tp_block_size as usize % rustix::param::page_size(), 0);
        prop_assert_eq!(request.tp_frame_size % 16, 0);
        prop_assert!(request.tp_frame_size as usize >= frame_bytes + 80);
        prop_assert_eq!(request.tp_frame_size as usize, geometry.frame_bytes_max() + 80);
        prop_assert_eq!(request.tp_block_size / request.tp_frame_size * request.tp_block_nr, request.tp_frame_nr);
        prop_assert_eq!(request.tp_block_size % request.tp_frame_size, 0);
        prop_assert!(geometry.ring_bytes() <= ring_bytes.max(geometry.slot_bytes));
    }
}

#[test]
fn invalid_header_stays_within_its_slot() {
    let geometry = v2::Geometry::new(1 << 16, 1514);
    let memory = Mapping::anonymous(geometry.ring_bytes(), false).unwrap();
    let slot = memory.as_ptr().cast::<libc::tpacket2_hdr>();
    // SAFETY: the first slot of memory that this test owns.
    unsafe {
        (*slot).tp_mac = u16::MAX;
        (*slot).tp_snaplen = u32::MAX;
        (*slot).tp_len = u32::MAX - 10;
        (*slot).tp_status = libc::TP_STATUS_USER | libc::TP_STATUS_VLAN_VALID;
    }
    let mut ring = v2::Ring::from_mapping(memory, geometry);
    let mut batch = ring.take(1);
    assert_eq!(batch.frames().next().map(|frame| frame.bytes.len()), Some(0));
}
