//! Messages to send: small pieces and bodies in memory of a pool, bodies in a mapped file, files.

use std::fs::File;
use std::io::Write as _;

use strait_sys::buffer::{BufMut, Frozen, Pool};

use super::{BODIES_BYTES, Message, PIECE_BYTES, READ_BYTES};
use crate::error::{Error, Result};
use crate::memory_file;

/// Chunk size for bodies, unless one body is larger.
const CHUNK_BYTES: usize = 256 << 10;

/// Messages: always the same pieces, and one of many bodies in turn.
pub(super) struct Parts {
    pieces: usize,
    bodies: Vec<Frozen>,
    turn: usize,
    /// Views of the pieces, followed by the current body.
    pub(super) views: Vec<Frozen>,
}

impl Parts {
    /// Allocates memory for the pieces and the bodies.
    pub(super) fn pool(pieces: usize, body: usize) -> Result<Pool> {
        Ok(Pool::new(Self::chunk_bytes(pieces, body), Self::chunks(pieces, body))?)
    }

    /// Returns the size of a chunk: enough for all pieces or one body.
    pub(super) fn chunk_bytes(pieces: usize, body: usize) -> usize {
        (pieces * PIECE_BYTES).max(body).max(CHUNK_BYTES)
    }

    /// Returns the number of chunks for the pieces and the bodies.
    pub(super) fn chunks(pieces: usize, body: usize) -> u32 {
        1 + BODIES_BYTES.div_ceil(Self::chunk_bytes(pieces, body)) as u32
    }

    /// Fills chunks from `take`, as sized by [`Parts::chunk_bytes`] and [`Parts::chunks`].
    pub(super) fn new(mut take: impl FnMut() -> Option<BufMut>, pieces: usize, body: usize) -> Result<Self> {
        let mut filled = || {
            let mut chunk = take().ok_or_else(|| Error::Invalid("no buffer is free".into()))?;
            for (at, byte) in chunk.iter_mut().enumerate() {
                *byte = at as u8;
            }
            let len = chunk.len();
            Ok::<_, Error>(chunk.freeze(0..len))
        };
        let mut views: Vec<_> = each(&filled()?, PIECE_BYTES).take(pieces).collect();
        let mut bodies = Vec::new();
        for _ in 1..Self::chunks(pieces, body) {
            bodies.extend(each(&filled()?, body));
        }
        views.extend(bodies.first().cloned());
        Ok(Self { pieces, bodies, turn: 0, views })
    }

    /// Maps a file: the body is the whole of it, or one of many in it.
    pub(super) fn mapped(message: Message) -> Result<Self> {
        let (bytes, body) = match message {
            Message::File(bytes) => (bytes, bytes as usize),
            Message::Memory { pieces: 0, body } => (BODIES_BYTES.max(body) as u64, body),
            Message::Memory { .. } => return Err(Error::Usage("a file has no pieces".into())),
        };
        let bodies: Vec<_> = each(&Frozen::of_file(file(bytes)?)?, body).collect();
        let views = bodies.first().cloned().into_iter().collect();
        Ok(Self { pieces: 0, bodies, turn: 0, views })
    }

    /// Returns the body's share of a message's bytes.
    pub(super) fn body_share(&self) -> f64 {
        let body = self.bodies.first().map_or(0, |body| body.len());
        body as f64 / (self.pieces * PIECE_BYTES + body).max(1) as f64
    }

    /// Returns the next message: its pieces and its body.
    pub(super) fn next(&mut self) -> (&[Frozen], &[Frozen]) {
        self.turn = (self.turn + 1) % self.bodies.len().max(1);
        if let (Some(view), Some(body)) = (self.views.get_mut(self.pieces), self.bodies.get(self.turn)) {
            *view = body.clone();
        }
        self.views.split_at(self.pieces)
    }
}

/// Splits `all` into parts of `bytes` bytes.
fn each(all: &Frozen, bytes: usize) -> impl Iterator<Item = Frozen> {
    let parts = all.len().checked_div(bytes).unwrap_or(0);
    (0..parts).map(move |part| all.slice(part * bytes..(part + 1) * bytes))
}

/// Creates a file in memory.
pub(super) fn file(bytes: u64) -> Result<File> {
    let mut file = memory_file::sealable("message")?;
    let chunk: Vec<u8> = (0..READ_BYTES).map(|at| at as u8).collect();
    let mut left = bytes;
    while left > 0 {
        let some = left.min(chunk.len() as u64);
        file.write_all(&chunk[..some as usize])
            .map_err(|error| Error::file("write a file in memory", error))?;
        left -= some;
    }
    Ok(file)
}
