//! Messages of the broker's sockets: calls, outcomes, and the descriptors that they carry.
//!
//! Integers are in host order. A message is complete or refused: the sockets keep their bounds. No
//! call waits but [`wait`].

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use strait_filter::cbpf::{INSTRUCTIONS_MAX, Instruction, Program};
use strait_sys::Kind;
use strait_sys::bpf::TcxHook;

use super::super::memory::LANES_MAX;
use super::Options;
use crate::error::Error;
use crate::filter;

/// Changes with the messages and with the layout of the rings.
pub(crate) const VERSION: u8 = 3;
/// Report of a receiver to the server that it takes a request.
pub(crate) const TAKEN: [u8; 1] = [VERSION];
/// Maximum length of an interface's name (`ALTIFNAMSIZ` of linux/if.h, less its NUL).
const NAME_BYTES_MAX: usize = 127;
const INSTRUCTION_BYTES: usize = 8;
const MESSAGE_BYTES_MAX: usize = 4096 + INSTRUCTIONS_MAX * INSTRUCTION_BYTES;
/// Maximum number of descriptors of a message: a tap's socket, the rings, and a doorbell for each
/// lane.
const DESCRIPTORS_MAX: usize = 2 + LANES_MAX;
/// Maximum number of descriptors that the kernel allows in a message (`SCM_MAX_FD` of net/scm.h):
/// it closes those for which there is no place, and the receiver could not choose the order.
const RECEIVED_MAX: usize = 253;

/// Request to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    /// Make rings and doorbells. With the end of a pair for the reply, and a packet socket.
    Open { options: Options<'a> },
    /// Attach programs with a filter to these hooks, and detach those of other hooks.
    Attach { hooks: Vec<TcxHook>, filter: Program },
}

impl<'a> Call<'a> {
    /// Returns the bytes of the message.
    ///
    /// # Errors
    /// The filter has too many instructions for the kernel.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Open { options: Options { interface, ring_bytes, lanes, rx_hash } } => {
                let numbers = [ring_bytes.to_ne_bytes(), lanes.to_ne_bytes()].concat();
                [&[0, VERSION, u8::from(*rx_hash)], &numbers[..], interface.as_bytes()].concat()
            }
            Self::Attach { hooks, filter } => {
                let hooks = hooks.iter().fold(0, |bits, hook| bits | bit_of(*hook));
                [&[1, hooks], &instructions(filter)?[..]].concat()
            }
        })
    }

    /// Returns the call of a message; `None` if it is malformed.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        match bytes {
            [0, VERSION, rx_hash, rest @ ..] => {
                let (ring_bytes, rest) = number(rest)?;
                let (lanes, rest) = number(rest)?;
                // Errors repeat it.
                let interface = std::str::from_utf8(rest).ok().filter(|name| is_name(name))?;
                let options = Options { interface, ring_bytes, lanes, rx_hash: *rx_hash != 0 };
                Some(Self::Open { options })
            }
            [1, hooks, filter @ ..] => {
                Some(Self::Attach { hooks: hooks_of(*hooks)?, filter: program(filter)? })
            }
            _ => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn bit_of(hook: TcxHook) -> u8 {
    match hook {
        TcxHook::Ingress => 1,
        TcxHook::Egress => 2,
    }
}

/// Returns the hooks of these bits, each once.
fn hooks_of(bits: u8) -> Option<Vec<TcxHook>> {
    const HOOKS: [TcxHook; 2] = [TcxHook::Ingress, TcxHook::Egress];
    (bits < 4).then(|| HOOKS.into_iter().filter(|hook| bits & bit_of(*hook) != 0).collect())
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_ne_bytes(*number), rest))
}

