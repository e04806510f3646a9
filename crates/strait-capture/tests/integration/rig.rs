//! Captures of frames that are sent over a wire.

use std::time::{Duration, Instant};

use lab::{End, Wire};
use strait_capture::{Builder, Direction, Directions, InjectPath, Injector, Lane, LinkStatus, Session};
use strait_ledger::{self as ledger, Report};
use strait_os::clock;

/// Properties by which captures are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_len: u32,
    pub(crate) received: bool,
}

/// Frame and time of its capture.
pub(crate) struct Captured {
    pub(crate) seen: Seen,
    pub(crate) timestamp_ns: u64,
}

/// Capture at the right end of a wire.
pub(crate) struct Capture {
    session: Session,
    lanes: Vec<Lane>,
}

impl Capture {
    /// Opens the capture in `end`'s namespace.
    pub(crate) fn open(end: &End, builder: Builder) -> Result<Self, strait_capture::Error> {
        let mut session = end.run(|| builder.open())?;
        let lanes = session.take_lanes();
        Ok(Self { session, lanes })
    }

    /// Changes the cooked header of the packets.
    pub(crate) fn set_link_type(&mut self, link_type: u32) {
        self.session.set_link_type(&mut self.lanes, link_type).unwrap();
    }

    /// Changes the directions.
    pub(crate) fn set_directions(&mut self, directions: Directions) {
        self.session.set_directions(&mut self.lanes, directions).unwrap();
    }

    pub(crate) fn notes(&self) -> &[String] {
        self.session.notes()
    }

    pub(crate) fn link(&self) -> LinkStatus {
        self.session.link()
    }

    pub(crate) fn mode(&self) -> &str {
        self.session.mode()
    }

    /// Stops reception in `end`'s namespace and reads the rest.
    pub(crate) fn finish(mut self, end: &End) -> (Vec<Captured>, Report) {
        end.run(|| self.session.stop()).unwrap();
        let mut captured = Vec::new();
        let mut accounts = Vec::new();
        for mut lane in self.lanes {
            captured.extend(drain(&mut lane));
            accounts.push(lane.finish().unwrap());
        }
        (captured, self.session.report(accounts))
    }
}

/// Reads a lane of a stopped session to its end.
pub(crate) fn drain(lane: &mut Lane) -> Vec<Captured> {
    let mut captured = Vec::new();
    while let Some(mut batch) = lane.next_batch(Instant::now() + Duration::from_secs(5)).unwrap() {
        captured.extend(batch.frames().map(|frame| Captured {
            seen: Seen {
                bytes: frame.bytes.to_vec(),
                wire_len: frame.wire_len,
                received: frame.direction == Direction::In,
            },
            timestamp_ns: frame.timestamp_ns,
        }));
    }
    captured
}

/// Returns the options common to the tests: frames received at the right end.
pub(crate) fn incoming() -> Builder {
    Session::builder("right").directions(Directions::In).ring(4 << 20)
}

/// Sends `frames` from the left end, in order. Returns the times of start and end.
pub(crate) fn send(wire: &Wire, frames: &[Vec<u8>]) -> (u64, u64, ledger::Send) {
    wire.left().run_in_order(|| {
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        let began_ns = clock::realtime_ns();
        for frame in frames {
            injector.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
            injector.push(frame.len());
        }
        let sent = injector.finish().unwrap();
        assert_eq!(sent.frames, frames.len() as u64);
        (began_ns, clock::realtime_ns(), sent)
    })
}
