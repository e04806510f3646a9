//! Opens the interfaces of a capture, or its file, and reports what was opened.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use strait_capture::extra::ExtraBlocks;
use strait_capture::{Builder, Session};
use strait_os::ethtool::Ethtool;
use strait_os::interface::Interface;

use super::interfaces::{self, ANY};
use super::{Args, ChosenInterface, FanoutArg};
use crate::Error;
use crate::lanes::Inputs;
use crate::output::{self, print_stderr};

/// Maximum number of interfaces of a capture.
const INTERFACES_MAX: usize = 32;

/// Interface of a capture, as it was found.
pub(super) struct Found {
    pub(super) chosen: ChosenInterface,
    /// Number of the interface; 0 for all interfaces.
    index: u32,
    speed_bps: Option<u64>,
}

/// Open sessions; the interfaces, unless a file is read; and a socket in their namespace.
pub(super) type Opened = (Vec<Session>, Option<Vec<Found>>, Option<Arc<OwnedFd>>);

impl Found {
    fn new(chosen: ChosenInterface) -> Result<Self, Error> {
        if chosen.name == ANY {
            return Ok(Self { chosen, index: 0, speed_bps: None });
        }
        let index = Interface::find(&chosen.name)?.index;
        // Virtual links and drivers may report no speed.
        let speed = Ethtool::open(&chosen.name).and_then(|ethtool| ethtool.speed_bps());
        Ok(Self { chosen, index, speed_bps: speed.ok().flatten() })
    }
}

/// Returns the inputs of an output: the interfaces of the open sessions, or the file.
pub(super) fn sources(inputs: &Inputs, found: Option<&[Found]>) -> Vec<output::Input> {
    let opened = inputs.each_session(|session| (session.interface().to_owned(), session.link_type()));
    let input = |(at, ((name, link_type), first_lane)): (usize, ((String, u32), u32))| {
        let found = found.and_then(|found| found.get(at));
        let (index, speed_bps) = found.map_or((0, None), |found| (found.index, found.speed_bps));
        output::Input { name, index, link_type, speed_bps, first_lane }
    };
    opened.into_iter().zip(inputs.first_lanes()).enumerate().map(input).collect()
}

impl Args {
    /// Refuses contradictory interfaces, before any is opened.
    pub(super) fn check_interfaces(&self) -> Result<(), Error> {
        let usage = |text: String| Err(Error::Usage(text));
        let is_file = !self.read.is_empty();
        if is_file && self.namespace.is_given() {
            return usage("--netns is for interfaces: leave it out with -r".into());
        }
        if self.interface.len() > INTERFACES_MAX {
            let count = self.interface.len();
            return usage(format!("-i is given {count} times: give at most {INTERFACES_MAX} interfaces"));
        }
        if self.interface.len() > 1 {
            if self.interface.iter().any(|name| name == ANY) {
                return usage(format!("-i {ANY} stands for all interfaces: give it alone"));
            }
            let owners = [
                (self.owner, "--owner"),
                (self.process.is_some(), "--process"),
                (self.container.is_some(), "--container"),
            ];
            if let Some((_, option)) = owners.into_iter().find(|(is_given, _)| *is_given) {
                return usage(format!("{option} works on one interface: give -i once"));
            }
        }
        if is_file {
            return Ok(());
        }
        let in_filter = self.namespace.run(|| Ok(interfaces::interface_in_filter(&self.filter)))?;
        match in_filter {
            Some(name) => usage(format!("{name} is an interface: use -i {name}")),
            None => Ok(()),
        }
    }

    /// Opens the file, or all interfaces in their namespace.
    /// Blocks of the file for its copy are added to the second part.
    pub(super) fn open_sources(
        &self,
        (file, extras): (Option<&str>, Option<ExtraBlocks>),
        filter: &str,
    ) -> Result<Opened, Error> {
        match file {
            Some(file) => {
                let builder = self.builder(file, filter, 0).extra_blocks(extras);
                Ok((vec![builder.open_file()?], None, None))
            }
            None => self.namespace.run(|| self.open_interfaces(filter)),
        }
    }

    fn open_interfaces(&self, filter: &str) -> Result<Opened, Error> {
        let found = self.find_interfaces()?;
        let (mut sessions, mut lanes) = (Vec::with_capacity(found.len()), 0);
        for Found { chosen, .. } in &found {
            let session = self.open(&chosen.name, filter, lanes)?;
            lanes += session.lane_count();
            sessions.push(session);
        }
        let names = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        Ok((sessions, Some(found), names.ok().map(Arc::new)))
    }

