//! The XDP program on the interface: it filters, counts, stamps and hands frames to the sockets,
//! until it is stopped.

use std::os::fd::{AsFd, AsRawFd};

use strait_filter::cbpf::Program;
use strait_filter::translate::{self, MetadataFunctions};
use strait_filter::xdp::{CaptureOptions, Counters, capture_program};
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, XdpProgram};
use strait_sys::interface::Interface;
use strait_sys::{packet, process};

use crate::error::Error;

/// All that a program is made of but its filter.
pub(super) struct Template {
    pub(super) interface: Interface,
    pub(super) attach: AttachMode,
    /// Frames come in fragments where they are longer than a chunk.
    pub(super) fragments: bool,
    /// What to ask the driver.
    pub(super) functions: MetadataFunctions,
    /// Whether each frame is stamped as it comes.
    pub(super) timestamps: bool,
    pub(super) sockets: Map,
    pub(super) counters: Map,
    /// Receive queues of the interface.
    pub(super) queues: u32,
}

impl Template {
    /// Whether there is anything to be told of a frame.
    pub(super) fn has_metadata(&self) -> bool {
        self.timestamps || self.functions != MetadataFunctions::default()
    }

    /// A program with this filter, on the interface.
    pub(super) fn attach(&self, filter: &Program) -> Result<Link, Error> {
        Ok(Link::attach_xdp(&self.load(filter)?, self.interface.index, self.attach)?)
    }

    fn load(&self, filter: &Program) -> Result<XdpProgram, Error> {
        let interface = translate::Options {
            fragments: self.fragments,
            device_mac: self.interface.mac,
            hatype: self.interface.hardware_type,
            functions: self.functions,
        };
        let capture = CaptureOptions {
            interface,
            xskmap_fd: self.sockets.as_fd().as_raw_fd(),
            counters: Counters { fd: self.counters.as_fd().as_raw_fd(), queues: self.queues },
            metadata: self.has_metadata(),
            timestamps: self.timestamps,
        };
        let assembled =
            capture_program(filter, &capture).map_err(|error| Error::Filter(error.to_string()))?;
        let load = LoadOptions {
            fragments: assembled.fragments,
            device: assembled.device_bound.then_some(self.interface.index),
        };
        Ok(XdpProgram::load("strait_capture", &assembled.words(), load)?)
    }
}

/// What to do about a privilege that is gone.
fn explain(error: Error) -> Error {
    const EPERM: i32 = 1;
    match error {
        Error::System(error) if error.errno() == Some(EPERM) => Error::System(error.remedy(
            "it was given up before the filter was set: keep it (tcpdump: -Z root), or capture on packet sockets",
        )),
        error => error,
    }
}

/// The attached program, until it is stopped or dropped.
pub(super) struct Intake {
    link: Option<Link>,
    template: Template,
    /// Keeps the interface promiscuous while it is open.
    _promiscuous: Option<packet::Socket>,
}

impl Intake {
    pub(super) fn new(link: Link, template: Template, promiscuous: Option<packet::Socket>) -> Self {
        Self { link: Some(link), template, _promiscuous: promiscuous }
    }

    /// Puts a program with another filter in the place of the one there, between two frames. No
    /// frame enters the rings by the old one after this.
    ///
    /// # Errors
    /// EPERM where the privilege to load programs has been given up; the old program goes on.
    pub(super) fn set_filter(&self, filter: &Program) -> Result<(), Error> {
        let Some(link) = &self.link else { return Ok(()) };
        link.update(&self.template.load(filter).map_err(explain)?)?;
        process::wait_for_readers();
        Ok(())
    }

    /// Detaches the program: no frame enters the rings after this.
    pub(super) fn stop(&mut self) {
        self.link = None;
    }
}
