//! Client that requests random stored objects from a proxy that was just started.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strait_os::wait;

use super::object::{Object, mix_bits};
use super::replay::{TIMEOUT, read_head};
use crate::error::{Error, Result};

/// Interval between two attempts to connect.
const CONNECT_EVERY: Duration = Duration::from_micros(200);
/// Of so many requests, one is for an object that is not stored.
const UNKNOWN_EVERY: u64 = 64;

/// Objects of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) count: u32,
    pub(super) bytes: u64,
}

/// What happened after a start. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restarted {
    /// From the start of the process to the end of the first response, and of the first hit.
    pub first_response_ns: u64,
    /// See [`Self::first_response_ns`]; 0 without a hit.
    pub first_hit_ns: u64,
    /// Requests for stored objects that were answered from the cache.
    pub hits: u64,
    /// Requests for stored objects that were not.
    pub misses: u64,
    /// Longest time of a hit.
    pub slowest_hit_ns: u64,
    /// Requests for objects that are not stored.
    pub unknown: u64,
    /// Longest time of such a request.
    pub slowest_unknown_ns: u64,
    /// Peak memory of the proxy, in bytes.
    pub memory_bytes: u64,
}

impl Stored {
    pub(super) fn object(self, id: u64) -> Object {
        Object { size: self.bytes, id, cacheable: true }
    }
}

/// Requests objects for `time` after the first response of a process that was started at `began`.
///
/// # Errors
/// The proxy does not accept a connection in time, or a response is not complete; the signal.
pub(super) fn run(
    address: SocketAddr,
    stored: Stored,
    (began, time): (Instant, Duration),
    terminated: &AtomicBool,
) -> Result<Restarted> {
    let mut reader = BufReader::with_capacity(64 << 10, connect(address, began)?);
    let mut restarted = Restarted::default();
    let mut number = 0_u64;
    let mut end = None;
    while end.is_none_or(|end| Instant::now() < end) && !terminated.load(Ordering::Relaxed) {
        number += 1;
        let is_unknown = number.is_multiple_of(UNKNOWN_EVERY);
        let random = mix_bits(number) % u64::from(stored.count);
        let id = if is_unknown { u64::from(stored.count) + number } else { random };
        let begin = Instant::now();
        let is_hit = request(&mut reader, address, stored.object(id))?;
        end.get_or_insert_with(|| Instant::now() + time);
        let since_start = began.elapsed().as_nanos() as u64;
        restarted.note(is_unknown, is_hit, begin.elapsed().as_nanos() as u64, since_start);
    }
    Ok(restarted)
}

impl Restarted {
    fn note(&mut self, is_unknown: bool, is_hit: bool, took_ns: u64, since_start_ns: u64) {
        if self.first_response_ns == 0 {
            self.first_response_ns = since_start_ns;
        }
        match (is_unknown, is_hit) {
            (true, _) => {
                self.unknown += 1;
                self.slowest_unknown_ns = self.slowest_unknown_ns.max(took_ns);
            }
            (false, false) => self.misses += 1,
            (false, true) => {
                self.hits += 1;
                self.slowest_hit_ns = self.slowest_hit_ns.max(took_ns);
                if self.first_hit_ns == 0 {
                    self.first_hit_ns = since_start_ns;
                }
            }
        }
    }
}

/// Connects as soon as the proxy listens.
fn connect(address: SocketAddr, began: Instant) -> Result<TcpStream> {
    let failed = |error| Error::file(format!("connect to {address}"), error);
    let stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > TIMEOUT => return Err(failed(error)),
            Err(_) => wait::sleep(CONNECT_EVERY),
        }
    };
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

/// Requests an object. Returns true if the response is from the cache.
fn request(reader: &mut BufReader<TcpStream>, address: SocketAddr, object: Object) -> Result<bool> {
    let target = object.target();
    let failed = |error| Error::file(format!("request {target} from {address}"), error);
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    reader.get_mut().write_all(request.as_bytes()).map_err(failed)?;
    let head = read_head(reader).map_err(failed)?;
    let body = std::io::copy(&mut reader.by_ref().take(object.size), &mut std::io::sink()).map_err(failed)?;
    if head.length != Some(object.size) || body != object.size {
        return Err(Error::Invalid(format!(
            "{address} answers {target} with the length {:?} and {body} bytes",
            head.length
        )));
    }
    Ok(head.is_hit)
}
