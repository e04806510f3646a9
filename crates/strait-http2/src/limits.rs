//! Limits of what a peer can make the other side spend, with their names.

use std::time::Instant;

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent requests (SETTINGS_MAX_CONCURRENT_STREAMS); of a client, its own maximum.
    pub streams: u32,
    /// Bytes of the fields of a head, counted as in SETTINGS_MAX_HEADER_LIST_SIZE.
    pub head_bytes: usize,
    /// Fields of a head.
    pub fields: usize,
    /// Bytes of a body that the peer may send ahead (SETTINGS_INITIAL_WINDOW_SIZE).
    pub stream_window: u32,
    /// Bytes of all bodies that the peer may send ahead.
    pub connection_window: u32,
    /// Bytes of frames that wait to be sent, without payloads of DATA frames.
    pub output_bytes: usize,
    /// True if WebSocket streams are accepted (RFC 8441).
    pub takes_websockets: bool,
    /// DATA frames with few bytes per second, in the long run, in addition to those that belong to
    /// longer data.
    pub small_data: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 100,
            head_bytes: 32 << 10,
            fields: 100,
            stream_window: 64 << 10,
            connection_window: 128 << 10,
            output_bytes: 256 << 10,
            takes_websockets: true,
            // Messages of gRPC have a frame each.
            small_data: 5000,
        }
    }
}

impl Limits {
    /// Limits of a client. The window of a stream is the memory that a slow reader of a response
    /// needs; that of the connection only bounds what is on its way.
    pub fn of_client() -> Self {
        Self {
            stream_window: 256 << 10,
            connection_window: 1 << 20,
            takes_websockets: false,
            small_data: 50_000,
            ..Self::default()
        }
    }
}

/// Limit that a connection has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    /// Requests that the client has cancelled (CVE-2023-44487).
    RapidReset,
    /// Messages that were refused, malformed, or in violation of their stream's state.
    StreamErrors,
    /// CONTINUATION frames, and bytes, of one header block (CVE-2024-27316).
    Continuation,
    /// SETTINGS frames (CVE-2019-9515).
    Settings,
    /// PING frames (CVE-2019-9512).
    Ping,
    /// Expansion of a header block.
    Hpack,
    /// DATA frames with few or no bytes (CVE-2019-9518).
    SmallData,
    /// WINDOW_UPDATE frames for few bytes.
    WindowUpdate,
    /// PRIORITY and PRIORITY_UPDATE frames (CVE-2019-9513).
    Priority,
    /// Frames of unknown types.
    Unknown,
    /// Output that the peer does not read (CVE-2019-9517).
    Output,
}

impl Abuse {
    /// All limits, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::RapidReset,
        Self::StreamErrors,
        Self::Continuation,
        Self::Settings,
        Self::Ping,
        Self::Hpack,
        Self::SmallData,
        Self::WindowUpdate,
        Self::Priority,
        Self::Unknown,
        Self::Output,
    ];

    /// Name, for counters.
    pub fn name(self) -> &'static str {
        match self {
            Self::RapidReset => "rapid_reset",
            Self::StreamErrors => "stream_errors",
            Self::Continuation => "continuation",
            Self::Settings => "settings",
            Self::Ping => "ping",
            Self::Hpack => "hpack",
            Self::SmallData => "small_data",
            Self::WindowUpdate => "window_update",
            Self::Priority => "priority",
            Self::Unknown => "unknown_frames",
            Self::Output => "output",
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::RapidReset => "too many cancelled requests",
            Self::StreamErrors => "too many failed requests",
            Self::Continuation => "a header block of too many frames or bytes",
            Self::Settings => "too many SETTINGS frames",
            Self::Ping => "too many PING frames",
            Self::Hpack => "a header block that expands to too many bytes",
            Self::SmallData => "too many DATA frames with few bytes",
            Self::WindowUpdate => "too many WINDOW_UPDATE frames",
            Self::Priority => "too many PRIORITY and PRIORITY_UPDATE frames",
            Self::Unknown => "too many frames of unknown types",
            Self::Output => "the peer does not read what it causes to be sent",
        }
    }
}

/// Allowance that refills with time: `burst` at once, and `per_second` in the long run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    left: u32,
    burst: u32,
    per_second: u32,
    filled: Instant,
}

