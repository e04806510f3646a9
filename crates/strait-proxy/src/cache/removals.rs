//! Removals that one process tells another about during an upgrade.
//!
//! A proxy that is replaced closes its store, which its successor opens. Requests that are under
//! way here can still invalidate stored responses, as an upload does when its response comes (RFC
//! 9111, section 4.4). Hence each removal is also sent to the successor, one message each, and the
//! caller waits until the successor has confirmed it: a client that has the response to its upload
//! must not get an older stored response from the successor.
//!
//! The successor notes the removals until it has opened the store, and carries them out before it
//! serves a request. Later ones it carries out at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::cache::invalidation::{Effect, Keys};
use crate::cache::pattern::Pattern;
use crate::cache::tag::Tag;
use crate::cache::worker::Shared;
use crate::config::error::{Error, Result};

/// Longest wait for the successor's confirmation; it continues to carry out what it has received.
const CONFIRM_MAX: Duration = Duration::from_secs(1);
/// Maximum length of a message. A longer one becomes [`ALL`].
const MESSAGE_BYTES_MAX: usize = 100 << 10;
/// Maximum of noted removals. Further ones become [`ALL`].
const NOTED_MAX: usize = 1 << 16;
/// Message that removes everything.
const ALL: &[u8] = b"m*";
const CONFIRMATION: &[u8] = b"done";

/// Removal of stored responses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Removal<'a> {
    Key(Effect, &'a str),
    Matching(&'a Pattern),
    Tags(Effect, &'a [Tag]),
}

impl Removal<'_> {
    /// Returns the message: a letter, and the key, the pattern or the tags.
    fn encode(self) -> Vec<u8> {
        let letter = |effect, letters: [u8; 2]| letters[usize::from(effect == Effect::Expire)];
        let (letter, text) = match self {
            Self::Key(effect, key) => (letter(effect, *b"ke"), key.to_owned()),
            Self::Matching(pattern) => (b'm', pattern.as_str().to_owned()),
            Self::Tags(effect, tags) => {
                let tags: Vec<_> = tags.iter().map(Tag::as_str).collect();
                (letter(effect, *b"tu"), tags.join(" "))
            }
        };
        let message = [&[letter], text.as_bytes()].concat();
        if message.len() > MESSAGE_BYTES_MAX { ALL.to_vec() } else { message }
    }
}

/// Carries out the removal of a message. An unknown one removes everything: it comes from another
/// version.
fn carry_out(shared: &Shared, message: &[u8]) {
    let everything = || {
        if let Ok(all) = Pattern::new("*") {
            shared.invalidate(Keys::Matching(&all));
        }
    };
    let Some((letter, text)) = message.split_first() else { return everything() };
    let Ok(text) = std::str::from_utf8(text) else { return everything() };
    let tags = || text.split(' ').map(Tag::new).collect::<Result<Vec<_>>>();
    match (letter, tags()) {
        (b'k', _) => drop(shared.purge(text, Effect::Remove)),
        (b'e', _) => drop(shared.purge(text, Effect::Expire)),
        (b't', Ok(tags)) => drop(shared.purge_tags(&tags, Effect::Remove)),
        (b'u', Ok(tags)) => drop(shared.purge_tags(&tags, Effect::Expire)),
        (b'm', _)
            if Pattern::new(text).is_ok_and(|it| {
                shared.invalidate(Keys::Matching(&it));
                true
            }) => {}
        _ => everything(),
    }
}

/// Successor of this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Heir {
    link: Mutex<Option<OwnedFd>>,
    is_set: AtomicBool,
}

impl Heir {
    /// Sends each removal that ends from now on to the successor.
    pub(crate) fn set(&self, link: Option<OwnedFd>) {
        let timed = |link: &OwnedFd| {
            let set = |timeout| set_socket_timeout(link, timeout, Some(CONFIRM_MAX));
            set(Timeout::Send).and(set(Timeout::Recv))
        };
        // Without a limit a successor that hangs would hold up requests.
        let link = link.filter(|link| timed(link).is_ok());
        let mut now = self.link();
        self.is_set.store(link.is_some(), Ordering::SeqCst);
        *now = link;
    }

