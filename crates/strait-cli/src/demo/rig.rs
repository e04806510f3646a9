//! The demo's network, its traffic, and one capture on it.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strait_capture::file::FileReader;
use strait_capture::{Directions, InjectPath, Injector, Lane, Path, Session};
use strait_ledger::Report;
use strait_os::clock;
use strait_os::wire::{Reception, Wire};
use strait_packet::traffic::{Kind, Sizes, Traffic};

use super::args::Args;
use super::child::Child;
use crate::Error;
use crate::output::{self, Output};
use crate::sink::Sink;

/// Packets of real clients: DNS, HTTP, TLS, ARP, ICMP, IPv6, VLAN, fragments.
/// `scripts/make-demo-pcap` creates the file.
const PROTOCOLS: &[u8] = include_bytes!("../../data/demo.pcap");
/// Interval at which a waiting lane checks for its end.
const TICK: Duration = Duration::from_millis(20);

/// A private wire, and a directory for the files.
pub(super) struct Rig {
    wire: Wire,
    directory: Scratch,
}

/// Result of a capture on one path.
pub(super) struct Captured {
    pub(super) report: Report,
    /// Bytes and wire length of each packet in the file.
    pub(super) packets: Vec<(Vec<u8>, u32)>,
}

impl Rig {
    /// Creates the namespaces and the link.
    pub(super) fn new() -> Result<Self, Error> {
        let directory = Scratch::new()?;
        Ok(Self { wire: Wire::private(1, Reception::Direct)?, directory })
    }

    /// Sends the traffic and captures it on `path`.
    pub(super) fn capture(
        &self,
        path: Path,
        args: &Args,
        terminated: &AtomicBool,
    ) -> Result<Captured, Error> {
        let builder = Session::builder(self.wire.receiver().interface())
            .path(path)
            .filter(args.filter())
            .directions(Directions::In)
            .ring(32 << 20);
        let mut session = self.wire.receiver().run(|| builder.open())??;
        let lane = session.take_lanes().remove(0);
        let file = self.directory.0.join("capture.pcapng");
        let mut output = Output::to_file(&file, &Self::source(&session, args, &[Self::input(&session)]))?;
        let before = self.received()?;
        let (read, arrived) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(lane, &mut output));
            let sent = self.send(args, terminated);
            let arrived = sent.as_ref().is_ok_and(|&frames| {
                settle(terminated, || self.received().is_ok_and(|now| now - before >= frames))
            });
            let stopped = self.wire.receiver().run(|| session.stop());
            let read = reader.join();
            (read, sent.and_then(|_| stopped?.map(|()| arrived).map_err(Error::from)))
        });
        let arrived = arrived?;
        let account = read.map_err(|_| Error::Failed("the reading thread panicked".to_owned()))??;
        let report = session.report(vec![account]);
        output.close(&report).failure.map_or(Ok(()), Err)?;
        if terminated.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if !arrived {
            return Err(Error::Failed("the traffic did not arrive at the other end of the link".to_owned()));
        }
        Ok(Captured { report, packets: packets(&file)? })
    }

    fn input(session: &Session) -> output::Input {
        let (name, link_type) = ("receiver".into(), session.link_type());
        output::Input { name, link_type, ..output::Input::default() }
    }

    fn source<'a>(session: &Session, args: &'a Args, inputs: &'a [output::Input]) -> output::Source<'a> {
        output::Source {
            owners: None,
            lines: output::Lines::default(),
            inputs,
            names: None,
            filter: args.filter(),
            snaplen: 262_144,
            path: session.path(),
            silent: true,
            extras: None,
        }
    }

    /// Sends the generated packets, with the packets of the protocols' file spread among them.
    /// Returns the number of sent packets.
    fn send(&self, args: &Args, terminated: &AtomicBool) -> Result<u64, Error> {
        let sender = self.wire.sender();
        sender.run(|| {
            let traffic = traffic()?;
            let mut injector = Injector::open(sender.interface(), InjectPath::Sendmmsg)?;
            let protocols = self.protocols()?;
            let start_ns = clock::monotonic_ns();
            let every = (args.count / (protocols.len() as u64 + 1)).max(1);
            let mut protocols = protocols.iter();
            for sequence in 0..args.count {
                if terminated.load(Ordering::Relaxed) {
                    break;
                }
                if let Some(due_ns) = args.rate.due_ns(sequence) {
                    injector.wait_until(start_ns + due_ns)?;
                }
                // No time stamp in the packets, so that all paths get identical packets.
                let len = traffic.write_frame(sequence, 0, injector.buffer()?);
                injector.push(len);
                if let Some(packet) = protocols.next_if_due(sequence, every) {
                    injector.buffer()?[..packet.len()].copy_from_slice(packet);
                    injector.push(packet.len());
                }
            }
            Ok(injector.finish()?.frames)
        })?
    }

    /// Sends packets as fast as the link accepts them, and returns their number.
    ///
    /// # Errors
    /// A send failed, or a termination signal arrived.
    pub(super) fn send_burst(&self, count: u64, terminated: &AtomicBool) -> Result<u64, Error> {
        self.send_each(count, |_, _| Ok(()), terminated)
    }

    /// Sends packets with `pause` between them.
    pub(super) fn send_slowly(
        &self,
        count: u64,
        pause: Duration,
        terminated: &AtomicBool,
    ) -> Result<u64, Error> {
        let start_ns = clock::monotonic_ns();
        let wait = |injector: &mut Injector, sequence: u64| {
            injector.wait_until(start_ns + sequence * pause.as_nanos() as u64)
        };
        self.send_each(count, wait, terminated)
    }

    fn send_each(
        &self,
        count: u64,
        wait: impl Fn(&mut Injector, u64) -> Result<(), strait_capture::Error> + Send + Sync,
        terminated: &AtomicBool,
    ) -> Result<u64, Error> {
        let sender = self.wire.sender();
        sender.run(|| {
            let traffic = traffic()?;
            let mut injector = Injector::open(sender.interface(), InjectPath::Sendmmsg)?;
            for sequence in 0..count {
                if terminated.load(Ordering::Relaxed) {
                    return Err(interrupted());
                }
                wait(&mut injector, sequence)?;
                let len = traffic.write_frame(sequence, 0, injector.buffer()?);
                injector.push(len);
            }
            Ok(injector.finish()?.frames)
        })?
    }

    /// The receiving interface.
    pub(super) fn interface(&self) -> &str {
        self.wire.receiver().interface()
    }

    /// Runs `work` in the namespace of the receiving interface.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        Ok(self.wire.receiver().run(work)?)
    }

    /// Starts a program in that namespace, and waits until `is_ready` returns true.
    pub(super) fn start(
        &self,
        command: Command,
        mut is_ready: impl FnMut(&Child) -> bool,
    ) -> Result<Child, Error> {
        let mut child = self.inside(|| Child::start(command))??;
        child.wait_until(|child| is_ready(child).then_some(()))?;
        Ok(child)
    }

    /// Returns the path of a temporary file of the demo.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    /// Returns the packets of the protocols' file.
    fn protocols(&self) -> Result<Vec<Vec<u8>>, Error> {
        let file = self.directory.0.join("protocols.pcap");
        fs::write(&file, PROTOCOLS)
            .map_err(|error| Error::Failed(format!("write {}: {error}", file.display())))?;
        Ok(packets(&file)?.into_iter().map(|(bytes, _)| bytes).collect())
    }

    /// Returns the packet count of the receiving interface.
    pub(super) fn received(&self) -> Result<u64, Error> {
        Ok(self.wire.receiver().stats()?.rx_packets)
    }
}

