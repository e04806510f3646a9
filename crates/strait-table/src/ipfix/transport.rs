//! Collectors, and connections to them.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};

/// Maximum length of a message over TCP.
pub(super) const TCP_BYTES_MAX: usize = 16 << 10;
/// Maximum and minimum MTU that messages over UDP use: beyond the first link most paths have that
/// of Ethernet, and a message of 512 bytes is sent on every path (RFC 7011 section 10.3.3).
const MTU_MAX: usize = 1500;
const UDP_BYTES_MIN: usize = 512;
/// Lengths of headers before a message over UDP.
const IPV4_UDP: usize = 20 + 8;
const IPV6_UDP: usize = 40 + 8;
/// Time limit for a connection to one address.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Transport of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams: messages can be lost, and templates are sent again.
    Udp,
    /// A stream.
    Tcp,
}

/// Receiver of messages.
#[derive(Clone, Debug)]
pub struct Collector {
    /// HOST:PORT, for messages to the user.
    pub name: String,
    /// Its addresses; the first one that works is used.
    pub addresses: Vec<SocketAddr>,
    /// Transport of messages.
    pub transport: Transport,
    /// Observation domain: number of this exporter at its address.
    pub domain: u32,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
        };
        write!(f, "{} over {transport}", self.name)
    }
}

/// Open connection.
#[derive(Debug)]
pub(super) enum Connection {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Connection {
    /// Connects to the first address that works. A write fails if the collector takes nothing for
    /// `write_limit`.
    pub(super) fn open(collector: &Collector, write_limit: Duration) -> io::Result<Self> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in collector.addresses.iter().take(ADDRESSES_MAX) {
            let opened = match collector.transport {
                Transport::Udp => udp(address).map(Self::Udp),
                Transport::Tcp => tcp(address, write_limit).map(Self::Tcp),
            };
            match opened {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Sends a whole message. Fails between two writes if `is_over`: a collector can take a byte at
    /// a time.
    pub(super) fn send(&mut self, message: &[u8], is_over: impl Fn() -> bool) -> io::Result<()> {
        match self {
            Self::Udp(socket) => socket.send(message).map(drop),
            Self::Tcp(stream) => {
                check_open(stream)?;
                write_until(stream, message, is_over)
            }
        }
    }

    /// Returns and clears the error that the network has reported for an earlier message.
    pub(super) fn take_error(&self) -> io::Result<()> {
        let error = match self {
            Self::Udp(socket) => socket.take_error(),
            Self::Tcp(stream) => stream.take_error(),
        };
        error?.map_or(Ok(()), Err)
    }

    /// Returns the maximum length of a message, so that its packet is not fragmented.
    pub(super) fn message_bytes_max(&self) -> usize {
        let Self::Udp(socket) = self else { return TCP_BYTES_MAX };
        let is_ipv4 = socket.local_addr().is_ok_and(|address| address.is_ipv4());
        let mtu = if is_ipv4 { sockopt::ip_mtu(socket) } else { sockopt::ipv6_mtu(socket) };
        let headers = if is_ipv4 { IPV4_UDP } else { IPV6_UDP };
        let mtu = mtu.map_or(MTU_MAX, |mtu| mtu as usize).min(MTU_MAX);
        mtu.saturating_sub(headers).max(UDP_BYTES_MIN)
    }
}

fn udp(address: &SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    Ok(socket)
}

fn tcp(address: &SocketAddr, write_limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, CONNECT_LIMIT)?;
    stream.set_write_timeout(Some(write_limit))?;
    Ok(stream)
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], is_over: impl Fn() -> bool) -> io::Result<()> {
    let slow = |cause| io::Error::new(ErrorKind::TimedOut, cause);
    while !bytes.is_empty() {
        if is_over() {
            return Err(slow("it takes bytes too slowly"));
        }
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(slow("it takes no more bytes"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fails if the collector has closed the connection: the first write after that would succeed, and
/// its message would be lost. Collectors send nothing.
fn check_open(stream: &TcpStream) -> io::Result<()> {
    let mut byte = [0];
    match recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::Error::new(ErrorKind::BrokenPipe, "it has closed the connection")),
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