impl Meter {
    fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        Self { left: burst, burst, per_second, filled: now }
    }

    /// Takes one from the allowance; returns false if nothing is left.
    fn take(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            let elapsed_ms = now.saturating_duration_since(self.filled).as_millis().min(1 << 20) as u64;
            self.give((elapsed_ms * u64::from(self.per_second) / 1000) as u32);
            if self.left > 0 {
                self.filled = now;
            }
        }
        let had = self.left > 0;
        self.left = self.left.saturating_sub(1);
        had
    }

    fn give(&mut self, more: u32) {
        self.left = self.left.saturating_add(more).min(self.burst);
    }
}

/// Sent bytes that allow one WINDOW_UPDATE frame, as clients send them in reply.
const BYTES_PER_UPDATE: usize = 1 << 10;
/// Received bytes that allow one DATA frame.
const BYTES_PER_DATA: usize = 512;

/// Allowances of a connection. The bursts admit what browsers and gRPC clients do: a page that is
/// left cancels a hundred requests at once.
#[derive(Debug)]
pub(crate) struct Meters {
    resets: Meter,
    errors: Meter,
    settings: Meter,
    pings: Meter,
    data: Meter,
    updates: Meter,
    priorities: Meter,
    unknown: Meter,
    /// Bytes that have not earned an allowance yet.
    sent_bytes: usize,
    received_bytes: usize,
}

impl Meters {
    pub(crate) fn new(limits: &Limits, now: Instant) -> Self {
        let meter = |burst, per_second| Meter::new(burst, per_second, now);
        Self {
            resets: meter(200, 20),
            errors: meter(200, 20),
            settings: meter(32, 2),
            pings: meter(100, 10),
            data: meter(1000.max(limits.small_data), limits.small_data),
            updates: meter(1000, 200),
            priorities: meter(300, 50),
            unknown: meter(100, 10),
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// Counts one event; an error if there were too many.
    pub(crate) fn count(&mut self, abuse: Abuse, now: Instant) -> Result<(), Abuse> {
        let meter = match abuse {
            Abuse::RapidReset => &mut self.resets,
            Abuse::StreamErrors => &mut self.errors,
            Abuse::Settings => &mut self.settings,
            Abuse::Ping => &mut self.pings,
            Abuse::SmallData => &mut self.data,
            Abuse::WindowUpdate => &mut self.updates,
            Abuse::Priority => &mut self.priorities,
            Abuse::Unknown => &mut self.unknown,
            Abuse::Continuation | Abuse::Hpack | Abuse::Output => return Err(abuse),
        };
        if meter.take(now) { Ok(()) } else { Err(abuse) }
    }

    /// Notes a new request: its client may send more frames about it.
    pub(crate) fn opened(&mut self) {
        self.priorities.give(1);
        self.updates.give(2);
    }

    /// Notes a sent request: its server may send a head and trailers after its reset.
    pub(crate) fn asked(&mut self) {
        self.errors.give(2);
    }

    /// Notes a response that was sent to its end: its client uses the connection well.
    pub(crate) fn answered(&mut self) {
        self.resets.give(1);
        self.errors.give(1);
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        self.updates.give((self.sent_bytes / BYTES_PER_UPDATE) as u32);
        // Clients and servers of gRPC measure the delay while data is on its way.
        self.pings.give((self.sent_bytes / BYTES_PER_UPDATE) as u32);
        self.sent_bytes %= BYTES_PER_UPDATE;
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.received_bytes += bytes;
        self.data.give((self.received_bytes / BYTES_PER_DATA) as u32);
        self.pings.give((self.received_bytes / BYTES_PER_DATA) as u32);
        self.received_bytes %= BYTES_PER_DATA;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn meter_refills_with_time_up_to_its_burst() {
        let now = Instant::now();
        let mut meter = Meter::new(3, 2, now);
        let takes = |meter: &mut Meter, now| (0..10).filter(|_| meter.take(now)).count();
        assert_eq!(takes(&mut meter, now), 3);
        assert_eq!(takes(&mut meter, now + Duration::from_secs(1)), 2);
        assert_eq!(takes(&mut meter, now + Duration::from_hours(1000)), 3);
    }

    #[test]
    fn numbers_of_limits_are_their_positions() {
        assert!(Abuse::ALL.iter().enumerate().all(|(index, abuse)| *abuse as usize == index));
    }
}
