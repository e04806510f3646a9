//! Messages: a header, and sets of templates or of records (RFC 7011 section 3).

use std::time::{Duration, Instant};

use super::record;
use crate::export::{Build, Message, Record};

/// Version in the header.
const VERSION: u16 = 10;
/// Length of the header of a message.
const HEADER: usize = 16;
/// Length of the header of a set.
const SET_HEADER: usize = 4;
/// Number of a set of templates.
const TEMPLATE_SET: u16 = 2;

/// Writes the length of the set that starts at `set` and ends with the message.
fn end_set(bytes: &mut [u8], set: usize) {
    let length = (bytes.len() - set) as u16;
    bytes[set + 2..set + SET_HEADER].copy_from_slice(&length.to_be_bytes());
}

/// Gathers records to messages, without the values of their headers, which are known when they are
/// sent.
#[derive(Debug)]
pub(super) struct Builder {
    message: Message,
    /// Position of the last set.
    set: usize,
    record: Vec<u8>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self { message: new_message(), set: 0, record: Vec::new() }
    }

    /// Adds the record, unless the message would be longer than `bytes_max`.
    fn append(&mut self, template: u16, bytes_max: usize) -> bool {
        let Message { bytes, templates, .. } = &mut self.message;
        let is_in_set = templates.last() == Some(&template);
        let header = if is_in_set { 0 } else { SET_HEADER };
        if bytes.len() + header + self.record.len() > bytes_max {
            return false;
        }
        if !is_in_set {
            self.set = bytes.len();
            bytes.extend(template.to_be_bytes());
            bytes.extend([0; 2]);
            templates.push(template);
        }
        bytes.extend(&self.record);
        end_set(bytes, self.set);
        true
    }
}

/// Returns a message with a header of zeros.
fn new_message() -> Message {
    Message { bytes: vec![0; HEADER], ..Message::default() }
}

impl Build for Builder {
    fn push(&mut self, record: &Record<'_>, bytes_max: usize) -> Option<Message> {
        self.record.clear();
        let template = record::write(record, &mut self.record);
        let complete = if self.append(template, bytes_max) {
            None
        } else {
            let complete = std::mem::replace(&mut self.message, new_message());
            self.append(template, bytes_max);
            Some(complete)
        };
        self.message.count(record.row);
        complete
    }

    fn finish(&mut self) -> Option<Message> {
        let is_empty = self.message.flows.is_empty();
        (!is_empty).then(|| std::mem::replace(&mut self.message, new_message()))
    }
}

/// Transport session: what the collector knows of templates, and the number of records so far.
#[derive(Debug)]
pub(super) struct Session {
    domain: u32,
    /// Records sent so far, modulo 2^32.
    sequence: u32,
    templates: Vec<u16>,
    /// Interval after which all templates are sent again, if the transport can lose them.
    again_every: Option<Duration>,
    announced: Instant,
}

impl Session {
    /// Starts a session of an observation domain.
    pub(super) fn new(domain: u32, again_every: Option<Duration>, now: Instant) -> Self {
        Self { domain, sequence: 0, templates: Vec::new(), again_every, announced: now }
    }

    /// Returns the messages of templates to send before `message`: of those that are new, or of all
    /// after the interval. `unix` is the time in seconds.
    pub(super) fn announce(
        &mut self,
        message: &Message,
        bytes_max: usize,
        (now, unix): (Instant, u32),
    ) -> Vec<Vec<u8>> {
        let mut due: Vec<u16> = Vec::new();
        if self.again_every.is_some_and(|every| now.saturating_duration_since(self.announced) >= every) {
            self.announced = now;
            due.clone_from(&self.templates);
        }
        for template in &message.templates {
            if !self.templates.contains(template) {
                self.templates.push(*template);
                due.push(*template);
            }
        }
        self.template_messages(&due, bytes_max, unix)
    }

    fn template_messages(&self, templates: &[u16], bytes_max: usize, unix: u32) -> Vec<Vec<u8>> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        let mut record = Vec::new();
        for template in templates {
            record.clear();
            record::write_template(*template, &mut record);
            if messages.last().is_none_or(|message| message.len() + record.len() > bytes_max) {
                let mut message = vec![0; HEADER];
                message.extend(TEMPLATE_SET.to_be_bytes());
                message.extend([0; 2]);
                messages.push(message);
            }
            if let Some(message) = messages.last_mut() {
                message.extend(&record);
            }
        }
        for message in &mut messages {
            end_set(message, HEADER);
            self.fill_header(message, unix);
        }
        messages
    }

    /// Returns the bytes of a message. `unix` is the time in seconds.
    pub(super) fn bytes<'a>(&self, message: &'a mut Message, unix: u32) -> &'a [u8] {
        self.fill_header(&mut message.bytes, unix);
        &message.bytes
    }

    /// Sends all templates again before the next message.
    pub(super) fn forget_templates(&mut self) {
        self.templates.clear();
    }

    /// Counts the records of a message that was sent.
    pub(super) fn sent(&mut self, message: &Message) {
        self.sequence = self.sequence.wrapping_add(message.flows.len() as u32);
    }

    fn fill_header(&self, bytes: &mut [u8], unix: u32) {
        let length = bytes.len() as u16;
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        bytes[4..8].copy_from_slice(&unix.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[12..HEADER].copy_from_slice(&self.domain.to_be_bytes());
    }
}
