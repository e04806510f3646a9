//! Packets that the kernel dropped: how many, why, where, and their first bytes.
//!
//! [`Monitor`] attaches the program of [`strait_filter::drops`] to the tracepoint `skb:kfree_skb`
//! and reads its hash and its ring. `strait drops` shows the result. The tracepoint is found by its
//! name in the kernel's BTF, so tracefs is not needed.
//!
//! ```no_run
//! use strait_capture::drops::{Monitor, Options};
//!
//! let mut monitor = Monitor::open(&Options::default())?;
//! for (place, packets) in monitor.counts()? {
//!     println!("{packets} {}", monitor.names().reason(place.reason));
//! }
//! # Ok::<(), strait_capture::Error>(())
//! ```

mod reasons;
mod symbols;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use rustix::io::Errno;
use strait_filter::drops::{
    Copies, LOST, Offsets, Options as ProgramOptions, Record, STATE_BYTES, UNCOUNTED, program,
};
use strait_filter::ebpf;
use strait_sys::bpf::btf::Types;
use strait_sys::bpf::{Hash, Link, Map, MappedArray, RingBuffer, TracepointProgram, nested_runs};
use strait_sys::{Error as SystemError, Kind};

pub use strait_filter::drops::{ETHER_TYPES, IP_PROTOCOLS, Place};

use self::reasons::Reasons;
pub use self::symbols::Function;
use self::symbols::Symbols;
use crate::error::Error;
use crate::paths::stamp::Clock;

/// Name of the program and its maps in the kernel.
const NAME: &str = "strait_drops";
const TRACEPOINT: &str = "kfree_skb";
/// Function that frees the members of a packet, such as its other fragments, each as if it were a
/// dropped packet. Before Linux 6.2 it does so for delivered packets too.
const MEMBERS: &str = "skb_release_data";
/// Maximum number of places. Drops at further ones are only counted together.
pub const PLACES_MAX: u32 = 4096;
/// Maximum number of copied bytes of a packet.
pub const SNAPLEN_MAX: u32 = 4096;
/// Size of the ring for copied packets.
const RING_BYTES: u32 = 4 << 20;

const PRIVILEGE: &str = "needs CAP_BPF and CAP_PERFMON: run as root, or setcap \
    cap_bpf,cap_perfmon,cap_syslog+ep PROGRAM";
const REASONS: &str = "needs Linux 5.17, which introduced the reasons of drops";

/// Packets to count and to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Count the packets of all network namespaces, instead of those of this thread's and those of
    /// which the kernel does not show any.
    pub all_namespaces: bool,
    /// Count only packets of the interface with this index in this thread's network namespace.
    pub ifindex: Option<u32>,
    /// Copy the packets, each up to this number of bytes, at most [`SNAPLEN_MAX`].
    pub snaplen: Option<u32>,
}

/// Drops that have no place or no copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Drops at more than [`PLACES_MAX`] places.
    pub uncounted: u64,
    /// Drops while the program ran on the same CPU.
    pub nested: u64,
    /// Packets that were counted, but not copied because the ring was full.
    pub lost: u64,
}

/// Copy of a dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Place of the drop.
    pub place: Place,
    /// Nanoseconds since the epoch.
    pub timestamp_ns: u64,
    /// Length of the packet from its first copied byte.
    pub wire_len: u32,
    /// `LINKTYPE_ETHERNET` or `LINKTYPE_RAW`.
    pub link_type: u16,
    /// First bytes; empty for packets without a known header.
    pub bytes: &'a [u8],
}

/// Names of reasons and functions in the running kernel.
#[derive(Debug, Default)]
pub struct Names {
    reasons: Reasons,
    symbols: Symbols,
}

impl Names {
    /// Returns the kernel's name of a reason, without `SKB_DROP_REASON_`.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// Returns the function with this address; `None` if the kernel does not show addresses of
    /// functions to this process.
    pub fn function(&self, location: u64) -> Option<Function<'_>> {
        self.symbols.find(location)
    }

    /// Returns true if no function has a known address.
    pub fn lacks_functions(&self) -> bool {
        self.symbols.is_empty()
    }
}

