//! The far end of the route on which nothing copies: it acknowledges what comes and reads no byte.
//!
//! The program of [`strait_filter::acknowledger`] takes the segments away at the interface and notes how far they went; here is
//! the loop that sends what the peer's TCP would have said. Connections are made by a real listener.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};

use strait_filter::acknowledger::{self, CONNECTIONS, ENTRY_BYTES, NEXT_BYTE, OWN_BYTE};
use strait_packet::checksum::checksum;
use strait_sys::bpf::{Classifier, Link, Map};
use strait_sys::interface::Interface;
use strait_sys::packet::Socket;

use crate::error::{Error, Result};

const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
/// Without options (RFC 791, RFC 9293).
const IP_BYTES: u16 = 20;
const TCP_BYTES: u16 = 20;
const TCP: u8 = 6;
const DO_NOT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;
/// The length of the TCP header in words, and ACK.
const HEADER_WORDS_AND_ACK: [u8; 2] = [5 << 4, 0x10];

/// Who the connections are between.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The sender's Ethernet address, and that of the interface here.
    pub macs: [[u8; 6]; 2],
    /// Their IPv4 addresses; those here may differ in the last octet, one connection each.
    pub addresses: [Ipv4Addr; 2],
}

/// The program on its interface, with what it writes to. It is gone when this is dropped.
#[derive(Debug)]
pub struct Acknowledger {
    _program: Link,
    map: Map,
    socket: Socket,
    ends: Ends,
}

impl Acknowledger {
    /// Takes what comes in on `interface` of the calling thread's namespace from now on. The sender must not use TCP timestamps.
    ///
    /// # Errors
    /// Refused without CAP_NET_ADMIN and CAP_BPF; unsupported before Linux 6.6.
    pub fn attach(interface: &str, ends: Ends) -> Result<Self> {
        let index = Interface::find(interface)?.index;
        let map = Map::mappable_array("segments", ENTRY_BYTES, CONNECTIONS)?;
        let program = acknowledger::program(map.as_fd().as_raw_fd())
            .map_err(|error| Error::Void(format!("the acknowledging program: {error}")))?;
        let program = Link::attach_ingress(&Classifier::load("acknowledge", &program)?, index)?;
        let socket = Socket::open(interface)?;
        socket.bind_for_sending(index)?;
        Ok(Self { _program: program, map, socket, ends })
    }

    /// Acknowledges until `ended`, without a pause: a CPU of its own is what it needs.
    pub fn run(&self, ended: &AtomicBool) -> Result<()> {
        let segments = self.map.mapped()?;
        let mut told = [0; CONNECTIONS as usize];
        while !ended.load(Ordering::Relaxed) {
            for (connection, told) in told.iter_mut().enumerate() {
                let next = segments.load(connection, NEXT_BYTE);
                if next != *told {
                    *told = next;
                    let own = segments.load(connection, OWN_BYTE);
                    self.socket.send(&self.ends.acknowledgement(connection as u8, next, own))?;
                }
            }
        }
        Ok(())
    }
}

impl Ends {
    /// The frame in which the peer says that everything before the byte `next` has come; port above, number below in both.
    fn acknowledgement(&self, last_octet: u8, next: u64, own: u64) -> Vec<u8> {
        let [sender, mut receiver] = self.addresses.map(|address| address.octets());
        receiver[3] = last_octet;
        let mut ip = [&[0x45, 0][..], &(IP_BYTES + TCP_BYTES).to_be_bytes(), &[0, 0]].concat();
        ip.extend([&DO_NOT_FRAGMENT.to_be_bytes()[..], &[TTL, TCP, 0, 0], &receiver, &sender].concat());
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let ports = [((own >> 32) as u16).to_be_bytes(), ((next >> 32) as u16).to_be_bytes()].concat();
        let numbers = [(own as u32).to_be_bytes(), (next as u32).to_be_bytes()].concat();
        // The largest window, neither checksum nor urgent pointer yet.
        let mut tcp = [&ports[..], &numbers, &HEADER_WORDS_AND_ACK, &[0xff, 0xff, 0, 0, 0, 0]].concat();
        let pseudo = [&receiver[..], &sender, &[0, TCP], &TCP_BYTES.to_be_bytes()].concat();
        let sum = checksum(&[&pseudo[..], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        [&self.macs[0][..], &self.macs[1], &ETHERTYPE_IPV4, &ip, &tcp].concat()
    }
}
