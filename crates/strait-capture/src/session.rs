//! Opening a capture: options, the path they lead to, the lanes, and the account at the end.

mod builder;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture, Report, Since};
use strait_sys::interface::Interface;
use strait_sys::netlink::Netlink;
use strait_sys::packet::Socket;

pub use self::builder::{Builder, Directions, Path, Queues};
use crate::error::Error;
use crate::lane::Lane;
use crate::xdp::Intake;

/// An open capture.
pub struct Session {
    info: Info,
    lanes: Vec<Lane>,
    source: Source,
    stopping: Arc<AtomicBool>,
    opened: Instant,
    elapsed: Option<Duration>,
}

/// What a session turned out to be.
pub(crate) struct Info {
    pub(crate) path: &'static str,
    pub(crate) mode: String,
    pub(crate) interface: String,
    pub(crate) link_type: u32,
    pub(crate) notes: Vec<String>,
}

/// Where the frames come from, and how to end that.
pub(crate) enum Source {
    Packet(Box<PacketSource>),
    Xdp(Box<XdpSource>),
    File,
}

/// The sockets of all lanes, to end their intake, and the interface's counters, to know what they filtered.
pub(crate) struct PacketSource {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) counters: Counters,
}

/// The attached program, and the interface's counters, to know what the NIC missed.
pub(crate) struct XdpSource {
    pub(crate) intake: Intake,
    pub(crate) counters: Counters,
}

impl Session {
    /// Options for a capture on `interface`.
    pub fn builder(interface: impl Into<String>) -> Builder {
        Builder::new(interface.into())
    }

    pub(crate) fn new(info: Info, lanes: Vec<Lane>, source: Source, stopping: Arc<AtomicBool>) -> Self {
        Self { info, lanes, source, stopping, opened: Instant::now(), elapsed: None }
    }

    /// The lanes, one a queue; each can move to its own thread. They are handed out once.
    pub fn take_lanes(&mut self) -> Vec<Lane> {
        std::mem::take(&mut self.lanes)
    }

    /// The path that runs: `recv`, `v2`, `v3`, `xdp` or `file`.
    pub fn path(&self) -> &'static str {
        self.info.path
    }

    /// The path's mode: `copy`, `zero-copy`, `native copy`, `generic`.
    pub fn mode(&self) -> &str {
        &self.info.mode
    }

    /// The link type of the frames (`LINKTYPE_*` of pcap), 1 for Ethernet.
    pub fn link_type(&self) -> u32 {
        self.info.link_type
    }

    /// What turned out otherwise than asked, and why: each fallback, a smaller ring.
    pub fn notes(&self) -> &[String] {
        &self.info.notes
    }

    /// Puts another filter in place on `lane`, which is of this session: no frame that the new one rejects is lent after
    /// this. Frames that came by the old one and were not lent are filtered. It needs no privilege. False, and nothing
    /// happens, where only a new session has a new filter: AF_XDP and files.
    pub fn set_filter(&mut self, lane: &mut Lane, program: &Program) -> Result<bool, Error> {
        let Source::Packet(source) = &mut self.source else { return Ok(false) };
        source.counters.filters = true;
        lane.set_filter(program, source.counters.directions)
    }

    /// Ends the intake on all lanes: what is in the rings can still be read, no more comes. A file has no intake: it is
    /// read no further. After an error the intake goes on, at least in part; call it again.
    pub fn stop(&mut self) -> Result<(), Error> {
        if self.elapsed.is_none() {
            match &mut self.source {
                Source::Packet(source) => source.stop()?,
                Source::Xdp(source) => source.stop()?,
                Source::File => {}
            }
            self.elapsed = Some(self.opened.elapsed());
        }
        self.stopping.store(true, Ordering::Release);
        Ok(())
    }

    /// The account of the whole session from those of its lanes. While the session runs it is a snapshot that need
    /// not close; after [`Session::stop`] and the lanes' end it does.
    pub fn report(&self, lanes: Vec<ledger::Lane>) -> Report {
        let unattributed = match &self.source {
            Source::Packet(source) => source.counters.filtered_and_missed(&lanes),
            Source::Xdp(source) => source.counters.missed(),
            Source::File => Capture::default(),
        };
        Report {
            path: self.info.path.to_owned(),
            mode: self.info.mode.clone(),
            interface: self.info.interface.clone(),
            seconds: self.elapsed.unwrap_or_else(|| self.opened.elapsed()).as_secs_f64(),
            ..Report::from_lanes(lanes, &unattributed)
        }
    }
}

impl PacketSource {
    fn stop(&mut self) -> Result<(), Error> {
        for socket in &self.sockets {
            socket.reject_all()?;
        }
        self.counters.stop();
        Ok(())
    }
}

impl XdpSource {
    fn stop(&mut self) -> Result<(), Error> {
        self.intake.stop()?;
        self.counters.stop();
        Ok(())
    }
}

/// The interface's own counters: a packet socket counts what its filter matched, the interface what came. They are
/// read when the capture ends and stand at 0 before.
pub(crate) struct Counters {
    index: u32,
    directions: Directions,
    /// Whether there is a filter that rejects anything.
    filters: bool,
    received: Since,
    sent: Since,
    missed: Since,
}

impl Counters {
    pub(crate) fn start(interface: &Interface, directions: Directions, filters: bool) -> Result<Self, Error> {
        let now = Netlink::open()?.stats(interface.index)?;
        Ok(Self {
            index: interface.index,
            directions,
            filters,
            received: Since::starting_at(now.rx_packets),
            sent: Since::starting_at(now.tx_packets),
            missed: Since::starting_at(now.rx_missed_errors),
        })
    }

    fn stop(&mut self) {
        // An interface that is gone has no counters: the ledger then knows nothing of what the filter rejected.
        if let Ok(now) = Netlink::open().and_then(|mut netlink| netlink.stats(self.index)) {
            self.received.advance(now.rx_packets);
            self.sent.advance(now.tx_packets);
            self.missed.advance(now.rx_missed_errors);
        }
    }

    /// Frames that the NIC missed.
    fn missed(&self) -> Capture {
        let mut account = Capture { received: self.missed.total(), ..Capture::default() };
        account.lost.nic_missed = self.missed.total();
        account
    }

    /// What the interface saw and no lane counted: frames that the filter rejected, and frames that the NIC missed.
    fn filtered_and_missed(&self, lanes: &[ledger::Lane]) -> Capture {
        let matched: u64 = lanes.iter().map(|lane| lane.capture.received).sum();
        let mut account = self.missed();
        if self.filters {
            account.filtered = self.seen().saturating_sub(matched);
        }
        account.received += account.filtered;
        account
    }

    fn seen(&self) -> u64 {
        match self.directions {
            Directions::In => self.received.total(),
            Directions::Out => self.sent.total(),
            Directions::Both => self.received.total() + self.sent.total(),
        }
    }
}