    /// Finds the named interfaces, or selects one. Refuses two names of one interface, which may
    /// have alternative names (ip-link(8), altname).
    fn find_interfaces(&self) -> Result<Vec<Found>, Error> {
        if self.interface.is_empty() {
            return Ok(vec![Found::new(ChosenInterface::find(None)?)?]);
        }
        let mut all: Vec<Found> = Vec::with_capacity(self.interface.len());
        for name in &self.interface {
            let found = Found::new(ChosenInterface::find(Some(name))?)?;
            if let Some(twice) = all.iter().find(|other| other.index == found.index) {
                let (one, two) = (&twice.chosen.name, &found.chosen.name);
                return Err(Error::Usage(if one == two {
                    format!("-i {one} is given twice: give each interface once")
                } else {
                    format!("-i {one} and -i {two} are the same interface: give each interface once")
                }));
            }
            all.push(found);
        }
        Ok(all)
    }

    /// Opens the interface or file `source`. `lanes` is the number of lanes before its first one.
    pub(super) fn open(&self, source: &str, filter: &str, lanes: usize) -> Result<Session, Error> {
        let builder = self.builder(source, filter, lanes);
        Ok(if self.read.is_empty() { builder.open()? } else { builder.open_file()? })
    }

    fn builder(&self, source: &str, filter: &str, lanes: usize) -> Builder {
        let kernel = &self.kernel;
        let mut cpus = kernel.cpus.clone().map_or_else(Vec::new, |list| list.0);
        if !cpus.is_empty() {
            let first = lanes % cpus.len();
            cpus.rotate_left(first);
        }
        let builder = Session::builder(source)
            .path(kernel.path)
            .wait(kernel.wait)
            .snaplen(self.snaplen())
            .directions(self.direction.into())
            .queues(kernel.queues.clone().unwrap_or_default())
            .fanout(kernel.fanout.unwrap_or(FanoutArg::Hash).into())
            .cpus(cpus)
            .promiscuous(!self.no_promisc)
            .huge_pages(kernel.huge_pages)
            .owners(self.owner)
            .select(self.select())
            // A capture that only counts packets needs no timestamps.
            .timestamps(!self.output.counts_only(self.is_silent()))
            .filter(filter);
        match kernel.ring_mib.or(kernel.buffer_size) {
            Some(bytes) => builder.ring(bytes),
            None => builder,
        }
    }

    /// Prints interface and path of the open captures on standard error, and then each fallback.
    pub(super) fn announce(&self, inputs: &Inputs, found: Option<&[Found]>) {
        if !self.json {
            inputs.each_session(|session| self.announce_session(session, found.is_some()));
        }
        for Found { chosen: ChosenInterface { name, reason }, .. } in found.unwrap_or_default() {
            if let Some(reason) = reason {
                print_stderr(format_args!("strait: no -i given: {name} is {reason}\n"));
            }
        }
        let several = found.is_some_and(|found| found.len() > 1);
        inputs.each_session(|session| {
            let name = if several { format!("{}: ", session.interface()) } else { String::new() };
            for note in session.notes() {
                print_stderr(format_args!("strait: {name}{note}\n"));
            }
        });
        if self.kernel.fanout.is_some() && self.kernel.queues.is_none() {
            print_stderr(format_args!(
                "strait: --fanout has no effect with one lane: give --queues for more\n"
            ));
        }
    }

    fn announce_session(&self, session: &Session, is_interface: bool) {
        let (source, link_type) = (session.interface(), link_name(session.link_type()));
        if !is_interface {
            print_stderr(format_args!("reading from {source}, link type {link_type}\n"));
            return;
        }
        let (path, mode, ring) = (session.path(), session.mode(), session.ring());
        let ring = if ring.is_empty() { String::new() } else { format!(", {ring}") };
        let snaplen = self.snaplen();
        print_stderr(format_args!(
            "listening on {source}, {path}, {mode}{ring}, link type {link_type}, snaplen {snaplen}\n"
        ));
    }
}

/// Returns tcpdump's name of a common link type, else its number.
pub(crate) fn link_name(link_type: u32) -> String {
    match link_type {
        0 => "NULL (BSD loopback)".into(),
        1 => "EN10MB (Ethernet)".into(),
        101 => "RAW (raw IP)".into(),
        113 => "LINUX_SLL (Linux cooked v1)".into(),
        276 => "LINUX_SLL2 (Linux cooked v2)".into(),
        other => other.to_string(),
    }
}
