//! Which ring, how large: geometry from MTU, snaplen and the memory asked for; shrunk where the
//! kernel has less.

use std::time::Duration;

use strait_sys::packet::{Cooked, Socket, receive, v2, v3};

use crate::error::Error;

/// The three ways to read a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `recvmmsg`.
    Recv,
    /// TPACKET_V2.
    V2,
    /// TPACKET_V3.
    V3,
}

impl Kind {
    /// As `--path` spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Recv => "recv",
            Self::V2 => "v2",
            Self::V3 => "v3",
        }
    }
}

/// What a packet socket is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Bytes of the ring that the user asked for; [`Shape::ring_bytes`] otherwise.
    pub(crate) asked_bytes: Option<usize>,
    /// Lanes of the session, among which frames are spread.
    pub(crate) lanes: usize,
    /// Bytes of the largest frame to be captured whole: the smaller of what the interface delivers
    /// and the snaplen.
    pub(crate) frame_bytes: usize,
    pub(crate) rx_hash: bool,
    pub(crate) promiscuous: bool,
    pub(crate) ignore_outgoing: bool,
    /// Wake a V3 reader by a second socket while the line is quiet.
    pub(crate) doorbell: bool,
    /// The reader sees frames of the open block as they come, or is woken for them.
    pub(crate) patient: bool,
    /// Which blocks of a V3 ring to read before the kernel hands them over.
    pub(crate) early: v3::Early,
    /// Take the link header off and put this one in its place.
    pub(crate) cooked: Option<Cooked>,
}

impl Shape {
    /// A socket of its kind, which receives nothing yet.
    pub(crate) fn socket(&self, interface: &str) -> Result<Socket, Error> {
        let open = if self.cooked.is_some() { Socket::open_cooked } else { Socket::open };
        Ok(open(interface)?)
    }

    /// Bytes of the ring, or of the socket's queue: by default such that it holds [`HELD_FRAMES`].
    pub(crate) fn ring_bytes(&self) -> usize {
        let by_default = || match self.kind {
            Kind::Recv => RING_BYTES.max(HELD_FRAMES * QUEUED_FRAME_BYTES_MAX),
            Kind::V2 => {
                let slot_bytes = v2::Geometry::new(RING_BYTES, self.frame_bytes).slot_bytes;
                let slots = (HELD_FRAMES / self.lanes.max(1)).max(SLOTS_MIN);
                let holding = (slots * slot_bytes).next_multiple_of(V2_RING_UNIT);
                RING_BYTES.max(holding.min(memory_bytes() / MEMORY_SHARE))
            }
            Kind::V3 => RING_BYTES,
        };
        self.asked_bytes.unwrap_or_else(by_default)
    }
}

/// Bytes of a ring by default where it then holds [`HELD_FRAMES`]: some tens of milliseconds of
/// small frames at a million a second, and small enough to stay in a shared cache.
pub(super) const RING_BYTES: usize = 8 << 20;
/// Frames of up to the MTU that a ring holds by default, all lanes together: 100 ms at 20,000 a
/// second. A busy machine keeps a reader from its CPU for tens of milliseconds.
pub(super) const HELD_FRAMES: usize = 2048;
/// Charged to a socket for a frame of up to 1,514 bytes (`skb->truesize`) by drivers that receive
/// into whole pages, with a margin.
pub(super) const QUEUED_FRAME_BYTES_MAX: usize = 8 << 10;
/// A ring takes this part of the machine's memory at most by default.
pub(super) const MEMORY_SHARE: usize = 8;
/// Rings of V2 are asked for in multiples of this, a block of its longest slots.
const V2_RING_UNIT: usize = 1 << 20;

/// Frames per `recvmmsg`.
const RECEIVE_BATCH: usize = 64;
/// What a small frame in a socket's queue is charged (`skb->truesize`), about.
const QUEUED_FRAME_BYTES: usize = 1024;
/// A minimum-size frame in a V3 block, its header and alignment included.
const BLOCK_FRAME_BYTES: usize = 144;
/// Blocks of this size are retired a few hundred times a second at a million minimum-size frames a
/// second.
const BLOCK_BYTES: usize = 1 << 18;
/// The longest that the kernel keeps a block that is not full, where the reader depends on it.
const RETIRE: Duration = Duration::from_millis(8);
/// The same where it does not: while the line is quiet it is rung, or spins, and reads the open
/// block. A block is used up when its time is over, however little is in it, so that this many
/// times the number of blocks is how long a reader may pause without a loss.
const RETIRE_PATIENT: Duration = Duration::from_millis(128);
/// By default a lane's V2 ring has this many slots at least, however many lanes there are.
const SLOTS_MIN: usize = 256;
/// No ring is made smaller than this when memory is short.
const RING_BYTES_MIN: usize = 1 << 18;

