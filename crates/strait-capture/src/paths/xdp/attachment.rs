//! XDP program on the interface: it filters, counts and timestamps frames and redirects them to the
//! sockets, until it is detached.
//!
//! It is attached with a BPF link, which is a descriptor of this process: the kernel detaches the
//! program when the process ends, even if it is killed. A program attached with netlink would stay
//! on the interface without a reader. The sockets are bound and in the
//! map before the program is attached, so that every redirected frame has a socket.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use strait_filter::cbpf::Program;
use strait_filter::translate::{self, Context, MetadataFunctions};
use strait_filter::xdp::{CaptureOptions, Counters, capture_program};
use strait_os::interface::Interface;
use strait_os::process;
use strait_sys::bpf::{AttachMode, Link, LoadOptions, Map, XdpProgram};
use strait_sys::packet;

use crate::error::Error;

/// Parts of a program besides its filter.
pub(super) struct Template {
    pub(super) interface: Interface,
    pub(super) attach: AttachMode,
    /// Frames longer than a chunk arrive in fragments.
    pub(super) fragments: bool,
    /// Driver functions that the program calls.
    pub(super) functions: MetadataFunctions,
    /// True if the program timestamps each frame on arrival.
    pub(super) timestamps: bool,
    pub(super) sockets: Map,
    pub(super) counters: Map,
    /// Number of receive queues of the interface.
    pub(super) queues: u32,
}

impl Template {
    /// Returns true if the program provides metadata with frames.
    pub(super) fn has_metadata(&self) -> bool {
        self.timestamps || self.functions != MetadataFunctions::default()
    }

    /// Attaches a program with this filter to the interface.
    pub(super) fn attach(&self, filter: &Program) -> Result<Link, Error> {
        Ok(Link::attach_xdp(&self.load(filter)?, self.interface.index, self.attach)?)
    }

    fn load(&self, filter: &Program) -> Result<XdpProgram, Error> {
        let interface = translate::Options {
            context: Context::Xdp,
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

/// Adds a remedy to the error of a missing privilege.
fn explain(error: Error) -> Error {
    match error {
        Error::System(error) if error.is_one_of(&[Errno::PERM]) => Error::System(error.remedy(
            "the privilege was dropped before the filter was set: keep it (tcpdump: -Z root), or capture on packet \
             sockets",
        )),
        error => error,
    }
}

/// Attached program, until it is stopped or dropped.
pub(super) struct Attachment {
    link: Option<Link>,
    template: Template,
    /// Socket that keeps the interface promiscuous.
    _promiscuous: Option<packet::Socket>,
}

impl Attachment {
    pub(super) fn new(link: Link, template: Template, promiscuous: Option<packet::Socket>) -> Self {
        Self { link: Some(link), template, _promiscuous: promiscuous }
    }

    /// Replaces the program by one with another filter, between two frames. After this, no frame
    /// that the old program redirected enters the rings.
    ///
    /// # Errors
    /// EPERM if the privilege to load programs has been dropped; the old program stays attached.
    pub(super) fn set_filter(&self, filter: &Program) -> Result<(), Error> {
        let Some(link) = &self.link else { return Ok(()) };
        link.update(&self.template.load(filter).map_err(explain)?)?;
        process::wait_for_receive_paths();
        Ok(())
    }

    /// Detaches the program. No frame enters the rings after this.
    pub(super) fn stop(&mut self) {
        if self.link.take().is_some() {
            process::wait_for_receive_paths();
        }
    }
}
