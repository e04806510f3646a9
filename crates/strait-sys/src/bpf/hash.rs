//! Hash of values by keys of any length, in which a program counts.
//!
//! The capture engine reads the numbers of dropped packets from one. Entries are never deleted: a
//! full hash refuses new keys.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::map::{Map, MapElement};
use super::{Command, bpf, bpf_fd, explain};
use crate::error::Result;

const BPF_MAP_TYPE_HASH: u32 = 1;

/// Hash map with its descriptor (`BPF_MAP_TYPE_HASH`).
#[derive(Debug)]
pub struct Hash {
    fd: OwnedFd,
    name: String,
    key_bytes: usize,
    value_bytes: usize,
    entries: u32,
}

impl Hash {
    /// Makes a hash of at most `entries` values. The kernel allocates all of them now.
    pub fn new(name: &str, key_bytes: u32, value_bytes: u32, entries: u32) -> Result<Self> {
        let mut attribute = Map::attribute(name, BPF_MAP_TYPE_HASH, value_bytes, entries, 0);
        attribute.key_size = key_bytes;
        let fd = bpf_fd(Command::MapCreate, &mut attribute)
            .map_err(|error| explain("create the BPF map", name, &error))?;
        let (key_bytes, value_bytes) = (key_bytes as usize, value_bytes as usize);
        Ok(Self { fd, name: name.into(), key_bytes, value_bytes, entries })
    }

    /// Calls `visit` with each key and its value. A key that is added meanwhile may be missing.
    ///
    /// # Errors
    /// EPERM if the kernel refuses bpf(2) to this process.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let mut before: Option<Vec<u8>> = None;
        let (mut key, mut value) = (vec![0; self.key_bytes], vec![0; self.value_bytes]);
        for _ in 0..self.entries {
            if !self.next_key(before.as_deref(), &mut key)? {
                break;
            }
            if self.look_up(&key, &mut value)? {
                visit(&key, &value);
            }
            before.get_or_insert_default().clone_from(&key);
        }
        Ok(())
    }

    /// Reads the key after `before`, or the first one. Returns false if there is none.
    fn next_key(&self, before: Option<&[u8]>, key: &mut [u8]) -> Result<bool> {
        let before = before.map_or(0, |before| before.as_ptr() as u64);
        self.found(self.element(Command::MapNextKey, before, key.as_mut_ptr() as u64))
    }

    fn look_up(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        self.found(self.element(Command::MapLookup, key.as_ptr() as u64, value.as_mut_ptr() as u64))
    }

    /// Callers pass addresses of `key_bytes` and, by the command, `key_bytes` or `value_bytes`.
    fn element(&self, command: Command, key: u64, value: u64) -> io::Result<()> {
        let mut attribute = MapElement { map_fd: self.fd.as_raw_fd() as u32, pad: 0, key, value, flags: 0 };
        bpf(command, &mut attribute).map(drop)
    }

    fn found(&self, result: io::Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(explain("read the BPF map", &self.name, &error)),
        }
    }
}

impl AsFd for Hash {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
