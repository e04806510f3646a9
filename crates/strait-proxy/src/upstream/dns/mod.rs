//! DNS cache: addresses of host names, looked up once for all requests and kept for the lifetime of
//! their records.
//!
//! The number of concurrent lookups is limited. An old result is used while a new one is awaited or
//! not available (RFC 8767), but not after a server has answered that there is no such name. A
//! cached address grants no access: each connection checks `access.reach` again, so that a name
//! with changing addresses (DNS rebinding) gains nothing.

pub(crate) mod resolver;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use crate::config::dns::Dns as Settings;
use crate::upstream::dns::resolver::{Answer, LookupError, Resolver};

/// Time after their lifetime in which old addresses are used while new ones are awaited.
const AWAITED_FOR: Duration = Duration::from_mins(10);
/// Time after their lifetime in which old addresses are used while no server answers (RFC 8767,
/// section 5, recommends 1 to 3 days).
const UNANSWERED_FOR: Duration = Duration::from_hours(24);
/// Time that a request waits for new addresses before it uses old ones (RFC 8767, section 5).
const ANSWER_WAIT: Duration = Duration::from_millis(1800);
/// Time that a request waits for a lookup without old addresses. Callers have a shorter one.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// Time for which a failed lookup is kept, and for which unreachable addresses are not looked up
/// again.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Maximum of cached names.
const NAMES_MAX: usize = 1024;
/// Maximum of addresses of a name.
const ADDRESSES_MAX: usize = 16;
/// Maximum of concurrent lookups: each can have two sockets.
const LOOKUPS_MAX: usize = 32;

/// Lookup of a name.
type Looking = Pin<Box<dyn Future<Output = Result<Answer<IpAddr>, LookupError>>>>;

/// DNS cache of a worker.
pub(crate) struct Dns {
    known: RefCell<HashMap<Box<str>, Known>>,
    lookups: Arc<Semaphore>,
    resolver: RefCell<Rc<Resolver>>,
    /// Function that looks a name up.
    look_up: fn(Rc<Resolver>, String) -> Looking,
}

impl fmt::Debug for Dns {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Dns").field("known", &self.known).finish_non_exhaustive()
    }
}

/// Results for a name.
#[derive(Debug)]
struct Known {
    /// Latest lookup, which may be under way.
    latest: Lookup,
    /// Result of the lookup before, if it found addresses.
    before: Option<Found>,
}

type Lookup = watch::Receiver<Option<Found>>;

/// Result of a lookup.
#[derive(Clone, Debug)]
struct Found {
    /// Addresses, or the reason why there are none.
    addresses: Result<Arc<[IpAddr]>, LookupError>,
    at: Instant,
    /// Time for which it is used.
    ttl: Duration,
}

