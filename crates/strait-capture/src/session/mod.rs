//! An open capture: its lanes, its filter and the account at the end.

mod builder;
mod info;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::{self as ledger, Capture, Report};
use strait_os::process::wait_for_receive_paths;
use strait_sys::packet::Cooked;

pub use self::builder::Builder;
use self::info::Info;
use crate::directions::Directions;
use crate::error::Error;
use crate::filter;
use crate::lane::{Lane, Shared};
use crate::link::{Link, Split};
use crate::owners::{Hooks, Owners};
use crate::paths::spec::{FilterChange, Lanes, Source};
use crate::placing::Replaced;
use crate::sender::Sender;
use crate::userspace_filter::UserspaceFilter;
use crate::watch::LinkStatus;

/// Open capture.
pub struct Session {
    info: Info,
    lanes: Vec<Lane>,
    /// None for a file.
    source: Option<Box<dyn Source>>,
    shared: Arc<Shared>,
    /// Recording of owners, if it was requested.
    hooks: Option<Arc<Hooks>>,
    opened: Instant,
    elapsed: Option<Duration>,
}

impl Session {
    /// Returns a builder for a capture on `interface`.
    pub fn builder(interface: impl Into<String>) -> Builder {
        Builder::new(interface.into())
    }

    fn new(info: Info, lanes: Vec<Lane>, source: Option<Box<dyn Source>>, shared: Arc<Shared>) -> Self {
        Self { info, lanes, source, shared, hooks: None, opened: Instant::now(), elapsed: None }
    }

    /// Takes the lanes, one for each queue. Each can move to its own thread. Later calls return
    /// none.
    pub fn take_lanes(&mut self) -> Vec<Lane> {
        std::mem::take(&mut self.lanes)
    }

    /// Returns the number of lanes that were not taken.
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Takes the sender of single frames on the interface. Once opened, it needs no privilege.
    ///
    /// # Errors
    /// On `PF_ZEROCOPY`: the session was not opened to send ([`Builder::sends`]), the sender was
    /// already taken, or the limit of locked memory is too small. On a file: always.
    pub fn take_sender(&mut self) -> Result<Sender, Error> {
        match &mut self.source {
            Some(source) => source.take_sender(&self.info.interface),
            None => Err(Error::Usage("frames cannot be sent to a capture file".into())),
        }
    }

    /// Returns the owners of the session's frames; `None` if they are not recorded
    /// ([`Builder::owners`]). The programs stay attached as long as the result lives.
    pub fn owners(&self) -> Option<Owners> {
        let hooks = Arc::clone(self.hooks.as_ref()?);
        Some(Owners::new(hooks, self.info.link_type, self.info.is_loopback))
    }

    /// Returns the name of the interface or file.
    pub fn interface(&self) -> &str {
        &self.info.interface
    }

