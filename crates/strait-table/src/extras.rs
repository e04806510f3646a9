//! Values of packets that only some columns need, beside the fixed fields of
//! [`Headers`]: bytes of frames, and owners.

use std::sync::Arc;

use crate::headers::{Headers, Packet};

/// Process that owns a packet's socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Identifier of the process.
    pub process_id: u32,
    /// Name of the process.
    pub process: Option<String>,
    /// Name or number of the user.
    pub user: Option<String>,
    /// Path of the cgroup.
    pub cgroup: Option<String>,
    /// Identifier of the container.
    pub container: Option<String>,
}

/// Values of the packets of a block. A packet has their positions.
#[derive(Debug, Default)]
pub struct Extras {
    /// First bytes of the packets, one after the other.
    frames: Vec<u8>,
    owners: Vec<Arc<Owner>>,
}

impl Extras {
    /// Adds at most `frame_bytes` bytes of a packet, and its owner.
    pub(crate) fn push(&mut self, packet: &Packet<'_>, frame_bytes: usize, headers: &mut Headers) {
        headers.frame_at = self.frames.len() as u32;
        self.frames.extend_from_slice(&packet.bytes[..packet.bytes.len().min(frame_bytes)]);
        headers.owner = packet.owner.map(|owner| self.owner_number(owner));
    }

    /// Returns the position of an owner. Packets of an owner often follow one another, and a block
    /// has few owners.
    fn owner_number(&mut self, owner: &Arc<Owner>) -> u16 {
        let known = self.owners.iter().rposition(|other| Arc::ptr_eq(other, owner));
        let number = known.unwrap_or_else(|| {
            self.owners.push(Arc::clone(owner));
            self.owners.len() - 1
        });
        number as u16
    }

    /// Returns the bytes of a frame.
    pub(crate) fn frame(&self, headers: &Headers, frame_bytes: u32) -> &[u8] {
        let start = headers.frame_at as usize;
        let end = start + headers.captured_length.min(frame_bytes) as usize;
        self.frames.get(start..end).unwrap_or_default()
    }

    /// Returns the owner of a packet.
    pub(crate) fn owner(&self, headers: &Headers) -> Option<&Owner> {
        self.owners.get(usize::from(headers.owner?)).map(Arc::as_ref)
    }

    /// Returns the number of bytes of frames.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn clear(&mut self) {
        self.frames.clear();
        self.owners.clear();
    }
}
