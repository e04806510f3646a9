//! The processor's cache.

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;

/// Prefetches the cache line at `address`: a hint without effect on reads, valid for any address.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch accesses nothing, at any address; SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Does nothing: there is no stable intrinsic for this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch(_address: *const u8) {}
