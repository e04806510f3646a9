//! Order in which streams send (RFC 9218, section 10).
//!
//! The most urgent streams come first. Among equals, incremental ones take turns; the others are
//! served one after the other, and as a group take turns with the incremental ones.

use crate::connection::Connection;
use crate::stream::Stream;

/// Number of the last turn of the non-incremental streams of each urgency.
pub(crate) type GroupTurns = [u64; 8];

impl Connection {
    /// Notes if the user of a stream waits for its turn to send DATA.
    pub fn want(&mut self, stream: u32, wants: bool) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.wants_turn = wants;
            self.note_waiting(stream);
        }
    }

    /// Notes if a stream waits for its turn and may send. Call it after each change of
    /// [`Stream::is_waiting`].
    pub(crate) fn note_waiting(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(Stream::is_waiting) {
            self.waiting.insert(stream);
        } else {
            self.waiting.remove(&stream);
        }
    }

    /// Like [`Self::note_waiting`], after a change of all streams.
    pub(crate) fn note_all_waiting(&mut self) {
        let waiting = self.streams.iter().filter(|(_, stream)| stream.is_waiting());
        self.waiting = waiting.map(|(id, _)| *id).collect();
    }

    /// Returns true if the user of a stream waits for its turn, and may send.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns true if a stream had another priority than the default: an earlier response may have
    /// to wait for a later one.
    pub fn has_priorities(&self) -> bool {
        self.has_priorities
    }

    /// Returns the stream that is to send next, of those that want to and may.
    pub fn grant(&mut self) -> Option<u32> {
        if self.send_window <= 0 {
            return None;
        }
        let groups = self.group_turns;
        let place = |(id, stream): (u32, &Stream)| {
            let group = groups.get(usize::from(stream.priority.urgency)).copied().unwrap_or(0);
            let turn = if stream.priority.is_incremental { stream.turn } else { group };
            (stream.priority.urgency, turn, id)
        };
        let waiting = self.waiting.iter().filter_map(|id| Some((*id, self.streams.get(id)?)));
        let (_, _, id) = waiting.map(place).min()?;
        self.waiting.remove(&id);
        self.turns += 1;
        let stream = self.streams.get_mut(&id)?;
        stream.wants_turn = false;
        stream.turn = self.turns;
        if !stream.priority.is_incremental
            && let Some(group) = self.group_turns.get_mut(usize::from(stream.priority.urgency))
        {
            *group = self.turns;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use crate::frame::kind;
    use crate::tests::{Server, frame, get, settings};

    /// Does something with a stream; returns false if that ends the connection.
    fn apply(server: &mut Server, operation: u8, stream: u32, value: u16) -> bool {
        let connection = &mut server.connection;
        let status = [(&b":status"[..], &b"200"[..])];
        let is_odd = !value.is_multiple_of(2);
        let len = connection.window(stream).min(usize::from(value)).min(connection.frame_bytes());
        match operation {
            0 => connection.want(stream, is_odd),
            1 => drop(connection.grant()),
            2 => drop(connection.respond(stream, status.into_iter(), is_odd)),
            3 => drop(connection.push_data(stream, &vec![0; len], value.is_multiple_of(3))),
            4 => connection.reset(stream, 8_u32),
            5 => connection.release(stream),
            _ => {}
        }
        let bytes = match operation {
            6 => frame(kind::WINDOW_UPDATE, 0, stream, &u32::from(value).to_be_bytes()),
            7 => frame(kind::WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]),
            8 => frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            9 => settings(4, if is_odd { 0 } else { u32::from(value) }),
            _ => Vec::new(),
        };
        server.take(&bytes).is_ok()
    }

    proptest! {
        #[test]
        fn waiting_streams_are_noted_at_each_change(
            operations in prop::collection::vec((0..10_u8, 0..6_u32, any::<u16>()), 0..200),
        ) {
            let mut server = Server::new();
            server.take(&settings(4, 1000)).unwrap();
            for stream in 0..6 {
                server.take(&get(stream * 2 + 1)).unwrap();
            }
            for (operation, stream, value) in operations {
                if !apply(&mut server, operation, stream * 2 + 1, value) {
                    break;
                }
                let connection = &server.connection;
                let waiting = connection.streams.iter().filter(|(_, stream)| stream.is_waiting());
                let waiting: BTreeSet<_> = waiting.map(|(id, _)| *id).collect();
                prop_assert_eq!(connection.has_waiting(), !waiting.is_empty());
                prop_assert_eq!(&connection.waiting, &waiting, "{} {}", operation, value);
            }
        }
    }
}
