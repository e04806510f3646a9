//! Waits for the first byte of standard input, and ends on a signal.
//!
//! `capture -r -` and `replay -` wait here before they open it. The reader handles later stalls.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strait_os::{process, wait};

use crate::Error;

/// Interval of checks for a termination signal.
const TICK: Duration = Duration::from_millis(100);

/// Returns true once `file` can be opened without waiting: at once unless it is `-`, else when
/// standard input is readable. Returns false if a signal came first.
///
/// It catches signals only while it waits. Later work, such as compiling a long filter, cannot
/// check a flag, so a signal must then end the process.
pub(crate) fn wait_until_readable(file: Option<&str>) -> Result<bool, Error> {
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
