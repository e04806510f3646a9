//! Measured receiver: receives by one path, copies each packet once into a staging ring (D3), and
//! prints its counts and, if requested, the delays of packets at its end.
//!
//! It also measures stock libpcap, by libpcap's own calls, so that only the path differs.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strait_capture::owners::Owners;
use strait_capture::{Directions, Lane, Path, Queues, Session, TapRings, Wait};
use strait_ledger::Histogram;
use strait_os::clock;
use strait_os::interface::Interface;
use strait_packet::probe;
use strait_sys::libpcap;

use crate::child;
use crate::contestant::Way;
use crate::error::{Error, Result};
use crate::stage::Stage;

/// Line on standard error after which packets count.
pub const READY: &str = "ready\n";
/// Destination of counted packets. As on a mirror port, it is not the receiver's address: a capture
/// gets the frames, and the host's stack drops them at once.
pub const MEASURED_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// Destination of packets that only warm up the receiver.
pub const WARM_UP_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x98];
/// Interval between two checks of the end flag.
const TICK: Duration = Duration::from_millis(100);

/// Options of the receiver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interface to receive on.
    pub interface: String,
    /// Receive path.
    pub by: By,
    /// Number of queues or fanout members.
    pub lanes: u32,
    /// Snapshot length in bytes, which also sizes the rings.
    pub snaplen: u32,
    /// Filter in libpcap's language; none for all packets.
    pub filter: Option<String>,
    /// True if each packet is copied into a staging ring.
    pub stage: bool,
    /// Delay is measured for one packet of a lane in this many; 0 measures none.
    pub delay_of_each: u64,
    /// Rings of the tap in place of its default.
    pub rings: Option<TapRings>,
    /// True if the owner of each packet is found.
    pub owners: bool,
}

/// Captured part of the traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Captured {
    /// Snapshot length in bytes; whole frames if absent.
    pub snaplen: Option<u32>,
    /// Filter in libpcap's language that rejects all frames; every frame matches if absent.
    pub rejecting: Option<&'static str>,
}

/// Receive path and its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// One of Strait's paths.
    Strait {
        /// Path.
        path: Path,
        /// Wait policy.
        wait: Wait,
        /// True if frames get timestamps.
        timestamps: bool,
    },
    /// The system's libpcap.
    Libpcap {
        /// Read timeout.
        timeout: Duration,
        /// True for immediate mode.
        immediate: bool,
    },
}

/// Counts of the receiver.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    /// Packets to [`MEASURED_MAC`] that reached the program.
    pub delivered: u64,
    /// Path and mode that the receiver got.
    pub got: String,
    /// Delays in nanoseconds from the generator's stamp to the program.
    pub delay: Delays,
}

/// Percentiles of delays.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Delays {
    /// Number of measured delays.
    pub count: u64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest delay.
    pub max_ns: u64,
}

impl From<&Histogram> for Delays {
    fn from(delays: &Histogram) -> Self {
        let at = |fraction| delays.quantile_ns(fraction);
        let (p50_ns, p99_ns, p999_ns) = (at(0.5), at(0.99), at(0.999));
        Self { count: delays.count(), p50_ns, p99_ns, p999_ns, max_ns: delays.max_ns() }
    }
}

/// Receives until `terminated` and prints an [`Account`] as JSON.
pub fn run(options: &Options, terminated: &AtomicBool) -> Result<()> {
    let account = match options.by {
        By::Strait { path, wait, timestamps } => by_strait(options, (path, wait, timestamps), terminated)?,
        By::Libpcap { timeout, immediate } => by_libpcap(options, timeout, immediate, terminated)?,
    };
    child::print(&account)
}

/// Packet processing of one lane.
struct Work {
    delivered: u64,
    stage: Option<Stage>,
    delay_of_each: u64,
    until_delay: u64,
    delays: Histogram,
}

impl Work {
    fn new(options: &Options) -> Self {
        let stage = options.stage.then(Stage::new);
        let delay_of_each = options.delay_of_each;
        Self { delivered: 0, stage, delay_of_each, until_delay: delay_of_each, delays: Histogram::new() }
    }

    #[inline]
    fn take(&mut self, bytes: &[u8]) {
        if let Some(stage) = &mut self.stage {
            stage.push(bytes);
        }
        if !bytes.starts_with(&MEASURED_MAC) {
            return;
        }
        self.delivered += 1;
        if self.delay_of_each > 0 {
            self.until_delay -= 1;
            if self.until_delay == 0 {
                self.until_delay = self.delay_of_each;
                self.measure(bytes);
            }
        }
    }

