//! Messages from packets: a datagram is one, and a stream begins one with a segment that looks like
//! it. Segments in order complete it; another segment ends it. A segment that is sent again after
//! that is ignored.
//!
//! Messages of DNS follow one another in a stream. Only their lengths show where the next one
//! begins, so that one of its bytes that is missing ends the stream.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use strait_packet::protocol::ip;
use strait_packet::udp::Udp;
use strait_packet::{dns, http, tls};

use super::message::{Application, MESSAGE_BYTES_MAX, Message, Missed, SelectedMessages};
use super::quic::Connections;
use crate::headers::Headers;

/// Maximum number of streams with a state: those of two streams with the same hash exclude each
/// other.
const SLOTS: usize = 4096;
/// Maximum distance of a segment that is sent again. A segment that is further behind follows 4 GiB
/// after it.
pub(super) const BEHIND_MAX: u32 = 16 << 20;
/// Maximum bytes of a segment of DNS: those of a segment over IPv4, also a merged one.
pub(super) const SEGMENT_BYTES_MAX: usize = 64 << 10;
/// Flag of the first segment of a stream.
const SYN: u16 = 1 << 1;
/// Ports of DNS, its multicast variant (RFC 6762) and LLMNR (RFC 4795).
const DNS_PORT: u16 = 53;
const DATAGRAM_PORTS: [u16; 3] = [DNS_PORT, 5353, 5355];

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    addresses: [IpAddr; 2],
    ports: [u16; 2],
    vlan: Option<u16>,
}

/// State of a stream: its incomplete message, or the end of the last one.
#[derive(Debug)]
struct Progress {
    stream: Stream,
    /// Number of the first byte of its first message: in a whole connection, the one after the SYN.
    first_sequence: u32,
    next_sequence: u32,
    /// Protocol of its last message.
    application: Application,
    /// True if the start of the next message of DNS is unknown: nothing is parsed until a SYN.
    is_lost: bool,
    /// None after the end of a message: segments that are sent again do not begin another one.
    message: Option<Incomplete>,
}

impl Progress {
    /// Returns the number of messages that are missed if the state is dropped.
    fn messages(&self) -> u64 {
        // One that is too long is counted already.
        self.message.as_ref().map_or(0, |message| u64::from(message.skip == 0))
    }
}

/// Message without its end.
#[derive(Debug)]
struct Incomplete {
    message: Message,
    hello_end: tls::HelloEnd,
    /// Bytes of a message of DNS that is too long, which are still to come.
    skip: usize,
}

/// Assembly of the messages of a capture.
pub(crate) struct Assembly {
    selected: SelectedMessages,
    slots: Vec<Option<Box<Progress>>>,
    /// Number of incomplete messages.
    incomplete: usize,
    /// Random, so that a sender cannot choose streams that collide.
    random: RandomState,
    quic: Connections,
    missed: Missed,
}

