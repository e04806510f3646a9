//! eBPF maps with 32-bit keys: arrays, XSKMAPs, hashes, storage of sockets, and arrays mapped into
//! this process.
//!
//! An XDP program counts in an array; [`MappedArray`] reads such counters without a system call.
//! The capture engine and the tests make them. A map is freed with its last descriptor, here or in
//! a loaded program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::program::ObjectInfo;
use super::{Attribute, Command, NAME_LEN, bpf, bpf_fd, btf, explain, object_name};
use crate::error::{Error, Kind, Result};
use crate::mmap::Mapping;

const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_LRU_HASH: u32 = 9;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_MAP_TYPE_SK_STORAGE: u32 = 24;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_F_NO_PREALLOC: u32 = 1 << 0;
const BPF_F_CLONE: u32 = 1 << 9;
const BPF_F_MMAPABLE: u32 = 1 << 10;

#[repr(C)]
pub(super) struct MapCreate {
    map_type: u32,
    pub(super) key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_LEN],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
}

// SAFETY: mirrors the struct for BPF_MAP_CREATE in linux/bpf.h; eleven u32 and 16 bytes leave no
// padding.
unsafe impl Attribute for MapCreate {}

#[repr(C)]
pub(super) struct MapElement {
    pub(super) map_fd: u32,
    pub(super) pad: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

// SAFETY: mirrors the struct for BPF_MAP_*_ELEM and BPF_MAP_GET_NEXT_KEY in linux/bpf.h; `pad` is
// the kernel's own alignment hole.
unsafe impl Attribute for MapElement {}

/// Head of `struct bpf_map_info`.
#[derive(Default)]
#[repr(C)]
struct MapInfoHead {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// Map with its descriptor.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    value_bytes: u32,
    entries: u32,
}

impl Map {
    /// Makes a `BPF_MAP_TYPE_ARRAY` of `entries` zeroed values of `value_bytes`.
    pub fn array(name: &str, value_bytes: u32, entries: u32) -> Result<Self> {
        Self::create(name, BPF_MAP_TYPE_ARRAY, value_bytes, entries, 0)
    }

    /// Makes an array that [`Map::mapped`] can map.
    pub fn mappable_array(name: &str, value_bytes: u32, entries: u32) -> Result<Self> {
        Self::create(name, BPF_MAP_TYPE_ARRAY, value_bytes, entries, BPF_F_MMAPABLE)
    }

    /// Makes a `BPF_MAP_TYPE_XSKMAP`: an AF_XDP socket for each receive queue.
    pub fn xskmap(name: &str, queues: u32) -> Result<Self> {
        Self::create(name, BPF_MAP_TYPE_XSKMAP, size_of::<u32>() as u32, queues, 0)
    }

    /// Makes a `BPF_MAP_TYPE_RINGBUF` of `bytes`, a power of two and a multiple of the page size.
    pub fn ring_buffer(name: &str, bytes: u32) -> Result<Self> {
        Self::create(name, BPF_MAP_TYPE_RINGBUF, 0, bytes, 0)
    }

    /// Makes a `BPF_MAP_TYPE_LRU_HASH` of `entries`: a new key replaces one that was not used for
    /// long if there is no room.
    pub fn lru_hash(name: &str, value_bytes: u32, entries: u32) -> Result<Self> {
        Self::create(name, BPF_MAP_TYPE_LRU_HASH, value_bytes, entries, 0)
    }

    /// Makes a `BPF_MAP_TYPE_SK_STORAGE`: a value for each socket, which the kernel frees with the
    /// socket and copies from a listening socket to the sockets of its connections. `value_bytes`
    /// is a multiple of 4.
    ///
    /// # Errors
    /// EINVAL or EPERM if the kernel does not accept the description of the values.
    pub fn socket_storage(name: &str, value_bytes: u32) -> Result<Self> {
        let types = btf::words(value_bytes / size_of::<u32>() as u32)?;
        let flags = BPF_F_NO_PREALLOC | BPF_F_CLONE;
        let attribute = MapCreate {
            btf_fd: types.as_raw_fd() as u32,
            btf_key_type_id: btf::WORD,
            btf_value_type_id: btf::WORDS,
            ..Self::attribute(name, BPF_MAP_TYPE_SK_STORAGE, value_bytes, 0, flags)
        };
        Self::create_with(name, attribute)
    }

    /// Takes a map that another process made.
    ///
    /// # Errors
    /// EINVAL if the descriptor is not a map's.
    pub fn from_descriptor(fd: OwnedFd) -> Result<Self> {
        let mut head = MapInfoHead::default();
        let mut attribute = ObjectInfo {
            bpf_fd: fd.as_raw_fd() as u32,
            info_len: size_of::<MapInfoHead>() as u32,
            info: std::ptr::from_mut(&mut head) as u64,
        };
        bpf(Command::ObjectInfo, &mut attribute)
            .map_err(|error| explain("read information about", "a BPF map", &error))?;
        Ok(Self { fd, value_bytes: head.value_size, entries: head.max_entries })
    }