    #[cold]
    fn measure(&mut self, bytes: &[u8]) {
        if let Some(probe) = probe::read(bytes) {
            self.delays.record(clock::realtime_ns().saturating_sub(probe.sent_ns));
        }
    }
}

fn by_strait(
    options: &Options,
    (path, wait, timestamps): (Path, Wait, bool),
    terminated: &AtomicBool,
) -> Result<Account> {
    if Way::Strait(path).is_xdp() {
        check_queues(options)?;
    }
    let builder = Session::builder(options.interface.clone())
        .path(path)
        .wait(wait)
        .timestamps(timestamps)
        .directions(Directions::In)
        .snaplen(options.snaplen)
        .tap_rings(options.rings)
        .owners(options.owners)
        .queues(Queues::These((0..options.lanes).collect()));
    let mut session = match &options.filter {
        Some(filter) => builder.filter(filter).open()?,
        None => builder.open()?,
    };
    let lanes = session.take_lanes();
    let (mut delivered, mut delays) = (0, Histogram::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .map(|lane| {
                let owners = session.owners();
                scope.spawn(|| read_lane(lane, owners, Work::new(options)))
            })
            .collect();
        report_ready()?;
        while !terminated.load(Ordering::Relaxed)
            && !threads.iter().any(std::thread::ScopedJoinHandle::is_finished)
        {
            strait_os::wait::sleep(TICK);
        }
        session.stop()?;
        for thread in threads {
            let work = thread.join().map_err(|_| Error::Invalid("a lane's thread died".into()))??;
            delivered += work.delivered;
            delays.add(&work.delays);
        }
        Ok::<_, Error>(())
    })?;
    let got = format!("{}, {}", session.path(), session.mode());
    Ok(Account { delivered, got, delay: Delays::from(&delays) })
}

/// Reports to the starting process that packets count from now on.
fn report_ready() -> Result<()> {
    std::io::stderr()
        .write_all(READY.as_bytes())
        .map_err(|error| Error::file("write to standard error", error))
}

/// Checks that there is one lane for each receive queue: an AF_XDP lane reads one queue, so fewer
/// lanes would miss packets.
fn check_queues(options: &Options) -> Result<()> {
    let (name, lanes) = (&options.interface, options.lanes);
    let queues = Interface::find(name)?.queues()?.rx;
    if queues == lanes {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{name} has {queues} receive queues, and {lanes} are to be read: of a path that reads them all, bench capture --lanes \
         {queues}; or ethtool -L {name} combined {lanes} (of a veth: rx {lanes})"
    )))
}

fn read_lane(mut lane: Lane, mut owners: Option<Owners>, mut work: Work) -> Result<Work> {
    lane.enter_thread()?;
    while let Some(mut batch) = lane.next_batch(Instant::now() + TICK)? {
        batch.try_each(usize::MAX, |frame| {
            if let Some(owners) = &mut owners {
                std::hint::black_box(owners.of(frame)?);
            }
            work.take(frame.bytes);
            Ok::<_, Error>(())
        })?;
    }
    lane.finish()?;
    Ok(work)
}

fn by_libpcap(
    options: &Options,
    timeout: Duration,
    immediate: bool,
    terminated: &AtomicBool,
) -> Result<Account> {
    if options.lanes != 1 {
        return Err(Error::Usage("libpcap reads one queue: omit --lanes".into()));
    }
    let mut reader = libpcap::Reader::open(
        &options.interface,
        libpcap::Options { snaplen: options.snaplen, timeout, immediate, promiscuous: true },
    )?;
    if let Some(filter) = &options.filter {
        reader.set_filter(filter)?;
    }
    let breaker = reader.breaker();
    let mut work = Work::new(options);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut take = |packet: libpcap::Packet<'_>| work.take(packet.bytes);
            while reader.dispatch(&mut take)? {}
            Ok::<_, Error>(())
        });
        report_ready()?;
        while !terminated.load(Ordering::Relaxed) && !thread.is_finished() {
            strait_os::wait::sleep(TICK);
        }
        breaker.end();
        thread.join().map_err(|_| Error::Invalid("the reading thread died".into()))?
    })?;
    Ok(Account { delivered: work.delivered, got: libpcap::version()?, delay: Delays::from(&work.delays) })
}
