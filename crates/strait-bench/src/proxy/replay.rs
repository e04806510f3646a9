//! Client that requests the objects of a trace, each after the response to the last one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::object::Object;
use crate::cache::trace::{Request, Trace};
use crate::error::{Error, Result};

/// Timeout of connecting and of each read.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a response head in bytes.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// Requests all objects on one connection.
///
/// # Errors
/// A response is not complete, or its status is not 200; the signal.
pub(super) fn run(address: SocketAddr, trace: &Trace, terminated: &AtomicBool) -> Result<()> {
    let failed = |error| Error::file(format!("replay a trace to {address}"), error);
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    for &Request { object, bytes } in trace {
        if terminated.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the replay was interrupted".to_owned()));
        }
        let target = Object { size: bytes, id: object, cacheable: true }.target();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        reader.get_mut().write_all(request.as_bytes()).map_err(failed)?;
        let Head { length, .. } = read_head(&mut reader).map_err(failed)?;
        if length != Some(bytes) {
            return Err(Error::Invalid(format!("{address} answers {target} with the length {length:?}")));
        }
        let read = std::io::copy(&mut reader.by_ref().take(bytes), &mut std::io::sink()).map_err(failed)?;
        if read != bytes {
            return Err(Error::Invalid(format!("{address} ended the body of {target} after {read} bytes")));
        }
    }
    Ok(())
}

/// Head of a response.
pub(super) struct Head {
    /// Its Content-Length; `None` if the status is not 200 or there is no length.
    pub(super) length: Option<u64>,
    /// True if its Cache-Status says that it is from the cache (RFC 9211).
    pub(super) is_hit: bool,
}

/// Reads the head of a response.
pub(super) fn read_head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Head> {
    let mut head = reader.by_ref().take(HEAD_BYTES_MAX);
    let (mut line, mut length, mut is_hit) = (String::new(), None, false);
    head.read_line(&mut line)?;
    let is_ok = line.starts_with("HTTP/1.1 200 ");
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok(Head { length: length.filter(|_| is_ok), is_hit });
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        } else if name.eq_ignore_ascii_case("cache-status") {
            is_hit = value.split(';').any(|part| part.trim() == "hit");
        }
    }
}
