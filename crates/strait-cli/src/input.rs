//! Standard input before its first byte: a signal must end a program that waits for one.
//!
//! `capture -r -` and `replay -` wait here before they open it. The reader handles stalls that come
//! later.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strait_sys::{process, wait};

use crate::Error;

/// How long it waits before it looks whether the program is to end.
const TICK: Duration = Duration::from_millis(100);

/// Returns true once `file` can be opened without waiting: at once unless it is `-`, else when
/// standard input has something to read. Returns false if a signal came before.
///
/// Signals are caught only while it waits. What follows, such as the compilation of a long filter,
/// cannot look at a flag, so a signal must end the process there.
pub(crate) fn has_come(file: Option<&str>) -> Result<bool, Error> {
    if file != Some("-") {
        return Ok(true);
    }
    let terminated = process::on_termination()?;
    let stdin = io::stdin();
    while !terminated.load(Ordering::Relaxed) {
        let [input] = wait::readable([Some(stdin.as_fd())], TICK)?;
        if input.readable || input.failed {
            process::end_on_termination()?;
            return Ok(!terminated.load(Ordering::Relaxed));
        }
    }
    Ok(false)
}
