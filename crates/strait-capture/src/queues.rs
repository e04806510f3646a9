//! Selection of receive queues, as users write it.

use std::str::FromStr;

use strait_ledger::quantity;

/// Receive queues to capture, one lane each. As text: `all`, or numbers and ranges as in `0,2,5-7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// One lane on a packet socket; all queues on AF_XDP, where a socket receives only the frames
    /// of its own queue.
    #[default]
    Default,
    /// A lane for each receive queue.
    All,
    /// A lane for each of these. Packet sockets use only how many there are, and distribute frames
    /// by [`crate::Fanout`].
    These(Vec<u32>),
}

/// Maximum queue number in a list, so that `0-4000000000` does not exhaust the memory.
const QUEUE_MAX: u32 = 4095;

impl FromStr for Queues {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        quantity::numbers(text, QUEUE_MAX).map(Self::These)
    }
}
