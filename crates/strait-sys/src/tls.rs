//! kTLS: the kernel encrypts and decrypts on a TCP socket, so that sendfile(2) and splice(2) work
//! with TLS (Documentation/networking/tls.rst).
//!
//! The caller does the handshake and passes in the keys of TLS 1.3. From then on the socket sends
//! and receives plain data. A record of the peer that is not data ([`Record`]) makes read(2) fail
//! with EIO and splice(2) with EINVAL until [`receive_record`] takes it.

use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::{mem, ptr};

use crate::error::{Error, Kind, Result, check};

/// Maximum bytes of a record's data (RFC 8446, section 5.1).
pub const RECORD_BYTES_MAX: usize = 16 << 10;

/// Types of records (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// Direction of the bytes that a key protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent bytes.
    Transmit,
    /// Received bytes.
    Receive,
}

/// Keys of one direction, and the sequence number of its next record.
#[derive(Clone, Copy)]
pub struct Keys<'k> {
    /// Key of the cipher.
    pub key: Key<'k>,
    /// Base of each record's nonce (RFC 8446, section 5.3).
    pub iv: &'k [u8; 12],
    /// Number of records that were sent or received before.
    pub sequence: u64,
}

/// AES-GCM key.
#[derive(Clone, Copy)]
pub enum Key<'k> {
    /// 128 bits.
    Aes128(&'k [u8; 16]),
    /// 256 bits.
    Aes256(&'k [u8; 32]),
}

/// Record of a peer that is not data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// End of the peer's data (`close_notify`).
    End,
    /// Ticket for the next session (RFC 8446, section 4.6.1).
    Ticket,
    /// Any other record: an error, or new keys.
    Other,
}

/// Checks if the kernel has kTLS, with a loopback connection of its own.
///
/// # Errors
/// [`Kind::Refused`] if the kernel has no kTLS, or its module is not loaded.
pub fn probe() -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io("connect over", "the loopback", &error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let stream = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    attach(&stream)?;
    // Both directions need the same cipher.
    let keys = Keys { key: Key::Aes128(&[0; 16]), iv: &[0; 12], sequence: 0 };
    set_keys(&stream, Direction::Transmit, keys)?;
    set_keys(&stream, Direction::Receive, keys)
}

/// `setsockopt(TCP_ULP, "tls")`: prepares a connected socket for keys; its data does not change
/// before.
///
/// # Errors
/// [`Kind::Refused`] if the kernel has no kTLS; ENOTCONN if the connection has ended.
pub fn attach(socket: impl AsFd) -> Result<()> {
    let name = b"tls";
    // SAFETY: the option's value is three live bytes, and the length matches.
    let returned = unsafe {
        let len = name.len() as libc::socklen_t;
        libc::setsockopt(socket.as_fd().as_raw_fd(), libc::SOL_TCP, libc::TCP_ULP, name.as_ptr().cast(), len)
    };
    check(returned, ATTACH, "a TCP socket")
        .map(drop)
        .map_err(|error| lacking(error, ATTACH, "the kernel has no tls module", ["tls", "CONFIG_TLS"]))
}

/// `setsockopt(TLS_TX | TLS_RX)`: makes the kernel encrypt sent bytes, or decrypt received bytes,
/// from the next byte on.
///
/// # Errors
/// [`Kind::Refused`] if the kernel lacks the cipher.
pub fn set_keys(socket: impl AsFd, direction: Direction, keys: Keys<'_>) -> Result<()> {
    let info = |cipher_type| libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type };
    let [s0, s1, s2, s3, iv @ ..] = *keys.iv;
    let (salt, rec_seq) = ([s0, s1, s2, s3], keys.sequence.to_be_bytes());
    match keys.key {
        Key::Aes128(key) => {
            let (info, key) = (info(libc::TLS_CIPHER_AES_GCM_128), *key);
            set(socket, direction, &libc::tls12_crypto_info_aes_gcm_128 { info, iv, key, salt, rec_seq })
        }
        Key::Aes256(key) => {
            let (info, key) = (info(libc::TLS_CIPHER_AES_GCM_256), *key);
            set(socket, direction, &libc::tls12_crypto_info_aes_gcm_256 { info, iv, key, salt, rec_seq })
        }
    }
}

/// Directory of the modules of each kernel release, in which modprobe(8) looks for them.
const MODULES: &str = "/lib/modules";
const ATTACH: &str = "switch to kTLS";
const SET_KEYS: &str = "set the TLS keys of";