impl Assembly {
    pub(crate) fn new(selected: SelectedMessages) -> Self {
        let slots = if selected.is_empty() { 0 } else { SLOTS };
        Self {
            selected,
            slots: std::iter::repeat_with(|| None).take(slots).collect(),
            incomplete: 0,
            random: RandomState::new(),
            quic: Connections::new(selected.tls),
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
        let addresses = [internet.source, internet.destination];
        let stream = Stream { addresses, ports, vlan: headers.vlan };
        match internet.protocol {
            ip::UDP => self.take_datagram(headers, &stream, (segment, is_cut), messages),
            ip::TCP => {
                let Some(tcp) = &headers.tcp else { return };
                let data = segment.get(usize::from(tcp.header_length)..).unwrap_or_default();
                let is_first = tcp.flags & SYN != 0;
                let sequence = tcp.sequence.wrapping_add(u32::from(is_first));
                if is_first {
                    self.restart(&stream, sequence);
                }
                if !data.is_empty() {
                    self.take_segment(headers, (stream, sequence), (data, is_cut), messages);
                }
            }
            _ => {}
        }
    }

    /// Forgets all streams, as the next packets are those of another file.
    pub(crate) fn end(&mut self) {
        let ended = self.slots.iter_mut().filter_map(Option::take);
        self.missed.gaps += ended.map(|progress| progress.messages()).sum::<u64>() + self.quic.end();
        self.incomplete = 0;
    }

    fn take_datagram(
        &mut self,
        headers: &Headers,
        stream: &Stream,
        (segment, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        let data = Udp::parse(segment).map_or(&[][..], |datagram| datagram.payload());
        let [source, destination] = stream.addresses;
        let ends = [(source, stream.ports[0]), (destination, stream.ports[1])];
        if self.quic.take(headers, (ends, data), is_cut, (messages, &mut self.missed)) {
            return;
        }
        if !self.selected.dns || !stream.ports.iter().any(|port| DATAGRAM_PORTS.contains(port)) {
            return;
        }
        if is_cut {
            self.missed.cut += 1;
        } else if data.len() > MESSAGE_BYTES_MAX {
            self.missed.too_long += 1;
        } else {
            self.push_dns(headers, data, messages);
        }
    }

    /// Adds a complete message of DNS. One without a header is not kept: a packet over TCP could
    /// have thousands of them.
    fn push_dns(&mut self, headers: &Headers, bytes: &[u8], messages: &mut Vec<Message>) {
        if bytes.len() < dns::HEADER_LEN {
            self.missed.malformed += 1;
        } else {
            messages.push(Message {
                application: Application::Dns,
                headers: *headers,
                bytes: bytes.to_vec(),
            });
        }
    }

    fn take_segment(
        &mut self,
        headers: &Headers,
        (stream, sequence): (Stream, u32),
        (mut data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        // Most segments need no look at the streams.
        if self.incomplete == 0 && self.application_of(data, stream.ports).is_none() {
            return;
        }
        let after = sequence.wrapping_add(data.len() as u32);
        let mut first_sequence = sequence;
        if let Some(mut progress) = self.take_progress(&stream) {
            if progress.is_lost {
                self.put(progress);
                return;
            }
            first_sequence = progress.first_sequence;
            let behind = progress.next_sequence.wrapping_sub(sequence);
            if behind <= BEHIND_MAX {
                data = data.get(behind as usize..).unwrap_or_default();
                if data.is_empty() {
                    // Sent again.
                    self.put(progress);
                    return;
                }
                if progress.message.is_some() {
                    progress.next_sequence = after;
                    self.advance(headers, progress, (data, is_cut), messages);
                    return;
                }
            } else if progress.application == Application::Dns {
                self.missed.gaps += 1;
                progress.message = None;
                progress.is_lost = true;
                self.put(progress);
                return;
            } else if progress.message.is_some() {
                self.missed.gaps += 1;
            }
            if self.application_of(data, stream.ports).is_none() {
                progress.message = None;
                self.put(progress);
                return;
            }
        }
        let Some(application) = self.application_of(data, stream.ports) else { return };
        let message = Message { application, headers: *headers, bytes: Vec::new() };
        let message = Some(Incomplete { message, hello_end: tls::HelloEnd::default(), skip: 0 });
        let progress =
            Progress { stream, first_sequence, next_sequence: after, application, is_lost: false, message };
        self.advance(headers, Box::new(progress), (data, is_cut), messages);
    }

    /// Forgets a stream, as a SYN begins another one with data from `sequence` on. A SYN that is
    /// sent again begins the known one. A number near its own is not enough: that of the next
    /// connection can be.
    fn restart(&mut self, stream: &Stream, sequence: u32) {
        let Some(progress) = self.take_progress(stream) else { return };
        if progress.first_sequence == sequence {
            self.put(progress);
        } else {
            self.missed.gaps += progress.messages();
        }
    }

    /// Returns the protocol of the message that begins with `data`.
    fn application_of(&self, data: &[u8], ports: [u16; 2]) -> Option<Application> {
        let application = if tls::is_hello(data) {
            Application::Tls
        } else if http::is_head(data) {
            Application::Http
        } else if ports.contains(&DNS_PORT) {
            Application::Dns
        } else {
            return None;
        };
        self.selected.has(application).then_some(application)
    }

    /// Adds data to the incomplete message of a stream. Complete messages are added to `messages`.
    fn advance(
        &mut self,
        headers: &Headers,
        mut progress: Box<Progress>,
        (data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        if progress.application == Application::Dns {
            self.advance_dns(headers, &mut progress, (data, is_cut), messages);
        } else {
            progress.message =
                progress.message.take().and_then(|message| self.extend(message, (data, is_cut), messages));
        }
        self.put(progress);
    }

    /// Adds data to a stream of DNS. The stream is lost if the data is cut.
    fn advance_dns(
        &mut self,
        headers: &Headers,
        progress: &mut Progress,
        (data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) {
        let Some(mut incomplete) = progress.message.take() else { return };
        let taken = data.get(..SEGMENT_BYTES_MAX).unwrap_or(data);
        self.split_dns(headers, &mut incomplete, taken, messages);
        progress.is_lost = is_cut || taken.len() < data.len();
        if is_cut {
            self.missed.cut += 1;
        } else if progress.is_lost {
            self.missed.too_long += 1;
        } else if incomplete.skip > 0 || !incomplete.message.bytes.is_empty() {
            progress.message = Some(incomplete);
        }
    }

    /// Adds data to the message of a stream of DNS, and to those that follow it, each after its
    /// length.
    fn split_dns(
        &mut self,
        headers: &Headers,
        incomplete: &mut Incomplete,
        mut data: &[u8],
        messages: &mut Vec<Message>,
    ) {
        let Incomplete { message, skip, .. } = incomplete;
        while !data.is_empty() {
            if message.bytes.is_empty() {
                message.headers = *headers;
            }
            // At least 1, as a complete message was removed.
            let missing = match message.bytes.split_first_chunk() {
                _ if *skip > 0 => *skip,
                Some((prefix, one)) => usize::from(u16::from_be_bytes(*prefix)) - one.len(),
                None => size_of::<u16>() - message.bytes.len(),
            };
            let (part, rest) = data.split_at(missing.min(data.len()));
            data = rest;
            if *skip > 0 {
                *skip -= part.len();
                continue;
            }
            message.bytes.extend_from_slice(part);
            let Some((prefix, one)) = message.bytes.split_first_chunk() else { continue };
            let len = usize::from(u16::from_be_bytes(*prefix));
            if len > MESSAGE_BYTES_MAX {
                self.missed.too_long += 1;
                *skip = len;
                message.bytes.clear();
            } else if one.len() == len {
                self.push_dns(&message.headers, one, messages);
                message.bytes.clear();
            }
        }
    }

    /// Adds data to a message of TLS or HTTP. Returns it if it is incomplete.
    fn extend(
        &mut self,
        mut incomplete: Incomplete,
        (data, is_cut): (&[u8], bool),
        messages: &mut Vec<Message>,
    ) -> Option<Incomplete> {
        let Incomplete { message: Message { application, bytes, .. }, hello_end, .. } = &mut incomplete;
        let before = bytes.len();
        // A byte more than permitted shows that a message is too long.
        let taken = data.len().min(MESSAGE_BYTES_MAX + 1 - before.min(MESSAGE_BYTES_MAX));
        bytes.extend_from_slice(data.get(..taken).unwrap_or_default());
        let complete = if *application == Application::Tls {
            // The parser reports an error.
            hello_end.is_in(bytes).then_some(bytes.len())
        } else {
            head_len(bytes, before)
        };
        if let Some(len) = complete {
            bytes.truncate(len);
            messages.push(incomplete.message);
            return None;
        }
        if bytes.len() > MESSAGE_BYTES_MAX || taken < data.len() {
            self.missed.too_long += 1;
        } else if is_cut {
            self.missed.cut += 1;
        } else {
            return Some(incomplete);
        }
        None
    }

    fn slot(&self, stream: &Stream) -> usize {
        self.random.hash_one(stream) as usize % SLOTS
    }

    fn take_progress(&mut self, stream: &Stream) -> Option<Box<Progress>> {
        let at = self.slot(stream);
        let taken = self.slots.get_mut(at)?.take_if(|progress| progress.stream == *stream)?;
        self.incomplete -= usize::from(taken.message.is_some());
        Some(taken)
    }

    /// Keeps the state of a stream. An incomplete message takes the place of another one.
    fn put(&mut self, progress: Box<Progress>) {
        let at = self.slot(&progress.stream);
        let Some(slot) = self.slots.get_mut(at) else { return };
        let replaced = slot.as_ref().filter(|other| other.message.is_some());
        match (progress.message.is_some(), replaced) {
            (false, Some(_)) => return,
            (true, Some(other)) => self.missed.evicted += other.messages(),
            (true, None) => self.incomplete += 1,
            (false, None) => {}
        }
        *slot = Some(progress);
    }
}

/// Returns the length of the complete head at the start of `bytes`, of which the first `before`
/// bytes are known to have no end of a head.
fn head_len(bytes: &[u8], before: usize) -> Option<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let from = before.saturating_sub(END.len() - 1);
    let end = bytes.get(from..)?.windows(END.len()).position(|window| window == END)?;
    Some(from + end + END.len())
}
