//! Options of `strait doctor`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use strait_capture::Wait;

use super::route::Address;
use crate::parse::{NumberList, wait};

/// Options of `strait doctor`.
#[derive(ClapArgs)]
#[command(
    after_help = "Exit codes: 0 nothing is broken, 1 at least one finding is broken, 2 wrong usage or no such interface.

Examples:
  strait doctor
  strait doctor eth0 --for capture --probe
  strait doctor --for send --to 192.0.2.7"
)]
pub(crate) struct Args {
    /// Interface to examine
    pub(super) interface: Option<String>,
    /// Intended uses
    #[arg(long = "for", value_enum, value_delimiter = ',', default_value = "capture,send,proxy")]
    pub(super) areas: Vec<Area>,
    /// Receive queues for AF_XDP
    #[arg(long, value_name = "LIST", requires = "interface")]
    pub(super) queues: Option<NumberList>,
    /// How captures wait for packets
    #[arg(long, value_parser = wait(), default_value = Wait::Balanced.name(), requires = "interface")]
    pub(super) wait: Wait,
    /// Bind AF_XDP in each mode for a moment, to the first of --queues or to an idle queue, with a
    /// program that rejects all packets. Some NICs reset their link when this happens
    #[arg(long, requires = "interface")]
    pub(super) probe: bool,
    /// Send a datagram to the discard port of this address, to check that its route avoids copies.
    /// A link-local address needs its interface, as in fe80::1%eth0
    #[arg(long, value_name = "ADDRESS")]
    pub(super) to: Option<Address>,
    /// Directory for the proxy's cache
    #[arg(long, value_name = "DIR", default_value = "/var/cache")]
    pub(super) cache: PathBuf,
    /// Print the findings as one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// A use of Strait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Area {
    /// Capturing packets
    Capture,
    /// Sending without copies
    Send,
    /// Caching proxy
    Proxy,
}
