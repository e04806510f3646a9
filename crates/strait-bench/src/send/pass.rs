//! Relay programs: Strait's relay, HAProxy, and a minimal one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::way::Way;
use crate::child::{Child, Launcher, Program};
use crate::error::{Error, Result};
use crate::memory_file;
use crate::wire::End;

/// Bytes of a read in the minimal relay.
const CHUNK_BYTES: usize = 64 << 10;
/// Timeout for a program to listen.
const READY_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of the termination flag.
const TICK: Duration = Duration::from_millis(100);

/// Relay program on the loopback.
#[derive(Debug)]
pub(super) struct RelayProgram {
    pub(super) child: Child,
    /// Address where it listens.
    pub(super) address: SocketAddr,
    /// Keeps HAProxy's configuration file open.
    _configuration: Option<File>,
}

impl RelayProgram {
    /// Starts the program of `way` on `cpus`, to relay to `to`. It listens when this returns.
    pub(super) fn start(
        launcher: &Launcher,
        way: Way,
        to: SocketAddr,
        cpus: &[u32],
        limit: Duration,
    ) -> Result<Self> {
        let address = free_address()?;
        let ends = [format!("--listen={address}"), format!("--to={to}")];
        let (program, configuration) = match way {
            Way::Send => (launcher.own(["pass"]).with(ends), None),
            Way::Strait => (launcher.strait(["relay"]).with(ends), None),
            Way::HaProxy => {
                let (path, file) = configuration(address, to)?;
                (Program::new("haproxy", ["-db", "-q", "-f", &path]), Some(file))
            }
            way => return Err(Error::Usage(format!("{way} is not a relay"))),
        };
        let mut child = launcher.start(&End::own("lo"), &program, cpus, limit)?;
        child.wait_until(READY_MAX, |_| Ok(TcpStream::connect(address).is_ok()))?;
        Ok(Self { child, address, _configuration: configuration })
    }
}

fn free_address() -> Result<SocketAddr> {
    let failed = |error| Error::file("find a free port", error);
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).map_err(failed)
}

/// Creates a configuration of HAProxy with one thread and splice(2), as a file in memory; returns
/// its path too.
fn configuration(listen: SocketAddr, to: SocketAddr) -> Result<(String, File)> {
    let failed = |error| Error::file("write HAProxy's configuration", error);
    let text = format!(
        "global\n nbthread 1\n maxconn 100\ndefaults\n mode tcp\n option splice-request\n option splice-response\n \
         timeout connect 5s\n timeout client 60s\n timeout server 60s\nlisten pass\n bind {listen}\n server far {to}\n"
    );
    let mut file = memory_file::create("haproxy.cfg")?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    Ok((memory_file::path_of(&file), file))
}

/// Minimal relay: accepts one connection after the other on `listen` and writes its data to `to`,
/// until `terminated`.
pub fn run(listen: SocketAddr, to: SocketAddr, terminated: &AtomicBool) -> Result<()> {
    let failed = |error| Error::file(format!("pass from {listen} to {to}"), error);
    let listener = TcpListener::bind(listen).map_err(failed)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    while !terminated.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        let tick = Timespec::try_from(TICK).ok();
        if poll(&mut fds, tick.as_ref()).unwrap_or(0) > 0 {
            let (from, _) = listener.accept().map_err(failed)?;
            pass(from, TcpStream::connect(to).map_err(failed)?, &mut chunk).map_err(failed)?;
        }
    }
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream, chunk: &mut [u8]) -> std::io::Result<()> {
    loop {
        let read = from.read(chunk)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..read])?;
    }
}
