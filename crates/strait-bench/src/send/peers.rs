//! Loads of a server with many or slow peers and a fixed number of sends. They show the share of
//! zero-copy bytes while the sender still learns the device.

use std::time::Duration;

/// Number of far-end addresses, one for each peer.
pub const PEERS_MAX: u8 = 64;

/// Load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersLoad {
    /// Number of peers, each with its own address.
    pub peers: u32,
    /// Number of sends to each peer, in turn.
    pub sends: u32,
    /// Bytes of a send.
    pub bytes: u32,
    /// Pause after each send.
    pub pause: Duration,
}

/// Loads by name.
pub const LOADS: [(&str, PeersLoad); 5] = [
    ("64 peers x 64 of 256 KiB", load(64, 64, 256 << 10, 0)),
    ("44 peers x 32 of 64 KiB", load(44, 32, 64 << 10, 0)),
    ("64 peers x 4 of 1 MiB", load(64, 4, 1 << 20, 0)),
    ("1 peer, 20/s of 256 KiB", load(1, 100, 256 << 10, 50)),
    ("1 peer, 5/s of 64 KiB", load(1, 40, 64 << 10, 200)),
];

const fn load(peers: u32, sends: u32, bytes: u32, pause_ms: u64) -> PeersLoad {
    PeersLoad { peers, sends, bytes, pause: Duration::from_millis(pause_ms) }
}
