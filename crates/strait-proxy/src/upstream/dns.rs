//! DNS cache: addresses of host names, looked up once for all requests and kept for a while.
//!
//! The system's resolver (getaddrinfo(3)) blocks a thread and reports no lifetime. The number of
//! concurrent lookups is limited, and results are kept for a fixed time. An old result is used
//! while a new one is awaited or not available (RFC 8767). A cached address grants no access: each
//! connection checks `access.reach` again, so that a name with changing addresses (DNS rebinding)
//! gains nothing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// Time for which addresses are kept.
const FOUND_FOR: Duration = Duration::from_secs(30);
/// Time for which old addresses are used in place of new ones.
const OLD_FOR: Duration = Duration::from_mins(10);
/// Time for which a failed lookup is kept, and for which unreachable addresses are not looked up
/// again.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Maximum of cached names.
const NAMES_MAX: usize = 1024;
/// Maximum of addresses of a name.
const ADDRESSES_MAX: usize = 16;
/// Maximum of concurrent lookups: each is a thread.
const LOOKUPS_MAX: usize = 16;

/// Blocking lookup of a name.
type Resolve = fn(&str) -> io::Result<Vec<IpAddr>>;

/// DNS cache of a worker.
#[derive(Debug)]
pub(crate) struct Dns {
    known: RefCell<HashMap<Box<str>, Known>>,
    lookups: Arc<Semaphore>,
    resolve: Resolve,
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
    addresses: Result<Arc<[IpAddr]>, Arc<str>>,
    at: Instant,
}

impl Default for Dns {
    fn default() -> Self {
        Self::new(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }
}

impl Dns {
    fn new(resolve: Resolve) -> Self {
        Self { known: RefCell::default(), lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)), resolve }
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
        let mut found = self.find(&host.to_ascii_lowercase())?;
        let found = found.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        let addresses = found.map(|found| found.addresses);
        addresses.unwrap_or_else(|| Err("the lookup has ended".into())).map_err(|why| io::Error::other(&*why))
    }

    /// Makes an address the first one to try: a connection to it succeeded.
    pub(crate) fn prefer(&self, host: &str, address: IpAddr) {
        let mut known = self.known.borrow_mut();
        let Some(known) = known.get_mut(&*host.to_ascii_lowercase()) else { return };
        let latest = known.latest.borrow().clone();
        if let Some(Found { addresses: Ok(addresses), at }) = latest {
            let mut addresses = addresses.to_vec();
            addresses.sort_by_key(|other| *other != address);
            known.latest = over(Found { addresses: Ok(addresses.into()), at });
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
                known.before = latest.filter(|found| found.addresses.is_ok()).or(known.before.take());
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
        let (lookups, resolve, name) = (self.lookups.clone(), self.resolve, name.to_owned());
        tokio::task::spawn_local(async move {
            // It is never closed.
            let Ok(_permit) = lookups.acquire().await else { return };
            let looked_up = tokio::task::spawn_blocking(move || resolve(&name)).await;
            let addresses = looked_up.unwrap_or_else(|error| Err(error.into()));
            let addresses = addresses.map(alternating).map_err(|error| error.to_string().into());
            // An error means that there are no waiters.
            let _ = sender.send(Some(Found { addresses, at: Instant::now() }));
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
        let is_missing = self.latest.borrow().as_ref().is_none_or(|found| found.addresses.is_err());
        let before = self.before.clone().filter(|found| is_missing && found.at.elapsed() < OLD_FOR);
        before.map_or_else(|| self.latest.clone(), over)
    }
}

/// Returns a finished lookup.
fn over(found: Found) -> Lookup {
    watch::channel(Some(found)).1
}

/// Returns true if a result is recent enough, or under way.
fn is_good(found: &Lookup) -> bool {
    match &*found.borrow() {
        Some(Found { addresses: Ok(_), at }) => at.elapsed() < FOUND_FOR,
        Some(Found { addresses: Err(_), at }) => at.elapsed() < FAILED_FOR,
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
        let names = Dns::new(|_| Ok(vec![address(LOOKUPS.fetch_add(1, Ordering::SeqCst) as u8)]));
        run(async {
            let (one, other) = tokio::join!(names.addresses("a.example"), names.addresses("A.example"));
            assert_eq!((&*one.unwrap(), &*other.unwrap()), (&[address(0)][..], &[address(0)][..]));
            tokio::time::advance(FOUND_FOR.mul_f32(0.9)).await;
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(0)]);
            tokio::time::advance(FOUND_FOR / 10).await;
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
        let names = Dns::new(|_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            Err(io::Error::other("no such name"))
        });
        run(async {
            for expected in [1, 1, 2] {
                let error = names.addresses("a.example").await.unwrap_err();
                assert_eq!(
                    (error.to_string().as_str(), LOOKUPS.load(Ordering::SeqCst)),
                    ("no such name", expected)
                );
                tokio::time::advance(FAILED_FOR * 6 / 10).await;
            }
        });
    }

    #[test]
    fn old_addresses_serve_for_a_while_when_lookups_fail() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let names = Dns::new(|_| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(vec![address(1), address(2)]),
            _ => Err(io::Error::other("no answer")),
        });
        run(async {
            assert_eq!(*names.addresses("a.example").await.unwrap(), [address(1), address(2)]);
            names.prefer("A.example", address(2));
            for _ in 0..3 {
                tokio::time::advance(FOUND_FOR).await;
                assert_eq!(*names.addresses("a.example").await.unwrap(), [address(2), address(1)]);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::advance(OLD_FOR).await;
            assert!(names.addresses("a.example").await.is_err());
        });
    }

    #[test]
    fn address_is_not_looked_up() {
        let names = Dns::new(|name| panic!("{name}"));
        run(async {
            for host in ["192.0.2.1", "2001:db8::1"] {
                assert_eq!(*names.addresses(host).await.unwrap(), [host.parse::<IpAddr>().unwrap()]);
            }
        });
    }

    #[test]
    fn lookups_and_names_are_bounded() {
        static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
        let names = Dns::new(|_| {
            assert!(UNDER_WAY.fetch_add(1, Ordering::SeqCst) < LOOKUPS_MAX);
            std::thread::yield_now();
            UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![address(1)])
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
