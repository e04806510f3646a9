//! Decompresses LZ4 frames (LZ4 Frame Format Description 1.6.4), one block at a time, and checks
//! their checksums.
//!
//! [`Decompressor`](super::Decompressor) uses it. The decoder of frames in the crate lz4_flex reads
//! from a blocking source, and takes the end of the input within a frame for the end of the file.
//! Therefore only its decoder of blocks is used.

use std::hash::Hasher as _;

use lz4_flex::block::{decompress_into, decompress_into_with_dict};
use twox_hash::XxHash32;

use super::defect::{Defect, Progress};

const MAGIC: u32 = 0x184d_2204;
const MAGIC_LEGACY: u32 = 0x184c_2102;
/// First magic number of a skippable frame, and the mask for its sixteen values.
const MAGIC_SKIPPABLE: u32 = 0x184d_2a50;
const SKIPPABLE_MASK: u32 = 0xffff_fff0;
/// Flag of a block that is stored without compression, in its length.
const STORED: u32 = 1 << 31;
/// Bytes before a linked block to which it can refer.
const WINDOW_BYTES: usize = 64 << 10;
/// Bytes of a magic number, a length and a checksum.
const WORD: usize = 4;

/// State of a file.
#[derive(Debug)]
pub(super) struct Lz4 {
    place: Place,
    /// Bytes of the current item, of which `wanted` are needed.
    held: Vec<u8>,
    wanted: usize,
    frame: Frame,
    /// Buffer for the output of a block. It only grows: to fill it with zeros for each of many
    /// short blocks would cost up to 4 MiB of writes for five bytes of input.
    block: Vec<u8>,
    /// Bytes of output in `block`, of which those before `taken` have been returned.
    length: usize,
    taken: usize,
    /// Last output before the block, of which a block can refer to the last [`WINDOW_BYTES`].
    window: Vec<u8>,
    has_frame: bool,
}

/// Item of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Magic,
    SkippableLength,
    /// Remaining bytes of a skippable frame.
    Skippable(u32),
    /// Flags and block size.
    Flags,
    /// Flags, block size, content size and checksum of the descriptor.
    Descriptor,
    BlockLength,
    /// Block of this length word, with its checksum.
    Block(u32),
    ContentCheck,
}

/// Descriptor of a frame, and its content so far.
#[derive(Clone, Debug, Default)]
struct Frame {
    block_bytes_max: usize,
    is_linked: bool,
    has_block_checks: bool,
    has_content_check: bool,
    content_bytes: Option<u64>,
    check: XxHash32,
    bytes: u64,
}

impl Default for Lz4 {
    fn default() -> Self {
        Self {
            place: Place::Magic,
            held: Vec::new(),
            wanted: WORD,
            frame: Frame::default(),
            block: Vec::new(),
            length: 0,
            taken: 0,
            window: Vec::new(),
            has_frame: false,
        }
    }
}

impl Lz4 {
    pub(super) fn may_end(&self) -> bool {
        self.place == Place::Magic && self.held.is_empty() && self.has_frame
    }

    /// Returns a part of the block, or reads a part of an item.
    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, Defect> {
        if self.taken < self.length {
            let produced = output.len().min(self.length - self.taken);
            output[..produced].copy_from_slice(&self.block[self.taken..self.taken + produced]);
            self.taken += produced;
            return Ok(Progress { consumed: 0, produced });
        }
        if let Place::Skippable(left) = self.place {
            let consumed = input.len().min(left as usize);
            let left = left - consumed as u32;
            if left == 0 {
                self.expect(Place::Magic, WORD);
            } else {
                self.place = Place::Skippable(left);
            }
            return Ok(Progress { consumed, produced: 0 });
        }
        let consumed = input.len().min(self.wanted - self.held.len());
        self.held.extend_from_slice(&input[..consumed]);
        if self.held.len() == self.wanted {
            let item = std::mem::take(&mut self.held);
            let decoded = self.decode(&item);
            self.held = item;
            self.held.clear();
            decoded?;
        }
        Ok(Progress { consumed, produced: 0 })
    }

    fn expect(&mut self, place: Place, bytes: usize) {
        self.place = place;
        self.wanted = bytes;
    }

    /// Decodes a complete item.
    fn decode(&mut self, item: &[u8]) -> Result<(), Defect> {
        match self.place {
            Place::Magic => self.magic(word(item, 0)),
            Place::SkippableLength => {
                match word(item, 0) {
                    0 => self.expect(Place::Magic, WORD),
                    length => self.place = Place::Skippable(length),
                }
                Ok(())
            }
            Place::Flags => self.flags(item),
            Place::Descriptor => self.descriptor(item),
            Place::BlockLength => self.block_length(word(item, 0)),
            Place::Block(length) => self.block(length, item),
            Place::ContentCheck => {
                let is_right = word(item, 0) == self.frame.check.finish() as u32;
                if is_right { self.end_frame() } else { Err(Defect::Damaged("the checksum is wrong")) }
            }
            Place::Skippable(_) => Ok(()),
        }
    }

