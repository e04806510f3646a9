//! Indexes: every packet is found again, and no damaged index is accepted.

use proptest::prelude::*;

use super::{
    Builder, FOOTER_BYTES, HEADER_BYTES, Identity, Index, IndexError, PART_BYTES, PART_HEADER_BYTES,
    PART_PACKETS_MAX, Place, digest,
};
use rapidhash::v3::rapidhash_v3;

const HEADER: u64 = 24;

fn identity(bytes: u64) -> Identity {
    Identity { bytes, modified_ns: -5, digest: digest(b"head", b"tail") }
}

/// Returns a number that looks like a hash.
fn flow(number: u64) -> u64 {
    rapidhash_v3(&number.to_le_bytes())
}

/// Returns places of packets of these lengths, times and flows.
fn places(packets: &[(u64, u64, Option<u64>)]) -> Vec<Place> {
    let mut end = HEADER;
    let mut places = Vec::new();
    for &(bytes, time_ns, number) in packets {
        end += bytes;
        places.push(Place { end, time_ns, flow: number.map(flow), describes: false });
    }
    places
}

fn encode(places: &[Place], trailer: u64) -> Vec<u8> {
    let mut builder = Builder::new(HEADER);
    for place in places {
        builder.packet(place);
    }
    let end = places.last().map_or(HEADER, |place| place.end) + trailer;
    builder.finish(&identity(end)).expect("a short index")
}

/// Writes the checksum again, so that only the checks of fields can refuse the index.
fn seal(encoded: &mut [u8]) {
    let at = encoded.len() - 8;
    let checksum = rapidhash_v3(&encoded[..at]);
    encoded[at..].copy_from_slice(&checksum.to_le_bytes());
}

proptest! {
    #[test]
    fn every_packet_is_in_a_part_with_its_time_and_flow(
        packets in prop::collection::vec((16..200_000u64, any::<u64>(), prop::option::of(0..500u64)), 0..300),
        trailer in 0..3u64,
    ) {
        let places = places(&packets);
        let index = Index::parse(encode(&places, trailer * 100)).expect("an index");
        let parts: Vec<_> = index.parts().collect();
        prop_assert_eq!(parts.len() as u64, index.len());
        prop_assert_eq!(parts.iter().map(|part| part.packets as usize).sum::<usize>(), places.len());
        prop_assert!(parts[0].describes && parts[0].packets == 0 && parts[0].end == HEADER);
        for place in &places {
            let part = parts.iter().find(|part| part.start < place.end && place.end <= part.end);
            let part = part.expect("a part");
            prop_assert!((part.first_ns..=part.last_ns).contains(&place.time_ns));
            prop_assert!(place.flow.is_none_or(|flow| part.may_have(flow)));
        }
    }

    #[test]
    fn changed_indexes_are_refused(at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let mut encoded = encode(&places(&[(100, 1, Some(1)), (PART_BYTES, 2, Some(2))]), 0);
        let at = at.index(encoded.len());
        encoded[at] ^= 1 << bit;
        prop_assert!(Index::parse(encoded).is_err());
    }

    #[test]
    fn sealed_indexes_are_refused_or_cover_their_file(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut encoded = encode(&places(&[(100, 1, Some(1)), (PART_BYTES, 2, Some(2))]), 16);
        for (at, byte) in changes {
            let at = at.index(encoded.len());
            encoded[at] = byte;
        }
        seal(&mut encoded);
        if let Ok(index) = Index::parse(encoded) {
            let mut end = 0;
            for part in index.parts() {
                prop_assert_eq!(part.start, end);
                prop_assert!(part.end > part.start);
                end = part.end;
            }
            prop_assert_eq!(end, index.identity().bytes);
        }
    }
}

#[test]
fn absent_flows_are_rarely_found() {
    let packets: Vec<_> = (0..1000).map(|number| (100, 0, Some(number))).collect();
    let index = Index::parse(encode(&places(&packets), 0)).expect("an index");
    let part = index.parts().nth(1).expect("a part");
    let found = (1000..11_000).filter(|number| part.may_have(flow(*number))).count();
    assert!(found < 100, "{found} of 10,000 absent flows");
}

#[test]
fn parts_without_flows_have_none() {
    let index = Index::parse(encode(&places(&[(100, 7, None)]), 0)).expect("an index");
    let part = index.parts().nth(1).expect("a part");
    assert!(!part.may_have(flow(1)) && !part.may_have(0));
    assert_eq!((part.first_ns, part.last_ns, part.packets), (7, 7, 1));
}

#[test]
fn parts_end_at_their_limits() {
    let small: Vec<_> = (0..=u64::from(PART_PACKETS_MAX)).map(|number| (1, number, None)).collect();
    let index = Index::parse(encode(&places(&small), 0)).expect("an index");
    let packets: Vec<_> = index.parts().map(|part| part.packets).collect();
    assert_eq!(packets, [0, PART_PACKETS_MAX, 1]);
    let index = Index::parse(encode(&places(&[(PART_BYTES - 1, 0, None); 3]), 0)).expect("an index");
    assert_eq!(index.parts().map(|part| part.packets).collect::<Vec<_>>(), [0, 2, 1]);
}

#[test]
fn parts_with_interfaces_are_marked() {
    let mut places = places(&[(PART_BYTES, 0, None); 3]);
    places[1].describes = true;
    let index = Index::parse(encode(&places, 0)).expect("an index");
    assert_eq!(index.parts().map(|part| part.describes).collect::<Vec<_>>(), [true, false, true, false]);
}

#[test]
fn impossible_fields_are_refused() {
    let valid = encode(&places(&[(100, 5, Some(1))]), 0);
    let part = HEADER_BYTES + PART_HEADER_BYTES;
    let footer = valid.len() - FOOTER_BYTES;
    for (at, bytes) in [
        (part, [0; 8].as_slice()),         // no bytes
        (part, &[0xff; 8]),                // an end beyond 64 bits
        (part + 8, &[0xff; 8]),            // first time after the last one
        (part + 24, &[0xff; 4]),           // too many packets
        (part + 24, &[0; 4]),              // a time without packets
        (part + 28, &[2, 0]),              // an unknown flag
        (part + 30, &[0xff, 0xff]),        // a filter beyond the end
        (footer, &[9]),                    // another number of parts
        (footer + 8, &[9, 0, 0, 0, 0, 0]), // another length of the file
    ] {
        let mut encoded = valid.clone();
        encoded[at..at + bytes.len()].copy_from_slice(bytes);
        seal(&mut encoded);
        assert!(matches!(Index::parse(encoded), Err(IndexError::Part { .. })), "{at} {bytes:x?}");
    }
    let mut other = valid.clone();
    other[8] = 2;
    assert_eq!(Index::parse(other), Err(IndexError::Version { version: 2, kind: 1 }));
    assert_eq!(Index::parse(valid[..30].to_vec()), Err(IndexError::NotAnIndex));
    assert_eq!(Index::parse(b"SQLite format 3".repeat(9)), Err(IndexError::NotAnIndex));
}