impl Dns {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self::with(settings, |resolver, name| Box::pin(async move { resolver.addresses(&name).await }))
    }

    fn with(settings: Arc<Settings>, look_up: fn(Rc<Resolver>, String) -> Looking) -> Self {
        let lookups = Arc::new(Semaphore::new(LOOKUPS_MAX));
        let resolver = RefCell::new(Rc::new(Resolver::new(settings)));
        Self { known: RefCell::default(), lookups, resolver, look_up }
    }

    /// Applies other settings: forgets all addresses if they differ.
    pub(crate) fn adopt(&self, settings: &Arc<Settings>) {
        if !self.resolver.borrow().is_of(settings) {
            self.resolver.replace(Rc::new(Resolver::new(settings.clone())));
            self.known.borrow_mut().clear();
        }
    }

    /// Returns the resolver, which has no cache.
    pub(crate) fn resolver(&self) -> Rc<Resolver> {
        self.resolver.borrow().clone()
    }

    /// Returns the addresses of a host in the order in which to try them. For an address, returns
    /// the address.
    ///
    /// # Errors
    /// The host has no address, or the lookup failed.
    pub(crate) async fn addresses(&self, host: &str) -> io::Result<Arc<[IpAddr]>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::from([address]));
        }
        let name = host.to_ascii_lowercase();
        let mut found = self.find(&name)?;
        let old = self.known.borrow().get(&*name).and_then(|known| known.old(UNANSWERED_FOR));
        let patience = if old.is_some() { ANSWER_WAIT } else { LONGEST_WAIT };
        let found = timeout(patience, found.wait_for(Option::is_some)).await;
        let found = found.ok().and_then(Result::ok).and_then(|found| found.clone());
        let ended = || Err(LookupError::Failed("the lookup has ended".into()));
        let addresses = found.map_or_else(ended, |found| found.addresses);
        match (addresses, old) {
            (Err(LookupError::Failed(_)), Some(old)) => old.addresses,
            (addresses, _) => addresses,
        }
        .map_err(io::Error::other)
    }

    /// Makes an address the first one to try: a connection to it succeeded.
    pub(crate) fn prefer(&self, host: &str, address: IpAddr) {
        let mut known = self.known.borrow_mut();
        let Some(known) = known.get_mut(&*host.to_ascii_lowercase()) else { return };
        let latest = known.latest.borrow().clone();
        if let Some(Found { addresses: Ok(addresses), at, ttl }) = latest {
            let mut addresses = addresses.to_vec();
            addresses.sort_by_key(|other| *other != address);
            known.latest = over(Found { addresses: Ok(addresses.into()), at, ttl });
        }
    }

    /// Forgets the addresses of a host, unless they are new: no connection to them succeeded.
    pub(crate) fn doubt(&self, host: &str) {
        let mut known = self.known.borrow_mut();
        let host = host.to_ascii_lowercase();
        let is_old = |found: &Found| found.at.elapsed() >= FAILED_FOR;
        if known.get(&*host).is_some_and(|known| known.latest.borrow().as_ref().is_some_and(is_old)) {
            known.remove(&*host);
        }
    }

    /// Returns the lookup of a name, begun now if there is none.
    fn find(&self, name: &str) -> io::Result<Lookup> {
        let mut known = self.known.borrow_mut();
        if let Some(known) = known.get_mut(name) {
            if !is_good(&known.latest) {
                let latest = known.latest.borrow().clone();
                match latest.as_ref().map(|found| &found.addresses) {
                    Some(Ok(_)) => known.before = latest,
                    Some(Err(LookupError::None { .. })) => known.before = None,
                    Some(Err(LookupError::Failed(_))) | None => {}
                }
                known.latest = self.look_up(name);
            }
            return Ok(known.serving());
        }
        if known.len() >= NAMES_MAX {
            let finished = known.iter().filter_map(|(name, known)| Some((known.at()?, name)));
            let oldest = finished.min().map(|(_, name)| name.clone());
            let many = || io::Error::other("too many names are being looked up");
            known.remove(&oldest.ok_or_else(many)?);
        }
        let latest = self.look_up(name);
        known.insert(name.into(), Known { latest: latest.clone(), before: None });
        Ok(latest)
    }

    /// Begins a lookup, which continues without waiters.
    fn look_up(&self, name: &str) -> Lookup {
        let (sender, receiver) = watch::channel(None);
        let (lookups, looking) = (self.lookups.clone(), (self.look_up)(self.resolver(), name.to_owned()));
        tokio::task::spawn_local(async move {
            // It is never closed.
            let Ok(_permit) = lookups.acquire().await else { return };
            let answer = looking.await;
            let ttl = match &answer {
                Ok(Answer { ttl, .. }) | Err(LookupError::None { ttl }) => *ttl,
                Err(LookupError::Failed(_)) => FAILED_FOR,
            };
            let addresses = answer.map(|answer| alternating(answer.records));
            // An error means that there are no waiters.
            let _ = sender.send(Some(Found { addresses, at: Instant::now(), ttl }));
        });
        receiver
    }
}

