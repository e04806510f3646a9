//! Rows of the table `tls`, with the fingerprints JA3 (<https://github.com/salesforce/ja3>) and JA4
//! (<https://github.com/FoxIO-LLC/ja4>).

use std::fmt::Write as _;

use md5::Md5;
use sha2::{Digest, Sha256};
use strait_packet::protocol::ip;
use strait_packet::tls::{Hello, Sender, extension, hello};

use super::message::Message;
use super::rows::{Cell, MessageRow};

/// Characters of a hash in JA4.
const JA4_DIGITS: usize = 12;
/// Hash in JA4 of an empty list.
const JA4_EMPTY: &str = "000000000000";

/// Parses a hello.
pub(super) fn row(message: &Message) -> Option<MessageRow> {
    let mut buffer = Vec::new();
    let hello = hello(&message.bytes, &mut buffer).ok()??;
    let is_client = hello.sender == Sender::Client;
    let is_quic = message.headers.internet?.protocol == ip::UDP;
    let transport = if is_quic { 'q' } else { 't' };
    let protocols: Vec<&[u8]> = hello.protocols().collect();
    let cells = vec![
        Cell::text(if is_client { "client" } else { "server" }),
        Cell::Text(Some(version_name(version(&hello)))),
        Cell::bytes(hello.server_name().filter(|_| is_client)),
        Cell::bytes((!protocols.is_empty()).then(|| protocols.join(&b',')).as_deref()),
        Cell::optional(hello.ciphers().next().filter(|_| !is_client)),
        Cell::Text(Some(ja3(&hello))),
        Cell::Text(is_client.then(|| ja4(&hello, transport))),
    ];
    MessageRow::new(message, cells)
}

/// Returns the highest offered version, or the selected one.
fn version(hello: &Hello<'_>) -> u16 {
    hello.versions().filter(|version| !is_grease(*version)).max().unwrap_or(hello.legacy_version)
}

fn version_name(version: u16) -> String {
    match version {
        0x0304 => "1.3".into(),
        0x0303 => "1.2".into(),
        0x0302 => "1.1".into(),
        0x0301 => "1.0".into(),
        0x0300 => "SSL 3.0".into(),
        other => format!("0x{other:04x}"),
    }
}

/// Returns true for a reserved value that clients send to test servers (RFC 8701).
fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

/// Returns the hash JA3 of a client, or JA3S of a server.
fn ja3(hello: &Hello<'_>) -> String {
    let list = |values: &mut dyn Iterator<Item = u16>| {
        let values: Vec<String> =
            values.filter(|value| !is_grease(*value)).map(|value| value.to_string()).collect();
        values.join("-")
    };
    let mut text = format!(
        "{},{},{}",
        hello.legacy_version,
        list(&mut hello.ciphers()),
        list(&mut hello.extensions().map(|(kind, _)| kind))
    );
    if hello.sender == Sender::Client {
        let formats = &mut hello.point_formats().iter().map(|format| u16::from(*format));
        // Writing to a String cannot fail.
        let _ = write!(text, ",{},{}", list(&mut hello.groups()), list(formats));
    }
    hexadecimal(&Md5::digest(text))
}

/// Returns the fingerprint JA4 of a client. `transport` is `t` for TCP, and `q` for QUIC.
fn ja4(hello: &Hello<'_>, transport: char) -> String {
    let plain = |value: &u16| !is_grease(*value);
    let mut ciphers: Vec<u16> = hello.ciphers().filter(plain).collect();
    let mut extensions: Vec<u16> = hello.extensions().map(|(kind, _)| kind).filter(plain).collect();
    let version = match version(hello) {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0x0300 => "s3",
        0x0002 => "s2",
        _ => "00",
    };
    let name = if extensions.contains(&extension::SERVER_NAME) { 'd' } else { 'i' };
    let (cipher_count, extension_count) = (ciphers.len().min(99), extensions.len().min(99));
    let protocol = protocol_characters(hello.protocols().next().unwrap_or_default());
    ciphers.sort_unstable();
    extensions.retain(|kind| !matches!(*kind, extension::SERVER_NAME | extension::PROTOCOLS));
    extensions.sort_unstable();
    let algorithms: Vec<u16> = hello.signature_algorithms().filter(plain).collect();
    let mut second = hexadecimal_list(&extensions);
    if !algorithms.is_empty() {
        second = format!("{second}_{}", hexadecimal_list(&algorithms));
    }
    format!(
        "{transport}{version}{name}{cipher_count:02}{extension_count:02}{protocol}_{}_{}",
        short_hash(&hexadecimal_list(&ciphers), ciphers.is_empty()),
        short_hash(&second, extensions.is_empty())
    )
}

/// Returns the first and the last character of a protocol; of its hexadecimal form if one of them
/// is no letter or digit.
fn protocol_characters(protocol: &[u8]) -> String {
    let (Some(&first), Some(&last)) = (protocol.first(), protocol.last()) else { return "00".into() };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [char::from(first), char::from(last)].iter().collect();
    }
    format!("{:x}{:x}", first >> 4, last & 0xf)
}

fn short_hash(text: &str, is_empty: bool) -> String {
    if is_empty {
        return JA4_EMPTY.into();
    }
    let mut hash = hexadecimal(&Sha256::digest(text));
    hash.truncate(JA4_DIGITS);
    hash
}

fn hexadecimal_list(values: &[u16]) -> String {
    values.iter().map(|value| format!("{value:04x}")).collect::<Vec<_>>().join(",")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
