//! Use of the buffers for the output of blocks and for that before a block.

use std::io::Write as _;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use super::{Lz4, WINDOW_BYTES};

/// Decompresses all input.
fn decompress(lz4: &mut Lz4, mut input: &[u8]) -> Vec<u8> {
    let (mut all, mut output) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        let progress = lz4.step(input, &mut output).expect("valid input");
        input = &input[progress.consumed..];
        all.extend_from_slice(&output[..progress.produced]);
        if progress.consumed == 0 && progress.produced == 0 {
            return all;
        }
    }
}

#[test]
fn short_linked_blocks_refer_to_the_bytes_before_them() {
    // It repeats itself at a distance of almost a window.
    let noise: Vec<u8> = (0..63_000_u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let content = noise.repeat(6);
    let mut encoder =
        FrameEncoder::with_frame_info(FrameInfo::new().block_mode(BlockMode::Linked), Vec::new());
    for piece in content.chunks(1000) {
        encoder.write_all(piece).expect("memory");
        encoder.flush().expect("memory");
    }
    let input = encoder.finish().expect("memory");
    assert!(input.len() < content.len() / 3, "the blocks are not linked");
    let mut lz4 = Lz4::default();
    assert!(decompress(&mut lz4, &input) == content);
    assert!((WINDOW_BYTES..=2 * WINDOW_BYTES).contains(&lz4.window.len()));
}

#[test]
fn short_block_does_not_write_the_whole_buffer() {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(&[7].repeat(64 << 10)).expect("memory");
    let full = encoder.finish().expect("memory");
    let mut lz4 = Lz4::default();
    assert_eq!(decompress(&mut lz4, &full).len(), 64 << 10);
    // A second frame of the same block size, with blocks of one byte and without output.
    let start = &full[..7];
    let blocks = [&[1, 0, 0, 0, 0][..]; 3].concat();
    let stored = [1, 0, 0, 0x80, b'x'];
    assert_eq!(decompress(&mut lz4, &[start, &blocks, &stored, &blocks, &[0; 4]].concat()), b"x");
    assert!(lz4.may_end());
    assert_eq!((lz4.block.len(), lz4.block[0]), (64 << 10, b'x'));
    assert!(lz4.block[1..].iter().all(|byte| *byte == 7), "the rest of the buffer is written");
}