impl Known {
    /// Returns the end of the latest lookup; `None` while it is under way.
    fn at(&self) -> Option<Instant> {
        self.latest.borrow().as_ref().map(|found| found.at)
    }

    /// Returns the latest lookup, or the previous one while that is used in its place.
    fn serving(&self) -> Lookup {
        let old_for = match self.latest.borrow().as_ref().map(|found| &found.addresses) {
            None => AWAITED_FOR,
            Some(Err(LookupError::Failed(_))) => UNANSWERED_FOR,
            Some(Ok(_) | Err(LookupError::None { .. })) => return self.latest.clone(),
        };
        self.old(old_for).map_or_else(|| self.latest.clone(), over)
    }

    /// Returns the previous result for a time after its lifetime.
    fn old(&self, old_for: Duration) -> Option<Found> {
        self.before.clone().filter(|found| found.at.elapsed() < found.ttl + old_for)
    }
}

/// Returns a finished lookup.
fn over(found: Found) -> Lookup {
    watch::channel(Some(found)).1
}

/// Returns true if a result is recent enough, or under way.
fn is_good(found: &Lookup) -> bool {
    match &*found.borrow() {
        Some(Found { at, ttl, .. }) => at.elapsed() < *ttl,
        // The task of the lookup may have been aborted.
        None => found.has_changed().is_ok(),
    }
}

