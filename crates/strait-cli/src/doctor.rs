//! `strait doctor`: examines the features of this machine and of an interface, and prints fixes.
//!
//! Each finding comes from the kernel or the driver, never from a version number, and its fix is a
//! command where possible. The command changes no setting. It sends or binds something only with
//! `--probe` or `--to`, apart from one datagram to the loopback.

mod args;
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
mod tap;
mod xdp;
mod zerocopy;

use strait_os::interface::Interface;

use self::args::Area;
pub(crate) use self::args::Args;
use self::finding::State;
use crate::Error;
use crate::output::print_text;

/// Finds the interface to examine. It refuses `any`, which captures accept.
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
    for area in &args.areas {
        match area {
            Area::Capture => capture::examine(interface.as_ref(), args, &mut findings)?,
            Area::Send => send::examine(interface.as_ref(), args, &mut findings)?,
            Area::Proxy => proxy::examine(args, &mut findings),
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
