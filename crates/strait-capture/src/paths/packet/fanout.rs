//! Fanout groups: each frame goes to one of the session's sockets.

use strait_os::process::wait_for_receive_paths;
use strait_sys::packet::{Fanout, Socket};

use super::doorbell::Doorbell;
use super::engine::Engine;
use super::ring::Ring;
use crate::error::Error;

/// Makes the engines' sockets one fanout group, so that each frame goes to one of them, and their
/// doorbells another, so that each rings for its own lane. Members are numbered in the order in
/// which they join.
///
/// A socket must be bound before it can join, and receives every frame until it has joined. The
/// engines must therefore reject all frames until this returns. It returns after every CPU has left
/// the receive path in which it may still deliver frames to the single sockets.
pub(super) fn join<R: Ring>(engines: &mut [Engine<R>], fanout: Fanout) -> Result<(), Error> {
    if engines.len() < 2 {
        return Ok(());
    }
    engines.iter_mut().for_each(Engine::set_grouped);
    let sockets: Vec<&Socket> = engines.iter().map(Engine::socket).collect();
    let doorbells: Vec<&Socket> =
        engines.iter().filter_map(|engine| engine.doorbell().map(Doorbell::socket)).collect();
    // The kernel calls the protocol hook that was added last first, so a frame is in the ring
    // before the doorbell rings.
    for group in [doorbells, sockets] {
        if let Some((first, others)) = group.split_first() {
            let id = first.create_fanout(fanout)?;
            others.iter().try_for_each(|socket| socket.join_fanout(id, fanout))?;
        }
    }
    wait_for_receive_paths();
    Ok(())
}
