//! `strait tap-broker`: the process that opens taps for a program under `strait run`, see
//! [`strait_capture::broker`].
//!
//! Programs such as dumpcap drop the privilege to load BPF programs before they open a device. The
//! broker keeps its user, but no other capabilities, and can gain none. It reads no input but its
//! sockets, and ends with the program and its children, which have the other ends.

use std::ffi::CStr;
use std::process::{Command, Stdio};

use clap::Args as ClapArgs;
use strait_capture::broker::Broker;
use strait_os::process::{self, CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON};
use strait_os::stdio;
use strait_program::files::allow_files;

use crate::Error;

/// Privileges of the broker.
const CAPABILITIES: [u32; 3] = [CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON];

/// Name of the process in place of that of /proc/self/exe.
const NAME: &CStr = c"strait-broker";
/// Files of all taps: the maps of at most 64 lanes, two links and a socket each.
const FILES: u64 = 2048;

/// Options of `strait tap-broker`. Its standard input is the socket.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Start the broker and end, so that it is no child of the program
    #[arg(long)]
    detach: bool,
}

/// Starts a broker; returns `None` if this process has not the privilege that it needs.
pub(crate) fn start() -> Result<Option<Broker>, Error> {
    let is_privileged = CAPABILITIES.iter().all(|needed| process::has_capability(*needed).unwrap_or(false));
    if !is_privileged || !process::is_in_initial_user_namespace().unwrap_or(false) {
        return Ok(None);
    }
    let (broker, socket) = Broker::pair()?;
    let status = command(&["--detach"]).stdin(socket).status();
    match status {
        Ok(status) if status.success() => Ok(Some(broker)),
        Ok(status) => Err(Error::Failed(format!("strait tap-broker: {status}"))),
        Err(error) => Err(Error::Failed(format!("start strait tap-broker: {error}"))),
    }
}

/// Returns a command that runs this program's broker with the caller's standard input.
fn command(options: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("tap-broker").args(options).env_clear().current_dir("/");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.detach {
        // A pipe of the caller would stay open as long as the broker.
        stdio::close_on_exec()?;
        let started = command(&[]).spawn();
        return started.map(drop).map_err(|error| Error::Failed(format!("start strait tap-broker: {error}")));
    }
    // Signals of the terminal are for the program, which may need the broker until its end.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(NAME);
    allow_files(FILES)?;
    process::refuse_tracers()?;
    process::refuse_new_capabilities()?;
    process::drop_capabilities_except(&CAPABILITIES)?;
    Ok(strait_capture::serve_broker(stdio::take_standard_input()?)?)
}
