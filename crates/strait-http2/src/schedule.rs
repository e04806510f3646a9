//! Order in which streams send (RFC 9218, section 10).
//!
//! The most urgent streams come first. Among equals, incremental ones take turns; the others are
//! served one after the other, and as a group take turns with the incremental ones.

use crate::connection::Connection;
use crate::stream::{Sending, Stream};

/// Number of the last turn of the non-incremental streams of each urgency.
pub(crate) type GroupTurns = [u64; 8];

impl Connection {
    /// Notes if the user of a stream waits for its turn to send DATA.
    pub fn want(&mut self, stream: u32, wants: bool) {
        if !wants {
            self.wanting.remove(&stream);
        } else if self.streams.contains_key(&stream) {
            self.wanting.insert(stream);
        }
    }

    /// Returns true if the user of a stream waits for its turn, and may send.
    pub fn has_waiting(&self) -> bool {
        self.waiting().next().is_some()
    }

    /// Returns true if a stream had another priority than the default: an earlier response may have
    /// to wait for a later one.
    pub fn has_priorities(&self) -> bool {
        self.has_priorities
    }

    /// Returns the stream that is to send next, of those that want to and may.
    pub fn grant(&mut self) -> Option<u32> {
        if self.send_window <= 0 || self.wanting.is_empty() {
            return None;
        }
        let groups = self.group_turns;
        let place = |(id, stream): (u32, &Stream)| {
            let group = groups.get(usize::from(stream.priority.urgency)).copied().unwrap_or(0);
            let turn = if stream.priority.is_incremental { stream.turn } else { group };
            (stream.priority.urgency, turn, id)
        };
        let (_, _, id) = self.waiting().map(place).min()?;
        self.wanting.remove(&id);
        self.turns += 1;
        let stream = self.streams.get_mut(&id)?;
        stream.turn = self.turns;
        if !stream.priority.is_incremental
            && let Some(group) = self.group_turns.get_mut(usize::from(stream.priority.urgency))
        {
            *group = self.turns;
        }
        Some(id)
    }

    /// Returns the streams that may send, and of which the users wait for their turns.
    fn waiting(&self) -> impl Iterator<Item = (u32, &Stream)> {
        let may_send = |(_, stream): &(u32, &Stream)| {
            stream.sending == Sending::Body && !stream.is_reset && stream.send_window > 0
        };
        // Most streams of a connection with many do not wait for a turn.
        self.wanting.iter().filter_map(|id| Some((*id, self.streams.get(id)?))).filter(may_send)
    }
}
