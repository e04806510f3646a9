//! Programs that record which process uses a socket, attached as long as the session lives.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use strait_filter::ebpf::{self, Instruction};
use strait_filter::owner::{
    CHANGES, Casts, FAILURES, FILES_FUNCTION, Lookup, Maps, Offsets, Owner as Record, STATE_BYTES, Selection,
    Use, files_program, use_program,
};
use strait_sys::bpf::btf::Types;
use strait_sys::bpf::{
    CgroupHook, CgroupProgram, IteratorProgram, Link, Map, MappedArray, TracepointProgram,
};
use strait_sys::{Error as SystemError, Kind};

use super::cgroups::Root;
use crate::error::Error;
use crate::live_counters::KernelCounters;

/// Maximum number of processes with known details. The kernel replaces those that
/// used no new socket for the longest time.
const PROCESSES_MAX: u32 = 1 << 15;
/// Name of the programs and maps in the kernel.
const NAME: &str = "strait_owner";
/// Hooks of the root cgroup and so of all processes.
const CGROUP_HOOKS: [(CgroupHook, Use); 5] = [
    (CgroupHook::Create, Use::Create),
    (CgroupHook::Connect4, Use::Address),
    (CgroupHook::Connect6, Use::Address),
    (CgroupHook::Send4, Use::Address),
    (CgroupHook::Send6, Use::Address),
];

/// Attached programs and their maps. The kernel detaches them when the process ends, even if it is
/// killed.
pub(crate) struct Hooks {
    storage: Map,
    owners: Map,
    state: MappedArray,
    offsets: Offsets,
    casts: Casts,
    /// The capture has every SYN of its interface.
    sees_connections: AtomicBool,
    /// Counters of the capture's rings.
    counters: OnceLock<Arc<dyn KernelCounters>>,
    /// Held for its drop, which detaches the programs.
    _links: Vec<Link>,
}

impl Hooks {
    /// Attaches the programs, and then records the owners of the sockets that are open.
    ///
    /// # Errors
    /// [`Kind::Refused`] if a privilege or a kernel feature is missing.
    pub(crate) fn attach() -> Result<Self, Error> {
        let types = Types::of_kernel()?;
        let offsets = offsets(&types)?;
        let casts = casts(&types)?;
        let storage = Map::socket_storage(NAME, Record::BYTES as u32)?;
        let owners = Map::lru_hash(NAME, Record::BYTES as u32, PROCESSES_MAX)?;
        let state = Map::mappable_array(NAME, STATE_BYTES as u32, 1)?;
        let maps = Maps {
            storage_fd: storage.as_fd().as_raw_fd(),
            owners_fd: owners.as_fd().as_raw_fd(),
            state_fd: state.as_fd().as_raw_fd(),
        };
        let program = |of| encoded(use_program(of, &maps, &offsets));
        let mut links = Vec::new();
        let tracepoints = types.tracepoints(Use::TRACEPOINTS.map(|(name, ..)| name))?;
        for ((name, of, is_needed), id) in Use::TRACEPOINTS.into_iter().zip(tracepoints) {
            match id {
                Some(id) => links.push(TracepointProgram::load(NAME, &program(of)?, id)?.attach()?),
                None if is_needed => return Err(missing(name).into()),
                None => {}
            }
        }
        let root = root_cgroup()?;
        for (hook, of) in CGROUP_HOOKS {
            links.push(CgroupProgram::load(NAME, &program(of)?, hook)?.attach(root.as_fd())?);
        }
        // After the others are attached, so that no socket is missed between the two.
        let [files] = types.functions([FILES_FUNCTION])?;
        let files = files.ok_or_else(|| missing(FILES_FUNCTION))?;
        IteratorProgram::load(NAME, &encoded(files_program(&maps, &offsets))?, files)?.iterate()?;
        Ok(Self {
            storage,
            owners,
            state: state.mapped()?,
            offsets,
            casts,
            sees_connections: AtomicBool::new(true),
            counters: OnceLock::new(),
            _links: links,
        })
    }

