//! A connection that is not served yet.
//!
//! ```text
//! Silent ── "strait-send 4 length=…" ──▶ Hashing ── "begins=…" ──▶ Offered ──▶ served
//!   └────── "strait-send 4 length=…", no bytes to compare ───────▶ Offered
//! ```
//!
//! Lines: `strait_transfer::offer`.
//!
//! `Senders` has a list of them. All send their offers and hash their files at the same time, so
//! that none delays another. Nothing here blocks, and nothing changes the output.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use strait_transfer::hash::Hasher;
use strait_transfer::offer::{Answer, Begins, Offer, Refusal, WAIT};

use super::digest::{Digest, beginning};
use super::part::{Found, Output};
use super::{Args, NegotiationError};
use crate::Error;
use crate::bulk::{Incoming, Lines, WAIT_PERIOD, closed, name, no_answer};

/// A connection with an offer, or a raw one.
pub(super) struct Sender {
    pub(super) stream: TcpStream,
    pub(super) lines: Lines,
    pub(super) network: IpAddr,
    pub(super) offer: Option<Offer>,
    /// Bytes that were present for the offer.
    pub(super) found: Option<Found>,
    /// Length and hash of the bytes that both files begin with; length 0 if the hashes differ.
    pub(super) kept: Begins,
}

/// A connection that is not served yet.
pub(super) struct Waiting {
    stream: TcpStream,
    lines: Lines,
    network: IpAddr,
    stage: Stage,
    /// Time of the sender's last line, and of the last line to it. A new connection and a complete
    /// offer count as lines.
    heard: Instant,
    answered: Instant,
}

enum Stage {
    /// No offer has arrived.
    Silent,
    /// The sender hashes the beginning of its file.
    Hashing(Offer, Found),
    /// The offer is complete; a raw connection has none.
    Offered {
        offer: Option<Offer>,
        found: Option<Found>,
        /// Length and hash of the beginning of the sender's file, and of the present bytes once
        /// they are hashed.
        begins: Option<Begins>,
        present: Option<Begins>,
    },
}

impl Waiting {
    pub(super) fn new(stream: TcpStream, is_raw: bool) -> Self {
        // The address of a connection that was already reset is unknown.
        let address = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
        let raw = Stage::Offered { offer: None, found: None, begins: None, present: None };
        Self {
            stream,
            lines: Lines::default(),
            network: network(address),
            stage: if is_raw { raw } else { Stage::Silent },
            heard: Instant::now(),
            answered: Instant::now(),
        }
    }

    pub(super) fn network(&self) -> IpAddr {
        self.network
    }

    /// Returns true once the offer is complete: the sender waits for its turn.
    pub(super) fn is_offered(&self) -> bool {
        matches!(self.stage, Stage::Offered { .. })
    }

