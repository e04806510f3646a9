//! Who is measured: Strait's paths, stock libpcap, and other capture programs that are installed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use strait_capture::{Path, Wait};

use crate::peer::Peer;
use crate::receiver::By;

/// How long stock libpcap may keep packets back: between tcpdump's second and the few milliseconds of an interactive
/// program.
const LIBPCAP_TIMEOUT: Duration = Duration::from_millis(100);
/// A program that is woken for each packet, or looks all the time, has them all after this.
const DRAIN: Duration = Duration::from_millis(30);

/// A way to capture, by the name that users give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One of Strait's paths.
    Strait(Path),
    /// Stock libpcap as it is by default, or in immediate mode.
    Libpcap {
        /// It keeps no packet back.
        immediate: bool,
    },
    /// Another program.
    Peer(Peer),
}

const NAMES: [(&str, Way); 12] = [
    ("recv", Way::Strait(Path::Recv)),
    ("v2", Way::Strait(Path::V2)),
    ("v3", Way::Strait(Path::V3)),
    ("xdp-generic", Way::Strait(Path::XdpGeneric)),
    ("xdp-native", Way::Strait(Path::XdpNative)),
    ("xdp-zc", Way::Strait(Path::XdpZeroCopy)),
    ("xdp", Way::Strait(Path::Xdp)),
    ("libpcap", Way::Libpcap { immediate: false }),
    ("libpcap-immediate", Way::Libpcap { immediate: true }),
    ("netsniff-ng", Way::Peer(Peer::NetsniffNg)),
    ("testpmd-af-packet", Way::Peer(Peer::TestpmdAfPacket)),
    ("testpmd-af-xdp", Way::Peer(Peer::TestpmdAfXdp)),
];

impl Way {
    /// Every way, for messages.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().map(|(name, _)| name)
    }

    /// Every way.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(|(_, way)| way).filter(|way| *way != Self::Strait(Path::Xdp))
    }

    /// Whether it is AF_XDP.
    pub fn is_xdp(self) -> bool {
        matches!(self, Self::Strait(Path::Xdp | Path::XdpZeroCopy | Path::XdpNative | Path::XdpGeneric))
    }

    /// By what Strait's own receiver receives; none where another program does.
    pub fn by(self, wait: Wait, timestamps: bool) -> Option<By> {
        match self {
            Self::Strait(path) => Some(By::Strait { path, wait, timestamps }),
            Self::Libpcap { immediate } => Some(By::Libpcap { timeout: LIBPCAP_TIMEOUT, immediate }),
            Self::Peer(_) => None,
        }
    }

    /// Whether it says how late packets were.
    pub fn measures_delays(self) -> bool {
        !matches!(self, Self::Peer(_))
    }

    /// How long after the last packet it has them all.
    pub(crate) fn drain(self) -> Duration {
        match self {
            Self::Libpcap { immediate: false } | Self::Peer(Peer::NetsniffNg) => LIBPCAP_TIMEOUT + DRAIN,
            _ => DRAIN,
        }
    }

    /// Whether wait policies, lanes and timestamps mean anything to it.
    pub fn is_straits(self) -> bool {
        matches!(self, Self::Strait(_))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.into_iter().find(|(_, way)| way == self).map(|(name, _)| name);
        f.write_str(name.expect("NAMES has every way that can be made"))
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.into_iter().find(|(name, _)| *name == text).map(|(_, way)| way);
        found.ok_or_else(|| format!("'{text}': give one of {}", Self::names().collect::<Vec<_>>().join(", ")))
    }
}

/// A contestant: a way to capture, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contestant {
    /// The way.
    pub way: Way,
    /// Strait's wait policy.
    pub wait: Wait,
    /// Queues, or members of a fanout group.
    pub lanes: u32,
    /// Whether frames are stamped as they come.
    pub timestamps: bool,
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.way)?;
        if !self.way.is_straits() {
            return Ok(());
        }
        if self.wait != Wait::Balanced {
            write!(f, " {}", self.wait.name())?;
        }
        if self.lanes != 1 {
            write!(f, " x{}", self.lanes)?;
        }
        if !self.timestamps {
            write!(f, " unstamped")?;
        }
        Ok(())
    }
}
