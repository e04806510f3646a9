//! Ways to send, and their names.

/// Way to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// send(2) or sendmsg(2), after read(2) for a file or a relay.
    Send,
    /// All parts copied into one buffer, then send(2).
    Coalesce,
    /// `SEND_ZC` or `SENDMSG_ZC` for every message.
    ZeroCopy,
    /// `SEND_ZC` from registered memory for every message.
    Registered,
    /// `SEND_ZC` from the mapping of a file for every message. io_uring cannot register read-only
    /// memory.
    Mapped,
    /// D5's proposal: `SENDMSG` for the small pieces, linked to `SEND_ZC` for the body.
    Split,
    /// sendfile(2).
    Sendfile,
    /// HAProxy in TCP mode with splice(2).
    HaProxy,
    /// Strait's sender with its defaults, or its relay.
    Strait,
}

/// Names on the command line.
pub(super) const WAYS: [(&str, Way); 9] = [
    ("send", Way::Send),
    ("coalesce", Way::Coalesce),
    ("zc", Way::ZeroCopy),
    ("zc-registered", Way::Registered),
    ("mmap-zc", Way::Mapped),
    ("split", Way::Split),
    ("sendfile", Way::Sendfile),
    ("haproxy", Way::HaProxy),
    ("strait", Way::Strait),
];
