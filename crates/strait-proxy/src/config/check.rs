//! Checks of a configuration beyond the form of its values: bounds that depend on each other, and
//! directories, files and disk space.
//!
//! [`crate::config::settings`] checks the bounds at each start and reload; `--check-config` also
//! checks the system. Nothing is created or changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rustix::fs::{Access, access, statvfs};
use strait_os::output;

use crate::config::edge::Route;
use crate::config::error::{Error, Result};
use crate::config::file::{Abandoned, Cache, Config};
use crate::config::limits::BUFFER_BYTES;

/// Maximum of concurrent requests of an HTTP/2 connection.
const HTTP2_STREAMS_MAX: u32 = 1000;
/// Maximum of workers.
const WORKERS_MAX: usize = 256;
/// Largest object in memory: it is read in one piece.
const MEMORY_OBJECT_MAX: ByteSize = ByteSize::mib(16);
/// MiB of the store in addition to one per worker: more than the segments that it needs.
const MIB_EXTRA: u64 = 6;

/// Returns an error with a line for each problem, if there are any.
pub(crate) fn refused(problems: &[String]) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(Error::Config(problems.join("\n"))) }
}

/// Returns a text for each value out of bounds. Each begins with the key.
pub(crate) fn bounds(config: &Config) -> Vec<String> {
    let (cache, limits) = (&config.cache, &config.limits);
    let (workers, object) = (config.workers, cache.memory_object);
    let is_past_end = matches!(cache.abandoned, Abandoned::Past(percent) if percent > 100);
    // Without a memory cache the size of its objects does not matter.
    let is_over_memory = cache.memory.as_u64() > 0 && object > cache.memory;
    let (object, memory) = (size(object), size(cache.memory));
    let ahead = limits.request_ahead;
    [
        (workers > WORKERS_MAX, format!("workers = {workers}: the maximum is {WORKERS_MAX}; 0 starts one per processor")),
        (is_past_end, "cache.abandoned: past is a percentage from 0 to 100, for example { past = 80 }".to_owned()),
        (cache.memory_object > MEMORY_OBJECT_MAX, format!("cache.memory_object = {object}: the maximum is 16MiB")),
        (is_over_memory, format!("cache.memory_object = {object}: larger than cache.memory = {memory}, which has to hold such objects; lower it, or raise cache.memory")),
        (cache.dir.is_none() && !cache.further_dirs.is_empty(), "cache.further_dirs: cache.dir is not set, and is the first directory".to_owned()),
        (has_twice(cache), "cache.further_dirs: a directory occurs twice".to_owned()),
        (config.access.connect_ports.contains(&0), "access.connect_ports: ports are 1 to 65535, for example [443]".to_owned()),
        (limits.connections == 0, "limits.connections = 0: no client could connect; the minimum is 1".to_owned()),
        (limits.origin_connections == 0, "limits.origin_connections = 0: no request would reach an origin; the minimum is 1".to_owned()),
        (!(1..=HTTP2_STREAMS_MAX).contains(&config.http2.streams), format!("http2.streams = {}: 1 to {HTTP2_STREAMS_MAX} are possible", config.http2.streams)),
        (ahead.as_u64() > BUFFER_BYTES as u64, format!("limits.request_ahead = {}: the maximum is 32KiB", size(ahead))),
    ]
    .into_iter()
    .filter_map(|(is_wrong, text)| is_wrong.then_some(text))
    .chain(too_small(config))
    .chain(address_twice(config))
    .chain(shares(config))
    .collect()
}

/// Returns true if a directory of the cache occurs twice.
fn has_twice(cache: &Cache) -> bool {
    let mut dirs = BTreeSet::new();
    cache.dirs().any(|dir| !dirs.insert(dir))
}

/// Returns a text if an address occurs twice: it can be opened only once.
fn address_twice(config: &Config) -> Option<String> {
    let mut seen = BTreeSet::new();
    let all = config.listen.iter().chain(&config.tls.listen).chain(&config.admin.listen);
    let twice = all.filter(|address| address.port() != 0).find(|address| !seen.insert(**address))?;
    Some(format!("listen: {twice} occurs twice among listen, tls.listen and admin.listen"))
}