/// Explains ENOENT, by which the kernel reports a missing module; the call determines which one.
/// `module` is its name and its option in the kernel's configuration.
fn lacking(error: Error, operation: &'static str, cause: &str, module: [&str; 2]) -> Error {
    match error.errno() {
        Some(libc::ENOENT) => {
            let release = rustix::system::uname();
            let modules = Path::new(MODULES).join(&*release.release().to_string_lossy());
            let remedy = load(module, &modules);
            Error::new(Kind::Refused, operation, "a TCP socket", cause).remedy(remedy)
        }
        _ => error,
    }
}

/// Returns the remedy for a missing module. `modules` is the directory of the kernel's modules.
fn load([name, option]: [&str; 2], modules: &Path) -> String {
    if modules.is_dir() {
        return format!("modprobe {name}");
    }
    format!(
        "boot a kernel with {option}; in a container, run modprobe {name} on its host ({} does not exist here, \
         so modprobe finds no module)",
        modules.display()
    )
}

/// Passes keys to the kernel. `T` is one of `struct tls12_crypto_info_*` of `linux/tls.h`.
fn set<T>(socket: impl AsFd, direction: Direction, keys: &T) -> Result<()> {
    let option = match direction {
        Direction::Transmit => libc::TLS_TX,
        Direction::Receive => libc::TLS_RX,
    };
    // SAFETY: the value is live and has the given length; the kernel copies it.
    let returned = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_TLS,
            option,
            ptr::from_ref(keys).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(returned, SET_KEYS, "a TCP socket")
        .map(drop)
        .map_err(|error| lacking(error, SET_KEYS, "the kernel has no AES-GCM", ["gcm", "CONFIG_CRYPTO_GCM"]))
}

/// Buffer for one control message of one byte, aligned as `struct cmsghdr` must be.
#[repr(C)]
union Control {
    bytes: [u8; CONTROL_BYTES],
    _aligned: libc::cmsghdr,
}

// SAFETY: CMSG_SPACE only computes a length.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(1) } as usize;

/// Sends the alert `close_notify`: no more data follows (RFC 8446, section 6.1).
///
/// # Errors
/// EAGAIN if a non-blocking socket has no room.
pub fn send_end(socket: impl AsFd) -> Result<()> {
    const CLOSE_NOTIFY: [u8; 2] = [1, 0];
    let mut bytes = CLOSE_NOTIFY;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut control = Control { bytes: [0; CONTROL_BYTES] };
    let message = header(&mut parts, &mut control);
    // SAFETY: the message's parts and its control buffer are live. The buffer has room for one
    // message of one byte, to which CMSG_FIRSTHDR returns a pointer.
    let returned = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (*first).cmsg_level = libc::SOL_TLS;
        (*first).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*first).cmsg_len = libc::CMSG_LEN(1) as _;
        libc::CMSG_DATA(first).write(ALERT);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags)
    };
    check(returned as libc::c_int, "send close_notify on", "a TCP socket").map(drop)
}

/// Receives the peer's next record that is not data, after a read or a splice failed because of it.
///
/// # Errors
/// EAGAIN if there is none; EIO if the record is data after all, which is lost.
pub fn receive_record(socket: impl AsFd) -> Result<Record> {
    const OPERATION: &str = "receive a record on";
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    let mut control = Control { bytes: [0; CONTROL_BYTES] };
    let (kind, len) = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut message = header(&mut parts, &mut control);
        // SAFETY: the message's parts and its control buffer are live and have the given lengths.
        // CMSG_FIRSTHDR returns null or a pointer to a message that the kernel has written into the
        // buffer.
        unsafe {
            let fd = socket.as_fd().as_raw_fd();
            let returned = libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT);
            let len = check(returned as libc::c_int, OPERATION, "a TCP socket")?;
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            let is_kind = !first.is_null()
                && (*first).cmsg_level == libc::SOL_TLS
                && (*first).cmsg_type == libc::TLS_GET_RECORD_TYPE;
            (is_kind.then(|| libc::CMSG_DATA(first).read()), len as usize)
        }
    };
    match (kind, &bytes[..len]) {
        (Some(ALERT), [_, 0]) => Ok(Record::End),
        (Some(HANDSHAKE), [4, ..]) => Ok(Record::Ticket),
        (Some(ALERT | HANDSHAKE), _) => Ok(Record::Other),
        _ => Err(Error::os(OPERATION, "a TCP socket", libc::EIO)),
    }
}

fn header(parts: &mut [IoSliceMut<'_>], control: &mut Control) -> libc::msghdr {
    // SAFETY: zeroes are a message without a name, parts and control messages.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = ptr::from_mut(control).cast();
    message.msg_controllen = CONTROL_BYTES as _;
    message
}

#[cfg(test)]
mod tests;
