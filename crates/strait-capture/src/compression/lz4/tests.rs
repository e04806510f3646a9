//! Use of the buffer for the output of blocks.

use std::io::Write as _;

use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};

use super::Lz4;

/// Decompresses all input, and returns the number of bytes of output.
fn decompress(lz4: &mut Lz4, mut input: &[u8]) -> usize {
    let (mut total, mut output) = (0, vec![0; 1 << 20]);
    loop {
        let progress = lz4.step(input, &mut output).expect("valid input");
        input = &input[progress.consumed..];
        total += progress.produced;
        if progress.consumed == 0 && progress.produced == 0 {
            return total;
        }
    }
}

#[test]
fn short_block_does_not_write_the_whole_buffer() {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(&[7].repeat(64 << 10)).expect("memory");
    let full = encoder.finish().expect("memory");
    let mut lz4 = Lz4::default();
    assert_eq!(decompress(&mut lz4, &full), 64 << 10);
    // A second frame of the same block size, with blocks of one byte and without output.
    let start = &full[..7];
    let blocks = [&[1, 0, 0, 0, 0][..]; 3].concat();
    let stored = [1, 0, 0, 0x80, b'x'];
    assert_eq!(decompress(&mut lz4, &[start, &blocks, &stored, &blocks, &[0; 4]].concat()), 1);
    assert!(lz4.may_end());
    assert_eq!((lz4.block.len(), lz4.block[0]), (64 << 10, b'x'));
    assert!(lz4.block[1..].iter().all(|byte| *byte == 7), "the rest of the buffer is written");
}
