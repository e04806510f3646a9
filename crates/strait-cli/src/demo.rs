//! `strait demo`: the same traffic captured on every path, the files compared packet for packet, each ledger checked.
//!
//! It needs nothing but itself: the two namespaces have no names and go with the process, however it ends. Without root
//! it works in a user namespace, where AF_XDP is not allowed: that path is skipped and said to be.

mod rig;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use strait_capture::Path;

use self::rig::{Captured, Rig};
use self::table::Row;
use crate::Error;

/// Options of `strait demo`.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Generated packets for each path
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// Generated packets a second
    #[arg(long, value_name = "PPS", default_value = "100000")]
    rate: crate::parse::Rate,
    /// Filter that every path applies, see pcap-filter(7)
    #[arg(long, default_value = "not (udp dst portrange 20000-20001 and less 70)")]
    filter: String,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

const PATHS: [(&str, Path); 4] =
    [("recv", Path::Recv), ("v2", Path::V2), ("v3", Path::V3), ("xdp", Path::Xdp)];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let privileged = strait_sys::process::is_root();
    if !privileged {
        strait_sys::netns::unshare_user()?;
    }
    let rig = Rig::lay()?;
    let mut rows = Vec::new();
    let mut reference: Option<Captured> = None;
    for (name, path) in PATHS {
        if terminated.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if path == Path::Xdp && !privileged {
            rows.push(Row::skipped(name, "needs root (CAP_BPF, CAP_NET_ADMIN)"));
            continue;
        }
        let captured = rig.capture(path, args, terminated)?;
        rows.push(Row::of(name, &captured, reference.as_ref().unwrap_or(&captured)));
        reference.get_or_insert(captured);
    }
    table::print(&rows, args)?;
    match rows.iter().find_map(Row::complaint) {
        Some(complaint) => Err(Error::Failed(complaint)),
        None => Ok(()),
    }
}

fn interrupted() -> Error {
    Error::Failed("interrupted; the namespaces are gone".to_owned())
}

/// How long a capture may go on after the last packet was sent.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Waits until `done`, for at most [`SETTLE_MAX`]. False if it did not come or the user wants to end.
fn settle(terminated: &AtomicBool, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + SETTLE_MAX;
    while Instant::now() < deadline && !terminated.load(Ordering::Relaxed) {
        if done() {
            return true;
        }
        strait_sys::wait::sleep(Duration::from_millis(5));
    }
    false
}
