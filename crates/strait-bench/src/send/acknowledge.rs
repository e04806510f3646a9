//! Far end of the route without copies: acknowledges segments without reading their bytes.
//!
//! The program of [`strait_filter::acknowledger`] drops segments at the interface and records their
//! end. The loop here sends the acknowledgements of the peer's TCP. A real listener accepts the
//! connections.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};

use strait_filter::acknowledger::{self, CONNECTIONS, ENTRY_BYTES, NEXT_BYTE, OWN_BYTE};
use strait_os::interface::Interface;
use strait_packet::checksum::checksum;
use strait_sys::bpf::{Classifier, Link, Map, TcxHook};
use strait_sys::packet::Socket;

use crate::error::{Error, Result};

const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
/// Header lengths without options (RFC 791, RFC 9293).
const IP_BYTES: u16 = 20;
const TCP_BYTES: u16 = 20;
const TCP: u8 = 6;
const DO_NOT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;
/// TCP header length in words, and the ACK flag.
const HEADER_WORDS_AND_ACK: [u8; 2] = [5 << 4, 0x10];

/// Endpoints of the connections.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Ethernet addresses of the sender and of the interface here.
    pub macs: [[u8; 6]; 2],
    /// IPv4 addresses of both. The far addresses differ in the last octet, one connection each.
    pub addresses: [Ipv4Addr; 2],
}

/// Attached program, with the map that it writes. Dropping this detaches it.
#[derive(Debug)]
pub struct Acknowledger {
    _program: Link,
    map: Map,
    socket: Socket,
    ends: Ends,
}

impl Acknowledger {
    /// Starts to take segments that arrive on `interface` of the calling thread's namespace. The
    /// sender must not use TCP timestamps.
    ///
    /// # Errors
    /// Refused without CAP_NET_ADMIN and CAP_BPF; unsupported before Linux 6.6.
    pub fn attach(interface: &str, ends: Ends) -> Result<Self> {
        let index = Interface::find(interface)?.index;
        let map = Map::mappable_array("segments", ENTRY_BYTES, CONNECTIONS)?;
        let program = acknowledger::program(map.as_fd().as_raw_fd())
            .map_err(|error| Error::Invalid(format!("the acknowledging program: {error}")))?;
        let program = Link::attach_tcx(&Classifier::load("acknowledge", &program)?, index, TcxHook::Ingress)?;
        let socket = Socket::open(interface)?;
        socket.bind_for_sending(index)?;
        Ok(Self { _program: program, map, socket, ends })
    }

    /// Acknowledges until `ended` in a busy loop, which needs its own CPU.
    pub fn run(&self, ended: &AtomicBool) -> Result<()> {
        let segments = self.map.mapped()?;
        let mut acknowledged = [0; CONNECTIONS as usize];
        while !ended.load(Ordering::Relaxed) {
            for (connection, acknowledged) in acknowledged.iter_mut().enumerate() {
                let next = segments.load(connection, NEXT_BYTE);
                if next != *acknowledged {
                    *acknowledged = next;
                    let own = segments.load(connection, OWN_BYTE);
                    self.socket.send(&self.ends.acknowledgement(connection as u8, next, own))?;
                }
            }
        }
        Ok(())
    }
}

impl Ends {
    /// Returns the frame that acknowledges all bytes before `next`. Both numbers hold a port in the
    /// upper half and a sequence number in the lower.
    fn acknowledgement(&self, last_octet: u8, next: u64, own: u64) -> Vec<u8> {
        let [sender, mut receiver] = self.addresses.map(|address| address.octets());
        receiver[3] = last_octet;
        let mut ip = [&[0x45, 0][..], &(IP_BYTES + TCP_BYTES).to_be_bytes(), &[0, 0]].concat();
        ip.extend([&DO_NOT_FRAGMENT.to_be_bytes()[..], &[TTL, TCP, 0, 0], &receiver, &sender].concat());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let ports = [((own >> 32) as u16).to_be_bytes(), ((next >> 32) as u16).to_be_bytes()].concat();
        let numbers = [(own as u32).to_be_bytes(), (next as u32).to_be_bytes()].concat();
        // The largest window; checksum and urgent pointer are 0.
        let mut tcp = [&ports[..], &numbers, &HEADER_WORDS_AND_ACK, &[0xff, 0xff, 0, 0, 0, 0]].concat();
        let pseudo = [&receiver[..], &sender, &[0, TCP], &TCP_BYTES.to_be_bytes()].concat();
        let sum = checksum(&[&pseudo[..], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        [&self.macs[0][..], &self.macs[1], &ETHERTYPE_IPV4, &ip, &tcp].concat()
    }
}