pub(crate) enum Ring {
    /// The buffers, and the bytes of the socket's queue.
    Recv(receive::Receiver, usize),
    V2(v2::Ring),
    V3(v3::Ring),
}

impl Ring {
    /// Makes the ring on an unbound socket, halved until the kernel has the memory.
    pub(crate) fn open(socket: &Socket, shape: &Shape) -> Result<Self, Error> {
        let mut ring_bytes = shape.ring_bytes();
        loop {
            match Self::sized(socket, shape, ring_bytes) {
                Err(Error::System(error)) if is_memory(&error) && ring_bytes / 2 >= RING_BYTES_MIN => {
                    ring_bytes /= 2;
                }
                Ok(mut ring) => {
                    ring.set_cooked(shape.cooked);
                    return Ok(ring);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Which header stands before packets from now on.
    pub(crate) fn set_cooked(&mut self, cooked: Option<Cooked>) {
        match self {
            Self::Recv(receiver, _) => receiver.set_cooked(cooked),
            Self::V2(ring) => ring.set_cooked(cooked),
            Self::V3(ring) => ring.set_cooked(cooked),
        }
    }

    fn sized(socket: &Socket, shape: &Shape, ring_bytes: usize) -> Result<Self, Error> {
        match shape.kind {
            Kind::Recv => {
                socket.enable_control_messages()?;
                // The kernel doubles what it is asked for.
                let queue_bytes = socket.set_receive_buffer((ring_bytes / 2) as u32)?;
                let receiver = receive::Receiver::new(RECEIVE_BATCH, shape.frame_bytes);
                Ok(Self::Recv(receiver, queue_bytes as usize))
            }
            Kind::V2 => {
                Ok(Self::V2(v2::Ring::new(socket, v2::Geometry::new(ring_bytes, shape.frame_bytes))?))
            }
            Kind::V3 => {
                let retire = if shape.patient { RETIRE_PATIENT } else { RETIRE };
                let geometry = v3::Geometry::new(ring_bytes, BLOCK_BYTES, retire);
                let mut ring = v3::Ring::new(socket, geometry, shape.rx_hash)?;
                ring.set_early(shape.early);
                Ok(Self::V3(ring))
            }
        }
    }

    /// Bytes of the ring, or of the socket's queue.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Recv(_, queue_bytes) => *queue_bytes,
            Self::V2(ring) => ring.geometry().ring_bytes(),
            Self::V3(ring) => ring.geometry().ring_bytes(),
        }
    }

    /// Its geometry in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Recv(_, queue_bytes) => format!("a queue of {}", size(*queue_bytes)),
            Self::V2(ring) => {
                let v2::Geometry { slots, slot_bytes, .. } = ring.geometry();
                format!("{slots} slots of {}", size(slot_bytes))
            }
            Self::V3(ring) => {
                let v3::Geometry { blocks, block_bytes, retire } = ring.geometry();
                format!("{blocks} blocks of {}, retired after {retire:?}", size(block_bytes))
            }
        }
    }

    /// Frames that it holds, however long they are.
    pub(crate) fn holds_at_least(&self) -> usize {
        /// Charged to the socket for the longest frame that receive offload makes.
        const LONGEST_QUEUED_BYTES: usize = 1 << 18;
        match self {
            Self::Recv(_, queue_bytes) => queue_bytes / LONGEST_QUEUED_BYTES,
            Self::V2(ring) => ring.geometry().slots,
            // The kernel retires no empty block; the open one may be.
            Self::V3(ring) => ring.geometry().blocks - 1,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match self {
            Self::Recv(_, queue_bytes) => queue_bytes / QUEUED_FRAME_BYTES,
            Self::V2(ring) => ring.geometry().slots,
            Self::V3(ring) => ring.geometry().ring_bytes() / BLOCK_FRAME_BYTES,
        }
    }
}

/// Bytes of the machine's memory.
pub(super) fn memory_bytes() -> usize {
    let system = rustix::system::sysinfo();
    (system.totalram as usize).saturating_mul(system.mem_unit as usize)
}

/// Bytes in words; rings are made of whole KiB.
fn size(bytes: usize) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} bytes") }
}

fn is_memory(error: &strait_sys::Error) -> bool {
    const ENOMEM: i32 = 12;
    error.errno() == Some(ENOMEM)
}