fn instructions(filter: &Program) -> Result<Vec<u8>, Error> {
    let instructions = filter.instructions();
    if instructions.len() > INSTRUCTIONS_MAX {
        let len = instructions.len();
        return Err(Error::Filter(format!("{len} instructions: the kernel runs {INSTRUCTIONS_MAX}")));
    }
    let bytes = |instruction: &Instruction| {
        let Instruction { code, jt, jf, k } = *instruction;
        let ([code_0, code_1], [k_0, k_1, k_2, k_3]) = (code.to_ne_bytes(), k.to_ne_bytes());
        [code_0, code_1, jt, jf, k_0, k_1, k_2, k_3]
    };
    Ok(instructions.iter().flat_map(bytes).collect())
}

fn program(bytes: &[u8]) -> Option<Program> {
    let (chunks, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
    let instruction = |&[code_0, code_1, jt, jf, k_0, k_1, k_2, k_3]: &[u8; INSTRUCTION_BYTES]| Instruction {
        code: u16::from_ne_bytes([code_0, code_1]),
        jt,
        jf,
        k: u32::from_ne_bytes([k_0, k_1, k_2, k_3]),
    };
    let is_whole = rest.is_empty() && chunks.len() <= INSTRUCTIONS_MAX;
    is_whole.then(|| filter::check(chunks.iter().map(instruction).collect()).ok())?
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The kernel refused a call.
    System {
        errno: i32,
        is_refused: bool,
        remedy: String,
    },
    /// The filter cannot run in a program.
    Filter(String),
    /// The call is wrong.
    Usage(String),
}

impl Outcome {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => vec![0],
            Self::System { errno, is_refused, remedy } => {
                [&[1, u8::from(*is_refused)], &errno.to_ne_bytes()[..], remedy.as_bytes()].concat()
            }
            Self::Filter(text) => [&[2], text.as_bytes()].concat(),
            Self::Usage(text) => [&[3], text.as_bytes()].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(match bytes {
            [0] => Self::Done,
            [1, is_refused, rest @ ..] => {
                let (errno, remedy) = number(rest)?;
                Self::System { errno: errno as i32, is_refused: *is_refused != 0, remedy: text(remedy) }
            }
            [2, rest @ ..] => Self::Filter(text(rest)),
            [3, rest @ ..] => Self::Usage(text(rest)),
            _ => return None,
        })
    }

    /// Returns the error of a call for a tap on `interface`.
    pub(crate) fn into_result(self, interface: &str) -> Result<(), Error> {
        match self {
            Self::Done => Ok(()),
            Self::System { errno, is_refused, remedy } => {
                let error = strait_sys::Error::os("open the tap on", interface, errno);
                let error = if is_refused { error.with_kind(Kind::Refused) } else { error };
                Err(if remedy.is_empty() { error } else { error.remedy(remedy) }.into())
            }
            Self::Filter(text) => Err(Error::Filter(text)),
            Self::Usage(text) => Err(Error::Usage(text)),
        }
    }
}

impl Outcome {
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::System(error) => match error.errno() {
                Some(errno) => Self::System {
                    errno,
                    is_refused: error.kind() == Kind::Refused,
                    remedy: error.advice().unwrap_or_default().to_owned(),
                },
                None => Self::Usage(error.to_string()),
            },
            Error::Filter(text) => Self::Filter(text.clone()),
            Error::Usage(text) => Self::Usage(text.clone()),
            Error::File(error) => Self::Usage(error.to_string()),
        }
    }
}

/// Received message.
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// False if it is longer, or has more descriptors.
    pub(crate) is_whole: bool,
}

/// Waits until one of `sockets` has a message or its other end is closed. Returns the state of
/// each.
pub(crate) fn wait(sockets: &[&OwnedFd]) -> rustix::io::Result<Vec<PollFlags>> {
    let flags = PollFlags::IN | PollFlags::RDHUP;
    let mut polled: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(socket, flags)).collect();
    retry_on_intr(|| poll(&mut polled, None))?;
    Ok(polled.iter().map(PollFd::revents).collect())
}

