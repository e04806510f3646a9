//! Capture paths: a folder for each, and the one table that dispatches to them.
//!
//! A path consists of its folder, the folder's `mod` line, and its line in the table below. The
//! folder has a type `Engine`, which implements [`engine::Engine`] and [`engine::Lend`], and a
//! [`spec::Spec`] for each name that users can give. The table generates [`Path`], the enums that
//! hold a path's engine, batch and iterator, and every match over paths in this crate.
//!
//! [`crate::Batch::try_each`] selects the path once per batch and runs a loop that is compiled for
//! that path; [`crate::Batch::frames`] selects it once per frame. Calls outside the hot path are
//! virtual.

mod auto;
pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod packet;
pub(crate) mod recv;
pub(crate) mod request;
pub(crate) mod spec;
#[cfg(test)]
mod staged;
pub(crate) mod stamp;
pub(crate) mod tap;
pub(crate) mod v2;
pub(crate) mod v3;
pub(crate) mod xdp;
pub(crate) mod zerocopy;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;

use strait_filter::cbpf::Program;
use strait_os::interface::Interface;

use self::engine::{Engine, Lend, Lent};
use self::request::Request;
use self::spec::{About, Interfaces, Opened};
use crate::booking::Booking;
use crate::directions::Directions;
use crate::error::Error;
use crate::frame::Frame;
use crate::link::ANY;

/// Description of [`Path::Auto`]: a macro, because an attribute takes no constant.
macro_rules! auto_description {
    () => {
        "The best packet-socket path; never takes packets away from the host"
    };
}

