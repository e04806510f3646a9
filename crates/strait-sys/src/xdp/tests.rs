//! Tests of receiver and transmitter against a simulated kernel, on the rings' real layout; and of
//! the ABI's layout.

mod abi;
mod receiver;
mod transmitter;
mod umem;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::memory::Mapped;
use super::umem::{Geometry, Share, Umem};
use crate::mmap::Mapping;
use std::os::fd::AsFd;

/// Layout of `struct xdp_ring` and the slots after it (`net/xdp/xsk_queue.h`).
const OFFSETS: libc::xdp_ring_offset =
    libc::xdp_ring_offset { producer: 0, consumer: 64, flags: 68, desc: 128 };

/// Returns one ring mapped twice: for the process and for the kernel.
fn ring<T: Copy>(slots: u32) -> (Mapped<T>, Mapped<T>) {
    let bytes = Mapped::<T>::bytes(&OFFSETS, slots);
    let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    let side = || Mapped::new(Mapping::shared(file.as_fd(), bytes, 0).unwrap(), OFFSETS, slots).unwrap();
    (side(), side())
}

/// UMEM as the kernel sees it.
#[derive(Debug)]
struct Pages {
    start: *mut u8,
    geometry: Geometry,
}

impl Pages {
    fn write(&mut self, address: u64, bytes: &[u8]) {
        assert!(address as usize + bytes.len() <= self.geometry.bytes());
        // SAFETY: in bounds; the simulated kernel touches only chunks that it holds, as the oracle
        // checks.
        unsafe { self.start.add(address as usize).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, address: u64, len: u32) -> Vec<u8> {
        assert!(address as usize + len as usize <= self.geometry.bytes());
        // SAFETY: as for write.
        unsafe { std::slice::from_raw_parts(self.start.add(address as usize), len as usize) }.to_vec()
    }
}

/// Chunks of the UMEM before the share.
const BEFORE: u32 = 3;

/// Returns a share of `chunks` chunks that does not begin at the UMEM's first, and the memory under
/// it.
fn share(chunks: u32) -> (Share, Pages) {
    let geometry = Geometry { chunk_bytes: 2048, chunks: BEFORE + chunks + 1, headroom_bytes: 0 };
    let mut umem = Umem::new(geometry, false, None).unwrap();
    drop(umem.share(BEFORE).unwrap());
    let start = umem.registration().addr as *mut u8;
    (umem.share(chunks).unwrap(), Pages { start, geometry })
}

#[test]
fn ring_offsets_outside_of_the_mapping_are_refused() {
    let bytes = Mapped::<u64>::bytes(&OFFSETS, 4);
    let refused = |offsets, slots| {
        let memory = Mapping::anonymous(bytes, false).unwrap();
        // Mappings are rounded up to whole pages; the requested length counts.
        Mapped::<u64>::new(memory, offsets, slots).is_err()
    };
    assert!(!refused(OFFSETS, 4));
    assert!(refused(OFFSETS, 8), "slots beyond the end");
    assert!(refused(OFFSETS, 3), "not a power of two");
    assert!(refused(libc::xdp_ring_offset { flags: bytes as u64 - 3, ..OFFSETS }, 4));
    assert!(refused(libc::xdp_ring_offset { producer: 2, ..OFFSETS }, 4), "unaligned");
    assert!(refused(libc::xdp_ring_offset { desc: u64::MAX - 7, ..OFFSETS }, 4), "the end overflows");
}
