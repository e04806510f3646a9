//! Other capture programs, measured if installed.
//!
//! They only count packets: they have no staging ring and measure no delays.

use crate::child::{Child, Output, Program};
use crate::error::{Error, Result};
use crate::receiver::{Account, Captured, Delays};

/// Snapshot length of whole frames, the default of tcpdump.
const SNAPLEN: u32 = 262_144;

/// Program and its receive path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// tcpdump(1) that writes to /dev/null.
    Tcpdump,
    /// netsniff-ng(8) with a TPACKET_V3 ring.
    NetsniffNg,
    /// DPDK's testpmd with its polling AF_PACKET driver.
    TestpmdAfPacket,
    /// DPDK's testpmd with its AF_XDP driver.
    TestpmdAfXdp,
}

impl Peer {
    /// Returns the program that receives on `interface` and `cpus` until SIGINT. netsniff-ng and
    /// testpmd have no snapshot length, and testpmd has no filter.
    pub(crate) fn program(self, interface: &str, cpus: &[u32], captured: Captured) -> Program {
        let Captured { snaplen, rejecting } = captured;
        match self {
            Self::Tcpdump => {
                let snaplen = snaplen.unwrap_or(SNAPLEN).to_string();
                // It stays root: another user may not be permitted to open /dev/null for writing.
                let arguments = ["-i", interface, "-n", "-Z", "root", "-s", &snaplen, "-w", "/dev/null"];
                Program::new("tcpdump", arguments).with(rejecting)
            }
            Self::NetsniffNg => Program::new("netsniff-ng", ["--in", interface, "--silent", "--no-sock-mem"])
                .with(rejecting.into_iter().flat_map(|filter| ["--filter", filter])),
            Self::TestpmdAfPacket => testpmd(&format!("net_af_packet0,iface={interface}"), cpus),
            Self::TestpmdAfXdp => testpmd(&format!("net_af_xdp0,iface={interface}"), cpus),
        }
    }

    /// Returns true if packets count from now on.
    pub(crate) fn is_ready(self, child: &Child) -> Result<bool> {
        let words = match self {
            Self::Tcpdump => return Ok(child.stderr()?.contains("listening on")),
            Self::NetsniffNg => "Running!",
            Self::TestpmdAfPacket | Self::TestpmdAfXdp => "rxonly packet forwarding - ports",
        };
        Ok(child.stdout()?.contains(words))
    }

    /// Parses the number of received packets from its output.
    pub(crate) fn account(self, output: &Output) -> Result<Account> {
        let all = format!("{}\n{}", output.stdout, output.stderr);
        let delivered = match self {
            Self::Tcpdump => {
                number_before(&all, "packets captured").or_else(|| number_before(&all, "packet captured"))
            }
            // Frames in the ring; dropped frames are not included.
            Self::NetsniffNg => number_before(&all, "packets incoming"),
            Self::TestpmdAfPacket | Self::TestpmdAfXdp => number_after(&all, "RX-packets:"),
        };
        let delivered = delivered
            .ok_or_else(|| Error::Invalid(format!("{self:?} does not say what it received: {all}")))?;
        Ok(Account { delivered, got: format!("{self:?}"), delay: Delays::default() })
    }
}

/// Returns testpmd in receive-only mode, with its one worker and its control thread on one CPU.
fn testpmd(device: &str, cpus: &[u32]) -> Program {
    let cpu = cpus.first().copied().unwrap_or(0);
    // Two logical cores on one CPU: the control thread sleeps.
    let cores = format!("(0,1)@{cpu}");
    let device = format!("--vdev={device}");
    let arguments = [
        "--lcores",
        &cores,
        "--no-huge",
        "-m",
        "256",
        "--no-pci",
        "--no-telemetry",
        "--no-shconf",
        &device,
        "--",
    ];
    let more = [
        "--forward-mode=rxonly",
        "--stats-period=3600",
        "--no-mlockall",
        "--nb-cores=1",
        "--rxd=2048",
        "--total-num-mbufs=16384",
    ];
    // Without stdbuf the output stays buffered until the program ends.
    Program::new("stdbuf", [&["-oL", "dpdk-testpmd"], &arguments[..], &more].concat())
}

/// Returns the last number before `words`.
fn number_before(text: &str, words: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains(words))?;
    line[..line.find(words)?].split_whitespace().next_back()?.parse().ok()
}

/// Returns the last number after `words`.
fn number_after(text: &str, words: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains(words))?;
    line[line.find(words)? + words.len()..].split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stdout: &str) -> Output {
        Output { stdout: stdout.into(), ..Output::default() }
    }

    #[test]
    fn packet_counts_are_parsed_from_output() {
        let netsniff = "Running! Hang up with ^C!\n\n      660854  packets incoming (534948 unread on exit)\n      660854  packets passed filter\n      534948  packets failed filter (out of space)\n     44.7355% packet droprate\n           2  sec, 925346 usec in total\n";
        assert_eq!(Peer::NetsniffNg.account(&output(netsniff)).unwrap().delivered, 660_854);
        let testpmd = "  RX-packets: 7 RX-dropped: 0 RX-total: 7\n+++ Accumulated\n  RX-packets: 12345          RX-dropped: 0             RX-total: 12345\n";
        assert_eq!(Peer::TestpmdAfXdp.account(&output(testpmd)).unwrap().delivered, 12_345);
        let tcpdump = "tcpdump: listening on lo\n12 packets captured\n14 packets received by filter\n";
        assert_eq!(Peer::Tcpdump.account(&output(tcpdump)).unwrap().delivered, 12);
        assert!(Peer::NetsniffNg.account(&output("nothing")).is_err());
    }
}