/// Spreads the packets of an iterator among generated ones.
trait NextIfDue<'a> {
    /// Returns the next packet if `sequence` is a multiple of `every`.
    fn next_if_due(&mut self, sequence: u64, every: u64) -> Option<&'a [u8]>;
}

impl<'a, I: Iterator<Item = &'a Vec<u8>>> NextIfDue<'a> for I {
    fn next_if_due(&mut self, sequence: u64, every: u64) -> Option<&'a [u8]> {
        sequence.is_multiple_of(every).then(|| self.next()).flatten().map(Vec::as_slice)
    }
}

fn traffic() -> Result<Traffic, Error> {
    Traffic::builder()
        .flows(1000)
        .kinds(&Kind::ALL)
        .sizes(Sizes::imix())
        .build()
        .map_err(|error| Error::Failed(error.to_string()))
}

/// Reads a lane until the session has stopped and the ring is empty.
fn read(mut lane: Lane, output: &mut Output) -> Result<strait_ledger::LaneCounts, Error> {
    lane.enter_thread()?;
    while let Some(mut batch) = lane.next_batch(Instant::now() + TICK)? {
        for frame in batch.frames() {
            output.take(&frame)?;
        }
    }
    Ok(lane.finish()?)
}

/// Returns all packets of a file.
fn packets(file: &std::path::Path) -> Result<Vec<(Vec<u8>, u32)>, Error> {
    let mut reader = FileReader::open(&file.to_string_lossy()).map_err(strait_capture::Error::from)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next().map_err(strait_capture::Error::from)? {
        packets.push((packet.bytes.to_vec(), packet.wire_len));
    }
    Ok(packets)
}

/// A directory that is removed with the demo.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("strait-demo-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::Failed(format!("create {}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves temporary files; the demo's result does not depend on them.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the error of an interrupted demo.
pub(super) fn interrupted() -> Error {
    Error::Failed("interrupted; the namespaces are removed".to_owned())
}

/// Time limit of a capture after the last packet was sent.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Waits until `done` returns true, for at most [`SETTLE_MAX`]. Returns false on a timeout or a
/// termination signal.
fn settle(terminated: &AtomicBool, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + SETTLE_MAX;
    while Instant::now() < deadline && !terminated.load(Ordering::Relaxed) {
        if done() {
            return true;
        }
        strait_os::wait::sleep(Duration::from_millis(5));
    }
    false
}
