//! Account of moved bytes by mechanism, with the number of fallbacks by reason.
//!
//! The transfer engine fills it in; the commands print it. The sent bytes are exactly the sum over
//! the mechanisms.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::number::{Grouped, bits_per_second};

/// Bytes by mechanism. Each byte that was written to a socket is in exactly one of the first six
/// counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Transfer {
    /// Copied from memory by send(2).
    pub sent: u64,
    /// Sent from memory without a copy (`SEND_ZC`), as the kernel reported.
    pub zero_copy: u64,
    /// Sent by zero-copy requests, and copied by the kernel, as it reported.
    pub zero_copy_copied: u64,
    /// Sent by zero-copy requests that the kernel has not reported on yet.
    pub zero_copy_unreported: u64,
    /// From a file's pages to a socket (sendfile(2)).
    pub sendfile: u64,
    /// From a socket to a socket, through a pipe (splice(2)).
    pub spliced: u64,
    /// Spliced bytes that were also written to a second destination (tee(2)).
    pub teed: u64,
    /// Bytes of small pieces that were copied into one buffer before they were sent. A count above
    /// includes them.
    pub gathered: u64,
    /// Number of fallbacks to another mechanism, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Seconds from the first byte to the last.
    pub seconds: f64,
}

impl Transfer {
    /// Returns the bytes that were written to sockets.
    pub fn bytes(&self) -> u64 {
        self.sent
            + self.zero_copy
            + self.zero_copy_copied
            + self.zero_copy_unreported
            + self.sendfile
            + self.spliced
    }

    /// Counts a fallback.
    pub fn fall_back(&mut self, reason: &'static str) {
        *self.fallbacks.entry(reason).or_default() += 1;
    }

    /// Moves bytes of a zero-copy send from pending to the reported result.
    pub fn report(&mut self, bytes: u64, copied: bool) {
        self.zero_copy_unreported = self.zero_copy_unreported.saturating_sub(bytes);
        if copied {
            self.zero_copy_copied += bytes;
        } else {
            self.zero_copy += bytes;
        }
    }

    /// Adds the counts of a concurrent transfer: the longer time is that of both.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.zero_copy += other.zero_copy;
        self.zero_copy_copied += other.zero_copy_copied;
        self.zero_copy_unreported += other.zero_copy_unreported;
        self.sendfile += other.sendfile;
        self.spliced += other.spliced;
        self.teed += other.teed;
        self.gathered += other.gathered;
        for (reason, count) in &other.fallbacks {
            *self.fallbacks.entry(reason).or_default() += count;
        }
        self.seconds = self.seconds.max(other.seconds);
    }

    /// Sets the duration.
    pub fn set_elapsed(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = bits_per_second(self.bytes(), self.seconds);
        writeln!(f, "moved {} bytes in {:.3} s: {rate}", Grouped(self.bytes()), self.seconds)?;
        let rows = [
            ("copied by send", self.sent),
            ("sent without a copy", self.zero_copy),
            ("zero-copy, but copied", self.zero_copy_copied),
            ("zero-copy, no report", self.zero_copy_unreported),
            ("sendfile", self.sendfile),
            ("spliced", self.spliced),
            ("teed", self.teed),
            ("gathered by a copy", self.gathered),
        ];
        for (name, bytes) in rows.iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(f, "  {name:<22}{:>20}", Grouped(*bytes))?;
        }
        for (reason, count) in &self.fallbacks {
            writeln!(f, "  fell back {} times: {reason}", Grouped(*count))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_moves_bytes_between_counts_and_keeps_the_sum() {
        let mut transfer = Transfer { sent: 5, zero_copy_unreported: 30, ..Transfer::default() };
        transfer.report(10, false);
        transfer.report(20, true);
        assert_eq!(
            (transfer.zero_copy, transfer.zero_copy_copied, transfer.zero_copy_unreported),
            (10, 20, 0)
        );
        assert_eq!(transfer.bytes(), 35);
    }

    #[test]
    fn accounts_add_up_with_their_reasons() {
        let mut one = Transfer { sent: 1, seconds: 2.0, ..Transfer::default() };
        one.fall_back("memory limit");
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.bytes(), sum.fallbacks["memory limit"]), (2, 2));
        assert!((sum.seconds - 2.0).abs() < f64::EPSILON);
        assert!(sum.to_string().contains("fell back 2 times: memory limit"), "{sum}");
    }
}
