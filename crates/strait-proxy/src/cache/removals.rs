//! Removals that one process reports to another during an upgrade.
//!
//! A proxy that is replaced closes its store, which its successor opens. Requests that are under
//! way here can still invalidate stored responses, as an upload does when its response comes (RFC
//! 9111, section 4.4). Hence each removal is also sent to the successor, one message each, and the
//! caller waits until the successor has confirmed it: a client that has the response to its upload
//! must not get an older stored response from the successor.
//!
//! The successor notes the removals until it has opened the store, and carries them out before it
//! serves a request. Later ones it carries out at once. A message begins with its number, which is
//! the confirmation. [`crate::cache::invalidation`] has the texts that follow.
//!
//! The proxy that is replaced notes the removals as well, until the successor accepts: if that
//! fails, it carries them out once more in the store that it takes back. The successor may have
//! written the removed records again before it learned of the removals.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::config::error::{Error, Result};

/// Longest wait for a confirmation. After one that is late, no other is waited for: the caller is
/// the event loop of a worker.
const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// Length of the number of a message.
const NUMBER_BYTES: usize = size_of::<u64>();
/// Maximum length of a text. A longer one becomes [`ALL`].
const TEXT_BYTES_MAX: usize = 100 << 10;
/// Maximum of noted removals, and of the bytes of their texts. Further ones become [`ALL`].
const NOTED_MAX: usize = 1 << 16;
const NOTED_BYTES_MAX: usize = 16 << 20;
/// Attempts to send a last message to a successor that is slow.
const LAST_TRIES: usize = 10;
/// Text that removes everything.
pub(crate) const ALL: &[u8] = b"m*";
/// Interval between two checks for the end of the other process.
const END_EVERY: Duration = Duration::from_millis(20);

/// Successor of this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Heir {
    state: Mutex<State>,
    /// True if a removal is to be sent or noted.
    is_set: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Link>,
    /// Removals since the store was released, until the successor accepts.
    noted: Option<Noted>,
}

/// Socket to the successor.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    /// Number of the last message.
    number: u64,
    /// True after a confirmation that was late.
    is_slow: bool,
    /// True if a message was not sent: the next one removes everything.
    has_lost: bool,
}

impl Heir {
    /// Sends each removal that ends from now on by a socket of type SOCK_SEQPACKET, and notes it.
    pub(crate) fn set(&self, socket: OwnedFd) {
        let timed = |socket: &OwnedFd| {
            let set = |timeout| set_socket_timeout(socket, timeout, Some(CONFIRM_MAX));
            set(Timeout::Send).and(set(Timeout::Recv))
        };
        // Without a limit a successor that hangs would hold up requests.
        let socket = Some(socket).filter(|socket| timed(socket).is_ok());
        let link = socket.map(|socket| Link { socket, number: 0, is_slow: false, has_lost: false });
        self.change(|state| *state = State { link, noted: Some(Noted::default()) });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        self.is_set.store(state.link.is_some() || state.noted.is_some(), Ordering::SeqCst);
        result
    }

    /// Sends nothing more, because the successor has ended. Notes removals still.
    pub(crate) fn end_link(&self) {
        self.change(|state| state.link = None);
    }

    /// Returns the noted removals, and notes no others.
    pub(crate) fn take_noted(&self) -> Vec<Box<[u8]>> {
        self.change(|state| state.noted.take()).unwrap_or_default().all
    }

    /// Ends the connection to the successor. If removals were not sent, removes everything there.
    pub(crate) fn end(&self) {
        self.change(|state| {
            if let Some(link) = &mut state.link {
                link.send_lost();
            }
            *state = State::default();
        });
    }

    /// Notes and sends the text of a removal that was carried out here, and waits for the
    /// confirmation.
    pub(crate) fn send(&self, text: impl FnOnce() -> Vec<u8>) {
        if !self.is_set.load(Ordering::SeqCst) {
            return;
        }
        let text = text();
        self.change(|state| {
            if let Some(noted) = &mut state.noted {
                noted.add(&text);
            }
            if state.link.as_mut().is_some_and(|link| !link.send(&text)) {
                state.link = None;
            }
        });
    }
}

impl Link {
    /// Removes everything at the successor if a message was not sent. Waits for a slow one.
    fn send_lost(&mut self) {
        for _ in 0..LAST_TRIES {
            self.is_slow = false;
            if !self.has_lost || !self.send(ALL) {
                return;
            }
        }
    }

