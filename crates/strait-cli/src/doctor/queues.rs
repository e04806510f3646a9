//! Findings on an interface's receive queues: their number, and their use by the NIC.
//!
//! `link.rs` calls it; `xdp.rs` uses its idle queue to test AF_XDP.

use strait_os::Result;
use strait_os::ethtool::{Channels, Ethtool};
use strait_os::interface::Interface;

use super::args::Args;
use super::device::Device;
use super::finding::Recorder;

/// `EOPNOTSUPP`: the driver does not support the setting.
pub(super) const NOT_SUPPORTED: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();

pub(super) fn examine(interface: &Interface, args: &Args, ethtool: &Ethtool, recorder: &mut Recorder<'_>) {
    let available = match interface.queues() {
        Ok(queues) => queues.rx,
        Err(error) => return recorder.unknown("queues", &error),
    };
    let captured = args.queues.as_ref().map_or(&[][..], |list| &list.0);
    if numbers(interface, captured, available, ethtool, recorder) {
        rss(&interface.name, captured, available, ethtool, recorder);
    }
}

/// Checks that the requested queues exist, and returns true if they do.
fn numbers(
    interface: &Interface,
    captured: &[u32],
    available: u32,
    ethtool: &Ethtool,
    recorder: &mut Recorder<'_>,
) -> bool {
    let name = interface.name.as_str();
    let is_virtual = Device::of(interface, ethtool).is_virtual();
    let set = |queues| set_queues(name, queues, ethtool.channels().ok(), is_virtual);
    if let Some(missing) = captured.iter().find(|&&queue| queue >= available) {
        let message =
            format!("queue {missing} was requested; {name} has receive queues 0 to {}", available - 1);
        let most = captured.iter().max().map_or(available, |last| last.saturating_add(1));
        let fix = set(most).map_or("omit it: the driver has no more queues".into(), |how| {
            format!("{how}, or omit the missing queues")
        });
        recorder.broken("queues", message, fix);
        return false;
    }
    let cpus = strait_os::process::cpus().max(1);
    let message = format!("{} on {}", with_plural(available, "receive queue"), with_plural(cpus, "CPU"));
    let fix = set(cpus).map(|how| format!("{how}: one lane per CPU")).unwrap_or_default();
    recorder.judge(available <= cpus, "queues", message, &fix);
    true
}

fn with_plural(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the command that sets the number of receive queues to `queues`, if one exists. A driver
/// sets channels up to its limits; the queues of a virtual link are fixed when it is created.
fn set_queues(name: &str, queues: u32, channels: Option<Channels>, is_virtual: bool) -> Option<String> {
    let Channels { rx, combined, rx_max, combined_max, .. } = channels.unwrap_or_default();
    // Channels of the other kind stay unchanged, and each has a receive queue.
    let (as_combined, as_rx) = (queues.saturating_sub(rx), queues.saturating_sub(combined));
    if (1..=combined_max).contains(&as_combined) {
        Some(format!("ethtool -L {name} combined {as_combined}"))
    } else if (1..=rx_max).contains(&as_rx) {
        Some(format!("ethtool -L {name} rx {as_rx}"))
    } else {
        is_virtual.then(|| format!("create the link again: ip link add ... numrxqueues {queues}"))
    }
}

/// Checks that the NIC sends no flows to queues that are not captured.
fn rss(name: &str, captured: &[u32], available: u32, ethtool: &Ethtool, recorder: &mut Recorder<'_>) {
    let used = match used_queues(ethtool) {
        Ok(used) if used.is_empty() => return,
        Ok(used) => used,
        Err(error) => return recorder.unknown("rss", &error),
    };
    let missed: Vec<String> =
        used.iter().filter(|queue| !captured.contains(queue)).map(ToString::to_string).collect();
    if captured.is_empty() || missed.is_empty() {
        recorder.ok("rss", format!("flows are spread over {}", with_plural(used.len() as u32, "queue")));
    } else {
        let message =
            format!("the NIC also spreads flows to queues {}, which are not captured", missed.join(","));
        recorder.broken("rss", message, steer(name, captured, available));
    }
}

/// Returns the command that steers all flows to captured queues. ethtool(8) steers to adjacent
/// queues only.
fn steer(name: &str, captured: &[u32], available: u32) -> String {
    let mut sorted = captured.to_vec();
    sorted.sort_unstable();
    let all = format!("capture them all: --queues 0-{}", available.saturating_sub(1));
    if sorted.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
        let (count, first) = (sorted.len(), sorted.first().copied().unwrap_or(0));
        format!("ethtool -X {name} equal {count} start {first}, or {all}")
    } else {
        all
    }
}

/// Returns the queues over which the NIC spreads flows, in order. The list is empty if the driver
/// has no RSS table.
fn used_queues(ethtool: &Ethtool) -> Result<Vec<u32>> {
    let mut used = match ethtool.rss_table() {
        Err(error) if error.errno() == Some(NOT_SUPPORTED) => Vec::new(),
        table => table?,
    };
    used.sort_unstable();
    used.dedup();
    Ok(used)
}

/// Returns the least busy queue: the last queue without flows, or the last queue.
pub(super) fn idle(interface: &Interface, ethtool: &Ethtool) -> Result<u32> {
    Ok(last_idle(interface.queues()?.rx, &used_queues(ethtool).unwrap_or_default()))
}

fn last_idle(available: u32, used: &[u32]) -> u32 {
    let last = available.saturating_sub(1);
    if used.is_empty() {
        last
    } else {
        (0..available).rev().find(|queue| !used.contains(queue)).unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_steered_to_captured_queues() {
        assert_eq!(steer("a", &[2, 3], 4), "ethtool -X a equal 2 start 2, or capture them all: --queues 0-3");
        assert_eq!(steer("a", &[3, 2], 4), steer("a", &[2, 3], 4));
        assert_eq!(steer("a", &[1], 2), "ethtool -X a equal 1 start 1, or capture them all: --queues 0-1");
        assert_eq!(steer("a", &[0, 2], 4), "capture them all: --queues 0-3");
    }

    #[test]
    fn queue_count_is_set_within_the_limits_of_the_driver() {
        let nic = Channels { combined: 4, combined_max: 8, ..Channels::default() };
        let set = |queues, channels| set_queues("a", queues, channels, false);
        assert_eq!(set(8, Some(nic)).as_deref(), Some("ethtool -L a combined 8"));
        assert_eq!(set(9, Some(nic)), None);
        let split = Channels { rx: 2, tx: 2, rx_max: 4, ..Channels::default() };
        assert_eq!(set(4, Some(split)).as_deref(), Some("ethtool -L a rx 4"));
        assert_eq!(set(5, Some(split)), None);
        assert_eq!(set(2, None), None);
        let made = set_queues("a", 5, Some(split), true).unwrap();
        assert!(made.contains("numrxqueues 5"), "{made}");
    }

    #[test]
    fn last_queue_without_flows_is_tried() {
        assert_eq!(last_idle(1, &[]), 0);
        assert_eq!(last_idle(4, &[]), 3);
        assert_eq!(last_idle(4, &[0, 1]), 3);
        assert_eq!(last_idle(4, &[0, 1, 3]), 2);
        assert_eq!(last_idle(4, &[0, 1, 2, 3]), 3);
    }
}
