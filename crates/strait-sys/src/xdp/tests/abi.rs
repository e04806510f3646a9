//! Layout of the structures passed to the kernel: `include/uapi/linux/if_xdp.h`, equal on every
//! architecture.

use std::mem::{offset_of, size_of};

#[test]
fn structs_have_the_layout_of_if_xdp_h() {
    assert_eq!(size_of::<libc::sockaddr_xdp>(), 16);
    assert_eq!(offset_of!(libc::sockaddr_xdp, sxdp_flags), 2);
    assert_eq!(offset_of!(libc::sockaddr_xdp, sxdp_ifindex), 4);
    assert_eq!(offset_of!(libc::sockaddr_xdp, sxdp_queue_id), 8);
    assert_eq!(offset_of!(libc::sockaddr_xdp, sxdp_shared_umem_fd), 12);

    assert_eq!(size_of::<libc::xdp_desc>(), 16);
    assert_eq!(offset_of!(libc::xdp_desc, len), 8);
    assert_eq!(offset_of!(libc::xdp_desc, options), 12);

    // 32 bytes in every version: `tx_metadata_len` took the place of padding in Linux 6.8.
    assert_eq!(size_of::<libc::xdp_umem_reg>(), 32);
    assert_eq!(offset_of!(libc::xdp_umem_reg, chunk_size), 16);
    assert_eq!(offset_of!(libc::xdp_umem_reg, headroom), 20);
    assert_eq!(offset_of!(libc::xdp_umem_reg, flags), 24);

    // With `flags`, Linux 5.4; a shorter buffer gets the older layout.
    assert_eq!(size_of::<libc::xdp_ring_offset>(), 32);
    assert_eq!(offset_of!(libc::xdp_ring_offset, desc), 16);
    assert_eq!(offset_of!(libc::xdp_ring_offset, flags), 24);
    assert_eq!(size_of::<libc::xdp_mmap_offsets>(), 128);
    assert_eq!(offset_of!(libc::xdp_mmap_offsets, tx), 32);
    assert_eq!(offset_of!(libc::xdp_mmap_offsets, fr), 64);
    assert_eq!(offset_of!(libc::xdp_mmap_offsets, cr), 96);

    assert_eq!(size_of::<libc::xdp_statistics>(), 48);
    assert_eq!(offset_of!(libc::xdp_statistics, rx_ring_full), 24);
    assert_eq!(offset_of!(libc::xdp_statistics, rx_fill_ring_empty_descs), 32);
    assert_eq!(size_of::<libc::xdp_options>(), 4);
}

#[test]
fn constants_are_those_of_if_xdp_h() {
    let options = [
        libc::XDP_MMAP_OFFSETS,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
        libc::XDP_UMEM_REG,
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_STATISTICS,
        libc::XDP_OPTIONS,
    ];
    assert_eq!(options, [1, 2, 3, 4, 5, 6, 7, 8]);
    let flags = [
        libc::XDP_SHARED_UMEM,
        libc::XDP_COPY,
        libc::XDP_ZEROCOPY,
        libc::XDP_USE_NEED_WAKEUP,
        libc::XDP_USE_SG,
    ];
    assert_eq!(flags, [1, 2, 4, 8, 16]);
    assert_eq!((libc::AF_XDP, libc::SOL_XDP), (44, 283));
    assert_eq!(libc::XDP_PGOFF_TX_RING as u64, 0x8000_0000);
    assert_eq!(libc::XDP_UMEM_PGOFF_FILL_RING, 0x1_0000_0000);
    assert_eq!(libc::XDP_UMEM_PGOFF_COMPLETION_RING, 0x1_8000_0000);
}
