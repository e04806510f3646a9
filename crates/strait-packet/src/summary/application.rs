//! Starts of messages of applications behind the length of a payload: `: HTTP: GET / HTTP/1.1`.
//!
//! HTTP/1, TLS, SIP and QUIC are found by their first bytes, on any port, DHCP by its ports. There
//! is no state between packets: only a message that begins with a payload is seen.

use std::fmt;

use super::Line;
use crate::http;
use crate::quic::{self, Packet};
use crate::tls::{self, Sender};

/// Maximum bytes of a first line; the rest is `...`.
const TEXT_LEN_MAX: usize = 200;
/// Characters between the texts of a line.
const SEPARATORS: &[u8] = b" ,:";
/// Ports of DHCP: server and client (RFC 2131 s4.1).
const DHCP_PORTS: [u16; 2] = [67, 68];

impl Line<'_> {
    /// Writes the message at the start of a segment.
    pub(super) fn stream_application(&mut self, payload: &[u8]) -> fmt::Result {
        if tls::is_hello(payload) {
            self.hello(payload)
        } else if http::is_head(payload) {
            self.first_line("HTTP", payload)
        } else {
            self.sip(payload)
        }
    }

    /// Writes the message in a datagram.
    pub(super) fn datagram_application(&mut self, payload: &[u8], ports: [u16; 2]) -> fmt::Result {
        if ports.iter().any(|port| DHCP_PORTS.contains(port)) {
            self.dhcp(payload)
        } else if quic::has_fixed_flag(payload) && quic::has_long_header(payload) {
            self.quic(payload)
        } else {
            self.sip(payload)
        }
    }

    fn hello(&mut self, payload: &[u8]) -> fmt::Result {
        let mut buffer = Vec::new();
        let Ok(hello) = tls::hello(payload, &mut buffer) else { return Ok(()) };
        // A hello of which the rest follows in other segments has a type.
        let is_client = hello.map_or(payload.get(5) == Some(&1), |hello| hello.sender == Sender::Client);
        write!(self.out, ": TLS {} hello", if is_client { "client" } else { "server" })?;
        let Some(hello) = hello else { return Ok(()) };
        if let Some(name) = hello.server_name().filter(|_| is_client) {
            self.out.write_str(", name ")?;
            self.text(name, SEPARATORS)?;
        }
        let mut room = TEXT_LEN_MAX;
        for (place, protocol) in hello.protocols().enumerate() {
            self.out.write_str(if place == 0 { ", alpn " } else { "," })?;
            let Some(left) = room.checked_sub(protocol.len() + 1) else { return self.out.write_str("...") };
            room = left;
            self.text(protocol, SEPARATORS)?;
        }
        Ok(())
    }

    fn quic(&mut self, payload: &[u8]) -> fmt::Result {
        let (version, destination, source) = match quic::packets(payload).next() {
            Some(Ok(Packet::Initial(initial))) => {
                (initial.version, initial.destination_id, initial.source_id)
            }
            Some(Ok(Packet::Retry { .. })) => return self.out.write_str(": QUIC retry"),
            _ => return Ok(()),
        };
        let version = if version == quic::Version::V1 { 1 } else { 2 };
        write!(self.out, ": QUIC initial, v{version}")?;
        for (name, id) in [("dcid", destination), ("scid", source)].iter().filter(|(_, id)| !id.is_empty()) {
            write!(self.out, ", {name} ")?;
            id.iter().try_for_each(|byte| write!(self.out, "{byte:02x}"))?;
        }
        Ok(())
    }

    /// Writes the type and the client's address of a DHCP message (RFC 2131 s2, RFC 2132 s9.6).
    fn dhcp(&mut self, payload: &[u8]) -> fmt::Result {
        const COOKIE: [u8; 4] = [99, 130, 83, 99];
        const COOKIE_AT: usize = 236;
        const ADDRESS_AT: usize = 28;
        const NAMES: [&str; 8] =
            ["discover", "offer", "request", "decline", "ack", "nak", "release", "inform"];
        let Some((fixed, rest)) = payload.split_at_checked(COOKIE_AT) else { return Ok(()) };
        let Some(options) = rest.strip_prefix(&COOKIE) else { return Ok(()) };
        let Some(kind) = dhcp_type(options) else { return Ok(()) };
        let name = usize::from(kind).checked_sub(1).and_then(|place| NAMES.get(place));
        write!(self.out, ": DHCP {}", name.unwrap_or(&"message"))?;
        for (place, byte) in fixed[ADDRESS_AT..ADDRESS_AT + 6].iter().enumerate() {
            write!(self.out, "{}{byte:02x}", if place == 0 { ", client " } else { ":" })?;
        }
        Ok(())
    }

    /// Writes the first line of a message of SIP (RFC 3261 s7).
    fn sip(&mut self, payload: &[u8]) -> fmt::Result {
        const VERSION: &[u8] = b"SIP/2.0";
        let line = first_line(payload);
        if !payload.first().is_some_and(u8::is_ascii_uppercase) {
            return Ok(());
        }
        let is_message =
            line.starts_with(VERSION) || line.strip_suffix(VERSION).is_some_and(|rest| rest.ends_with(b" "));
        if is_message { self.first_line("SIP", payload) } else { Ok(()) }
    }

    fn first_line(&mut self, name: &str, payload: &[u8]) -> fmt::Result {
        write!(self.out, ": {name}: ")?;
        self.text(first_line(payload), &[])
    }

    /// Writes bytes of a packet: those of `escaped`, and all that are no printable characters of
    /// ASCII, as `\x1b`.
    fn text(&mut self, bytes: &[u8], escaped: &[u8]) -> fmt::Result {
        let (shown, rest) = bytes.split_at(bytes.len().min(TEXT_LEN_MAX));
        for &byte in shown {
            match byte {
                b'\\' => self.out.write_str("\\\\")?,
                b' '..=b'~' if !escaped.contains(&byte) => self.out.write_char(char::from(byte))?,
                _ => write!(self.out, "\\x{byte:02x}")?,
            }
        }
        if rest.is_empty() { Ok(()) } else { self.out.write_str("...") }
    }
}

/// Returns the bytes before the end of the first line, of at most one more than is written.
fn first_line(payload: &[u8]) -> &[u8] {
    let start = &payload[..payload.len().min(TEXT_LEN_MAX + 1)];
    let end = start.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &start[..end.unwrap_or(start.len())]
}

/// Returns the message type in the options of DHCP.
fn dhcp_type(mut options: &[u8]) -> Option<u8> {
    const PAD: u8 = 0;
    const MESSAGE_TYPE: u8 = 53;
    const END: u8 = 255;
    loop {
        let (&code, rest) = options.split_first()?;
        match code {
            PAD => options = rest,
            END => return None,
            _ => {
                let (&len, rest) = rest.split_first()?;
                let (content, rest) = rest.split_at_checked(usize::from(len))?;
                if code == MESSAGE_TYPE {
                    return content.first().copied();
                }
                options = rest;
            }
        }
    }
}
