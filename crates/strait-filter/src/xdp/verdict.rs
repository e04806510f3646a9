//! Programs with a constant verdict: pass everything, drop everything.
//!
//! A veth peer needs an XDP program to receive redirected frames, and benches need a sink with
//! minimal cost. Both programs count their frames if they have counters.

use super::{Assembled, Counter, Counters, count};
use crate::ebpf::{
    Assembler,
    Register::{R0, R1, R6},
    opcode as op,
};
use crate::error::Error;

/// Passes every frame to the host; counts it as [`Counter::Passed`] in `counters`.
pub fn pass_program(counters: Option<Counters>) -> Result<Assembled, Error> {
    verdict(op::XDP_PASS, counters)
}

/// Drops every frame; counts it as [`Counter::Passed`] (it passed the wire) in `counters`.
pub fn drop_program(counters: Option<Counters>) -> Result<Assembled, Error> {
    verdict(op::XDP_DROP, counters)
}

fn verdict(action: i32, counters: Option<Counters>) -> Result<Assembled, Error> {
    let mut asm = Assembler::new();
    asm.mov(R6, R1);
    if let Some(counters) = counters {
        count(&mut asm, counters, Counter::Passed);
    }
    asm.mov(R0, action);
    asm.exit();
    // The program reads no byte of the frame, so it accepts frames of any number of buffers.
    Ok(Assembled { instructions: asm.finish()?, fragments: true, device_bound: false })
}