    fn create(name: &str, map_type: u32, value_size: u32, max_entries: u32, map_flags: u32) -> Result<Self> {
        Self::create_with(name, Self::attribute(name, map_type, value_size, max_entries, map_flags))
    }

    pub(super) fn attribute(
        name: &str,
        map_type: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    ) -> MapCreate {
        MapCreate {
            map_type,
            // A ring buffer has neither keys nor values.
            key_size: if value_size == 0 { 0 } else { size_of::<u32>() as u32 },
            value_size,
            max_entries,
            map_flags,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: object_name(name),
            map_ifindex: 0,
            btf_fd: 0,
            btf_key_type_id: 0,
            btf_value_type_id: 0,
        }
    }

    fn create_with(name: &str, mut attribute: MapCreate) -> Result<Self> {
        let fd = bpf_fd(Command::MapCreate, &mut attribute)
            .map_err(|error| explain("create the BPF map", name, &error))?;
        Ok(Self { fd, value_bytes: attribute.value_size, entries: attribute.max_entries })
    }

    /// Writes the value at `index` of an array. A wrong length or index is [`Kind::Usage`].
    pub fn set(&self, index: u32, value: &[u8]) -> Result<()> {
        self.check_access(index, value.len())?;
        self.element(Command::MapUpdate, index, value.as_ptr() as u64)
            .map_err(|e| Self::failed("write", index, &e))
    }

    /// Puts an AF_XDP socket into an XSKMAP for the receive queue `queue`.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<()> {
        self.set(queue, &socket.as_raw_fd().to_ne_bytes())
    }

    /// Reads the value at `index` of an array into `value`.
    pub fn get(&self, index: u32, value: &mut [u8]) -> Result<()> {
        self.check_access(index, value.len())?;
        self.element(Command::MapLookup, index, value.as_mut_ptr() as u64)
            .map_err(|e| Self::failed("read", index, &e))
    }

    /// Reads the value of `key` of a hash into `value`. Returns false if there is none.
    pub fn look_up(&self, key: u32, value: &mut [u8]) -> Result<bool> {
        if value.len() != self.value_bytes as usize {
            let has = format!("it has values of {} bytes", self.value_bytes);
            return Err(Error::new(Kind::Usage, "look up in the BPF map", format!("key {key}"), has));
        }
        match self.element(Command::MapLookup, key, value.as_mut_ptr() as u64) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(explain("look up in the BPF map", format!("key {key}"), &error)),
        }
    }

    /// Maps a [`Map::mappable_array`] into this process.
    pub fn mapped(&self) -> Result<MappedArray> {
        let stride = (self.value_bytes as usize).next_multiple_of(size_of::<u64>());
        let entries = self.entries as usize;
        let len = (stride * entries).next_multiple_of(rustix::param::page_size());
        let mapping = Mapping::shared(self.fd.as_fd(), len, 0)?;
        Ok(MappedArray { mapping, slots: stride / size_of::<u64>(), entries })
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the size of a value.
    pub fn value_bytes(&self) -> u32 {
        self.value_bytes
    }

    /// Checks that the buffer has the length that the kernel reads or writes.
    fn check_access(&self, index: u32, len: usize) -> Result<()> {
        if index < self.entries && len == self.value_bytes as usize {
            return Ok(());
        }
        let has = format!("it has {} values of {} bytes", self.entries, self.value_bytes);
        Err(Error::new(Kind::Usage, "use the BPF map at", format!("index {index}, {len} bytes"), has))
    }

    fn element(&self, command: Command, index: u32, value: u64) -> io::Result<()> {
        let key = std::ptr::from_ref(&index) as u64;
        let mut attribute = MapElement { map_fd: self.fd.as_raw_fd() as u32, pad: 0, key, value, flags: 0 };
        bpf(command, &mut attribute).map(drop)
    }

    fn failed(what: &'static str, index: u32, error: &io::Error) -> Error {
        let operation = if what == "read" { "read the BPF map at" } else { "write the BPF map at" };
        Error::from_io(operation, format!("index {index}"), error)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Values of an array, shared with the programs that count in it.
#[derive(Debug)]
pub struct MappedArray {
    mapping: Mapping,
    slots: usize,
    entries: usize,
}

impl MappedArray {
    /// Returns the 64-bit counter in `slot` of the value at `index`; 0 if there is none.
    pub fn load(&self, index: usize, slot: usize) -> u64 {
        self.counter(index, slot).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Sets the counter in `slot` of the value at `index`; does nothing if there is none.
    pub fn store(&self, index: usize, slot: usize, value: u64) {
        if let Some(counter) = self.counter(index, slot) {
            counter.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn counter(&self, index: usize, slot: usize) -> Option<&AtomicU64> {
        if index >= self.entries || slot >= self.slots {
            return None;
        }
        let start = self.mapping.as_ptr().cast::<AtomicU64>();
        // SAFETY: index and slot are inside the mapping, which is page-aligned and lives as long as
        // `self`. The kernel writes there too, so the access is atomic.
        Some(unsafe { &*start.add(index * self.slots + slot) })
    }
}
