//! Doorbell: a second packet socket with the filter of the ring's socket, which wakes a V3 reader.
//!
//! The kernel wakes a TPACKET_V3 reader when a block is retired. On a quiet link that is when the
//! retire timer expires: 95 to 103 ms late in the program that D2 measured (docs/sources.md). The
//! doorbell wakes the reader for the first packet. Its receive queue holds one to three packets.
//! The first packet after [`Doorbell::arm`] makes the socket readable; it *rings*. Until the reader
//! empties the queue, the kernel drops further packets for this socket, so it rings only once for
//! each sleep of the reader. Its packets are discarded and not in the ledger.
//!
//! A packet that the full queue drops still costs the kernel about a sixth of its whole work for a
//! packet. Therefore the doorbell is unbound from the interface under load:
//!
//! ```text
//!   Bound -- reader awake for UNBIND_AFTER --> Unbinding --> Unbound
//!     ^                                                        |
//!     +------------------- Binding <------------- arm ---------+
//! ```
//!
//! To unbind or to bind, the kernel waits until every CPU has left the receive path
//! (`synchronize_net` in net/packet/af_packet.c), some ten milliseconds. A separate thread makes
//! the call, so that the reader does not wait. A member of a fanout group cannot be bound again;
//! its doorbell gets a filter that rejects all packets (`Rejecting`), which saves a part of the
//! cost.
//!
//! A capture is correct without its doorbell, only later: if a bind fails the doorbell keeps its
//! state, and the ring's own socket reports errors of the interface.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_os::interface::Interface;
use strait_sys::packet::{Instruction, Socket, receive::Receiver};

use super::shape::Shape;
use crate::error::Error;
use crate::filter;

/// Requested size of the queue. The kernel grants its minimum (SOCK_MIN_RCVBUF), which holds one to
/// three packets.
const QUEUE_BYTES: u32 = 1;
/// Number of packets received in one call: more than the queue can hold, so that one call empties
/// it.
const RECEIVE_BATCH: usize = 16;
/// Bytes of a packet in the queue: only its arrival matters.
const SNAPLEN: u32 = 1;
/// Time for which the reader has to be awake before the doorbell is unbound.
const UNBIND_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Doorbell {
    socket: Arc<Socket>,
    receiver: Receiver,
    filter: Arc<DoorbellFilter>,
    ifindex: u32,
    /// True for a member of a fanout group.
    grouped: bool,
    state: State,
    /// Time since which the reader has not slept.
    awake_since: Option<Instant>,
}

/// Filter of a doorbell, which another thread than the reader's can replace.
pub(super) struct DoorbellFilter {
    socket: Arc<Socket>,
    /// Filter for the next time that the doorbell is armed.
    instructions: Mutex<Vec<Instruction>>,
}

impl DoorbellFilter {
    /// Replaces the filter. A doorbell that rejected all packets then rings again, also under load:
    /// until the reader arms it, that costs time, and nothing else.
    pub(super) fn replace(&self, program: &Program) -> Result<(), Error> {
        let mut stored = self.lock();
        *stored = instructions(program)?;
        Ok(self.socket.attach_filter(&stored)?)
    }

