//! Programs on the hooks of the interface, until they are detached.
//!
//! They are attached with BPF links, which are descriptors of this process or of its broker: the
//! programs are detached when this process ends, even if it is killed.

use std::os::fd::{AsFd, AsRawFd};

use strait_filter::cbpf::Program;
use strait_filter::ebpf;
use strait_filter::tap::layout::Sizes;
use strait_filter::tap::{Confinement, TapOptions, tap_program};
use strait_filter::translate::{self, Context};
use strait_os::interface::Interface;
use strait_os::netns::Namespace;
use strait_sys::bpf::{Classifier, Link, TcxHook};

use super::broker::Tap;
use super::memory::Memory;
use crate::directions::Directions;
use crate::error::Error;
use crate::paths::request::Attribution;

/// Parts of a program besides its filter.
pub(super) struct Template {
    pub(super) interface: Interface,
    pub(super) memory: Memory,
    pub(super) sizes: Sizes,
    pub(super) rx_hash: bool,
    pub(super) attribution: Option<Attribution>,
    /// Namespace out of which no frame is copied: the interface takes its programs to another one.
    pub(super) confinement: Option<Confinement>,
    /// Process that loads and attaches the programs in place of this one.
    pub(super) broker: Option<Tap>,
}

impl Template {
    /// Loads a program with `filter`.
    pub(super) fn load(&self, filter: &Program, hook: TcxHook) -> Result<Classifier, Error> {
        let context = match hook {
            TcxHook::Ingress => Context::Received,
            TcxHook::Egress => Context::Sent,
        };
        let Memory { rings, doorbells } = &self.memory;
        // Lanes beyond the number of CPUs have no ring.
        let doorbells = doorbells.iter().take(rings.entries() as usize);
        let doorbells: Vec<i32> = doorbells.map(|bell| bell.as_fd().as_raw_fd()).collect();
        let options = TapOptions {
            interface: translate::Options {
                context,
                hatype: self.interface.hardware_type,
                device_mac: self.interface.mac,
                ..translate::Options::default()
            },
            rings_fd: rings.as_fd().as_raw_fd(),
            doorbells: &doorbells,
            sizes: self.sizes,
            rx_hash: self.rx_hash,
            owner: self.attribution.as_ref().map(|Attribution { hooks, selection, sees_all }| {
                let interface = &self.interface;
                let sees_all = *sees_all && filter.constant().is_some_and(|bytes| bytes > 0);
                hooks.lookup(link_header(interface), interface.is_loopback(), sees_all, selection.as_ref())
            }),
            confinement: self.confinement,
        };
        let program = tap_program(filter, &options).map_err(|error| Error::Filter(error.to_string()))?;
        Ok(Classifier::load("strait_tap", &ebpf::encode(&program))?)
    }
}

/// Returns the bytes before the network header of a received frame; `None` if they are unknown.
fn link_header(interface: &Interface) -> Option<u8> {
    const ETHERNET: u8 = 14;
    match interface.link_type()? {
        1 => Some(ETHERNET),
        101 => Some(0),
        _ => None,
    }
}

/// Attached programs with their filter.
pub(super) struct Attachment {
    template: Template,
    filter: Program,
    /// The interface's namespace, because the directions can be changed in another one.
    namespace: Namespace,
    /// Links of this process.
    links: Vec<(TcxHook, Link)>,
    /// Hooks with a program of the broker.
    brokered: &'static [TcxHook],
}

impl Attachment {
    /// Attaches programs with `filter` for `directions`.
    pub(super) fn open(template: Template, filter: Program, directions: Directions) -> Result<Self, Error> {
        let namespace = Namespace::current()?;
        let mut attachment = Self { template, filter, namespace, links: Vec::new(), brokered: &[] };
        attachment.set_directions(directions)?;
        Ok(attachment)
    }

    /// Attaches and detaches programs, so that frames of `directions` are captured. After an error
    /// the earlier programs are attached.
    pub(super) fn set_directions(&mut self, directions: Directions) -> Result<(), Error> {
        let hooks: &'static [TcxHook] = match directions {
            Directions::In => &[TcxHook::Ingress],
            Directions::Out => &[TcxHook::Egress],
            Directions::Both => &[TcxHook::Ingress, TcxHook::Egress],
        };
        if let Some(broker) = &self.template.broker {
            broker.attach(&self.filter, hooks)?;
            self.brokered = hooks;
            return Ok(());
        }
        let mut added = Vec::new();
        for hook in hooks.iter().filter(|hook| !self.links.iter().any(|(attached, _)| attached == *hook)) {
            added.push((*hook, self.attach(*hook)?));
        }
        let is_partial = hooks.len() == 1 && !self.template.interface.is_loopback();
        if let Some(attribution) = self.template.attribution.as_ref().filter(|_| is_partial) {
            attribution.hooks.miss_connections();
        }
        self.links.append(&mut added);
        self.links.retain(|(hook, _)| hooks.contains(hook));
        Ok(())
    }

    fn attach(&self, hook: TcxHook) -> Result<Link, Error> {
        let program = self.template.load(&self.filter, hook)?;
        let attach = || Link::attach_tcx(&program, self.template.interface.index, hook);
        let attached = if self.namespace.is_current()? { attach() } else { self.namespace.run(attach)? };
        Ok(attached?)
    }

    /// Returns the number of bytes to which the programs cut each frame, if they match all frames.
    pub(super) fn accepted_bytes(&self) -> Option<u32> {
        let bytes = self.filter.constant()?.min(self.template.sizes.frame_bytes_max);
        (bytes > 0).then_some(bytes)
    }

    /// Returns the number of bytes of the longest frame.
    pub(super) fn frame_bytes_max(&self) -> u32 {
        self.template.sizes.frame_bytes_max
    }

    /// Replaces the programs by those of another filter, each between two frames.
    ///
    /// # Errors
    /// The kernel or the translation refuses the filter, or the privilege to load programs has been
    /// dropped. The earlier filter stays.
    pub(super) fn set_filter(&mut self, filter: &Program) -> Result<(), Error> {
        if *filter == self.filter {
            return Ok(());
        }
        if let Some(broker) = &self.template.broker {
            broker.attach(filter, self.brokered)?;
            self.filter = filter.clone();
            return Ok(());
        }
        let mut programs = Vec::with_capacity(self.links.len());
        for (hook, _) in &self.links {
            programs.push(self.template.load(filter, *hook)?);
        }
        for ((_, link), program) in self.links.iter().zip(&programs) {
            link.update(program)?;
        }
        self.filter = filter.clone();
        Ok(())
    }

    /// Detaches the programs. No frame enters the rings after this: the kernel waits for the
    /// programs that run.
    pub(super) fn stop(&mut self) {
        if let Some(broker) = &self.template.broker {
            // The programs are detached after an error too, because it ends the tap.
            let _ = broker.attach(&self.filter, &[]);
            self.brokered = &[];
        }
        self.links.clear();
    }
}
