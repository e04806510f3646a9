//! Messages from packets: a datagram is one, and a stream begins one with a segment that looks like
//! it. Segments in order complete it; another segment ends it.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use strait_packet::protocol::ip;
use strait_packet::{tls, udp};

use super::message::{Application, MESSAGE_BYTES_MAX, Message, Missed, SelectedMessages};
use crate::headers::Headers;

/// Maximum number of incomplete messages: those of two streams with the same hash exclude each
/// other.
const SLOTS: usize = 4096;
/// Ports of DNS, its multicast variant (RFC 6762) and LLMNR (RFC 4795).
const DNS_PORT: u16 = 53;
const DATAGRAM_PORTS: [u16; 3] = [DNS_PORT, 5353, 5355];
/// Starts of heads of HTTP/1.
const HTTP_STARTS: [&[u8]; 11] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"HTTP/1.1 ",
    b"HTTP/1.0 ",
];

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    addresses: [IpAddr; 2],
    ports: [u16; 2],
    vlan: Option<u16>,
}

/// Incomplete message.
#[derive(Debug)]
struct Partial {
    stream: Stream,
    next_sequence: u32,
    message: Message,
}

/// Assembly of the messages of a capture.
pub(crate) struct Assembly {
    selected: SelectedMessages,
    slots: Vec<Option<Box<Partial>>>,
    /// Number of incomplete messages.
    partial: usize,
    /// Random, so that a sender cannot choose streams that collide.
    random: RandomState,
    missed: Missed,
}

impl Assembly {
    pub(crate) fn new(selected: SelectedMessages) -> Self {
        let slots = if selected.is_empty() { 0 } else { SLOTS };
        Self {
            selected,
            slots: std::iter::repeat_with(|| None).take(slots).collect(),
            partial: 0,
            random: RandomState::new(),
            missed: Missed::default(),
        }
    }

