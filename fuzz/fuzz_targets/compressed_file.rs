//! Fuzzes compressed capture files: the input itself, and as the content of a frame of each format,
//! of which the input changes a byte. The reader never panics, and ends in bounded memory. Without
//! a change it returns the packets of the uncompressed content.

#![no_main]

use std::fs::File;
use std::io::{Seek as _, Write as _};

use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;
use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};
use strait_capture::file::FileReader;

/// Packets that are read of a file: a few bytes can be decompressed to any number.
const PACKETS_MAX: usize = 10_000;

/// Time, length and bytes of a packet.
type Packet = (u64, u32, Vec<u8>);

fuzz_target!(|input: (u16, u8, &[u8])| {
    let (at, change, content) = input;
    read(content);
    let uncompressed = read(&capture(content));
    for file in [zstd(&capture(content)), gzip(&capture(content)), lz4(&capture(content))] {
        assert_eq!(read(&file), uncompressed);
        let mut damaged = file;
        let at = usize::from(at) % damaged.len();
        damaged[at] ^= change;
        read(&damaged);
    }
});

/// Returns a pcap file: a header, and the content as its packets.
fn capture(content: &[u8]) -> Vec<u8> {
    let header = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 262_144, 1_u32];
    header.iter().flat_map(|word| word.to_le_bytes()).chain(content.iter().copied()).collect()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 1).expect("memory")
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

/// Writes short blocks that refer to those before.
fn lz4(content: &[u8]) -> Vec<u8> {
    let info = FrameInfo::new().block_mode(BlockMode::Linked).content_checksum(true);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    for piece in content.chunks(100) {
        encoder.write_all(piece).expect("memory");
        encoder.flush().expect("memory");
    }
    encoder.finish().expect("memory")
}

/// Returns the first packets of a file.
fn read(bytes: &[u8]) -> Vec<Packet> {
    let mut file: File = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).and_then(|()| file.rewind()).expect("space for a short file");
    let mut packets = Vec::new();
    let Ok(mut reader) = FileReader::new(file, "fuzzed".into()) else { return packets };
    while packets.len() < PACKETS_MAX {
        match reader.next() {
            Ok(Some(packet)) => packets.push((packet.timestamp_ns, packet.wire_len, packet.bytes.to_vec())),
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    packets
}
