//! Doorbell: a second packet socket with the filter of the ring's socket, which wakes a V3 reader.
//!
//! TPACKET_V3 wakes its reader when a block is retired, so up to its timer late: 95 to 103 ms in
//! the program that D2 measured. The doorbell's queue holds one or two packets. The first packet
//! after [`Doorbell::arm`] makes it readable, and until the reader empties it the kernel drops
//! further packets for it at once. So it rings only while the reader sleeps. Its packets are
//! discarded and not in the ledger.
//!
//! A packet that the full queue drops still costs the kernel about a sixth of its whole work for a
//! packet. Therefore the doorbell leaves under load:
//!
//! ```text
//!   Present -- rested for a while --> Leaving --> Absent
//!      ^                                            |
//!      +------------------ Coming <----- arm -------+
//! ```
//!
//! To leave or to come, the kernel waits for the receive path of every CPU (`synchronize_net` in
//! net/packet/af_packet.c), some ten milliseconds. A thread does it, so that the reader does not
//! wait. A member of a fanout group cannot leave; its doorbell gets a filter that rejects all
//! packets, which saves a part of the cost.
//!
//! The doorbell only saves time: a move that fails leaves it in its place, and the ring's own
//! socket reports errors of the interface.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_sys::interface::Interface;
use strait_sys::packet::{Instruction, Socket, receive::Receiver};

use super::shape::Shape;
use crate::error::Error;
use crate::filter;

/// Requested size of the queue. The kernel grants its minimum (SOCK_MIN_RCVBUF), which holds two or
/// three small packets.
const QUEUE_BYTES: u32 = 1;
/// More packets than the queue can hold, so that one call empties it.
const EMPTIED_AT_ONCE: usize = 16;
/// Size to which packets in the queue are cut.
const SNAPLEN: u32 = 1;
/// Time without a sleep of the reader after which it is under load.
const REST: Duration = Duration::from_millis(50);

pub(super) struct Doorbell {
    socket: Arc<Socket>,
    receiver: Receiver,
    filter: Vec<Instruction>,
    ifindex: u32,
    /// In a fanout group.
    grouped: bool,
    place: Place,
    /// Start of the time for which the reader has not slept.
    resting: Option<Instant>,
}

/// State of the doorbell, see the drawing above.
enum Place {
    Present,
    Leaving(Move),
    Absent,
    Coming(Move),
    /// Present with a filter that rejects all packets.
    Muffled,
}

type Move = JoinHandle<strait_sys::Result<()>>;

/// Result of [`Doorbell::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// The next packet rings. If a packet `rang`, it may still be on its way into the ring.
    Yes { rang: bool },
    /// The doorbell is not back yet.
    NotYet,
}

