//! Decompression of whole, joined, cut and damaged input, in pieces of any size.

use std::io::Write as _;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use proptest::prelude::*;

use super::{Compression, Decompressor, Defect};

/// Returns bytes that compress well in some parts and not at all in others.
fn content(length: usize) -> Vec<u8> {
    let noise = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..length as u64).map(|at| if at / 3000 % 2 == 0 { noise(at) } else { (at / 100) as u8 }).collect()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 1).expect("memory")
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let builder = flate2::GzBuilder::new().filename("a name").comment("a comment").extra(&b"extra"[..]);
    let mut encoder = builder.write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn lz4_with(content: &[u8], info: FrameInfo) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn lz4(content: &[u8]) -> Vec<u8> {
    lz4_with(content, FrameInfo::new().content_checksum(true).block_checksums(true))
}

/// Decompresses input that arrives in pieces of `piece` bytes, to an output of `room` bytes.
/// Returns the content, and the defect or true if the input may end there.
fn decompress(
    compression: Compression,
    input: &[u8],
    piece: usize,
    room: usize,
) -> (Vec<u8>, Result<bool, Defect>) {
    let mut decompressor = Decompressor::new(compression).expect("memory");
    let (mut all, mut output) = (Vec::new(), vec![0; room]);
    // The last piece is empty: there may be output without more input.
    for mut piece in input.chunks(piece).chain([&[][..]]) {
        loop {
            let progress = match decompressor.run(piece, &mut output) {
                Ok(progress) => progress,
                Err(defect) => return (all, Err(defect)),
            };
            piece = &piece[progress.consumed..];
            all.extend_from_slice(&output[..progress.produced]);
            if progress.produced == 0 {
                assert!(piece.is_empty(), "input is left without output");
                break;
            }
        }
    }
    let may_end = decompressor.may_end();
    (all, Ok(may_end))
}

type Coder = (Compression, fn(&[u8]) -> Vec<u8>);

const CODERS: [Coder; 3] = [(Compression::Zstd, zstd), (Compression::Gzip, gzip), (Compression::Lz4, lz4)];

#[test]
fn joined_frames_are_decompressed_in_pieces_of_any_size() {
    let (first, second) = (content(700_000), content(5));
    for (compression, compress) in CODERS {
        let input = [compress(&first), compress(&second), compress(&[])].concat();
        assert_eq!(Compression::of_magic(&input), Some(compression));
        for (piece, room) in [(1, 70_000), (7, 1), (100_000, 4096), (input.len(), 1 << 20)] {
            let (all, end) = decompress(compression, &input, piece, room);
            assert_eq!(end, Ok(true), "{compression:?} {piece} {room}");
            assert!(all == [&first[..], &second].concat(), "{compression:?} {piece} {room}");
        }
    }
}

#[test]
fn every_form_of_lz4_frames_is_decompressed() {
    let content = content(300_000);
    for mode in [BlockMode::Independent, BlockMode::Linked] {
        for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
            for (checks, bytes) in [(false, None), (true, Some(content.len() as u64))] {
                let info = FrameInfo::new().block_mode(mode).block_size(size).content_size(bytes);
                let info = info.block_checksums(checks).content_checksum(checks);
                let (all, end) = decompress(Compression::Lz4, &lz4_with(&content, info), 1000, 9000);
                assert_eq!(end, Ok(true), "{mode:?} {size:?}");
                assert!(all == content, "{mode:?} {size:?}");
            }
        }
    }
    let skippable = [&[0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let empty = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    let input = [&lz4(b"one")[..], &skippable, &empty, &lz4(b"two")].concat();
    assert_eq!(decompress(Compression::Lz4, &input, 1, 9), (b"onetwo".to_vec(), Ok(true)));
}

#[test]
fn cut_input_gives_all_content_before_and_may_not_end() {
    let content = content(500_000);
    for (compression, compress) in CODERS {
        let input = compress(&content);
        for cut in [4, 11, 100, input.len() / 2, input.len() - 5, input.len() - 1] {
            let (all, end) = decompress(compression, &input[..cut], 1000, 5000);
            assert_eq!(end, Ok(false), "{compression:?} at {cut}");
            assert!(content.starts_with(&all));
            // Only the last block can be missing: of 128 KiB in zstd, of 256 KiB here in LZ4.
            let due = content.len() * cut / input.len();
            assert!(all.len() + (256 << 10) >= due, "{compression:?} at {cut}: {}", all.len());
        }
    }
}

#[test]
fn padding_after_gzip_is_skipped_and_other_bytes_are_refused() {
    let input = [gzip(b"one"), vec![0; 100], gzip(b"two"), vec![0; 5]].concat();
    assert_eq!(decompress(Compression::Gzip, &input, 3, 2), (b"onetwo".to_vec(), Ok(true)));
    for (compression, compress) in CODERS {
        let input = [&compress(b"one")[..], b"something else"].concat();
        let (all, end) = decompress(compression, &input, 100, 100);
        assert_eq!(all, b"one", "{compression:?}");
        assert!(matches!(end, Err(Defect::Damaged(_))), "{compression:?}: {end:?}");
    }
}

#[test]
fn damage_is_found_by_the_checksum() {
    let content = content(100_000);
    let check = |compression, input: &[u8]| decompress(compression, input, 4096, 4096).1;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
    encoder.include_checksum(true).expect("a parameter");
    encoder.write_all(&content).expect("memory");
    for (compression, input) in [
        (Compression::Zstd, encoder.finish().expect("memory")),
        (Compression::Gzip, gzip(&content)),
        (Compression::Lz4, lz4(&content)),
    ] {
        assert_eq!(check(compression, &input), Ok(true));
        for at in [input.len() - 1, input.len() / 2, 8] {
            let mut damaged = input.clone();
            damaged[at] ^= 0x20;
            let end = check(compression, &damaged);
            // The time in a header of gzip has no checksum.
            let is_found = matches!(end, Err(Defect::Damaged(_)) | Ok(false));
            assert!(
                is_found || (compression, at) == (Compression::Gzip, 8),
                "{compression:?} at {at}: {end:?}"
            );
        }
    }
}

#[test]
fn large_window_dictionary_and_legacy_format_are_refused() {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).expect("memory");
    encoder.window_log(super::zstandard::WINDOW_LOG_MAX + 1).expect("a parameter");
    encoder.write_all(b"short").expect("memory");
    let large = encoder.finish().expect("memory");
    assert_eq!(decompress(Compression::Zstd, &large, 100, 100), (vec![], Err(Defect::Window)));
    let with_dictionary = [0x04, 0x22, 0x4d, 0x18, 0x41, 0x40];
    assert_eq!(decompress(Compression::Lz4, &with_dictionary, 100, 100).1, Err(Defect::Dictionary));
    let legacy = [0x02, 0x21, 0x4c, 0x18];
    assert_eq!(decompress(Compression::Lz4, &legacy, 100, 100).1, Err(Defect::Legacy));
}

proptest! {
    #[test]
    fn no_input_panics(
        which in 0..3usize, damage: Vec<(prop::sample::Index, u8)>, tail: Vec<u8>,
        piece in 1..5000usize, room in 1..5000usize, skip_header: bool,
    ) {
        let (compression, compress) = CODERS[which];
        let mut input = if skip_header { Vec::new() } else { compress(&content(9000)) };
        for (at, byte) in damage {
            if !input.is_empty() {
                let at = at.index(input.len());
                input[at] = byte;
            }
        }
        input.extend(tail);
        let (all, _) = decompress(compression, &input, piece, room);
        prop_assert!(all.len() < 64 << 20);
    }
}
