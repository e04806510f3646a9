//! The doorbell: a second packet socket on the same interface with the same filter, that wakes a V3
//! reader.
//!
//! TPACKET_V3 wakes its reader when a block is retired, up to its timer late (D2). The doorbell's
//! queue holds a packet or two: the first packet after [`Doorbell::arm`] makes it readable, and as
//! long as nobody empties it the kernel drops further packets for it at once. So it rings while the
//! reader sleeps. Its packets are not captured packets; they are thrown away and in no ledger.
//!
//! Even a packet that is dropped has a price, which whoever delivers it pays: about a sixth of what
//! a packet costs there in all. Under load the doorbell therefore leaves:
//!
//! ```text
//!   Present -- rested for a while --> Leaving --> Absent
//!      ^                                            |
//!      +------------------ Coming <----- arm -------+
//! ```
//!
//! Leaving and coming wait for every CPU's receive path to let go (`synchronize_net` in
//! net/packet/af_packet.c), some ten milliseconds; a thread waits for it, so that the reader does
//! not. A member of a fanout group may not leave; its doorbell gets a filter that rejects all,
//! which saves a part.
//!
//! The doorbell only saves time. A move that fails leaves it where it was; what ails the interface
//! is told by the ring's own socket.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_sys::interface::Interface;
use strait_sys::packet::{Instruction, Socket, receive::Receiver};

use super::shape::Shape;
use crate::error::Error;
use crate::filter;

/// Asked of the kernel, which grants its minimum (SOCK_MIN_RCVBUF): room for two or three small
/// packets.
const QUEUE_BYTES: u32 = 1;
/// More than its queue can hold, so that one call empties it.
const EMPTIED_AT_ONCE: usize = 16;
/// A packet in the queue is cut to this.
const SNAPLEN: u32 = 1;
/// A reader that has not listened for this long is under load.
const REST: Duration = Duration::from_millis(50);

pub(super) struct Doorbell {
    socket: Arc<Socket>,
    receiver: Receiver,
    filter: Vec<Instruction>,
    ifindex: u32,
    /// In a fanout group.
    grouped: bool,
    place: Place,
    /// Since when the reader has not listened.
    resting: Option<Instant>,
}

/// Whether packets come to it.
enum Place {
    Present,
    Leaving(Move),
    Absent,
    Coming(Move),
    /// Present with a filter that rejects all.
    Muffled,
}

type Move = JoinHandle<strait_sys::Result<()>>;

/// What [`Doorbell::arm`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// The next packet rings. A packet that came during the call may be on its way into the ring.
    Yes { rang: bool },
    /// It is not back yet.
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

    /// Rings for other packets from the next time on that it is armed.
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

    /// It was put into a fanout group.
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

    /// The reader does not listen for now. If that goes on the doorbell leaves.
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
        } else if let Some(leaving) = self.on_a_thread(Socket::bind_to_nothing) {
            self.place = Place::Leaving(leaving);
        }
        Ok(())
    }

    /// Takes note of a move that has come to its end, well or not.
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

    /// Binds the socket anew on a thread; none where the system has no thread for it.
    fn on_a_thread(&self, bind: fn(&Socket, u32) -> strait_sys::Result<()>) -> Option<Move> {
        let (socket, ifindex) = (Arc::clone(&self.socket), self.ifindex);
        thread::Builder::new().name("doorbell".into()).spawn(move || bind(&socket, ifindex)).ok()
    }
}

/// The ring's filter, for a queue of which nobody reads more than that something came.
fn instructions(program: &Program) -> Result<Vec<Instruction>, Error> {
    Ok(filter::instructions(&filter::cut(program, SNAPLEN)?))
}

/// Whether a move that has come to its end went well.
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

    /// Sends a frame; whether it rings.
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
    fn it_rings_leaves_under_load_and_comes_back() {
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
    fn in_a_group_it_stays_and_is_muffled() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut bell = bell(&wire);
        bell.set_grouped();
        rest_until(&mut bell, |place| matches!(place, Place::Muffled));
        assert!(!rings(&wire, &bell));
        assert_eq!(bell.arm().unwrap(), Armed::Yes { rang: false });
        assert!(rings(&wire, &bell));
    }

    #[test]
    fn one_that_cannot_come_back_stays_away() {
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
