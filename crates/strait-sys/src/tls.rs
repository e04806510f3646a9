//! kTLS: whether the kernel encrypts on a TCP socket, so that sendfile(2) can serve TLS (Documentation/networking/tls.rst).

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use crate::error::{Error, Result, check};

/// Asks a connection over the loopback to itself (`TCP_ULP`, "tls").
///
/// # Errors
/// Refused where the kernel has no kTLS, or its module is not loaded.
pub fn probe() -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io("connect over", "the loopback", &error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let stream = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let name = b"tls";
    // SAFETY: the option's value is three live bytes, and the length says so.
    let returned = unsafe {
        let len = name.len() as libc::socklen_t;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_TCP, libc::TCP_ULP, name.as_ptr().cast(), len)
    };
    check(returned, "switch to kTLS", "a TCP socket").map(drop).map_err(|error| match error.errno() {
        Some(libc::ENOENT) => error.with_kind(crate::error::Kind::Refused).remedy("modprobe tls"),
        _ => error,
    })
}