/// Returns true if the other end is closed or was shut down. An empty message does not show this.
pub(crate) fn is_ended(state: PollFlags) -> bool {
    state.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

/// Sends a message with `descriptors`. Does not wait until it fits, regardless of the socket's
/// flags, which a caller may share.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)).map(drop)
}

/// Receives a message and its descriptors, and does not wait for one. It is empty if the other end
/// is closed.
pub(crate) fn receive(socket: &OwnedFd) -> rustix::io::Result<Message> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let (bytes, flags) = receive_with(socket, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let is_whole = !flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Message { bytes, descriptors, is_whole })
}

/// Receives a message without descriptors, and does not wait for one. It is empty if the other end
/// is closed.
///
/// # Errors
/// EPROTO if the next message has descriptors: it stays in the queue, because the kernel would
/// close them on this thread. EMSGSIZE if the message is too long.
pub(crate) fn receive_bytes(socket: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    // A look at the message has no place for descriptors either, but their originals stay.
    let (_, flags) = receive_with(socket, &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK)?;
    if flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::PROTO);
    }
    let (bytes, flags) = receive_with(socket, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())?;
    if flags.contains(ReturnFlags::TRUNC) { Err(Errno::MSGSIZE) } else { Ok(bytes) }
}

fn receive_with(
    socket: &OwnedFd,
    ancillary: &mut RecvAncillaryBuffer<'_>,
    flags: RecvFlags,
) -> rustix::io::Result<(Vec<u8>, ReturnFlags)> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let flags = flags | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], ancillary, flags))?;
    bytes.truncate(received.bytes);
    Ok((bytes, received.flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> [Call<'static>; 3] {
        let filter = Program::accept_all(96);
        let options = Options { interface: "eth0", ring_bytes: 1 << 20, lanes: 2, rx_hash: true };
        [
            Call::Open { options },
            Call::Attach { hooks: vec![TcxHook::Egress], filter: filter.clone() },
            Call::Attach { hooks: vec![TcxHook::Ingress, TcxHook::Egress], filter },
        ]
    }

    #[test]
    fn calls_are_decoded_as_encoded() {
        for call in calls() {
            assert_eq!(Call::decode(&call.encode().unwrap()), Some(call));
        }
    }

    #[test]
    fn malformed_calls_are_refused() {
        for call in calls() {
            let whole = call.encode().unwrap();
            // A name may be cut.
            let is_open = matches!(call, Call::Open { .. });
            let cuts = if is_open { 0..11 } else { 0..whole.len() };
            for len in cuts {
                assert_eq!(Call::decode(&whole[..len]), None, "{call:?}, {len} bytes");
            }
        }
        let named = |name: &str| [&[0, VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], name.as_bytes()].concat();
        assert!(Call::decode(&named(&"a".repeat(NAME_BYTES_MAX))).is_some());
        for name in [&*"a".repeat(NAME_BYTES_MAX + 1), "a\nb", "a b", "\u{9b}2J", "a\0"] {
            assert_eq!(Call::decode(&named(name)), None, "{name:?}");
        }
        let version = [0, VERSION + 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'l', b'o'];
        assert_eq!(Call::decode(&version), None);
        assert_eq!(Call::decode(&[1, 4, 6, 0, 0, 0, 96, 0, 0, 0]), None, "no such hook");
        assert_eq!(Call::decode(&[1, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]), None, "no such instruction");
    }

    #[test]
    fn outcomes_are_decoded_as_encoded() {
        let system = Outcome::System { errno: 7, is_refused: true, remedy: "needs Linux 6.6".into() };
        for outcome in [Outcome::Done, system, Outcome::Filter("no".into()), Outcome::Usage("no".into())] {
            assert_eq!(Outcome::decode(&outcome.encode()), Some(outcome));
        }
        assert_eq!(Outcome::decode(&[]), None);
        assert_eq!(Outcome::decode(&[1, 0, 1]), None);
    }
}
