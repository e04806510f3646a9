//! Contestants of the capture benchmarks: Strait's paths, stock libpcap, and other installed
//! capture programs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use strait_capture::{Path, TapRings, Wait};

use crate::peer::Peer;
use crate::receiver::By;

/// Read timeout of stock libpcap: between tcpdump's second and the few milliseconds of an
/// interactive program.
const LIBPCAP_TIMEOUT: Duration = Duration::from_millis(100);
/// Read timeout of tcpdump.
const TCPDUMP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the last packets to reach a program that is woken for each packet or polls.
const DRAIN: Duration = Duration::from_millis(30);

/// Capture path or program, named as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One of Strait's paths.
    Strait(Path),
    /// Stock libpcap, in its default or in immediate mode.
    Libpcap {
        /// True for immediate mode, which delivers each packet at once.
        immediate: bool,
    },
    /// Another program.
    Peer(Peer),
}

/// Strait's paths that can be measured, in the order of results.
const PATHS: [Path; 8] = [
    Path::Recv,
    Path::V2,
    Path::V3,
    Path::Tap,
    Path::XdpGeneric,
    Path::XdpNative,
    Path::XdpZeroCopy,
    Path::Xdp,
];
const OTHERS: [(&str, Way); 6] = [
    ("libpcap", Way::Libpcap { immediate: false }),
    ("libpcap-immediate", Way::Libpcap { immediate: true }),
    ("tcpdump", Way::Peer(Peer::Tcpdump)),
    ("netsniff-ng", Way::Peer(Peer::NetsniffNg)),
    ("testpmd-af-packet", Way::Peer(Peer::TestpmdAfPacket)),
    ("testpmd-af-xdp", Way::Peer(Peer::TestpmdAfXdp)),
];

/// Returns all ways with their names.
fn named() -> impl Iterator<Item = (&'static str, Way)> {
    PATHS.into_iter().map(|path| (path.name(), Way::Strait(path))).chain(OTHERS)
}

impl Way {
    /// Returns all names, for messages.
    pub fn names() -> impl Iterator<Item = &'static str> {
        named().map(|(name, _)| name)
    }

    /// Returns all ways except `xdp`, which stands for one of the other AF_XDP modes.
    pub fn all() -> impl Iterator<Item = Self> {
        named().map(|(_, way)| way).filter(|way| *way != Self::Strait(Path::Xdp))
    }

    /// Returns true for the AF_XDP paths.
    pub fn is_xdp(self) -> bool {
        matches!(self, Self::Strait(Path::Xdp | Path::XdpZeroCopy | Path::XdpNative | Path::XdpGeneric))
    }

    /// Returns the option of Strait's receiver program; None if another program receives.
    pub fn by(self, wait: Wait, timestamps: bool) -> Option<By> {
        match self {
            Self::Strait(path) => Some(By::Strait { path, wait, timestamps }),
            Self::Libpcap { immediate } => Some(By::Libpcap { timeout: LIBPCAP_TIMEOUT, immediate }),
            Self::Peer(_) => None,
        }
    }

    /// Returns true if the receiver measures delays.
    pub fn measures_delays(self) -> bool {
        !matches!(self, Self::Peer(_))
    }

    /// Returns true if the receiver can have a filter.
    pub fn filters(self) -> bool {
        !matches!(self, Self::Peer(Peer::TestpmdAfPacket | Peer::TestpmdAfXdp))
    }

    /// Returns the time after the last packet until all have been delivered.
    pub(crate) fn drain(self) -> Duration {
        match self {
            Self::Libpcap { immediate: false } | Self::Peer(Peer::NetsniffNg) => LIBPCAP_TIMEOUT + DRAIN,
            Self::Peer(Peer::Tcpdump) => TCPDUMP_TIMEOUT + DRAIN,
            _ => DRAIN,
        }
    }

    /// Returns true if wait policies, lanes and timestamps apply.
    pub fn is_straits(self) -> bool {
        matches!(self, Self::Strait(_))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = named().find(|(_, way)| way == self).map(|(name, _)| name);
        f.write_str(name.expect("every way that can be made has a name"))
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = named().find(|(name, _)| *name == text).map(|(_, way)| way);
        found.ok_or_else(|| format!("'{text}': give one of {}", Self::names().collect::<Vec<_>>().join(", ")))
    }
}

/// Contestant: capture path with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contestant {
    /// Capture path or program.
    pub way: Way,
    /// Strait's wait policy.
    pub wait: Wait,
    /// Number of queues or fanout members.
    pub lanes: u32,
    /// True if frames get timestamps.
    pub timestamps: bool,
    /// Rings of the tap in place of its default.
    pub rings: Option<TapRings>,
    /// True if each packet gets its owner, which the tap alone knows.
    pub owners: bool,
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
        if let Some(rings) = self.rings {
            write!(f, " {rings}")?;
        }
        if self.owners {
            write!(f, " owners")?;
        }
        Ok(())
    }
}
