//! Directions of frames that a session captures.

use crate::error::Error;

/// Frames to capture, by direction as seen from this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directions {
    /// Received frames.
    In,
    /// Sent frames.
    Out,
    /// Both; AF_XDP and `PF_ZEROCOPY` receive only frames from the wire.
    #[default]
    Both,
}

impl Directions {
    /// Returns the directions that deliver each frame once. A frame on the loopback interface is
    /// sent and received; libpcap delivers the received one.
    pub(crate) fn without_duplicates(self, is_loopback: bool) -> Self {
        match self {
            Self::Both if is_loopback => Self::In,
            directions => directions,
        }
    }

    /// Refuses sent frames for `path`, which captures only received frames.
    pub(crate) fn refuse_sent(self, path: &str) -> Result<(), Error> {
        match self {
            Self::Out => Err(Error::Usage(format!(
                "{path} captures only received frames: use --path v3 for sent ones"
            ))),
            Self::In | Self::Both => Ok(()),
        }
    }
}