/// Returns a text for each share that exceeds its limit, and for memory that cannot hold a body.
fn shares(config: &Config) -> impl Iterator<Item = String> {
    let limits = &config.limits;
    let (connections, memory) = (limits.origin_connections, limits.request_ahead_memory);
    let background = crate::config::limits::background(limits).of_origin;
    let larger = |key: &str, share: Option<usize>, of: &str, whole: usize| {
        let share = share.filter(|share| *share > whole)?;
        Some(format!(
            "limits.{key} = {share}: more than limits.{of} = {whole}; lower it, or raise limits.{of}"
        ))
    };
    let body = ByteSize::b(BUFFER_BYTES as u64);
    let small = |key: &str, memory: Option<ByteSize>| {
        let memory = memory.filter(|memory| memory.as_u64() > 0 && *memory < body)?;
        Some(format!("limits.{key} = {}: the minimum is {}, for one body", size(memory), size(body)))
    };
    let own = limits.request_ahead_memory_per_client;
    let too_much = own.filter(|own| *own > memory).map(|own| {
        let (own, memory) = (size(own), size(memory));
        format!(
            "limits.request_ahead_memory_per_client = {own}: more than limits.request_ahead_memory = {memory}; lower it, or raise limits.request_ahead_memory"
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

/// Returns a text if the store is too small for its workers.
fn too_small(config: &Config) -> Option<String> {
    config.cache.dirs().next()?;
    let workers = match config.workers {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        workers => workers.min(WORKERS_MAX),
    };
    let mib_min = workers as u64 + MIB_EXTRA;
    let has = config.cache.size;
    (has < ByteSize::mib(mib_min))
        .then(|| format!("cache.size = {}: the minimum is {mib_min}MiB with {workers} workers", size(has)))
}

/// Formats a size as the file writes it.
fn size(size: ByteSize) -> String {
    let bytes = size.as_u64();
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("\"{}{unit}\"", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Returns a text if the access log cannot be used. It begins with the key.
pub(crate) fn log(config: &Config) -> Option<String> {
    let path = config.log.access.as_deref().filter(|path| *path != Path::new("-"))?;
    let why = log_file(path).err()?;
    Some(format!("log.access = \"{}\": {why}", path.display()))
}

/// Returns a text for each directory that cannot be used. Each begins with the key.
pub(crate) fn directories(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    for dir in config.cache.dirs() {
        let key = if config.cache.dir.as_deref() == Some(dir) { "cache.dir" } else { "cache.further_dirs" };
        problems.extend(directory(dir).err().map(|why| format!("{key} = \"{}\": {why}", dir.display())));
    }
    for (site, config) in config.site.iter().enumerate() {
        for (route, config) in config.route.iter().enumerate() {
            let why = config.files.as_ref().and_then(|dir| Some((dir, unreadable(dir)?)));
            problems.extend(why.map(|(dir, why)| {
                format!("site[{}].route[{}].files = \"{}\": {why}", site + 1, route + 1, dir.display())
            }));
        }
    }
    problems
}

/// Returns a text if a directory of static files cannot be read.
fn unreadable(dir: &Path) -> Option<String> {
    if !dir.is_dir() {
        return Some("this is not a directory".to_owned());
    }
    let denied = access(dir, Access::EXEC_OK).err()?;
    Some(format!("this user cannot read it: {}", std::io::Error::from(denied)))
}

/// Returns a text for each route with files in a directory that lacks the route's path: all its
/// requests would get 404. Each begins with the key.
pub(crate) fn missing_paths(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for (site, config) in config.site.iter().enumerate() {
        for (index, route) in config.route.iter().enumerate() {
            let Some((dir, path)) = missing_path(route) else { continue };
            let (site, index) = (site + 1, index + 1);
            let (dir, remedy) = (dir.display(), if route.rewrite.is_none() { REWRITE } else { "" });
            notes.push(format!(
                "site[{site}].route[{index}].files = \"{dir}\": it has no \"{path}\", so all requests get 404{remedy}"
            ));
        }
    }
    notes
}

const REWRITE: &str = "; the whole path names the file, unless rewrite = \"/\" removes that of the route";

/// Returns the directory of a route, and the path that all its names of files begin with, if the
/// directory exists and has no such path. Only files that a route with one path alone names need
/// not be directories.
fn missing_path(route: &Route) -> Option<(&Path, &str)> {
    let dir = route.files.as_deref().filter(|dir| dir.is_dir())?;
    let path = route.rewrite.as_ref().or(route.path.as_ref()).or(route.path_exact.as_ref())?;
    let path = path.trim_matches('/');
    (!path.is_empty() && !path.contains('{') && !dir.join(path).exists()).then_some((dir, path))
}

/// Returns a text if the store is larger than its file system. The proxy can run with it, but
/// evicts earlier.
pub(crate) fn room(config: &Config) -> Option<String> {
    config.cache.dirs().find_map(|dir| too_large(config.cache.size, dir))
}

/// Returns the path or its nearest ancestor that exists.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Checks that a directory exists or can be created, and is writable.
fn directory(path: &Path) -> Result<(), String> {
    let existing = existing(path);
    let shown = existing.display();
    if !existing.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    access(&existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("this user cannot write to {shown}: {}", std::io::Error::from(error)))
}

/// Checks that a file can be appended to, or created in an existing directory.
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
        return Err(format!("{} is not a directory; create it first", parent.display()));
    }
    directory(parent)
}

/// Returns a text if the store is larger than its file system.
fn too_large(configured: ByteSize, dir: &Path) -> Option<String> {
    let existing = existing(dir);
    // Some file systems report no size.
    let found = statvfs(&existing).ok()?;
    let total = ByteSize::b(found.f_blocks.saturating_mul(found.f_frsize));
    (configured > total && total.as_u64() > 0).then(|| {
        let shown = existing.display();
        format!(
            "cache.size = {}: the file system of {shown} has {total} in total; lower it",
            size(configured)
        )
    })
}