    /// Returns the path that runs: `recv`, `v2`, `v3`, `tap`, `xdp`,
    /// `zerocopy` or `file`.
    pub fn path(&self) -> &'static str {
        self.info.path
    }

    /// Returns the path's mode: `copy`, `zero-copy`, `native copy` or `generic`.
    pub fn mode(&self) -> &str {
        &self.info.mode
    }

    /// Returns a description of each lane's ring, as in `64 blocks of 128 KiB, retired after 8ms`;
    /// empty for a file.
    pub fn ring(&self) -> &str {
        &self.info.ring
    }

    /// Returns the link type of the frames (pcap's `LINKTYPE_*`), 1 for Ethernet.
    pub fn link_type(&self) -> u32 {
        self.info.link_type
    }

    /// Returns the differences from the requested options and their reasons: fallbacks, a smaller
    /// ring.
    pub fn notes(&self) -> &[String] {
        &self.info.notes
    }

    /// Replaces the filter on `lanes`, which must be all lanes of this session. No frame that the
    /// new filter rejects is lent after this. Frames that the old filter matched and that were
    /// not lent count as filtered.
    ///
    /// Packet sockets and `PF_ZEROCOPY` need no privilege for it; a filter that the kernel refuses
    /// runs in this process ([`Session::notes`]). AF_XDP needs the privilege to load a program.
    ///
    /// # Errors
    /// On AF_XDP: EPERM if that privilege has been dropped, or a filter that the kernel cannot run.
    /// On a file: always. After an error the earlier filter is in place.
    pub fn set_filter(&mut self, lanes: &mut [Lane], program: &Program) -> Result<(), Error> {
        let program = filter::cut(program, self.info.snaplen)?;
        let (Some(source), Some(link)) = (&mut self.source, self.info.link) else {
            return Err(Error::Usage("the filter of an open capture file cannot be changed".into()));
        };
        let Info { directions, snaplen, program: old, .. } = &self.info;
        let change = FilterChange { link, directions: *directions, snaplen: *snaplen, old, new: &program };
        let replaced = source.set_filter(&change, &mut AllLanes { lanes, program: &program })?;
        if let Some(hooks) = self.hooks.as_ref().filter(|_| program.constant().is_none()) {
            hooks.miss_connections();
        }
        let Replaced { userspace_reason, refused } = replaced;
        filter::note(&mut self.info.notes, userspace_reason);
        if let Some(error) = refused {
            return Err(error);
        }
        self.info.program = program;
        Ok(())
    }

    /// Replaces the filter while other threads read the lanes, without a gap: each frame passes the
    /// earlier filter or the new one. Frames that the earlier filter matched stay in the rings, and
    /// are lent and counted as delivered. It needs no privilege. Returns the earlier filter.
    ///
    /// # Errors
    /// The path does not use packet sockets, or one of the two filters does not run in the kernel.
    /// After an error the earlier filter is in place.
    pub fn replace_filter(&mut self, program: &Program) -> Result<Program, Error> {
        let program = filter::cut(program, self.info.snaplen)?;
        let Info { directions, link, program: old, notes, path, .. } = &self.info;
        let refused = |reason: &str| Err(Error::Usage(format!("{reason}: restart the capture")));
        let (Some(source), Some(link)) = (&mut self.source, *link) else {
            return refused("the filter of an open capture file cannot be replaced");
        };
        if self.elapsed.is_some() {
            return refused("the capture has ended, so its filter cannot be replaced");
        }
        let (old, new) = (link.split(old, *directions)?, link.split(&program, *directions)?);
        if filter::is_noted(notes) {
            return refused("the present filter runs in this process and cannot be replaced");
        }
        if let Some(reason) = new.userspace_reason {
            return refused(&format!("the new filter cannot run in the kernel, as {reason}"));
        }
        if !source.replace_filter(&old.kernels, &new.kernels)? {
            return refused(&format!("the path {path} cannot replace the filter of a running capture"));
        }
        Ok(mem::replace(&mut self.info.program, program))
    }

    /// Changes the directions on `lanes`, which must be all lanes of this session. Frames that were
    /// not lent count as filtered.
    ///
    /// # Errors
    /// AF_XDP and `PF_ZEROCOPY` receive only frames from the wire; a file has no directions.
    pub fn set_directions(&mut self, lanes: &mut [Lane], directions: Directions) -> Result<(), Error> {
        let Some(source) = &mut self.source else {
            return Err(Error::Usage("directions cannot be selected in a capture file".into()));
        };
        let directions = directions.without_duplicates(self.info.is_loopback);
        if !source.set_directions(directions)? {
            return Ok(());
        }
        self.info.directions = directions;
        lanes.iter_mut().try_for_each(|lane| lane.ignore_outgoing(directions == Directions::In))?;
        let program = self.info.program.clone();
        self.set_filter(lanes, &program)
    }

    /// Returns a filter to run in this process on frames of this session that were lent already.
    pub fn userspace_filter(&self, program: &Program) -> UserspaceFilter {
        match self.info.link.and_then(Link::cooked) {
            Some(header) => UserspaceFilter::cooked(program.clone(), header),
            None => UserspaceFilter::own(program.clone(), self.info.link_type),
        }
    }

    /// Changes the cooked header (`LINKTYPE_LINUX_SLL`, `LINKTYPE_LINUX_SLL2`) of a capture on all
    /// interfaces, on `lanes`, which must be all lanes of this session. An earlier filter is
    /// removed, because it was compiled for the other header.
    pub fn set_link_type(&mut self, lanes: &mut [Lane], link_type: u32) -> Result<(), Error> {
        let Some(link) = self.info.link else {
            return Err(Error::Usage("the link type of a capture file cannot be changed".into()));
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

    /// Stops reception on all lanes: frames in the rings can still be read, no more arrive. A file
    /// is not read further. After an error some lanes may still receive; call it again.
    pub fn stop(&mut self) -> Result<(), Error> {
        if self.elapsed.is_none() {
            if let Some(source) = &mut self.source {
                source.stop()?;
            }
            self.shared.link.finish(Instant::now());
            self.elapsed = Some(self.opened.elapsed());
        }
        self.shared.stopping.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the number of frames that the NIC has missed; 0 if the driver does not report it. It
    /// makes a system call.
    pub fn missed(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.missed())
    }

    /// Returns the state of the interface, and how often and for how long it was down, from the
    /// kernel's notifications. After [`Session::stop`] the times no longer grow.
    pub fn link(&self) -> LinkStatus {
        let ended = self.elapsed.and_then(|elapsed| self.opened.checked_add(elapsed));
        self.shared.link.read(ended.unwrap_or_else(Instant::now))
    }

    /// Returns the ledger of the whole session from the counts of its lanes. While the session runs
    /// it is a snapshot that need not balance. After [`Session::stop`] and the end of the lanes it
    /// balances.
    pub fn report(&self, lanes: Vec<ledger::LaneCounts>) -> Report {
        let late_frames = self.shared.late_frames.load(Ordering::Relaxed);
        let mut unattributed = match &self.source {
            Some(source) => source.unattributed(&lanes, late_frames),
            None => Capture::default(),
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

/// Lanes of a session, and their new filter.
struct AllLanes<'a> {
    lanes: &'a mut [Lane],
    program: &'a Program,
}

impl Lanes for AllLanes<'_> {
    /// First all lanes reject frames, and every CPU leaves the receive path in which it may still
    /// run the old filter. No frame of the old filter then arrives after its ring was emptied.
    fn place(&mut self, split: Split) -> Result<Option<String>, Error> {
        let Split { kernels, userspace, userspace_reason } = split;
        self.lanes.iter().try_for_each(Lane::reject_all)?;
        wait_for_receive_paths();
        self.lanes.iter_mut().try_for_each(|lane| lane.set_filter(&kernels, userspace.clone()))?;
        Ok(userspace_reason)
    }

    fn discard_waiting(&mut self) -> Result<(), Error> {
        self.lanes.iter_mut().try_for_each(|lane| lane.discard_waiting(self.program))
    }
}