/// Orders addresses so that IPv6 and IPv4 alternate, beginning with the family of the first one: if
/// one family has no route, every other attempt uses the other (RFC 8305, section 4).
fn alternating(addresses: Vec<IpAddr>) -> Arc<[IpAddr]> {
    let is_first_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == is_first_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::new();
    while let Some(address) = first.next().or_else(|| second.next()) {
        ordered.push(address);
        ordered.extend(second.next());
    }
    ordered.truncate(ADDRESSES_MAX);
    ordered.into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;
    use crate::config::file;

    const TTL: Duration = Duration::from_secs(30);

    /// Returns a cache for names that `look_up` finds.
    fn dns(look_up: fn(Rc<Resolver>, String) -> Looking) -> Dns {
        Dns::with(Arc::new(Settings::new(&file::Dns::default()).unwrap()), look_up)
    }

    fn found(records: Vec<IpAddr>) -> Looking {
        Box::pin(async move { Ok(Answer { records, ttl: TTL, missing: None }) })
    }

    fn failed(error: LookupError) -> Looking {
        Box::pin(async move { Err(error) })
    }

    /// Runs a test with a clock that advances when all tasks wait.
    fn run(test: impl Future<Output = ()>) {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build_local(LocalOptions::default());
        runtime.unwrap().block_on(test);
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn name_is_looked_up_once_for_all_and_again_after_a_while() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| found(vec![address(LOOKUPS.fetch_add(1, Ordering::SeqCst) as u8)]));
        run(async {
            let (one, other) = tokio::join!(names.addresses("a.example"), names.addresses("A.example"));
            assert_eq!((&*one.unwrap(), &*other.unwrap()), (&[address(0)][..], &[address(0)][..]));
            tokio::time::advance(TTL.mul_f32(0.9)).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(0)]);
            tokio::time::advance(TTL / 10).await;
            // The old one is used while the new one is awaited.
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(0)]);
            while *names.addresses("a.example").await.unwrap() == [address(0)] {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            // No connection to these addresses succeeds.
            names.doubt("a.example");
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            tokio::time::advance(FAILED_FOR).await;
            names.doubt("A.example");
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2)]);
        });
    }

    #[test]
    fn failed_lookup_is_kept_for_a_moment() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            failed(LookupError::Failed("no answer".into()))
        });
        run(async {
            for expected in [1, 1, 2] {
                let error = names.addresses("a.example").await.unwrap_err();
                assert_eq!(
                    (error.to_string().as_str(), LOOKUPS.load(Ordering::SeqCst)),
                    ("no answer", expected)
                );
                tokio::time::advance(FAILED_FOR * 6 / 10).await;
            }
        });
    }

    #[test]
    fn old_addresses_serve_for_a_while_when_lookups_fail() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => found(vec![address(1), address(2)]),
            _ => failed(LookupError::Failed("no answer".into())),
        });
        run(async {
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1), address(2)]);
            names.prefer("A.example", address(2));
            for _ in 0..3 {
                tokio::time::advance(TTL).await;
                assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2), address(1)]);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // It is used once the lookup has failed.
            tokio::time::advance(UNANSWERED_FOR.saturating_sub(TTL * 3)).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2), address(1)]);
            tokio::time::advance(TTL).await;
            assert!(names.addresses("a.example").await.is_err());
        });
    }

    #[test]
    fn request_waits_a_moment_for_a_lookup_and_then_uses_old_addresses() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => found(vec![address(1)]),
            _ => Box::pin(std::future::pending()),
        });
        run(async {
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            tokio::time::advance(TTL + AWAITED_FOR).await;
            let begun = Instant::now();
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            assert_eq!(begun.elapsed(), ANSWER_WAIT);
        });
    }

    #[test]
    fn addresses_of_a_name_that_is_gone_serve_no_more() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => found(vec![address(1)]),
            1 => failed(LookupError::None { ttl: TTL }),
            _ => found(vec![address(2)]),
        });
        run(async {
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            tokio::time::advance(TTL).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)], "awaited");
            while names.addresses("a.example").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::advance(TTL.mul_f32(0.9)).await;
            assert!(names.addresses("a.example").await.is_err(), "for the lifetime of the answer");
            tokio::time::advance(TTL / 10).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2)]);
        });
    }

    #[test]
    fn expired_addresses_are_not_used_for_long_while_new_ones_are_awaited() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => found(vec![address(1)]),
            _ => found(vec![address(2)]),
        });
        run(async {
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1)]);
            tokio::time::advance(TTL + AWAITED_FOR).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2)]);
        });
    }

    #[test]
    fn address_is_not_looked_up() {
        let names = dns(|_, name| panic!("{name}"));
        run(async {
            for host in ["192.0.2.1", "2001:db8::1"] {
                assert_eq!(*names.addresses(host).await.unwrap(), [host.parse::<IpAddr>().unwrap()]);
            }
        });
    }

    #[test]
    fn lookups_and_names_are_bounded() {
        static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
        let names = dns(|_, _| {
            Box::pin(async {
                assert!(UNDER_WAY.fetch_add(1, Ordering::SeqCst) < LOOKUPS_MAX);
                tokio::time::sleep(Duration::from_millis(1)).await;
                UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
                found(vec![address(1)]).await
            })
        });
        run(async {
            let under_way: Vec<_> =
                (0..NAMES_MAX).map(|number| names.find(&format!("{number}.example")).unwrap()).collect();
            assert!(names.find("another.example").is_err());
            for mut found in under_way {
                let found = found.wait_for(Option::is_some).await.unwrap().clone();
                assert!(found.unwrap().addresses.is_ok());
            }
            // The oldest entry is evicted.
            assert!(names.addresses("another.example").await.is_ok());
            assert_eq!(names.known.borrow().len(), NAMES_MAX);
        });
    }

    #[test]
    fn address_families_alternate() {
        let addresses =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (given, expected) in [
            (&["::1", "::2", "::3", "1.1.1.1"][..], &["::1", "1.1.1.1", "::2", "::3"][..]),
            (&["1.1.1.1", "::1", "::2", "::3"], &["1.1.1.1", "::1", "::2", "::3"]),
            (&["1.1.1.1", "1.1.1.2"], &["1.1.1.1", "1.1.1.2"]),
            (&[], &[]),
        ] {
            assert_eq!(*alternating(addresses(given)), addresses(expected));
        }
        let many = (0..=255).map(address).collect();
        assert_eq!(alternating(many).len(), ADDRESSES_MAX);
    }
}
