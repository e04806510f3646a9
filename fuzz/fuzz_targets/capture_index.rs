//! Fuzzes indexes of capture files: as they are, with a valid beginning and checksum, and built of
//! packets. The parts of an accepted index cover its file without a gap, and one that was built has
//! every packet.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rapidhash::v3::rapidhash_v3;
use strait_pcapng::index::{Builder, Identity, Index, PART_PACKETS_MAX, Place};

fuzz_target!(|data: &[u8]| {
    check(data.to_vec());
    let mut sealed =
        Builder::new(1).finish(&Identity { bytes: 1, modified_ns: 0, digest: 0 }).expect("short");
    sealed.truncate(16);
    sealed.extend(data);
    let checksum = rapidhash_v3(&sealed);
    sealed.extend(checksum.to_le_bytes());
    check(sealed);
    build(data);
});

/// Checks the parts of an accepted index.
fn check(bytes: Vec<u8>) {
    let Ok(index) = Index::parse(bytes) else { return };
    let (mut end, mut count) = (0, 0);
    for part in index.parts() {
        assert!(part.start == end && part.end > part.start);
        assert!(part.first_ns <= part.last_ns && part.packets <= PART_PACKETS_MAX);
        assert!(part.packets > 0 || !part.may_have(7));
        (end, count) = (part.end, count + 1);
    }
    assert_eq!((end, count), (index.identity().bytes, index.len()));
}

/// Builds an index of packets with their lengths, times and flows in `data`.
fn build(data: &[u8]) {
    let mut end = 24;
    let mut builder = Builder::new(end);
    let mut places = Vec::new();
    for fields in data.chunks_exact(12) {
        let number =
            |at: usize| u32::from_le_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        end += u64::from(number(0) % 300_000) + 16;
        let time_ns = u64::from(number(4)) << 32;
        let flow = Some(rapidhash_v3(&fields[8..])).filter(|_| fields[8] != 0);
        let place = Place { end, time_ns, flow, describes: fields[9] == 1 };
        builder.packet(&place);
        places.push(place);
    }
    let identity = Identity { bytes: end + 1, modified_ns: -1, digest: 3 };
    let index = Index::parse(builder.finish(&identity).expect("short")).expect("a valid index");
    assert_eq!(*index.identity(), identity);
    let parts: Vec<_> = index.parts().collect();
    for place in places {
        let at = parts.partition_point(|part| part.end < place.end);
        let part = &parts[at];
        assert!((part.first_ns..=part.last_ns).contains(&place.time_ns));
        assert!(place.flow.is_none_or(|flow| part.may_have(flow)));
        assert!(!place.describes || part.describes);
    }
}