impl Doorbell {
    pub(super) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = shape.socket(&interface.name)?;
        let filter = instructions(program)?;
        socket.attach_filter(&filter)?;
        socket.ignore_outgoing(shape.ignore_outgoing)?;
        socket.set_receive_buffer(QUEUE_BYTES)?;
        socket.bind(interface.index)?;
        Ok(Self {
            socket: Arc::new(socket),
            receiver: Receiver::new(EMPTIED_AT_ONCE, SNAPLEN as usize),
            filter,
            ifindex: interface.index,
            grouped: false,
            place: Place::Present,
            resting: None,
        })
    }

    /// Replaces the filter from the next [`Doorbell::arm`] on.
    pub(super) fn set_filter(&mut self, program: &Program) -> Result<(), Error> {
        self.filter = instructions(program)?;
        self.socket.attach_filter(&self.filter)?;
        self.settle();
        if matches!(self.place, Place::Muffled) {
            self.place = Place::Present;
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Notes that the socket joins a fanout group.
    pub(super) fn set_grouped(&mut self) {
        self.grouped = true;
    }

    /// Empties the queue, so that the next packet rings.
    pub(super) fn arm(&mut self) -> Result<Armed, Error> {
        self.resting = None;
        self.settle();
        if matches!(self.place, Place::Absent)
            && let Some(coming) = self.on_a_thread(Socket::bind)
        {
            self.place = Place::Coming(coming);
        }
        match self.place {
            Place::Present => {}
            Place::Muffled => {
                self.socket.attach_filter(&self.filter)?;
                self.place = Place::Present;
            }
            Place::Leaving(_) | Place::Absent | Place::Coming(_) => return Ok(Armed::NotYet),
        }
        let rang = self.receiver.fill(&self.socket)? > 0;
        self.receiver.discard();
        Ok(Armed::Yes { rang })
    }

    /// Notes that the reader does not sleep. If it has not slept for [`REST`] the doorbell leaves.
    pub(super) fn rest(&mut self) -> Result<(), Error> {
        let since = *self.resting.get_or_insert_with(Instant::now);
        if since.elapsed() < REST {
            return Ok(());
        }
        self.settle();
        if !matches!(self.place, Place::Present) {
            return Ok(());
        }
        if self.grouped {
            self.socket.reject_all()?;
            self.place = Place::Muffled;
        } else if let Some(leaving) = self.on_a_thread(Socket::bind_to_no_protocol) {
            self.place = Place::Leaving(leaving);
        }
        Ok(())
    }

    /// Updates the state after a move that has ended, with or without success.
    fn settle(&mut self) {
        self.place = match std::mem::replace(&mut self.place, Place::Absent) {
            Place::Leaving(thread) if thread.is_finished() => {
                if joined(thread) {
                    Place::Absent
                } else {
                    Place::Present
                }
            }
            Place::Coming(thread) if thread.is_finished() => {
                if joined(thread) {
                    Place::Present
                } else {
                    Place::Absent
                }
            }
            unsettled => unsettled,
        };
    }

    /// Binds the socket again on a thread; none if the system has no thread for it.
    fn on_a_thread(&self, bind: fn(&Socket, u32) -> strait_sys::Result<()>) -> Option<Move> {
        let (socket, ifindex) = (Arc::clone(&self.socket), self.ifindex);
        thread::Builder::new().name("doorbell".into()).spawn(move || bind(&socket, ifindex)).ok()
    }
}

/// Returns the ring's filter with packets cut to the minimum: only their arrival matters.
fn instructions(program: &Program) -> Result<Vec<Instruction>, Error> {
    Ok(filter::instructions(&filter::cut(program, SNAPLEN)?))
}

/// Returns true if an ended move was successful.
fn joined(thread: Move) -> bool {
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

    fn bell(wire: &Wire) -> Doorbell {
        let shape = Shape {
            asked_bytes: Some(1 << 20),
            lanes: 1,
            frame_bytes: 1514,
            rx_hash: false,
            promiscuous: false,
            ignore_outgoing: true,
            doorbell: true,
            patient: true,
            early: Early::Quiet,
            cooked: None,
        };
        let interface = wire.right().interface();
        wire.right().run(|| Doorbell::open(&interface, &Program::accept_all(0), &shape)).unwrap()
    }

    /// Sends a frame, and returns true if it rings.
    fn rings(wire: &Wire, bell: &Doorbell) -> bool {
        wire.left().run(|| {
            let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
            injector.buffer().unwrap()[..60].fill(0xff);
            injector.push(60);
            injector.finish().unwrap();
        });
        let [ready] =
            strait_sys::wait::readable([Some(bell.socket().as_fd())], Duration::from_millis(100)).unwrap();
        ready.readable
    }

    fn rest_until(bell: &mut Doorbell, there: fn(&Place) -> bool) {
        assert!(wait_until(LIMIT, || {
            bell.rest().unwrap();
            there(&bell.place)
        }));
    }

    #[test]
    fn doorbell_rings_leaves_under_load_and_comes_back() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut bell = bell(&wire);
        assert_eq!(bell.arm().unwrap(), Armed::Yes { rang: false });
        assert!(rings(&wire, &bell));
        assert_eq!(bell.arm().unwrap(), Armed::Yes { rang: true });
        rest_until(&mut bell, |place| matches!(place, Place::Absent));
        assert!(!rings(&wire, &bell));
        assert_eq!(bell.arm().unwrap(), Armed::NotYet);
        assert!(wait_until(LIMIT, || bell.arm().unwrap() == Armed::Yes { rang: false }));
        assert!(rings(&wire, &bell));
    }

    #[test]
    fn doorbell_of_a_group_is_muffled_under_load() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut bell = bell(&wire);
        bell.set_grouped();
        rest_until(&mut bell, |place| matches!(place, Place::Muffled));
        assert!(!rings(&wire, &bell));
        assert_eq!(bell.arm().unwrap(), Armed::Yes { rang: false });
        assert!(rings(&wire, &bell));
    }

    #[test]
    fn doorbell_that_cannot_come_back_stays_absent() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut bell = bell(&wire);
        rest_until(&mut bell, |place| matches!(place, Place::Absent));
        wire.right().delete();
        for _ in 0..50 {
            assert_eq!(bell.arm().unwrap(), Armed::NotYet);
            thread::sleep(Duration::from_millis(1));
        }
    }
}