    /// Sends a removal that was carried out here, and waits for the confirmation.
    pub(crate) fn tell(&self, removal: Removal<'_>) {
        if !self.is_set.load(Ordering::SeqCst) {
            return;
        }
        let message = removal.encode();
        let mut link = self.link();
        let Some(open) = &*link else { return };
        let sent = send(open, &message, SendFlags::NOSIGNAL);
        let confirmed = sent.and_then(|_| recv(open, &mut [0; CONFIRMATION.len()], RecvFlags::empty()));
        let is_slow = confirmed.as_ref().is_err_and(|errno| *errno == rustix::io::Errno::AGAIN);
        let has_ended = confirmed.is_ok_and(|(read, _)| read == 0) || sent.is_err() && !is_slow;
        if has_ended {
            self.is_set.store(false, Ordering::SeqCst);
            *link = None;
        }
    }

    fn link(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removals of the process that this one replaces.
#[derive(Debug)]
pub struct Removals {
    link: Arc<OwnedFd>,
    target: Arc<Mutex<Target>>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
enum Target {
    Noted(Vec<Box<[u8]>>),
    Cache(Arc<Shared>),
}

impl Removals {
    /// Notes the removals that come from now on by a socket of type SOCK_SEQPACKET.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn receive(link: OwnedFd) -> Result<Self> {
        let (link, target) = (Arc::new(link), Arc::new(Mutex::new(Target::Noted(Vec::new()))));
        let (own, into) = (link.clone(), target.clone());
        let thread = Builder::new().name("removals".to_owned()).spawn(move || receive_all(&own, &into));
        let thread = thread.map_err(|error| Error::os("start", &"a thread", error))?;
        Ok(Self { link, target, thread })
    }

    /// Carries out the noted removals, and from now on each as it comes.
    pub(crate) fn apply_to(&self, shared: &Arc<Shared>) {
        let mut target = lock(&self.target);
        if let Target::Noted(all) = std::mem::replace(&mut *target, Target::Cache(shared.clone())) {
            for message in all {
                carry_out(shared, &message);
            }
        }
    }

    /// Ends the thread.
    pub(crate) fn end(self) {
        let _ = shutdown(&*self.link, Shutdown::Both);
        // It does not panic; if it did, it has ended as well.
        let _ = self.thread.join();
    }
}

fn lock(target: &Mutex<Target>) -> MutexGuard<'_, Target> {
    target.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives until the other process has ended.
fn receive_all(link: &OwnedFd, target: &Mutex<Target>) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match recv(link, &mut buffer[..], RecvFlags::empty()) {
            Ok((1.., len)) => take(&mut lock(target), &buffer[..len.min(MESSAGE_BYTES_MAX)]),
            Err(errno) if io::Error::from(errno).kind() == io::ErrorKind::Interrupted => continue,
            _ => return,
        }
        if send(link, CONFIRMATION, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn take(target: &mut Target, message: &[u8]) {
    match target {
        Target::Noted(all) if all.len() < NOTED_MAX => all.push(message.into()),
        Target::Noted(all) => *all = vec![ALL.into()],
        Target::Cache(shared) => carry_out(shared, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_effect_and_subject() {
        let (pattern, tags) =
            (Pattern::new("http://a/*").unwrap(), ["x", "y"].map(|tag| Tag::new(tag).unwrap()));
        for (removal, expected) in [
            (Removal::Key(Effect::Remove, "http://a/"), "khttp://a/"),
            (Removal::Key(Effect::Expire, "http://a/"), "ehttp://a/"),
            (Removal::Matching(&pattern), "mhttp://a/*"),
            (Removal::Tags(Effect::Remove, &tags), "tx y"),
            (Removal::Tags(Effect::Expire, &tags), "ux y"),
        ] {
            assert_eq!(removal.encode(), expected.as_bytes());
        }
        let long = "x".repeat(MESSAGE_BYTES_MAX);
        assert_eq!(Removal::Key(Effect::Remove, &long).encode(), ALL);
    }

    #[test]
    fn noted_removals_are_bounded() {
        let mut target = Target::Noted(Vec::new());
        for _ in 0..=NOTED_MAX {
            take(&mut target, b"khttp://a/");
        }
        let Target::Noted(all) = target else { panic!("there is no cache") };
        assert_eq!(all, [ALL.into()]);
    }

    #[test]
    fn removal_is_confirmed_and_one_for_an_ended_successor_is_dropped() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (own, other) = pair.unwrap();
        let (heir, removals) = (Heir::default(), Removals::receive(other).unwrap());
        heir.set(Some(own));
        heir.tell(Removal::Key(Effect::Remove, "http://a/"));
        assert!(matches!(&*lock(&removals.target), Target::Noted(all) if all.len() == 1));
        removals.end();
        heir.tell(Removal::Key(Effect::Remove, "http://a/"));
        assert!(heir.link().is_none());
    }
}
