//! Two programs with one answer: pass everything, drop everything.
//!
//! A veth peer needs some XDP program to take redirected frames, and benches need a sink that costs nothing. Both count
//! what they saw if they are given a map.

use super::{Assembled, Counter, count};
use crate::ebpf::{
    Assembler,
    Register::{R0, R1, R6},
    opcode as op,
};
use crate::error::Error;

/// A stack word for the map's key.
const KEY: i16 = -4;

/// Passes every frame to the host; counts it as [`Counter::Passed`] in the map behind `counters_fd`.
pub fn pass_program(counters_fd: Option<i32>) -> Result<Assembled, Error> {
    verdict(op::XDP_PASS, counters_fd)
}

/// Drops every frame; counts it as [`Counter::Passed`] (it passed the wire) in the map behind `counters_fd`.
pub fn drop_program(counters_fd: Option<i32>) -> Result<Assembled, Error> {
    verdict(op::XDP_DROP, counters_fd)
}

fn verdict(action: i32, counters_fd: Option<i32>) -> Result<Assembled, Error> {
    let mut asm = Assembler::new();
    asm.mov(R6, R1);
    if let Some(fd) = counters_fd {
        count(&mut asm, fd, KEY, Counter::Passed);
    }
    asm.mov(R0, action);
    asm.exit();
    // It looks at no byte of the frame, so it may have as many buffers as it likes.
    Ok(Assembled { instructions: asm.finish()?, fragments: true, device_bound: false })
}
