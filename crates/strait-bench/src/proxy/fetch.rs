//! Fetches one small response on a new connection: to test whether a proxy answers, and to read the
//! origin's counters.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::origin::{COUNT, Count};
use crate::error::{Error, Result};

/// Timeout of connecting and of each read.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a response in bytes.
const RESPONSE_BYTES_MAX: u64 = 64 << 10;

/// Returns the body of the response to `GET target`.
///
/// # Errors
/// There is no response, or its status is not 200.
pub(crate) fn body(address: SocketAddr, target: &str) -> Result<Vec<u8>> {
    let failed = |error| Error::file(format!("fetch {target} from {address}"), error);
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut response = Vec::new();
    stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut response).map_err(failed)?;
    let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    match head {
        Some(end) if response.starts_with(b"HTTP/1.1 200 ") => Ok(response.split_off(end + 4)),
        _ => {
            let line = String::from_utf8_lossy(&response);
            let line = line.lines().next().unwrap_or("nothing");
            Err(Error::Invalid(format!("{address} answers {target} with {line}")))
        }
    }
}

/// Opens a tunnel to `origin` through the proxy at `address` by CONNECT.
///
/// # Errors
/// The proxy does not open it.
pub(crate) fn tunnel(address: SocketAddr, origin: SocketAddr) -> Result<TcpStream> {
    let failed = |error| Error::file(format!("open a tunnel through {address}"), error);
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    let request = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut head = Vec::new();
    // The origin sends nothing before a request, so no byte after the head is read.
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(failed)?;
        head.extend_from_slice(&byte);
        if head.len() as u64 > RESPONSE_BYTES_MAX {
            return Err(failed(std::io::ErrorKind::InvalidData.into()));
        }
    }
    let line = String::from_utf8_lossy(&head);
    let line = line.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some("200") => Ok(stream),
        _ => Err(Error::Invalid(format!("{address} answers CONNECT with {line}"))),
    }
}

/// Returns the counters of the origin at `address`.
pub(crate) fn count(address: SocketAddr) -> Result<Count> {
    let output = body(address, COUNT)?;
    serde_json::from_slice(&output)
        .map_err(|error| Error::Invalid(format!("the origin returned no count: {error}")))
}