    /// Returns false if the successor has ended.
    fn send(&mut self, text: &[u8]) -> bool {
        let text = if self.has_lost || text.len() > TEXT_BYTES_MAX { ALL } else { text };
        self.number += 1;
        let message = [&self.number.to_ne_bytes(), text].concat();
        let wait = if self.is_slow { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let sent = retry_on_intr(|| send(&self.socket, &message, SendFlags::NOSIGNAL | wait));
        self.has_lost = sent == Err(Errno::AGAIN);
        match sent {
            Ok(_) => self.await_confirmation(),
            Err(errno) => errno == Errno::AGAIN,
        }
    }

    /// Waits for the confirmation of the last message. Returns false if the successor has ended.
    fn await_confirmation(&mut self) -> bool {
        let begin = Instant::now();
        let mut confirmed = [0; NUMBER_BYTES];
        loop {
            let wait = if self.is_slow { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            match retry_on_intr(|| recv(&self.socket, &mut confirmed, wait)) {
                Ok((0, _)) => return false,
                // One that was late belongs to an earlier message.
                Ok(_) if u64::from_ne_bytes(confirmed) < self.number => {
                    self.is_slow |= begin.elapsed() > CONFIRM_MAX;
                }
                Ok(_) => return true,
                Err(Errno::AGAIN) => {
                    self.is_slow = true;
                    return true;
                }
                Err(_) => return false,
            }
        }
    }
}

/// Carries out the removal of a text.
type CarryOut = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Removals of the process that this one replaces.
#[derive(Debug)]
pub struct Removals {
    socket: Arc<OwnedFd>,
    target: Arc<Mutex<Target>>,
    thread: JoinHandle<()>,
}

enum Target {
    Noted(Noted),
    Cache(CarryOut),
}

/// Texts of removals to carry out later.
#[derive(Debug, Default)]
struct Noted {
    all: Vec<Box<[u8]>>,
    bytes: usize,
}

impl Noted {
    fn add(&mut self, text: &[u8]) {
        let is_full = self.all.len() >= NOTED_MAX || self.bytes + text.len() > NOTED_BYTES_MAX;
        if is_full || text.len() > TEXT_BYTES_MAX {
            *self = Self { all: vec![ALL.into()], bytes: ALL.len() };
        } else {
            self.bytes += text.len();
            self.all.push(text.into());
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noted(noted) => out.debug_tuple("Noted").field(&noted.all.len()).finish(),
            Self::Cache(_) => out.write_str("Cache"),
        }
    }
}

impl Removals {
    /// Notes the removals that come from now on by a socket of type SOCK_SEQPACKET.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn receive(socket: OwnedFd) -> Result<Self> {
        let (socket, target) = (Arc::new(socket), Arc::new(Mutex::new(Target::Noted(Noted::default()))));
        let (own, into) = (socket.clone(), target.clone());
        let thread = Builder::new().name("removals".to_owned()).spawn(move || receive_all(&own, &into));
        let thread = thread.map_err(|error| Error::os("start", &"a thread", error))?;
        Ok(Self { socket, target, thread })
    }

    /// Carries out the noted removals, and from now on each as it comes.
    pub(crate) fn apply_to(&self, carry_out: impl Fn(&[u8]) + Send + Sync + 'static) {
        let carry_out: CarryOut = Arc::new(carry_out);
        loop {
            let mut target = lock(&self.target);
            let noted = match &mut *target {
                Target::Noted(noted) if !noted.all.is_empty() => std::mem::take(noted).all,
                _ => {
                    *target = Target::Cache(carry_out);
                    return;
                }
            };
            // Others are noted and confirmed meanwhile.
            drop(target);
            for text in noted {
                carry_out(&text);
            }
        }
    }

    /// Ends the thread, at the latest after `patience`: until then the other process may send more.
    pub(crate) fn end(self, patience: Duration) {
        let begin = Instant::now();
        while !self.thread.is_finished() && begin.elapsed() < patience {
            std::thread::sleep(END_EVERY);
        }
        let _ = shutdown(&*self.socket, Shutdown::Both);
        // It does not panic; if it did, it has ended as well.
        let _ = self.thread.join();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives until the other process has ended.
fn receive_all(socket: &OwnedFd, target: &Mutex<Target>) {
    let mut buffer = vec![0; NUMBER_BYTES + TEXT_BYTES_MAX];
    loop {
        let Ok((_, len @ 1..)) = retry_on_intr(|| recv(socket, &mut buffer[..], RecvFlags::empty())) else {
            return;
        };
        let Some((number, text)) = buffer[..len.min(buffer.len())].split_at_checked(NUMBER_BYTES) else {
            return;
        };
        take(target, text);
        if retry_on_intr(|| send(socket, number, SendFlags::NOSIGNAL)).is_err() {
            return;
        }
    }
}

/// Notes a removal, or carries it out.
fn take(target: &Mutex<Target>, text: &[u8]) {
    let carry_out = match &mut *lock(target) {
        Target::Noted(noted) => return noted.add(text),
        Target::Cache(carry_out) => carry_out.clone(),
    };
    carry_out(text);
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn noted(target: &Mutex<Target>) -> Vec<Vec<u8>> {
        match &*lock(target) {
            Target::Noted(noted) => noted.all.iter().map(|text| text.to_vec()).collect(),
            Target::Cache(_) => panic!("nothing is noted any more"),
        }
    }

    #[test]
    fn noted_removals_are_bounded() {
        let target = Mutex::new(Target::Noted(Noted::default()));
        for _ in 0..=NOTED_MAX {
            take(&target, b"khttp://a/");
        }
        assert_eq!(noted(&target), [ALL]);
    }

    #[test]
    fn removals_are_confirmed_and_none_is_sent_to_an_ended_successor() {
        let (own, other) = pair();
        let (heir, removals) = (Heir::default(), Removals::receive(other).unwrap());
        heir.set(own);
        heir.send(|| b"ka".to_vec());
        heir.send(|| vec![b'x'; TEXT_BYTES_MAX + 1]);
        assert_eq!(noted(&removals.target), [b"ka", ALL]);
        let done: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let into = done.clone();
        removals.apply_to(move |text| lock(&into).push(text.to_vec()));
        heir.send(|| b"kb".to_vec());
        assert_eq!(*lock(&done), [b"ka", ALL, b"kb"]);
        removals.end(Duration::ZERO);
        heir.send(|| b"kc".to_vec());
        assert!(lock(&heir.state).link.is_none());
        // For the store that is taken back.
        heir.end_link();
        heir.send(|| b"kd".to_vec());
        let noted: Vec<_> = heir.take_noted().iter().map(|text| text.to_vec()).collect();
        assert_eq!(noted, [ALL, b"kb", b"kc", b"kd"]);
        heir.send(|| unreachable!("there is no successor"));
    }

    #[test]
    fn texts_of_noted_removals_are_bounded() {
        let (mut noted, text) = (Noted::default(), vec![b'k'; TEXT_BYTES_MAX]);
        for _ in 0..=NOTED_BYTES_MAX / TEXT_BYTES_MAX {
            noted.add(&text);
        }
        assert_eq!(noted.all, [ALL.into()]);
    }

    #[test]
    fn lost_removal_without_a_further_one_removes_everything_at_the_end() {
        let (own, other) = pair();
        let heir = Heir::default();
        heir.set(own);
        heir.take_noted();
        lock(&heir.state).link.as_mut().unwrap().is_slow = true;
        while !lock(&heir.state).link.as_ref().unwrap().has_lost {
            heir.send(|| b"ka".to_vec());
        }
        let receiver = std::thread::spawn(move || {
            let (mut buffer, mut last) = ([0; 100], Vec::new());
            while let Ok((len @ 1.., _)) = recv(&other, &mut buffer, RecvFlags::empty()) {
                last = buffer[NUMBER_BYTES..len].to_vec();
            }
            last
        });
        heir.end();
        assert_eq!(receiver.join().unwrap(), ALL);
    }

    #[test]
    fn late_confirmation_is_not_taken_for_that_of_another_message() {
        let (own, other) = pair();
        let mut link = Link { socket: own, number: 0, is_slow: true, has_lost: false };
        // Nothing is confirmed, and nothing is waited for.
        assert!(link.send(b"ka") && link.send(b"kb"));
        link.is_slow = false;
        let confirm = |number: u64| send(&other, &number.to_ne_bytes(), SendFlags::empty()).unwrap();
        let confirmed: usize = (1..=3).map(confirm).sum();
        assert_eq!(confirmed, 3 * NUMBER_BYTES);
        assert!(link.send(b"kc"));
        // All confirmations were read.
        let left = recv(&link.socket, &mut [0; NUMBER_BYTES], RecvFlags::DONTWAIT);
        assert_eq!(left.unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn message_after_one_that_was_not_sent_removes_everything() {
        let (own, other) = pair();
        let mut link = Link { socket: own, number: 0, is_slow: true, has_lost: false };
        while !link.has_lost {
            assert!(link.send(b"ka"));
        }
        let mut buffer = [0; 100];
        while recv(&other, &mut buffer, RecvFlags::DONTWAIT).is_ok() {}
        assert!(link.send(b"kb") && !link.has_lost);
        let (len, _) = recv(&other, &mut buffer, RecvFlags::empty()).unwrap();
        assert_eq!(&buffer[NUMBER_BYTES..len], ALL);
    }
}
