//! The account of moved bytes, by mechanism, with the reasons of each fallback.
//!
//! The transfer engine fills it in; the commands print it. Bytes sent are the sum over the
//! mechanisms, exactly.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::number::{Grouped, bits_per_second};

/// Bytes by mechanism. A byte that went into a socket is in exactly one of the first five.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Transfer {
    /// Copied from memory by send(2).
    pub sent: u64,
    /// Sent from memory without a copy (`SEND_ZC`), as the kernel reported.
    pub zero_copy: u64,
    /// Asked to be sent without a copy, and copied by the kernel after all, as it reported.
    pub zero_copy_copied: u64,
    /// Asked to be sent without a copy; no report has come.
    pub zero_copy_unreported: u64,
    /// From a file's pages to a socket (sendfile(2)).
    pub sendfile: u64,
    /// From a socket to a socket, through a pipe (splice(2)).
    pub spliced: u64,
    /// Of those spliced, bytes that went to a second place as well (tee(2)).
    pub teed: u64,
    /// Small pieces that were copied together before they were sent. They are in a count above,
    /// too.
    pub gathered: u64,
    /// Fallbacks from the wanted mechanism to another, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// From the first byte to the last.
    pub seconds: f64,
}

impl Transfer {
    /// Bytes that went into sockets.
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

    /// Adds another account; the longer time stands for both.
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
    fn a_report_moves_bytes_and_the_sum_stays() {
        let mut account = Transfer { sent: 5, zero_copy_unreported: 30, ..Transfer::default() };
        account.report(10, false);
        account.report(20, true);
        assert_eq!((account.zero_copy, account.zero_copy_copied, account.zero_copy_unreported), (10, 20, 0));
        assert_eq!(account.bytes(), 35);
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
