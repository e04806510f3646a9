//! Malformed files: each defect has its own error with its byte offset, and no record before it is
//! lost.

use proptest::prelude::*;
use strait_pcapng::pcap::Precision;
use strait_pcapng::{BLOCK_BYTES_MAX, Error, LinkType, Packet, SNAPLEN_MAX, pcap};

use crate::handmade::Maker;
use crate::owned::{decode, decode_in_pieces, only_packets};

fn started() -> Maker {
    let mut maker = Maker::new(false);
    maker.section(1, 0).interface(1, 0, &[]).packet(0, 1, b"good", &[]);
    maker
}

/// Returns the error of a file with `blocks` after one valid packet, which must be delivered.
fn fault(blocks: &[u8]) -> Error {
    let file = [started().file, blocks.to_vec()].concat();
    let (records, end) = decode(&file);
    assert_eq!(only_packets(records).len(), 1);
    end.expect_err("a malformed file")
}

fn raw(kind: u32, len: u32, rest: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &len.to_le_bytes(), rest].concat()
}

#[test]
fn errors_name_defects_of_the_framing() {
    let offset = started().file.len() as u64;
    let unaligned = fault(&raw(6, 13, &[0; 8]));
    assert_eq!(unaligned, Error::Unaligned { offset, len: 13 });
    assert_eq!(unaligned.to_string(), format!("block at byte {offset}: length 13 is not a multiple of 4"));
    assert_eq!(fault(&raw(6, 28, &[0; 24])), Error::TooShort { offset, len: 28, min: 32, kind: 6 });
    assert_eq!(fault(&raw(0x99, 8, &[0; 8])), Error::TooShort { offset, len: 8, min: 12, kind: 0x99 });
    let max = BLOCK_BYTES_MAX as u32;
    assert_eq!(fault(&raw(0x99, max + 4, &[0; 8])), Error::TooLong { offset, len: max + 4, max });
    let trailer = raw(0x99, 16, &[1, 2, 3, 4, 12, 0, 0, 0]);
    assert_eq!(fault(&trailer), Error::Trailer { offset, len: 16, trailer: 12 });
    let section = raw(0x0a0d_0d0a, 28, &[9; 20]);
    assert_eq!(fault(&section), Error::ByteOrder { offset, magic: [9; 4] });
}