    /// Returns the socket if a line of the sender is expected.
    pub(super) fn listens(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_offered()).then(|| self.stream.as_fd())
    }

    /// Reads a line if it has arrived. Sends `wait` to a sender with a complete offer, so that it
    /// does not time out.
    pub(super) fn advance(
        &mut self,
        args: &Args,
        output: &Output,
        digest: &mut Digest,
    ) -> Result<(), NegotiationError> {
        match &self.stage {
            Stage::Silent => {
                if let Some(offer) = self.line(args.timeout).map_err(NegotiationError::Sender)? {
                    self.answer(args, offer, output, digest)?;
                }
            }
            Stage::Hashing(..) => {
                if let Some(begins) = self.line(args.timeout).map_err(NegotiationError::Sender)? {
                    self.take_begins(begins).map_err(NegotiationError::Sender)?;
                }
            }
            Stage::Offered { .. } if !args.raw && self.answered.elapsed() >= WAIT_PERIOD => {
                self.send_line(WAIT).map_err(NegotiationError::Sender)?;
            }
            Stage::Offered { .. } => {}
        }
        Ok(())
    }

    /// Returns the next line if it has arrived, after the `wait` lines before it.
    fn line<T: FromStr<Err: Display>>(&mut self, timeout: Duration) -> Result<Option<T>, Error> {
        let is_silent = matches!(self.stage, Stage::Silent);
        // A flood of `wait` lines is an error.
        loop {
            match self.lines.poll(&self.stream)? {
                Incoming::Line(line) => {
                    self.heard = Instant::now();
                    return Ok(Some(line));
                }
                // A peer without an offer has nothing to wait for.
                Incoming::Alive if is_silent => {}
                Incoming::Alive => self.heard = Instant::now(),
                Incoming::Nothing => break,
            }
        }
        if self.heard.elapsed() < timeout {
            Ok(None)
        } else if is_silent {
            Err(Error::Failed(format!("{}: no offer in time", name(&self.stream))))
        } else {
            Err(no_answer(&self.stream))
        }
    }

    /// Answers an offer if there are bytes to compare. Both ends then hash at the same time.
    fn answer(
        &mut self,
        args: &Args,
        offer: Offer,
        output: &Output,
        digest: &mut Digest,
    ) -> Result<(), NegotiationError> {
        let found = match offer.length.filter(|length| *length <= args.size_max) {
            Some(length) => output.find(length)?,
            None => None,
        };
        // More bytes than are offered are those of another file.
        let is_candidate = |found: &Found| offer.length.is_some_and(|length| found.bytes <= length);
        self.stage = match found {
            Some(found) if is_candidate(&found) => {
                digest.start(&found)?;
                self.send_line(&Answer::Have(found.bytes).to_string()).map_err(NegotiationError::Sender)?;
                Stage::Hashing(offer, found)
            }
            found => {
                self.answered = Instant::now();
                Stage::Offered { offer: Some(offer), found, begins: None, present: None }
            }
        };
        Ok(())
    }

    /// Stores length and hash of the beginning of the sender's file. Fails if the length is not
    /// that of the present bytes.
    fn take_begins(&mut self, begins: Begins) -> Result<(), Error> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Silent) {
            Stage::Hashing(_, found) if begins.bytes != found.bytes => {
                let text =
                    format!("the sender hashed {} bytes, but {} are present", begins.bytes, found.bytes);
                return Err(Error::Failed(text));
            }
            Stage::Hashing(offer, found) => {
                self.answered = Instant::now();
                Stage::Offered { offer: Some(offer), found: Some(found), begins: Some(begins), present: None }
            }
            stage => stage,
        };
        Ok(())
    }

    /// Returns true if the offer can be accepted: it is complete, and the present bytes are hashed.
    /// Waits for that hash up to `timeout`.
    pub(super) fn is_ready(&mut self, digest: &mut Digest, timeout: Duration) -> Result<bool, Error> {
        let Stage::Offered { found, begins, present, .. } = &mut self.stage else { return Ok(false) };
        let (Some(found), Some(_)) = (found, begins) else { return Ok(true) };
        if present.is_none() {
            *present = digest.get(found, timeout)?;
        }
        Ok(present.is_some())
    }

    /// Returns the sender of a complete offer.
    pub(super) fn into_sender(self) -> Option<Sender> {
        let Self { stream, lines, network, stage, .. } = self;
        let Stage::Offered { offer, found, begins, present } = stage else { return None };
        let kept = begins.filter(|_| begins == present).unwrap_or_else(|| beginning(&Hasher::default()));
        Some(Sender { stream, lines, network, offer, found, kept })
    }

    /// Sends a line without blocking. A full socket means that the sender does not read: an error.
    fn send_line(&mut self, line: &str) -> Result<(), Error> {
        match send(&self.stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == line.len() => {
                self.answered = Instant::now();
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN) => {
                Err(Error::Failed(format!("{}: does not read the lines sent to it", name(&self.stream))))
            }
            Err(_) => Err(closed(&self.stream)),
        }
    }

    /// Refuses the connection without waiting for its end.
    pub(super) fn refuse(&self, reason: &str) {
        refuse_now(&self.stream, reason);
    }
}

/// Refuses a connection without waiting for its end.
pub(super) fn refuse_now(stream: &TcpStream, reason: &str) {
    let line = Refusal(reason.to_owned()).to_string();
    // An error means that the other end is gone, which needs no reason.
    let _ = send(stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Returns an IPv4 address, or the /64 network of an IPv6 address, in which a client has any number
/// of addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_network_count_as_one() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
