//! Capture on several interfaces: one ledger of the sums, from which that of each interface can be
//! taken again.
//!
//! A program joins the ledgers of its sessions. Losses in the sink are later charged to the lanes
//! of the whole, so that the ledger of an interface is computed from its lanes when it is needed.

use super::Report;
use crate::capture::LaneCounts;

/// One interface of a capture on several ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Ledger of the interface, with the counts that belong to no lane, and without lanes.
    pub alone: Report,
    /// Number of its first lane in the whole capture.
    pub first_lane: u32,
    /// Number of its lanes.
    pub lanes: usize,
}

impl Report {
    /// Joins the ledgers of several interfaces, each with the number of its first lane. Their lanes
    /// get the numbers that follow. Times with a link down are summed. The ledger of a single
    /// interface stays as it is.
    #[must_use]
    pub fn join(mut reports: Vec<(u32, Self)>) -> Self {
        if reports.len() == 1 {
            return reports.pop().map(|(_, report)| report).unwrap_or_default();
        }
        let distinct = |name: fn(&Self) -> &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in reports.iter().map(|(_, report)| name(report)) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            names.join(",")
        };
        let mut whole = Self {
            path: distinct(|report| &report.path),
            mode: distinct(|report| &report.mode),
            interface: distinct(|report| &report.interface),
            ..Self::default()
        };
        for (first_lane, report) in reports {
            whole.add_part(first_lane, report);
        }
        whole
    }

    fn add_part(&mut self, first_lane: u32, mut alone: Self) {
        self.seconds = self.seconds.max(alone.seconds);
        self.link_down_seconds += alone.link_down_seconds;
        self.no_carrier_seconds += alone.no_carrier_seconds;
        self.capture.add(&alone.capture);
        let lanes = std::mem::take(&mut alone.lanes);
        for lane in &lanes {
            alone.capture.subtract(&lane.capture);
        }
        self.parts.push(Part { alone, first_lane, lanes: lanes.len() });
        let renumbered =
            |lane: LaneCounts| LaneCounts { queue: first_lane.saturating_add(lane.queue), ..lane };
        self.lanes.extend(lanes.into_iter().map(renumbered));
    }

    /// Returns the ledger of each interface, with the receive queues as the numbers of its lanes.
    #[must_use]
    pub fn interfaces(&self) -> Vec<Self> {
        if self.parts.is_empty() {
            return vec![Self { targets: Vec::new(), ..self.clone() }];
        }
        let mut left = self.lanes.as_slice();
        let mut take = |part: &Part| {
            let (own, others) = left.split_at(part.lanes.min(left.len()));
            left = others;
            let renumbered =
                |lane: &LaneCounts| LaneCounts { queue: lane.queue.saturating_sub(part.first_lane), ..*lane };
            let lanes: Vec<_> = own.iter().map(renumbered).collect();
            let Self { capture, lanes, .. } = Self::from_lanes(lanes, &part.alone.capture);
            Self { capture, lanes, ..part.alone.clone() }
        };
        self.parts.iter().map(&mut take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Capture, Losses};

    fn interface(name: &str, path: &str, received: &[u64]) -> Report {
        let lane = |(queue, &received): (usize, &u64)| LaneCounts {
            queue: queue as u32,
            cpu: None,
            capture: Capture { received, delivered: received, ..Capture::default() },
        };
        let lanes = received.iter().enumerate().map(lane).collect();
        let lost = Losses { nic_missed: 2, ..Losses::default() };
        let nic = Capture { received: 2, lost, ..Capture::default() };
        Report {
            path: path.into(),
            mode: "copy".into(),
            interface: name.into(),
            seconds: 2.0,
            link_down_seconds: 0.5,
            ..Report::from_lanes(lanes, &nic)
        }
    }

    fn joined() -> Report {
        Report::join(vec![(0, interface("eth0", "v3", &[10, 20])), (2, interface("eth1", "recv", &[40]))])
    }

    #[test]
    fn joined_ledger_is_the_sum_and_balances() {
        let whole = joined();
        assert_eq!(
            (whole.interface.as_str(), whole.path.as_str(), whole.mode.as_str()),
            ("eth0,eth1", "v3,recv", "copy")
        );
        assert_eq!((whole.capture.received, whole.capture.lost.nic_missed), (74, 4));
        assert_eq!(whole.capture.check_balance(), Ok(()));
        assert_eq!(whole.lanes.iter().map(|lane| lane.queue).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((whole.seconds, whole.link_down_seconds), (2.0, 1.0));
        let alone = interface("eth0", "v3", &[1]);
        assert_eq!(Report::join(vec![(0, alone.clone())]), alone);
    }

    #[test]
    fn ledger_of_each_interface_is_taken_from_the_whole() {
        let mut whole = joined();
        let expected = [interface("eth0", "v3", &[10, 20]), interface("eth1", "recv", &[40])];
        assert_eq!(whole.interfaces(), expected);
        whole.charge_sink(7, |lane| if lane == 2 { 7 } else { 0 });
        let interfaces = whole.interfaces();
        assert_eq!(interfaces[0], expected[0]);
        let Capture { delivered, lost, .. } = interfaces[1].capture;
        assert_eq!((delivered, lost.sink, interfaces[1].capture.check_balance()), (33, 7, Ok(())));
        assert_eq!(expected[0].interfaces(), expected[..1]);
    }

    #[test]
    fn table_has_a_row_for_each_interface_and_its_lanes() {
        let text = joined().to_string();
        assert!(text.starts_with("eth0,eth1: path v3,recv (copy), 2.000 s\n"), "{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("  delivered ")).skip(1).collect();
        let names: Vec<_> = rows.iter().map(|row| row[2..24].trim_end()).collect();
        assert_eq!(names, ["eth0", "lane 0", "lane 1", "eth1"], "{text}");
        assert!(rows[0].ends_with("32  delivered 30, lost 2"), "{text}");
        let mut broken = joined();
        broken.parts[1].alone.capture.received += 1;
        assert!(broken.to_string().contains("the ledger of eth1 does not balance: 1 of 43"), "{broken}");
    }
}
