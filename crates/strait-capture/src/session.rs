//! Opening a capture: options, the path they lead to, the lanes, and the account at the end.

pub(crate) mod builder;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture, Report};
use strait_sys::packet::{Cooked, Socket};
use strait_sys::process::wait_for_readers;

pub use self::builder::{Builder, Directions};
use crate::counters::Counters;
use crate::paths::path::Path;
use crate::placing::{Placing, Replaced};

use crate::error::Error;
use crate::filter;
use crate::inject::Sender;
use crate::lane::{Lane, Shared};
use crate::link::{Link, Split};
use crate::paths::xdp::Intake;
use crate::paths::zerocopy;
use crate::userspace_filter::UserspaceFilter;
use crate::watch::LinkStatus;

/// More than a slot of a ring holds of any frame.
const SLOT_BYTES_MAX: u32 = 1 << 16;

/// An open capture.
pub struct Session {
    info: Info,
    lanes: Vec<Lane>,
    source: Source,
    shared: Arc<Shared>,
    opened: Instant,
    elapsed: Option<Duration>,
}

/// What a session turned out to be.
pub(crate) struct Info {
    pub(crate) path: &'static str,
    pub(crate) mode: String,
    /// Each lane's ring, in words.
    pub(crate) ring: String,
    pub(crate) interface: String,
    pub(crate) is_loopback: bool,
    /// What its packets begin with; none for a file, which may hold several.
    pub(crate) link: Option<Link>,
    pub(crate) link_type: u32,
    pub(crate) directions: Directions,
    /// The filter, as it was given last.
    pub(crate) program: Program,
    pub(crate) snaplen: u32,
    pub(crate) notes: Vec<String>,
}

/// Where the frames come from, and how to end that.
pub(crate) enum Source {
    Packet(Box<PacketSource>),
    Xdp(Box<XdpSource>),
    ZeroCopy(Box<ZeroCopySource>),
    File,
}

/// The sockets of all lanes, to end their intake, and the interface's counters, to know what they
/// filtered.
pub(crate) struct PacketSource {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) counters: Counters,
}

/// The attached program, and the interface's counters, to know what the NIC missed.
pub(crate) struct XdpSource {
    pub(crate) intake: Intake,
    pub(crate) counters: Counters,
}

/// The socket, to end its intake, and what sends by it.
pub(crate) struct ZeroCopySource {
    pub(crate) counts: Arc<zerocopy::Counts>,
    pub(crate) sender: Option<Result<Sender, Error>>,
}

impl Session {
    /// Options for a capture on `interface`.
    pub fn builder(interface: impl Into<String>) -> Builder {
        Builder::new(interface.into())
    }

    pub(crate) fn new(info: Info, lanes: Vec<Lane>, source: Source, shared: Arc<Shared>) -> Self {
        Self { info, lanes, source, shared, opened: Instant::now(), elapsed: None }
    }

    /// The lanes, one a queue; each can move to its own thread. They are handed out once.
    pub fn take_lanes(&mut self) -> Vec<Lane> {
        std::mem::take(&mut self.lanes)
    }

    /// What sends single frames on the interface. It is handed out once, and needs no privilege
    /// from then on.
    ///
    /// # Errors
    /// On `PF_ZEROCOPY`: the session was not opened to send ([`Builder::sends`]), or no more memory
    /// may be locked. A file takes no frames.
    pub fn take_sender(&mut self) -> Result<Sender, Error> {
        match &mut self.source {
            Source::Packet(_) | Source::Xdp(_) => Sender::open(&self.info.interface),
            Source::ZeroCopy(source) => {
                let closed = || Err(Error::Usage("the session was not opened to send".into()));
                source.sender.take().unwrap_or_else(closed)
            }
            Source::File => Err(Error::Usage("a file takes no frames".into())),
        }
    }

    /// The interface's name, or the file's.
    pub fn interface(&self) -> &str {
        &self.info.interface
    }