/// Generates the dispatch from lines of the form
/// `Variant(folder) { Name = SPEC: "description", … };`. `Variant` names the path in the generated
/// enums, `Name` is a variant of [`Path`], `SPEC` a constant in the folder.
macro_rules! paths {
    ($(
        $(#[$attribute:meta])*
        $variant:ident($folder:ident) {
            $($(#[$condition:meta])* $name:ident = $spec:ident: $description:literal),*
        };
    )+) => {
        /// Capture path, selected by the user.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Path {
            #[doc = auto_description!()]
            #[default]
            Auto,
            $($($(#[$condition])* #[doc = $description] $name,)*)+
        }

        impl Path {
            /// Every path.
            pub const ALL: &'static [Self] =
                &[Self::Auto, $($($(#[$condition])* Self::$name,)*)+];

            /// Returns the description in one line, without a full stop.
            pub fn description(self) -> &'static str {
                match self {
                    Self::Auto => auto_description!(),
                    $($($(#[$condition])* Self::$name => $description,)*)+
                }
            }

            const fn about(self) -> &'static About {
                match self {
                    Self::Auto => &auto::ABOUT,
                    $($($(#[$condition])* Self::$name => &$folder::$spec.about,)*)+
                }
            }

            /// Opens a capture.
            pub(crate) fn open(self, request: &Request<'_>) -> Result<Opened<AnyEngine>, Error> {
                match self {
                    Self::Auto => auto::open(request),
                    $($($(#[$condition])* Self::$name => {
                        let opened = ($folder::$spec.open)(request)?;
                        Ok(opened.map(|engine| AnyEngine::$variant(Box::new(engine))))
                    })*)+
                }
            }
        }

        /// Engine of any path.
        pub(crate) enum AnyEngine {
            $($(#[$attribute])* $variant(Box<$folder::Engine>),)+
        }

        impl AnyEngine {
            /// See [`Lend::ready`].
            #[inline]
            pub(crate) fn ready(&mut self, stopping: &AtomicBool) -> Result<bool, Error> {
                match self {
                    $($(#[$attribute])* Self::$variant(engine) => engine.ready(stopping),)+
                }
            }

            /// See [`Lend::take`].
            #[inline]
            pub(crate) fn take(&mut self, limit: usize) -> AnyBatch<'_> {
                match self {
                    $($(#[$attribute])* Self::$variant(engine) => AnyBatch::$variant(engine.take(limit)),)+
                }
            }
        }

        /// Calls outside the hot path are virtual.
        impl Deref for AnyEngine {
            type Target = dyn Engine + 'static;

            fn deref(&self) -> &(dyn Engine + 'static) {
                match self {
                    $($(#[$attribute])* Self::$variant(engine) => &**engine,)+
                }
            }
        }

        impl DerefMut for AnyEngine {
            fn deref_mut(&mut self) -> &mut (dyn Engine + 'static) {
                match self {
                    $($(#[$attribute])* Self::$variant(engine) => &mut **engine,)+
                }
            }
        }

        /// Batch of any path.
        pub(crate) enum AnyBatch<'lane> {
            /// No frames: the deadline passed, or a signal came.
            Empty,
            $($(#[$attribute])* $variant(<$folder::Engine as Lend>::Batch<'lane>),)+
        }

        impl AnyBatch<'_> {
            /// See [`Lent::len`].
            pub(crate) fn len(&self) -> usize {
                match self {
                    Self::Empty => 0,
                    $($(#[$attribute])* Self::$variant(batch) => batch.len(),)+
                }
            }

            /// See [`Lent::frames`].
            pub(crate) fn frames(&mut self) -> AnyFrames<'_> {
                match self {
                    Self::Empty => AnyFrames::Empty,
                    $($(#[$attribute])* Self::$variant(batch) => AnyFrames::$variant(batch.frames()),)+
                }
            }

            /// See [`Lent::count`].
            #[inline]
            pub(crate) fn count(&mut self, limit: usize, booking: &mut Booking<'_>) -> u64 {
                match self {
                    Self::Empty => 0,
                    $($(#[$attribute])* Self::$variant(batch) => batch.count(limit, booking),)+
                }
            }

            /// See [`Lent::try_each`].
            #[inline]
            pub(crate) fn try_each<E>(
                &mut self,
                limit: usize,
                booking: &mut Booking<'_>,
                take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
            ) -> Result<(), E> {
                match self {
                    Self::Empty => Ok(()),
                    $($(#[$attribute])* Self::$variant(batch) => batch.try_each(limit, booking, take),)+
                }
            }
        }

        /// Iterator over the frames of a batch of any path.
        pub(crate) enum AnyFrames<'batch> {
            Empty,
            $($(#[$attribute])*
            $variant(<<$folder::Engine as Lend>::Batch<'batch> as Lent>::Frames<'batch>),)+
        }

        impl<'batch> Iterator for AnyFrames<'batch> {
            type Item = Frame<'batch>;

            #[inline]
            fn next(&mut self) -> Option<Frame<'batch>> {
                match self {
                    Self::Empty => None,
                    $($(#[$attribute])* Self::$variant(frames) => frames.next(),)+
                }
            }
        }
    };
}

paths! {
    Recv(recv) { Recv = SPEC: "recvmmsg on AF_PACKET" };
    V2(v2) { V2 = SPEC: "TPACKET_V2 ring" };
    V3(v3) { V3 = SPEC: "TPACKET_V3 ring" };
    Xdp(xdp) {
        Xdp = FASTEST: "AF_XDP: zero-copy, else native copy, else generic",
        XdpZeroCopy = ZERO_COPY: "AF_XDP: zero-copy only",
        XdpNative = NATIVE: "AF_XDP: native XDP with copies only",
        XdpGeneric = GENERIC: "AF_XDP: generic XDP only"
    };
    Tap(tap) { Tap = SPEC: "tcx program that copies matching packets and lets all of them pass" };
    ZeroCopy(zerocopy) { ZeroCopy = SPEC: "PF_ZEROCOPY, on a NIC bound to the driver pf_zerocopy" };
    File(file) {};
    #[cfg(test)]
    Staged(staged) { #[cfg(test)] Staged = SPEC: "Frames that a test staged in memory" };
}

impl Path {
    /// Returns the name as users write it.
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// Returns the path with the name `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|path| path.name() == name)
    }

    /// Returns true if the path can capture on interfaces of this type. Whether the driver supports
    /// it is known only when the path is opened.
    pub fn suits(self, interface: &str) -> bool {
        let Ok(found) = Interface::find(interface) else { return false };
        match self.about().interfaces {
            Interfaces::Ethernet => found.is_ethernet(),
            Interfaces::Any => found.link_type().is_some(),
        }
    }

    /// Returns true if the captured frames reach neither the host nor another capture.
    pub fn takes_frames(self) -> bool {
        self.about().takes_frames
    }

    /// Returns the path that records the owners of frames on `interface` when this one is
    /// requested.
    ///
    /// # Errors
    /// [`Error::Usage`]: only the tap records owners, and it is for one interface.
    pub(crate) fn with_owners(self, interface: &Interface) -> Result<Self, Error> {
        match self {
            _ if interface.index == 0 => Err(Error::Usage(format!(
                "the owners of packets need the tap, which is for one interface and not for {ANY}: give one interface, \
                 as in -i eth0"
            ))),
            Self::Auto | Self::Tap => Ok(Self::Tap),
            other => Err(Error::Usage(format!(
                "--path {} does not record the owners of packets: use --path tap",
                other.name()
            ))),
        }
    }

    /// Refuses a filter that no session on this path accepts, see [`crate::Session::set_filter`].
    ///
    /// # Errors
    /// [`Error::Filter`]: AF_XDP cannot run it.
    pub fn check_filter(self, program: &Program) -> Result<(), Error> {
        (self.about().check_filter)(program)
    }

    /// Refuses directions that no session on this path captures, see
    /// [`crate::Session::set_directions`].
    ///
    /// # Errors
    /// [`Error::Usage`]: the path captures only received frames.
    pub fn check_directions(self, directions: Directions) -> Result<(), Error> {
        let about = self.about();
        if about.received_only { directions.refuse_sent(about.path) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