#[test]
fn errors_name_defects_of_packets() {
    let offset = started().file.len() as u64;
    let packet = |words: [u32; 5], data: &[u8]| {
        let mut maker = Maker::new(false);
        let body = words.map(|word| maker.u32(word)).concat();
        maker.block(6, &[body, data.to_vec()]);
        fault(&maker.file)
    };
    assert_eq!(packet([1, 0, 0, 0, 0], &[]), Error::UnknownInterface { offset, interface: 1, known: 1 });
    assert_eq!(packet([0, 0, 0, 5, 5], &[0; 4]), Error::CapturedOverrun { offset, captured: 5, room: 4 });
    let captured = SNAPLEN_MAX + 1;
    let long = packet([0, 0, 0, captured, captured], &vec![0; captured as usize]);
    assert_eq!(long, Error::CapturedTooLong { offset, captured, max: SNAPLEN_MAX });
    let overrun = packet([0, 0, 0, 0, 0], &[2, 0, 8, 0, 0, 0, 0, 0]);
    assert_eq!(overrun, Error::OptionOverrun { offset, code: 2, need: 12, room: 8 });
    let length = packet([0, 0, 0, 0, 0], &[2, 0, 3, 0, 0, 0, 0, 0]);
    assert_eq!(length, Error::OptionLength { offset, code: 2, len: 3, expected: 4 });
    let end = packet([0, 0, 0, 0, 0], &[0, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(end, Error::OptionLength { offset, code: 0, len: 4, expected: 0 });
}

#[test]
fn errors_name_defects_of_other_blocks() {
    let offset = started().file.len() as u64;
    let mut maker = Maker::new(false);
    let resolution = maker.option(9, &[20]);
    maker.interface(1, 0, &[resolution]);
    assert_eq!(fault(&maker.file), Error::Resolution { offset, value: 20 });
    let mut maker = Maker::new(false);
    let body = [7, 0, 0].map(|word| maker.u32(word)).concat();
    maker.block(5, &[body]);
    assert_eq!(fault(&maker.file), Error::UnknownInterface { offset, interface: 7, known: 1 });
    let mut maker = Maker::new(false);
    let simple = [maker.u32(9), vec![0; 4]];
    maker.block(3, &simple);
    assert_eq!(fault(&maker.file), Error::CapturedOverrun { offset, captured: 9, room: 4 });
}

#[test]
fn error_is_returned_again_at_the_same_offset() {
    let file = [started().file, raw(6, 13, &[0; 8])].concat();
    let mut decoder = strait_pcapng::Decoder::new();
    let mut at = 0;
    while let Ok(step) = decoder.step(&file[at..]) {
        let strait_pcapng::Step::Record { consumed, .. } = step else { panic!("{step:?}") };
        at += consumed;
    }
    assert_eq!(decoder.step(&file[at..]), decoder.step(&file[at..]));
    assert_eq!(decoder.offset(), started().file.len() as u64);
}

#[test]
fn files_of_other_formats_are_refused_with_their_name() {
    let error_of = |bytes: &[u8]| decode(bytes).1.expect_err("not a capture file").to_string();
    assert!(error_of(b"\x1f\x8b\x08\x00rest").contains("gzip -dc"));
    assert!(error_of(b"\x28\xb5\x2f\xfd rest").contains("zstd -dc"));
    assert!(error_of(&0xa1b2_cd34_u32.to_le_bytes()).contains("Kuznetzov"));
    assert!(error_of(&0xa1b2_cd34_u32.to_be_bytes()).contains("Kuznetzov"));
    let pdf_error = error_of(b"%PDF-1.7");
    assert!(pdf_error.starts_with("not a pcap or pcapng file: it starts with the bytes 25 50 44 46; give "));
    assert_eq!(decode(b"").1, Err(Error::Empty));
    assert!(matches!(decode(b"\x0a\x0d").1, Err(Error::Truncated { start: 0, end: 2, .. })));
    let old = [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 3, 0], &[0; 16]].concat();
    assert_eq!(decode(&old).1, Err(Error::PcapVersion { major: 2, minor: 3 }));
}

#[test]
fn error_names_an_overlong_pcap_record() {
    let mut file = Vec::new();
    pcap::Encoder::begin(&mut file, LinkType::ETHERNET, 0, Precision::Nanoseconds);
    file.extend([[0; 4], [0; 4], [0xff; 4], [0xff; 4]].concat());
    let expected = Error::CapturedTooLong { offset: 24, captured: u32::MAX, max: SNAPLEN_MAX };
    assert_eq!(decode(&file).1, Err(expected));
}

fn a_file(pcapng: bool, big: bool) -> Vec<u8> {
    if !pcapng {
        let mut file = Vec::new();
        let encoder = pcap::Encoder::begin(&mut file, LinkType::ETHERNET, 0, Precision::Microseconds);
        for bytes in [&b"one"[..], b"three", b""] {
            let packet = Packet { bytes, wire_len: 60, ..Packet::default() };
            encoder.packet(&mut file, &packet).unwrap();
        }
        return file;
    }
    let mut maker = Maker::new(big);
    let name = maker.option(2, b"eth0");
    let flags = maker.option(2, &maker.u32(1));
    let dropped = maker.option(5, &maker.u64(4));
    let body = [maker.u32(0), vec![0; 8], dropped];
    maker.section(1, 0).interface(1, 0, &[name]).packet(0, 1, b"one", &[flags]);
    maker.packet(0, 2, b"three", &[]).block(4, &[vec![0; 4]]).block(5, &body).packet(0, 3, b"", &[]);
    maker.file
}

#[test]
fn cut_file_loses_only_records_after_the_cut() {
    for file in [a_file(false, false), a_file(true, false), a_file(true, true)] {
        let (whole, end) = decode(&file);
        assert_eq!(end, Ok(()));
        for cut in 1..file.len() {
            let (records, end) = decode(&file[..cut]);
            assert_eq!(records, whole[..records.len()]);
            match end {
                Ok(()) => {}
                Err(Error::Truncated { start, end, .. }) => {
                    assert_eq!(end, cut as u64);
                    // Cut again at the end of the last complete block, the file is complete.
                    let again = decode(&file[..start as usize]);
                    assert_eq!(again, (records, if start == 0 { Err(Error::Empty) } else { Ok(()) }));
                }
                Err(other) => panic!("cut at {cut}: {other}"),
            }
        }
    }
}

proptest! {
    #[test]
    fn flipped_bytes_do_not_panic_and_give_equal_results_in_pieces(
        pcapng: bool, big: bool, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece in 1usize..64,
    ) {
        let mut file = a_file(pcapng, big);
        for (at, byte) in flips {
            let at = at.index(file.len());
            file[at] ^= byte;
        }
        let whole = decode(&file);
        let pieces = decode_in_pieces(&file, piece);
        prop_assert_eq!(&whole.0, &pieces.0);
        prop_assert_eq!(whole.1.is_ok(), pieces.1.is_ok());
    }

    #[test]
    fn random_bytes_do_not_panic(pcapng: bool, noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut file = a_file(pcapng, false);
        file.extend(noise);
        let (records, _) = decode(&file);
        prop_assert!(only_packets(records).len() >= 3);
    }
}
