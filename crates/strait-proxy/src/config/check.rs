//! Checks of a configuration beyond the form of its values: bounds that depend on each other, and
//! the system's directories, files and room.
//!
//! [`crate::config::settings`] asks for the bounds at each start and reload, `--check-config` for the
//! system too. Nothing is made or changed.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rustix::fs::{Access, access, statvfs};
use strait_transfer::output;

use crate::config::error::{Error, Result};
use crate::config::file::{Abandoned, Config};
use crate::config::limits::BUFFER_BYTES;

/// Workers at most.
const WORKERS_MAX: usize = 256;
/// Bytes of an object in memory at most: it is read in one piece.
const MEMORY_OBJECT_MAX: ByteSize = ByteSize::mib(16);
/// The store's smallest segments are 1 MiB; it needs one for each worker and these beside.
const SEGMENTS_BESIDE: u64 = 6;

/// An error with a line for each problem, if there is one.
pub(crate) fn refused(problems: &[String]) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(Error::Config(problems.join("\n"))) }
}

/// Values out of bounds. Each text begins with the key.
pub(crate) fn bounds(config: &Config) -> Vec<String> {
    let (cache, limits) = (&config.cache, &config.limits);
    let (workers, object) = (config.workers, cache.memory_object);
    let is_past_end = matches!(cache.abandoned, Abandoned::Past(percent) if percent > 100);
    // Without memory nothing is kept there, whatever its size.
    let is_over_memory = cache.memory.as_u64() > 0 && object > cache.memory;
    let (object, memory) = (size(object), size(cache.memory));
    let ahead = limits.request_ahead;
    [
        (workers > WORKERS_MAX, format!("workers = {workers}: {WORKERS_MAX} are the most; 0 starts one a processor")),
        (is_past_end, "cache.abandoned: past is a part in per cent, from 0 to 100, as { past = 80 }".to_owned()),
        (cache.memory_object > MEMORY_OBJECT_MAX, format!("cache.memory_object = {object}: 16MiB is the most")),
        (is_over_memory, format!("cache.memory_object = {object}: larger than cache.memory = {memory}, where such objects are kept; lower it, or raise cache.memory")),
        (config.access.connect_ports.contains(&0), "access.connect_ports: ports are 1 to 65535, as [443]".to_owned()),
        (limits.connections == 0, "limits.connections = 0: nobody could connect; 1 is the least".to_owned()),
        (limits.origin_connections == 0, "limits.origin_connections = 0: no request would reach an origin; 1 is the least".to_owned()),
        (ahead.as_u64() > BUFFER_BYTES as u64, format!("limits.request_ahead = {}: 32KiB is the most", size(ahead))),
    ]
    .into_iter()
    .filter_map(|(is_wrong, text)| is_wrong.then_some(text))
    .chain(too_small(config))
    .chain(parts(config))
    .collect()
}

/// Parts that are larger than the whole, and memory that holds no body.
fn parts(config: &Config) -> impl Iterator<Item = String> {
    let limits = &config.limits;
    let (connections, memory) = (limits.origin_connections, limits.request_ahead_memory);
    let background = crate::config::limits::background(limits).of_origin;
    let larger = |key: &str, part: Option<usize>, of: &str, whole: usize| {
        let part = part.filter(|part| *part > whole)?;
        Some(format!("limits.{key} = {part}: more than limits.{of} = {whole}; lower it, or raise that"))
    };
    let body = ByteSize::b(BUFFER_BYTES as u64);
    let small = |key: &str, memory: Option<ByteSize>| {
        let memory = memory.filter(|memory| memory.as_u64() > 0 && *memory < body)?;
        Some(format!("limits.{key} = {}: {} is the least, for one body", size(memory), size(body)))
    };
    let own = limits.request_ahead_memory_per_client;
    let too_much = own.filter(|own| *own > memory).map(|own| {
        let (own, memory) = (size(own), size(memory));
        format!(
            "limits.request_ahead_memory_per_client = {own}: more than limits.request_ahead_memory = {memory}; lower it, or raise that"
        )
    });
    let (per_client, fetches) = (limits.origin_connections_per_client, limits.background_fetches);
    let fetches_per_client = limits.background_fetches_per_client;
    [
        larger("origin_connections_per_client", per_client, "origin_connections", connections),
        larger("background_fetches", fetches, "origin_connections", connections),
        larger("background_fetches_per_client", fetches_per_client, "background_fetches", background),
        small("request_ahead_memory", Some(memory)),
        small("request_ahead_memory_per_client", own),
        too_much,
    ]
    .into_iter()
    .flatten()
}

/// A store that has no room for its workers.
fn too_small(config: &Config) -> Option<String> {
    config.cache.dir.as_ref()?;
    let workers = match config.workers {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        workers => workers.min(WORKERS_MAX),
    };
    let least = workers as u64 + SEGMENTS_BESIDE;
    let has = config.cache.size;
    (has < ByteSize::mib(least))
        .then(|| format!("cache.size = {}: {least}MiB are the least with {workers} workers", size(has)))
}

/// A size as it can be written in the file.
fn size(size: ByteSize) -> String {
    let bytes = size.as_u64();
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("\"{}{unit}\"", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Directories and files that cannot be used. Each text begins with the key.
pub(crate) fn places(config: &Config) -> Vec<String> {
    let log = config.log.access.as_deref().filter(|path| *path != Path::new("-"));
    let mut problems = Vec::new();
    if let Some(dir) = config.cache.dir.as_deref()
        && let Err(why) = directory(dir)
    {
        problems.push(format!("cache.dir = \"{}\": {why}", dir.display()));
    }
    let wrong = log.and_then(|path| Some((path, log_file(path).err()?)));
    problems.extend(wrong.map(|(path, why)| format!("log.access = \"{}\": {why}", path.display())));
    problems
}

/// A store that is larger than its file system. The proxy runs with less room: it evicts earlier.
pub(crate) fn room(config: &Config) -> Option<String> {
    let dir = config.cache.dir.as_deref()?;
    too_large(config.cache.size, dir)
}

/// The path, or the nearest one above it that exists.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// A directory that exists, or can be made, and written to.
fn directory(path: &Path) -> Result<(), String> {
    let existing = existing(path);
    let shown = existing.display();
    if !existing.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    access(&existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("this user cannot write to {shown}: {}", std::io::Error::from(error)))
}

/// A file that can be appended to, or made in a directory that exists.
fn log_file(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err("this is a directory; name a file in it".to_owned());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.is_dir() {
        output::check(path).map_err(|error| error.to_string())?;
    }
    if path.exists() {
        return access(path, Access::WRITE_OK)
            .map_err(|error| format!("this user cannot write to it: {}", std::io::Error::from(error)));
    }
    if !parent.is_dir() {
        return Err(format!("{} is not a directory; make it first", parent.display()));
    }
    directory(parent)
}

/// A store that is larger than its file system.
fn too_large(asked: ByteSize, dir: &Path) -> Option<String> {
    let existing = existing(dir);
    // Where the file system does not say its size there is nothing to compare.
    let found = statvfs(&existing).ok()?;
    let total = ByteSize::b(found.f_blocks.saturating_mul(found.f_frsize));
    (asked > total).then(|| {
        let shown = existing.display();
        format!("cache.size = {}: the file system of {shown} has {total} in all; lower it", size(asked))
    })
}
