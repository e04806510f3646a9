//! `strait doctor`: examines what this machine and an interface allow, and names fixes.
//!
//! Each finding comes from the kernel or the driver, never from a version number, and its fix is a
//! command where possible. The command changes no setting. It sends or binds something only with
//! `--probe` or `--to`, apart from one datagram to the loopback.

mod capture;
mod device;
mod finding;
mod holder;
mod link;
mod privilege;
mod processor;
mod proxy;
mod queues;
mod route;
mod send;
mod xdp;
mod zerocopy;

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use strait_sys::interface::Interface;

use self::finding::State;
use self::route::Address;
use crate::Error;
use crate::capture::WaitArg;
use crate::output::print_text;
use crate::parse::NumberList;

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
    interface: Option<String>,
    /// Intended uses
    #[arg(long = "for", value_enum, value_delimiter = ',', default_value = "capture,send,proxy")]
    faces: Vec<Face>,
    /// Receive queues for AF_XDP
    #[arg(long, value_name = "LIST", requires = "interface")]
    queues: Option<NumberList>,
    /// How captures wait for packets
    #[arg(long, value_enum, default_value_t = WaitArg::Balanced, requires = "interface")]
    wait: WaitArg,
    /// Bind AF_XDP in each mode for a moment, to the first of --queues or to an idle queue, with a
    /// program that rejects all packets. Some NICs reset their link for it
    #[arg(long, requires = "interface")]
    probe: bool,
    /// Send a datagram to the discard port of this address, to check that its route avoids copies.
    /// A link-local address needs its interface, as in fe80::1%eth0
    #[arg(long, value_name = "ADDRESS")]
    to: Option<Address>,
    /// Directory for the proxy's cache
    #[arg(long, value_name = "DIR", default_value = "/var/cache")]
    cache: PathBuf,
    /// Print the findings as one JSON object
    #[arg(long)]
    json: bool,
}

/// A use of Strait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Face {
    /// Capturing packets
    Capture,
    /// Sending without copies
    Send,
    /// Caching proxy
    Proxy,
}

/// Finds the interface to examine. A capture accepts `any`; the doctor needs one interface.
fn find(name: &str) -> Result<Interface, Error> {
    match Interface::find(name) {
        Err(_) if name == "any" => {
            Err(Error::Usage("any: findings are per interface; name one (`ip link` lists them)".into()))
        }
        found => Ok(found?),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let interface = args.interface.as_deref().map(find).transpose()?;
    let mut findings = Vec::new();
    for face in &args.faces {
        match face {
            Face::Capture => capture::examine(interface.as_ref(), args, &mut findings)?,
            Face::Send => send::examine(interface.as_ref(), args, &mut findings)?,
            Face::Proxy => proxy::examine(args, &mut findings),
        }
    }
    let name = interface.as_ref().map(|interface| &*interface.name);
    print_text(&if args.json { finding::json(name, &findings) } else { finding::text(&findings) })?;
    match findings.iter().filter(|finding| finding.state == State::Broken).count() {
        0 => Ok(()),
        1 => Err(Error::Failed("1 finding is broken".into())),
        count => Err(Error::Failed(format!("{count} findings are broken"))),
    }
}