    /// Returns the lookup for the tap's programs on an interface with this link header. A received
    /// packet of a connection need not be looked up if the capture `sees_all` packets in both
    /// directions and no selection depends on it.
    pub(crate) fn lookup<'a>(
        &self,
        link_header: Option<u8>,
        is_loopback: bool,
        sees_all: bool,
        selection: Option<&'a Selection>,
    ) -> Lookup<'a> {
        if !sees_all {
            self.miss_connections();
        }
        Lookup {
            storage_fd: self.storage.as_fd().as_raw_fd(),
            offsets: self.offsets,
            casts: self.casts,
            link_header,
            is_loopback,
            only_syn: sees_all && !is_loopback && selection.is_none(),
            selection,
        }
    }

    /// Records that the capture may miss the start of a connection: from now on no packet has the
    /// owner of those before it.
    pub(crate) fn miss_connections(&self) {
        self.sees_connections.store(false, Ordering::Relaxed);
    }

    /// Returns false if the capture may miss the start of a connection.
    pub(super) fn sees_connections(&self) -> bool {
        self.sees_connections.load(Ordering::Relaxed)
    }

    /// Sets the counters of the capture's rings.
    pub(crate) fn watch(&self, counters: Arc<dyn KernelCounters>) {
        // A second attempt to open the capture has other rings. It is one with a filter, whose
        // packets have no owner of those before them.
        let _ = self.counters.set(counters);
    }

    /// Returns the number of packets that the capture has lost.
    pub(super) fn drops(&self) -> Result<u64, Error> {
        self.counters.get().map_or(Ok(0), |counters| counters.dropped())
    }

    /// Returns the number of changes of the details so far. Details that were read before the last
    /// change may be outdated.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.state.load(0, CHANGES / 8)
    }

    /// Returns the number of owners that could not be recorded because the kernel had no memory.
    pub(super) fn failures(&self) -> u64 {
        self.state.load(0, FAILURES / 8)
    }

    /// Returns the details of a process; `None` if other processes replaced them.
    pub(super) fn details(&self, pid: u32) -> Result<Option<Record>, Error> {
        let mut bytes = [0; Record::BYTES];
        Ok(self.owners.look_up(pid, &mut bytes)?.then(|| Record::parse(&bytes)))
    }
}

/// Returns a program in the form that the kernel takes.
fn encoded(program: Result<Vec<Instruction>, strait_filter::Error>) -> Result<Vec<u64>, Error> {
    let program = program.map_err(|error| Error::Filter(error.to_string()))?;
    Ok(ebpf::encode(&program))
}

/// Opens the root of the cgroups that this process sees.
fn root_cgroup() -> Result<File, Error> {
    let Some(root) = Root::find() else {
        let error =
            SystemError::new(Kind::Refused, "find", "the cgroups of version 2", "they are not mounted");
        return Err(error.remedy("mount -t cgroup2 none DIRECTORY; under ip netns exec, run as root").into());
    };
    let subject = || root.path().display().to_string();
    Ok(root.open().map_err(|error| SystemError::from_io("open", subject(), &error))?)
}

/// Returns the identifiers of conversions in the running kernel.
fn casts(types: &Types) -> Result<Casts, Error> {
    let [to_sk_buff, to_structure] = types.functions(Casts::FUNCTIONS)?;
    let [of_context, of_structure] = Casts::FUNCTIONS;
    Ok(Casts {
        to_sk_buff: to_sk_buff.ok_or_else(|| missing(of_context))?,
        to_structure: to_structure.ok_or_else(|| missing(of_structure))?,
        inet6_ifaddr: types.structure(Casts::STRUCTURE)?.ok_or_else(|| missing(Casts::STRUCTURE))?,
    })
}

/// Returns the offsets in the running kernel's structures.
fn offsets(types: &Types) -> Result<Offsets, Error> {
    let found = types.members(Offsets::MEMBERS)?;
    let mut offsets = [0; Offsets::MEMBERS.len()];
    for ((offset, found), (structure, member)) in offsets.iter_mut().zip(found).zip(Offsets::MEMBERS) {
        *offset = found.ok_or_else(|| missing(format!("{structure}.{member}")))?;
    }
    Ok(Offsets::new(offsets).ok_or_else(|| missing("structures of less than 32 KiB"))?)
}

fn missing(name: impl Into<String>) -> SystemError {
    SystemError::new(Kind::Refused, "find in the kernel's BTF", name, "this kernel has none")
        .remedy("capture without --owner, --process and --container")
}