    pub(crate) fn is_needed(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(crate) fn missed(&self) -> &Missed {
        &self.missed
    }

    /// Counts messages that the queue has lost.
    pub(crate) fn count_lost(&mut self, messages: usize) {
        self.missed.queue_full += messages as u64;
    }

    /// Takes a packet; `segment` is its transport header and payload. Complete messages are added
    /// to `messages`.
    pub(crate) fn take(&mut self, headers: &Headers, segment: &[u8], messages: &mut Vec<Message>) {
        let (Some(internet), Some(ports)) = (&headers.internet, headers.ports) else { return };
        if internet.fragment_offset.is_some() {
            return;
        }
        let is_cut = segment.len() < internet.payload_length as usize;
        match internet.protocol {
            ip::UDP => self.take_datagram(headers, ports, (segment, is_cut), messages),
            ip::TCP => {
                let Some(tcp) = &headers.tcp else { return };
                let data = segment.get(usize::from(tcp.header_length)..).unwrap_or_default();
                if data.is_empty() {
                    return;
                }
                let addresses = [internet.source, internet.destination];
                let stream = Stream { addresses, ports, vlan: headers.vlan };
                self.take_segment(headers, stream, (data, is_cut), messages);
            }
            _ => {}
        }
    }

    fn take_datagram(
        &mut self,
        headers: &Headers,
        ports: [u16; 2],
        (segment, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        if !self.selected.dns || !ports.iter().any(|port| DATAGRAM_PORTS.contains(port)) {
            return;
        }
        let data = segment.get(udp::HEADER_LEN..).unwrap_or_default();
        if is_cut {
            self.missed.cut += 1;
        } else if data.len() > MESSAGE_BYTES_MAX {
            self.missed.too_long += 1;
        } else {
            messages.push(Message { application: Application::Dns, headers: *headers, bytes: data.to_vec() });
        }
    }

    fn take_segment(
        &mut self,
        headers: &Headers,
        stream: Stream,
        (data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        let Some(sequence) = headers.tcp.map(|tcp| tcp.sequence) else { return };
        let after = sequence.wrapping_add(data.len() as u32);
        if let Some(mut partial) = self.take_partial(&stream) {
            let ahead = sequence.wrapping_sub(partial.next_sequence).cast_signed();
            if ahead < 0 && after.wrapping_sub(partial.next_sequence).cast_signed() <= 0 {
                // Sent again.
                self.put(partial);
                return;
            }
            if ahead == 0 {
                partial.next_sequence = after;
                self.advance(partial, (data, is_cut), messages);
                return;
            }
            self.missed.gaps += 1;
        }
        let Some(application) = self.application_of(data, stream.ports) else { return };
        let message = Message { application, headers: *headers, bytes: Vec::new() };
        let partial = Box::new(Partial { stream, next_sequence: after, message });
        self.advance(partial, (data, is_cut), messages);
    }

    /// Returns the protocol of the message that begins with `data`.
    fn application_of(&self, data: &[u8], ports: [u16; 2]) -> Option<Application> {
        let application = if tls::is_hello(data) {
            Application::Tls
        } else if HTTP_STARTS.iter().any(|start| data.starts_with(start)) {
            Application::Http
        } else if ports.contains(&DNS_PORT) {
            Application::Dns
        } else {
            return None;
        };
        self.selected.has(application).then_some(application)
    }

    /// Adds data to the incomplete message of a stream. Complete messages are added to `messages`,
    /// and an incomplete one is kept.
    fn advance(
        &mut self,
        mut partial: Box<Partial>,
        (data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        let Message { application, headers, bytes } = &mut partial.message;
        let before = bytes.len();
        // A byte more than permitted shows that a message is too long.
        let taken = data.len().min(MESSAGE_BYTES_MAX + 1 - before.min(MESSAGE_BYTES_MAX));
        bytes.extend_from_slice(data.get(..taken).unwrap_or_default());
        while let Some(len) = complete_len(*application, bytes, before) {
            if *application != Application::Dns {
                bytes.truncate(len);
                messages.push(partial.message);
                return;
            }
            // Messages of DNS follow one another, each after its length.
            let message = bytes.get(2..len).unwrap_or_default().to_vec();
            messages.push(Message { application: *application, headers: *headers, bytes: message });
            bytes.drain(..len);
            if bytes.is_empty() && taken == data.len() {
                return;
            }
        }
        if bytes.len() > MESSAGE_BYTES_MAX || taken < data.len() {
            self.missed.too_long += 1;
        } else if is_cut {
            self.missed.cut += 1;
        } else {
            self.put(partial);
        }
    }

    fn slot(&self, stream: &Stream) -> usize {
        self.random.hash_one(stream) as usize % SLOTS
    }

    fn take_partial(&mut self, stream: &Stream) -> Option<Box<Partial>> {
        if self.partial == 0 {
            return None;
        }
        let at = self.slot(stream);
        let taken = self.slots.get_mut(at)?.take_if(|partial| partial.stream == *stream)?;
        self.partial -= 1;
        Some(taken)
    }

    fn put(&mut self, partial: Box<Partial>) {
        let at = self.slot(&partial.stream);
        let Some(slot) = self.slots.get_mut(at) else { return };
        match slot.replace(partial) {
            Some(_) => self.missed.evicted += 1,
            None => self.partial += 1,
        }
    }
}

/// Returns the length of the complete message at the start of `bytes`, of which the first `before`
/// bytes are known to be incomplete.
fn complete_len(application: Application, bytes: &[u8], before: usize) -> Option<usize> {
    match application {
        Application::Dns => {
            let len = 2 + usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
            (bytes.len() >= len).then_some(len)
        }
        // The parser reports an error.
        Application::Tls => match tls::hello(bytes, &mut Vec::new()) {
            Ok(None) => None,
            Ok(Some(_)) | Err(_) => Some(bytes.len()),
        },
        Application::Http => {
            const END: &[u8] = b"\r\n\r\n";
            let from = before.saturating_sub(END.len() - 1);
            let end = bytes.get(from..)?.windows(END.len()).position(|window| window == END)?;
            Some(from + end + END.len())
        }
    }
}
