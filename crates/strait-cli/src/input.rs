//! Standard input before its first byte: a program that is told to end must not wait for one.
//!
//! `capture -r -` and `replay -` ask before they open it. What stalls later is the reader's to bear.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strait_sys::wait;

use crate::Error;

/// How long it waits before it looks whether the program is to end.
const TICK: Duration = Duration::from_millis(100);

/// Whether `file` can be opened without waiting: at once unless it is `-`, else when standard input has something to
/// read. False if the program was told to end before.
pub(crate) fn has_come(file: Option<&str>, terminated: &AtomicBool) -> Result<bool, Error> {
    if file != Some("-") {
        return Ok(true);
    }
    let stdin = io::stdin();
    while !terminated.load(Ordering::Relaxed) {
        let [input] = wait::readable([Some(stdin.as_fd())], TICK)?;
        if input.readable || input.failed {
            return Ok(true);
        }
    }
    Ok(false)
}
