//! Tests of geometry, shares and fallbacks of a UMEM.

use crate::error::Kind;
use crate::xdp::{Geometry, Umem};

const GEOMETRY: Geometry = Geometry { chunk_bytes: 2048, chunks: 8, headroom_bytes: 0 };

#[test]
fn an_ethernet_frame_fits_the_small_chunk() {
    assert_eq!(GEOMETRY.frame_bytes(), 1792);
    assert_eq!(Geometry { chunk_bytes: 4096, headroom_bytes: 64, ..GEOMETRY }.frame_bytes(), 3776);
}

#[test]
fn invalid_geometry_is_a_usage_error() {
    let wrong = [
        Geometry { chunk_bytes: 1024, ..GEOMETRY },
        Geometry { chunk_bytes: 3000, ..GEOMETRY },
        Geometry { chunks: 0, ..GEOMETRY },
        Geometry { chunks: u32::MAX, ..GEOMETRY },
        Geometry { headroom_bytes: 1500, ..GEOMETRY },
    ];
    for geometry in wrong {
        assert_eq!(Umem::new(geometry, false, None).unwrap_err().kind(), Kind::Usage, "{geometry:?}");
    }
}

#[test]
fn chunks_belong_to_one_share_only() {
    let mut umem = Umem::new(GEOMETRY, false, None).unwrap();
    let (mut first, mut second) = (umem.share(5).unwrap(), umem.share(3).unwrap());
    assert_eq!(umem.share(1).unwrap_err().kind(), Kind::Usage);
    let mut addresses = Vec::new();
    for share in [&mut first, &mut second] {
        while let Some(chunk) = share.take_free() {
            addresses.push(share.hand_over(chunk));
        }
    }
    assert_eq!(addresses, (0..8).map(|i| i * 2048).collect::<Vec<u64>>());
    assert!(first.reclaim(5 * 2048).is_none(), "the other's chunk");
    assert!(first.reclaim(u64::MAX).is_none());
    let (chunk, offset) = first.reclaim(4 * 2048 + 256).unwrap();
    assert_eq!(offset, 256);
    assert!(first.reclaim(4 * 2048 + 256).is_none(), "it is no longer with the kernel");
    assert_eq!(first.hand_over(chunk), 4 * 2048);
}

#[test]
fn refused_options_are_reported_and_the_memory_works() {
    let mut umem = Umem::new(GEOMETRY, true, Some(1023)).unwrap();
    let refused = 1 + usize::from(!umem.has_huge_pages());
    assert_eq!(umem.fallbacks().len(), refused, "{:?}", umem.fallbacks());
    let mut share = umem.share(8).unwrap();
    let mut chunk = share.take_free().unwrap();
    share.bytes_mut(&mut chunk).fill(7);
    assert_eq!(share.bytes_mut(&mut chunk)[2046..], [7, 7]);
}

#[test]
fn node_0_works_or_the_kernel_has_no_numa() {
    let umem = Umem::new(GEOMETRY, false, Some(0)).unwrap();
    assert!(umem.fallbacks().iter().all(|error| error.errno() == Some(libc::ENOSYS)), "{umem:?}");
}
