//! Fanout groups: each frame goes to one of the session's sockets.

use strait_sys::packet::{Fanout, Socket};
use strait_sys::process::wait_for_readers;

use super::doorbell::Doorbell;
use super::engine::Engine;
use super::ring::Ring;
use crate::error::Error;

/// Makes the engines' sockets one fanout group, so that each frame goes to one of them, and their
/// doorbells another, so that each rings for its own lane. Members are numbered in the order in
/// which they join.
///
/// A socket has to be bound before it can join and receives every frame meanwhile: the engines must
/// admit no frame before this returns. Returns when no frame is on its way to a socket by the
/// socket's own hook any more.
pub(super) fn join<R: Ring>(engines: &mut [Engine<R>], fanout: Fanout) -> Result<(), Error> {
    if engines.len() < 2 {
        return Ok(());
    }
    engines.iter_mut().for_each(Engine::set_grouped);
    let sockets: Vec<&Socket> = engines.iter().map(Engine::socket).collect();
    let bells: Vec<&Socket> =
        engines.iter().filter_map(|engine| engine.doorbell().map(Doorbell::socket)).collect();
    // The kernel serves the hook that was added last first: a frame is in its ring before the bell
    // rings.
    for group in [bells, sockets] {
        if let Some((founder, others)) = group.split_first() {
            let id = founder.create_fanout(fanout)?;
            others.iter().try_for_each(|socket| socket.join_fanout(id, fanout))?;
        }
    }
    wait_for_readers();
    Ok(())
}