/// Attached program, and the maps that it writes.
pub struct Monitor {
    counts: Hash,
    state: MappedArray,
    ring: Option<RingBuffer>,
    program: TracepointProgram,
    names: Arc<Names>,
    clock: Clock,
    namespace: u32,
    /// Attaches the program until its drop.
    link: Option<Link>,
}

impl Monitor {
    /// Attaches the program.
    ///
    /// # Errors
    /// [`Kind::Refused`] if a privilege is missing, or the kernel has no reasons of drops, no
    /// tracepoint or no BTF.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let types = Types::of_kernel()?;
        let reasons = Reasons::of(&types)?.ok_or_else(|| missing("enum skb_drop_reason"))?;
        let tracepoint = types.tracepoints([TRACEPOINT])?[0].ok_or_else(|| missing(TRACEPOINT))?;
        let namespace = own_namespace()?;
        let symbols = Symbols::of_kernel();
        let (counts, state) = maps().map_err(explain)?;
        let snaplen = options.snaplen.map(|snaplen| snaplen.clamp(1, SNAPLEN_MAX));
        let ring = snaplen.map(|_| RingBuffer::new(NAME, RING_BYTES)).transpose().map_err(explain)?;
        let copies = ring.as_ref().zip(snaplen);
        let settings = ProgramOptions {
            counts_fd: counts.as_fd().as_raw_fd(),
            state_fd: state.as_fd().as_raw_fd(),
            offsets: offsets(&types)?,
            consumed: reasons.consumed(),
            members: symbols.range(MEMBERS),
            has_receiver: true,
            namespace: (!options.all_namespaces || options.ifindex.is_some()).then_some(namespace),
            ifindex: options.ifindex,
            copies: copies.map(|(ring, snaplen)| Copies { ring_fd: ring.as_fd().as_raw_fd(), snaplen }),
        };
        let program = load(&settings, tracepoint)?;
        let link = program.attach().map_err(explain)?;
        Ok(Self {
            counts,
            state: state.mapped()?,
            ring,
            program,
            names: Arc::new(Names { reasons, symbols }),
            clock: Clock::new(),
            namespace,
            link: Some(link),
        })
    }

    /// Returns the number of dropped packets at each place since the start, at most
    /// [`PLACES_MAX`] places.
    ///
    /// # Errors
    /// The kernel refuses bpf(2) to this process.
    pub fn counts(&self) -> Result<HashMap<Place, u64>, Error> {
        let mut counts = HashMap::new();
        self.counts.for_each(|key, value| {
            if let (Ok(key), Ok(value)) = (key.try_into(), value.try_into()) {
                counts.insert(Place::parse(key), u64::from_ne_bytes(value));
            }
        })?;
        Ok(counts)
    }

    /// Returns the drops so far that have no place or no copy.
    ///
    /// # Errors
    /// The kernel refuses bpf(2) to this process.
    pub fn missed(&self) -> Result<Missed, Error> {
        Ok(Missed {
            uncounted: self.state.load(0, UNCOUNTED / 8),
            nested: nested_runs(self.program.as_fd())?,
            lost: self.state.load(0, LOST / 8),
        })
    }

    /// Returns the next copied packet, if there is one. Packets of different CPUs are ordered by
    /// the start of their copy.
    pub fn next_packet(&mut self) -> Option<Packet<'_>> {
        let bytes = self.ring.as_mut()?.next_record()?;
        let (record, bytes) = Record::parse(bytes)?;
        self.clock.refresh(record.timestamp_ns);
        Some(Packet {
            place: record.place,
            timestamp_ns: self.clock.realtime_ns(record.timestamp_ns),
            wire_len: record.wire_len,
            link_type: record.link_type as u16,
            bytes,
        })
    }

    /// Detaches the program. The counts and the copied packets stay.
    pub fn stop(&mut self) {
        self.link = None;
    }

    /// Returns the names of reasons and functions.
    pub fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// Returns the inode number of this thread's network namespace at the start.
    pub fn namespace(&self) -> u32 {
        self.namespace
    }
}