    /// The path that runs: `recv`, `v2`, `v3`, `xdp`, `zerocopy` or `file`.
    pub fn path(&self) -> &'static str {
        self.info.path
    }

    /// The path's mode: `copy`, `zero-copy`, `native copy`, `generic`.
    pub fn mode(&self) -> &str {
        &self.info.mode
    }

    /// The geometry of each lane's ring in words, as in `64 blocks of 128 KiB, retired after 8ms`;
    /// empty for a file.
    pub fn ring(&self) -> &str {
        &self.info.ring
    }

    /// The link type of the frames (`LINKTYPE_*` of pcap), 1 for Ethernet.
    pub fn link_type(&self) -> u32 {
        self.info.link_type
    }

    /// What turned out otherwise than asked, and why: each fallback, a smaller ring.
    pub fn notes(&self) -> &[String] {
        &self.info.notes
    }

    /// Puts another filter in place on `lanes`, which are all those of this session: no frame that
    /// the new one rejects is lent after this. Frames that came by the old one and were not
    /// lent are filtered.
    ///
    /// Packet sockets need no privilege for it, and where the kernel does not take the filter it
    /// runs in this process ([`Session::notes`]). AF_XDP needs the privilege to load a program.
    ///
    /// # Errors
    /// EPERM on AF_XDP where that has been given up, and there a filter that the kernel cannot run;
    /// a file has the filter that it was opened with. The earlier filter is then in place.
    pub fn set_filter(&mut self, lanes: &mut [Lane], program: &Program) -> Result<(), Error> {
        let program = filter::cut(program, self.info.snaplen)?;
        match (&mut self.source, self.info.link) {
            (Source::Packet(source), Some(link)) => {
                source.counters.filters = true;
                let directions = self.info.directions;
                let placing = Placing { link, directions };
                let replaced = placing.replace(&self.info.program, &program, |split| set_lanes(lanes, split));
                let Replaced { why_here, refused } = replaced?;
                let why_here = why_here.map(|why| why + &self.sight());
                filter::note(&mut self.info.notes, why_here);
                if let Some(error) = refused {
                    return Err(error);
                }
            }
            (Source::Xdp(source), _) => {
                if program == self.info.program {
                    return Ok(());
                }
                filter::refuse_on_xdp(&program)?;
                source.intake.set_filter(&program)?;
                for lane in lanes {
                    lane.discard_waiting()?;
                }
            }
            (Source::ZeroCopy(_), Some(link)) => {
                // PF_ZEROCOPY has no filter in the kernel: no note, it is always so.
                set_lanes(lanes, link.split_here(&program, Directions::In, &"")?)?;
            }
            _ => return Err(Error::Usage("a file has the filter that it was opened with".into())),
        }
        self.info.program = program;
        Ok(())
    }

    /// Tells how much of a frame a filter in this process sees, where a ring of slots was made for
    /// the snaplen.
    fn sight(&self) -> String {
        match (self.info.path, self.info.snaplen) {
            ("recv" | "v2", snaplen @ ..SLOT_BYTES_MAX) => {
                format!("; it sees at most {snaplen} bytes of a frame: --path v3 shows it all of them")
            }
            _ => String::new(),
        }
    }

    /// Captures in other directions from now on, on `lanes`, which are all those of this session.
    /// Frames that were not lent are filtered.
    ///
    /// # Errors
    /// AF_XDP sees received frames only; a file knows no directions.
    pub fn set_directions(&mut self, lanes: &mut [Lane], directions: Directions) -> Result<(), Error> {
        match &mut self.source {
            Source::Packet(source) => {
                let directions = builder::once(self.info.is_loopback, directions);
                self.info.directions = directions;
                source.counters.directions = directions;
                lanes.iter_mut().try_for_each(|lane| lane.ignore_outgoing(directions == Directions::In))?;
                let program = self.info.program.clone();
                self.set_filter(lanes, &program)
            }
            Source::Xdp(_) | Source::ZeroCopy(_) => builder::refuse_sent(self.info.path, directions),
            Source::File => Err(Error::Usage("a file has the directions that it has".into())),
        }
    }

    /// A filter to run here, on frames of this session that were lent already.
    pub fn userspace_filter(&self, program: &Program) -> UserspaceFilter {
        match self.info.link.and_then(Link::cooked) {
            Some(header) => UserspaceFilter::cooked(program.clone(), header),
            None => UserspaceFilter::own(program.clone(), self.info.link_type),
        }
    }

    /// Puts the other cooked header (`LINKTYPE_LINUX_SLL`, `LINKTYPE_LINUX_SLL2`) before the
    /// packets of a capture on all interfaces, on `lanes`, which are all those of this session.
    /// A filter that was set before is forgotten: it was for the other header.
    pub fn set_link_type(&mut self, lanes: &mut [Lane], link_type: u32) -> Result<(), Error> {
        let Some(link) = self.info.link else {
            return Err(Error::Usage("a file has the link type that it has".into()));
        };
        if link_type == self.info.link_type {
            return Ok(());
        }
        let (Link::Cooked { loopback, .. }, Some(header)) = (link, Cooked::from_link_type(link_type)) else {
            let interface = &self.info.interface;
            return Err(Error::Usage(format!("{interface} has no packets of link type {link_type}")));
        };
        self.set_filter(lanes, &Program::accept_all(self.info.snaplen))?;
        self.info.link = Some(Link::Cooked { header, loopback });
        self.info.link_type = link_type;
        for lane in lanes {
            lane.set_cooked(header);
        }
        Ok(())
    }

    /// Ends the intake on all lanes: what is in the rings can still be read, no more comes. A file
    /// has no intake: it is read no further. After an error the intake goes on, at least in
    /// part; call it again.
    pub fn stop(&mut self) -> Result<(), Error> {
        if self.elapsed.is_none() {
            match &mut self.source {
                Source::Packet(source) => source.stop()?,
                Source::Xdp(source) => source.stop()?,
                Source::ZeroCopy(source) => source.counts.stop()?,
                Source::File => {}
            }
            self.shared.link.settle(Instant::now());
            self.elapsed = Some(self.opened.elapsed());
        }
        self.shared.stopping.store(true, Ordering::Release);
        Ok(())
    }

    /// Frames that the NIC has missed so far; 0 where the driver does not tell. It asks the kernel.
    pub fn missed(&self) -> u64 {
        match &self.source {
            Source::Packet(source) => source.counters.missed_now(),
            Source::Xdp(source) => source.counters.missed_now(),
            // The lanes count them.
            Source::ZeroCopy(_) | Source::File => 0,
        }
    }

    /// State of the interface, and how often and how long it was away. It reads what the kernel has
    /// reported.
    pub fn link(&self) -> LinkStatus {
        self.shared.link.read(Instant::now())
    }

    /// The account of the whole session from those of its lanes. While the session runs it is a
    /// snapshot that need not close; after [`Session::stop`] and the lanes' end it does.
    pub fn report(&self, lanes: Vec<ledger::Lane>) -> Report {
        let mut unattributed = match &self.source {
            Source::Packet(source) => {
                source.counters.filtered_and_missed(&lanes, self.shared.beyond.load(Ordering::Relaxed))
            }
            Source::Xdp(source) => source.counters.missed(),
            Source::ZeroCopy(_) | Source::File => Capture::default(),
        };
        let link = self.link();
        unattributed.events.link_downs = link.downs;
        unattributed.events.carrier_losses = link.carrier_losses;
        Report {
            link_down_seconds: link.down_for.as_secs_f64(),
            no_carrier_seconds: link.no_carrier_for.as_secs_f64(),
            path: self.info.path.to_owned(),
            mode: self.info.mode.clone(),
            interface: self.info.interface.clone(),
            seconds: self.elapsed.unwrap_or_else(|| self.opened.elapsed()).as_secs_f64(),
            ..Report::from_lanes(lanes, &unattributed)
        }
    }
}

/// Gives the kernel's program to all lanes, and each the filter that runs here. Returns why it
/// does, if it does. All lanes reject frames first, so that none that passed the old filter comes
/// after a ring was emptied.
fn set_lanes(lanes: &mut [Lane], split: Split) -> Result<Option<String>, Error> {
    let Split { kernels, userspace, why_here } = split;
    lanes.iter().try_for_each(Lane::reject_all)?;
    wait_for_readers();
    lanes.iter_mut().try_for_each(|lane| lane.set_filter(&kernels, userspace.clone()))?;
    Ok(why_here)
}

impl PacketSource {
    fn stop(&mut self) -> Result<(), Error> {
        // First, so that what comes while the sockets are told one after the other does not count as
        // filtered.
        self.counters.stop();
        for socket in &self.sockets {
            socket.reject_all()?;
        }
        // What passed a filter before is in its ring, and counted, after this.
        wait_for_readers();
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