    /// Attaches the filter again after another one.
    fn restore(&self) -> Result<(), Error> {
        Ok(self.socket.attach_filter(&self.lock())?)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instruction>> {
        self.instructions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the doorbell, see the diagram above.
enum State {
    Bound,
    Unbinding(Rebind),
    Unbound,
    Binding(Rebind),
    /// Bound with a filter that rejects all packets.
    Rejecting,
}

/// Thread that binds the socket to another protocol.
type Rebind = JoinHandle<strait_sys::Result<()>>;

/// Result of [`Doorbell::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// The next packet rings. If a packet `rang` before, it may not be in the ring yet.
    Yes { rang: bool },
    /// The doorbell is not bound yet.
    NotBound,
}

impl Doorbell {
    pub(super) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = shape.socket(&interface.name)?;
        let instructions = instructions(program)?;
        socket.attach_filter(&instructions)?;
        socket.ignore_outgoing(shape.ignore_outgoing)?;
        socket.set_receive_buffer(QUEUE_BYTES)?;
        socket.bind(interface.index)?;
        let socket = Arc::new(socket);
        let instructions = Mutex::new(instructions);
        let filter = Arc::new(DoorbellFilter { socket: Arc::clone(&socket), instructions });
        Ok(Self {
            socket,
            receiver: Receiver::new(RECEIVE_BATCH, SNAPLEN as usize),
            filter,
            ifindex: interface.index,
            grouped: false,
            state: State::Bound,
            awake_since: None,
        })
    }

    /// Replaces the filter from the next [`Doorbell::arm`] on.
    pub(super) fn set_filter(&mut self, program: &Program) -> Result<(), Error> {
        self.filter.replace(program)?;
        self.finish_rebind();
        if matches!(self.state, State::Rejecting) {
            self.state = State::Bound;
        }
        Ok(())
    }

    /// Returns the filter, for another thread.
    pub(super) fn filter(&self) -> &Arc<DoorbellFilter> {
        &self.filter
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Notes that the socket joins a fanout group.
    pub(super) fn set_grouped(&mut self) {
        self.grouped = true;
    }

    /// Empties the queue, so that the next packet rings. Binds the doorbell if it is unbound.
    pub(super) fn arm(&mut self) -> Result<Armed, Error> {
        self.awake_since = None;
        self.finish_rebind();
        if matches!(self.state, State::Unbound)
            && let Some(binding) = self.rebind_on_thread(Socket::bind)
        {
            self.state = State::Binding(binding);
        }
        match self.state {
            State::Bound => {}
            State::Rejecting => {
                self.filter.restore()?;
                self.state = State::Bound;
            }
            State::Unbinding(_) | State::Unbound | State::Binding(_) => return Ok(Armed::NotBound),
        }
        let rang = self.receiver.fill(&self.socket)? > 0;
        self.receiver.discard();
        Ok(Armed::Yes { rang })
    }

    /// Notes that the reader does not sleep. Unbinds the doorbell if it has not slept for
    /// [`UNBIND_AFTER`].
    pub(super) fn reader_is_awake(&mut self) -> Result<(), Error> {
        let since = *self.awake_since.get_or_insert_with(Instant::now);
        if since.elapsed() < UNBIND_AFTER {
            return Ok(());
        }
        self.finish_rebind();
        if !matches!(self.state, State::Bound) {
            return Ok(());
        }
        if self.grouped {
            self.socket.reject_all()?;
            self.state = State::Rejecting;
        } else if let Some(unbinding) = self.rebind_on_thread(Socket::bind_to_no_protocol) {
            self.state = State::Unbinding(unbinding);
        }
        Ok(())
    }

    /// Updates the state after a bind on another thread has ended, with or without success.
    fn finish_rebind(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Unbound) {
            State::Unbinding(thread) if thread.is_finished() => {
                if succeeded(thread) {
                    State::Unbound
                } else {
                    State::Bound
                }
            }
            State::Binding(thread) if thread.is_finished() => {
                if succeeded(thread) {
                    State::Bound
                } else {
                    State::Unbound
                }
            }
            unchanged => unchanged,
        };
    }

    /// Starts `bind` on another thread; returns `None` if no thread can be started.
    fn rebind_on_thread(&self, bind: fn(&Socket, u32) -> strait_sys::Result<()>) -> Option<Rebind> {
        let (socket, ifindex) = (Arc::clone(&self.socket), self.ifindex);
        thread::Builder::new().name("doorbell".into()).spawn(move || bind(&socket, ifindex)).ok()
    }
}

/// Returns the ring's filter with packets cut to [`SNAPLEN`].
fn instructions(program: &Program) -> Result<Vec<Instruction>, Error> {
    Ok(filter::instructions(&filter::cut(program, SNAPLEN)?))
}

/// Returns true if an ended bind was successful.
fn succeeded(thread: Rebind) -> bool {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use lab::{Wire, wait_until};
    use strait_sys::packet::v3::Early;

    use super::*;
    use crate::{InjectPath, Injector};

    const LIMIT: Duration = Duration::from_secs(10);

    fn doorbell(wire: &Wire) -> Doorbell {
        let shape = Shape {
            requested_bytes: Some(1 << 20),
            lanes: 1,
            frame_bytes: 1514,
            rx_hash: false,
            promiscuous: false,
            ignore_outgoing: true,
            doorbell: true,
            long_retire: true,
            early: Early::Quiet,
            cooked: None,
        };
        let interface = wire.right().interface();
        wire.right().run(|| Doorbell::open(&interface, &Program::accept_all(0), &shape)).unwrap()
    }

    /// Sends a frame, and returns true if it rings.
    fn rings(wire: &Wire, doorbell: &Doorbell) -> bool {
        wire.left().run(|| {
            let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
            injector.buffer().unwrap()[..60].fill(0xff);
            injector.push(60);
            injector.finish().unwrap();
        });
        let [ready] =
            strait_os::wait::readable([Some(doorbell.socket().as_fd())], Duration::from_millis(100)).unwrap();
        ready.readable
    }

    fn stay_awake_until(doorbell: &mut Doorbell, reached: fn(&State) -> bool) {
        assert!(wait_until(LIMIT, || {
            doorbell.reader_is_awake().unwrap();
            reached(&doorbell.state)
        }));
    }

    #[test]
    fn doorbell_is_unbound_under_load_and_bound_again_by_arm() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut doorbell = doorbell(&wire);
        assert_eq!(doorbell.arm().unwrap(), Armed::Yes { rang: false });
        assert!(rings(&wire, &doorbell));
        assert_eq!(doorbell.arm().unwrap(), Armed::Yes { rang: true });
        stay_awake_until(&mut doorbell, |state| matches!(state, State::Unbound));
        assert!(!rings(&wire, &doorbell));
        assert_eq!(doorbell.arm().unwrap(), Armed::NotBound);
        assert!(wait_until(LIMIT, || doorbell.arm().unwrap() == Armed::Yes { rang: false }));
        assert!(rings(&wire, &doorbell));
    }

    #[test]
    fn doorbell_of_a_fanout_group_rejects_packets_under_load() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut doorbell = doorbell(&wire);
        doorbell.set_grouped();
        stay_awake_until(&mut doorbell, |state| matches!(state, State::Rejecting));
        assert!(!rings(&wire, &doorbell));
        assert_eq!(doorbell.arm().unwrap(), Armed::Yes { rang: false });
        assert!(rings(&wire, &doorbell));
    }

    #[test]
    fn doorbell_that_cannot_be_bound_again_stays_unbound() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut doorbell = doorbell(&wire);
        stay_awake_until(&mut doorbell, |state| matches!(state, State::Unbound));
        wire.right().delete();
        for _ in 0..50 {
            assert_eq!(doorbell.arm().unwrap(), Armed::NotBound);
            thread::sleep(Duration::from_millis(1));
        }
    }
}