fn maps() -> strait_sys::Result<(Hash, Map)> {
    let counts = Hash::new(NAME, Place::BYTES as u32, size_of::<u64>() as u32, PLACES_MAX)?;
    Ok((counts, Map::mappable_array(NAME, STATE_BYTES as u32, 1)?))
}

/// Loads the program. Before Linux 6.11 the tracepoint has no receiving socket, and the verifier
/// refuses the load of that argument.
fn load(settings: &ProgramOptions, tracepoint: i32) -> Result<TracepointProgram, Error> {
    let encode = |settings: &ProgramOptions| {
        let program = program(settings).map_err(|error| Error::Filter(error.to_string()))?;
        Ok::<_, Error>(ebpf::encode(&program))
    };
    let [with, without] =
        [*settings, ProgramOptions { has_receiver: false, ..*settings }].map(|settings| encode(&settings));
    let (with, without) = (with?, without?);
    let load = |has_receiver: bool| {
        TracepointProgram::load(NAME, if has_receiver { &with } else { &without }, tracepoint)
    };
    Ok(with_receiver_or_without(load).map_err(explain)?)
}

/// Loads the program that reads the receiving socket, or the other one if the verifier refuses it.
/// After other failures, such as a lack of memory, the other one would count packets of UDP sockets
/// for no namespace.
fn with_receiver_or_without<T>(load: impl Fn(bool) -> strait_sys::Result<T>) -> strait_sys::Result<T> {
    match load(true) {
        Err(error) if error.is_one_of(&[Errno::ACCESS]) => load(false),
        loaded => loaded,
    }
}

/// Names the privileges that only this program needs.
fn explain(error: SystemError) -> SystemError {
    let lacks_privilege = error.is_one_of(&[Errno::PERM]);
    if lacks_privilege { error.remedy(PRIVILEGE) } else { error }
}

fn missing(name: impl Into<String>) -> SystemError {
    SystemError::new(Kind::Refused, "find in the kernel's BTF", name, "this kernel has none").remedy(REASONS)
}

fn offsets(types: &Types) -> Result<Offsets, Error> {
    let found = types.members(Offsets::MEMBERS)?;
    let mut offsets = [0; Offsets::MEMBERS.len()];
    for ((offset, found), (structure, member)) in offsets.iter_mut().zip(found).zip(Offsets::MEMBERS) {
        *offset = found.ok_or_else(|| missing(format!("{structure}.{member}")))?;
    }
    Ok(Offsets::new(offsets).ok_or_else(|| missing("structures of less than 32 KiB"))?)
}

/// Returns the inode number of this thread's network namespace.
fn own_namespace() -> Result<u32, Error> {
    const PATH: &str = "/proc/thread-self/ns/net";
    let status =
        rustix::fs::stat(PATH).map_err(|errno| SystemError::os("look up", PATH, errno.raw_os_error()))?;
    // The kernel's numbers of namespaces have 32 bits.
    Ok(status.st_ino as u32)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns the attempts to load, if the first one fails with this error.
    fn attempts(errno: Errno) -> Vec<bool> {
        let attempts = RefCell::default();
        let load = |has_receiver: bool| {
            let attempts: &RefCell<Vec<bool>> = &attempts;
            attempts.borrow_mut().push(has_receiver);
            if has_receiver { Err(SystemError::os("load", NAME, errno.raw_os_error())) } else { Ok(()) }
        };
        let _ = with_receiver_or_without(load);
        attempts.into_inner()
    }

    #[test]
    fn only_a_refusal_of_the_verifier_leaves_out_the_receiver() {
        assert_eq!(attempts(Errno::ACCESS), [true, false]);
        for errno in [Errno::PERM, Errno::NOMEM, Errno::AGAIN, Errno::TOOBIG] {
            assert_eq!(attempts(errno), [true], "{errno}");
        }
    }
}