    fn magic(&mut self, magic: u32) -> Result<(), Defect> {
        match magic {
            MAGIC => self.expect(Place::Flags, 2),
            MAGIC_LEGACY => return Err(Defect::Legacy),
            _ if magic & SKIPPABLE_MASK == MAGIC_SKIPPABLE => self.expect(Place::SkippableLength, WORD),
            _ if self.has_frame => return Err(Defect::Damaged("bytes after the end are not LZ4")),
            _ => return Err(Defect::Damaged("not LZ4")),
        }
        Ok(())
    }

    /// Checks flags and block size, which determine the length of the descriptor.
    fn flags(&mut self, item: &[u8]) -> Result<(), Defect> {
        let (flags, size) = (item[0], item[1]);
        if flags & 0xc2 != 0x40 || size & 0x8f != 0 {
            return Err(Defect::Damaged("unknown version or flags"));
        }
        if flags & 0x01 != 0 {
            return Err(Defect::Dictionary);
        }
        let block_bytes_max = match size >> 4 {
            size @ 4..=7 => 1 << (8 + 2 * size),
            _ => return Err(Defect::Damaged("unknown block size")),
        };
        let has_content_bytes = flags & 0x08 != 0;
        self.frame = Frame {
            block_bytes_max,
            is_linked: flags & 0x20 == 0,
            has_block_checks: flags & 0x10 != 0,
            has_content_check: flags & 0x04 != 0,
            content_bytes: has_content_bytes.then_some(0),
            ..Frame::default()
        };
        self.window.clear();
        // The flags are a part of the descriptor, over which its checksum is computed.
        self.window.extend_from_slice(item);
        self.expect(Place::Descriptor, if has_content_bytes { 9 } else { 1 });
        Ok(())
    }

    fn descriptor(&mut self, item: &[u8]) -> Result<(), Defect> {
        let (fields, check) = item.split_at(item.len() - 1);
        self.window.extend_from_slice(fields);
        let is_right = (XxHash32::oneshot(0, &self.window) >> 8) as u8 == check[0];
        self.window.clear();
        if !is_right {
            return Err(Defect::Damaged("the checksum of the frame's header is wrong"));
        }
        self.frame.content_bytes = fields.try_into().ok().map(u64::from_le_bytes);
        self.expect(Place::BlockLength, WORD);
        Ok(())
    }

    fn block_length(&mut self, length: u32) -> Result<(), Defect> {
        if length == 0 {
            return if self.frame.has_content_check {
                self.expect(Place::ContentCheck, WORD);
                Ok(())
            } else {
                self.end_frame()
            };
        }
        let bytes = (length & !STORED) as usize;
        if bytes == 0 || bytes > self.frame.block_bytes_max {
            return Err(Defect::Damaged("the length of a block is wrong"));
        }
        self.expect(Place::Block(length), bytes + if self.frame.has_block_checks { WORD } else { 0 });
        Ok(())
    }

    fn block(&mut self, length: u32, item: &[u8]) -> Result<(), Defect> {
        let (data, check) = item.split_at((length & !STORED) as usize);
        if !check.is_empty() && word(check, 0) != XxHash32::oneshot(0, data) {
            return Err(Defect::Damaged("the checksum of a block is wrong"));
        }
        // An invalid block gives no output.
        (self.length, self.taken) = (0, 0);
        self.length = if length & STORED != 0 {
            self.room(data.len()).copy_from_slice(data);
            data.len()
        } else {
            self.decompress(data)?
        };
        let content = &self.block[..self.length];
        self.frame.bytes += content.len() as u64;
        if self.frame.has_content_check {
            self.frame.check.write(content);
        }
        if self.frame.is_linked {
            self.window.extend_from_slice(&content[content.len().saturating_sub(WINDOW_BYTES)..]);
            // Seldom, as short blocks would each move the whole window.
            if self.window.len() > 2 * WINDOW_BYTES {
                self.window.drain(..self.window.len() - WINDOW_BYTES);
            }
        }
        self.expect(Place::BlockLength, WORD);
        Ok(())
    }

    /// Decompresses to the start of `block`. Returns the number of bytes.
    fn decompress(&mut self, data: &[u8]) -> Result<usize, Defect> {
        let window = std::mem::take(&mut self.window);
        let room = self.room(self.frame.block_bytes_max);
        let length = if window.is_empty() {
            decompress_into(data, room)
        } else {
            let begin = window.len().saturating_sub(WINDOW_BYTES);
            decompress_into_with_dict(data, room, &window[begin..])
        };
        self.window = window;
        length.map_err(|_| Defect::Damaged("a block is invalid"))
    }

    /// Returns the first `bytes` of `block`.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.block.len() < bytes {
            self.block.resize(bytes, 0);
        }
        &mut self.block[..bytes]
    }

    fn end_frame(&mut self) -> Result<(), Defect> {
        if self.frame.content_bytes.is_some_and(|expected| expected != self.frame.bytes) {
            return Err(Defect::Damaged("the length of the content is wrong"));
        }
        self.has_frame = true;
        self.expect(Place::Magic, WORD);
        Ok(())
    }
}

/// Returns the little-endian word at `at`; 0 if there is none, which the caller excludes.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + WORD).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests;
