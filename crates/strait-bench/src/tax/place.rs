//! Places on the axis: traffic, the link where it is captured, and the captured part.

use std::fmt;
use std::str::FromStr;

use crate::contestant::Way;
use crate::receiver::Captured;

/// Kind of traffic, as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Frames that the capture takes.
    Frames,
    /// Frames that the filter rejects.
    Rejected,
    /// Frames that a bridge forwards.
    Bridge,
    /// The host's own TCP.
    Tcp,
}

impl Traffic {
    /// Every kind, in the order of results.
    pub const ALL: [Self; 4] = [Self::Frames, Self::Rejected, Self::Bridge, Self::Tcp];

    fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Rejected => "rejected",
            Self::Bridge => "bridge",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|traffic| traffic.name() == text);
        found.ok_or_else(|| format!("'{text}': give one of {}", names()))
    }
}

/// Link where packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// Veth pair; the host's stack drops the frames at once.
    Wire,
    /// Bridge that forwards.
    Bridge,
    /// Port of that bridge.
    Port,
    /// Veth pair with the host's own connection.
    Tcp,
}

/// Place on the axis.
pub(super) struct Place {
    pub(super) label: &'static str,
    pub(super) traffic: Traffic,
    pub(super) on: On,
    /// Frame size with the frame check sequence.
    pub(super) size_bytes: u32,
    pub(super) captured: Captured,
}

impl Place {
    /// Returns true if a capture can be measured here: its packets must still reach the host, and a
    /// bridge has no native XDP.
    pub(super) fn admits(&self, way: Way) -> bool {
        match self.on {
            On::Wire => true,
            On::Bridge => !way.is_xdp(),
            On::Port | On::Tcp => !way.is_xdp() || self.captured.rejecting.is_some(),
        }
    }
}

/// Frame sizes with the frame check sequence.
const SMALL: u32 = 64;
const FULL: u32 = 1518;
const WHOLE: Captured = Captured { snaplen: None, rejecting: None };
/// Captures headers only.
const HEADERS: Captured = Captured { snaplen: Some(96), rejecting: None };
/// Filter without a match in the generated traffic, which is UDP, nor in the measured connections.
const REJECTING: Captured = Captured { snaplen: None, rejecting: Some("tcp port 9") };

const fn place(label: &'static str, traffic: Traffic, on: On, size_bytes: u32, captured: Captured) -> Place {
    Place { label, traffic, on, size_bytes, captured }
}

/// Every place. Their order is the order of the rounds and of the results.
pub(super) const PLACES: [Place; 11] = [
    place("60 B", Traffic::Frames, On::Wire, SMALL, WHOLE),
    place("1514 B", Traffic::Frames, On::Wire, FULL, WHOLE),
    place("60 B, rejected", Traffic::Rejected, On::Wire, SMALL, REJECTING),
    place("1514 B, rejected", Traffic::Rejected, On::Wire, FULL, REJECTING),
    place("bridge", Traffic::Bridge, On::Bridge, SMALL, HEADERS),
    place("bridge, rejected", Traffic::Bridge, On::Bridge, SMALL, REJECTING),
    place("port", Traffic::Bridge, On::Port, SMALL, HEADERS),
    place("port, rejected", Traffic::Bridge, On::Port, SMALL, REJECTING),
    place("TCP, 96 B", Traffic::Tcp, On::Tcp, FULL, HEADERS),
    place("TCP", Traffic::Tcp, On::Tcp, FULL, Captured { snaplen: Some(65_535), rejecting: None }),
    place("TCP, rejected", Traffic::Tcp, On::Tcp, FULL, REJECTING),
];

/// Returns the number of the place with this label.
pub(super) fn number(label: &str) -> f64 {
    PLACES.iter().position(|place| place.label == label).map_or(f64::NAN, |at| at as f64)
}

#[cfg(test)]
mod tests {
    use strait_capture::Path;

    use super::*;

    #[test]
    fn capture_that_takes_packets_is_measured_where_the_host_does_not_need_them() {
        let admitted = |path| {
            let admits = |place: &&Place| place.admits(Way::Strait(path));
            PLACES.iter().filter(admits).map(|place| place.label).collect::<Vec<_>>()
        };
        assert_eq!(admitted(Path::Tap).len(), PLACES.len());
        assert_eq!(
            admitted(Path::XdpNative),
            ["60 B", "1514 B", "60 B, rejected", "1514 B, rejected", "port, rejected", "TCP, rejected"]
        );
    }

    #[test]
    fn every_kind_of_traffic_has_a_name_and_places() {
        for traffic in Traffic::ALL {
            assert_eq!(traffic.to_string().parse(), Ok(traffic));
            assert!(PLACES.iter().any(|place| place.traffic == traffic), "{traffic}");
        }
        assert!("packets".parse::<Traffic>().unwrap_err().contains("frames, rejected, bridge, tcp"));
    }
}
