//! Mixed load with random aborts on both sides for `STRAIT_SOAK_SECONDS`; `scripts/soak` runs it
//! for ten minutes. At the end every body was correct, and no descriptor, pipe, memory or disk
//! space is left behind.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::wait_until;
use rustix::net::sockopt::set_socket_linger;

use crate::body::Body;
use crate::client::Client;
use crate::framing::{Framed, Framing};
use crate::origin::{Origin, Request, send_bytes, send_head};
use crate::rig::{Descriptors, Proxy, Setup};

/// Duration without `STRAIT_SOAK_SECONDS`.
const SECONDS: u64 = 20;
const CLIENTS: u64 = 12;
const WORKERS: usize = 2;
/// Size limit of the store: less than all objects, so that it evicts all the time.
const DISK_BYTES: u64 = 96 << 20;
/// Space that a file system needs for the block maps of files: at most a block of 4 KiB for each of
/// some 256 files.
const BESIDE_BYTES: u64 = 1 << 20;
/// Idle connections to the origin of one worker, and its pipes.
const IDLE_MAX: usize = 8;
const PIPES_MAX: usize = 64;
/// Number of objects.
const OBJECTS: u64 = 1500;
/// Interval between two checks of disk and memory.
const LOOK: Duration = Duration::from_millis(100);
/// Checks of a disk that seems too full.
const LOOKS: usize = 3;

/// Pseudorandom numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    /// Chooses an object: most are small, some have a megabyte and more.
    fn object(&mut self) -> Body {
        let id = self.throw(OBJECTS);
        Body::new(
            id,
            [id % 97, 4000 + id, 60_000 + id * 7, 200_000 + id * 101, 1_500_000 + id][id as usize % 5],
        )
    }
}

/// Counts of the load.
#[derive(Debug, Default)]
struct Tally {
    whole: AtomicU64,
    hits: AtomicU64,
    bytes: AtomicU64,
    /// Clients that aborted.
    left: AtomicU64,
    /// Responses that the proxy had to cut off or to refuse, because the origin did.
    broken: AtomicU64,
    /// Responses that the origin cut off.
    cut: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Starts an origin that cuts off one of fifty responses, before its head or in its body, by a
/// close or a reset.
fn origin(tally: &Arc<Tally>) -> Origin {
    let (thrown, tally) = (AtomicU64::new(1), Arc::clone(tally));
    Origin::new(move |request, stream| {
        let mut dice = Dice(thrown.fetch_add(1, Ordering::Relaxed) << 20);
        let cut = (dice.throw(50) == 0).then(|| dice.throw(request.body().len + 1));
        if cut.is_some() {
            count(&tally.cut);
            if dice.throw(2) == 0 {
                set_socket_linger(&*stream, Some(Duration::ZERO))?;
            }
        }
        answer(request, stream, cut)
    })
}

fn answer(request: &Request, stream: &mut TcpStream, cut: Option<u64>) -> io::Result<()> {
    if cut == Some(0) {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    if request.target.contains('?') {
        return Framed { cut, ..Framed::parse(request) }.send(stream);
    }
    let range = send_head(request, stream, "Cache-Control: max-age=3600\r\n")?;
    let end = cut.map_or(range.end, |cut| range.end.min(range.start + cut));
    send_bytes(&request.body(), range.start..end, &mut *stream)?;
    if cut.is_some() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
}

/// Runs one client after the other, each with some requests on its connection, until time is over.
fn load(proxy: SocketAddr, origin: SocketAddr, seed: u64, tally: &Tally, end: Instant) {
    let mut dice = Dice(seed);
    while Instant::now() < end {
        let Ok(mut client) = Client::connect(proxy) else { continue };
        for _ in 0..=dice.throw(20) {
            match request(&mut client, origin, &mut dice, tally) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    count(&tally.broken);
                    break;
                }
            }
        }
    }
}

/// Sends one request; returns true if the connection can carry another.
fn request(client: &mut Client, origin: SocketAddr, dice: &mut Dice, tally: &Tally) -> io::Result<bool> {
    let object = dice.object();
    let url = |target: String| format!("http://{origin}{target}");
    match dice.throw(20) {
        0 => leave(client, &url(object.target()), object, dice, tally),
        1 => part(client, &url(object.target()), object, dice, tally),
        2 => upload(client, &url(object.target()), object, dice, tally),
        3 => tunnel(client, origin, object, tally),
        4..=7 => {
            let framing = Framing::ALL[dice.throw(3) as usize];
            let framed = Framed::whole(object, framing, dice.throw(2) == 0);
            whole(client, &url(framed.target()), object, tally)
        }
        _ => whole(client, &url(object.target()), object, tally),
    }
}

fn whole(client: &mut Client, url: &str, object: Body, tally: &Tally) -> io::Result<bool> {
    let response = client.fetch(url, "")?;
    if response.head.status != 200 {
        return Err(io::Error::other("refused"));
    }
    object.assert_whole(&response.body);
    count(&tally.whole);
    tally.hits.fetch_add(u64::from(response.head.is_hit()), Ordering::Relaxed);
    tally.bytes.fetch_add(object.len, Ordering::Relaxed);
    Ok(true)
}

/// Reads some of a response and closes; every other time with a reset.
fn leave(client: &mut Client, url: &str, object: Body, dice: &mut Dice, tally: &Tally) -> io::Result<bool> {
    client.ask("GET", url, "")?;
    if dice.throw(4) > 0 && client.head()?.status == 200 {
        let taken = client.exactly(dice.throw(object.len + 1))?;
        assert!(object.is(0, &taken), "the beginning of {url}");
    }
    if dice.throw(2) == 0 {
        set_socket_linger(&client.stream, Some(Duration::ZERO))?;
    }
    count(&tally.left);
    Ok(false)
}

fn part(client: &mut Client, url: &str, object: Body, dice: &mut Dice, tally: &Tally) -> io::Result<bool> {
    if object.len == 0 {
        return Ok(true);
    }
    let first = dice.throw(object.len);
    let last = first + dice.throw(object.len - first);
    let response = client.fetch(url, &format!("Range: bytes={first}-{last}\r\n"))?;
    if response.head.status != 206 {
        return Err(io::Error::other("refused"));
    }
    assert_eq!(response.body.len() as u64, last + 1 - first, "{url}");
    assert!(object.is(first, &response.body), "{first}-{last} of {url}");
    count(&tally.whole);
    Ok(true)
}

/// Sends a body, which invalidates the stored response; or half of one, and closes.
fn upload(client: &mut Client, url: &str, object: Body, dice: &mut Dice, tally: &Tally) -> io::Result<bool> {
    client.ask("POST", url, &format!("Content-Length: {}\r\n", object.len))?;
    if dice.throw(4) == 0 {
        send_bytes(&object, 0..object.len / 2, &mut client.stream)?;
        count(&tally.left);
        return Ok(false);
    }
    send_bytes(&object, 0..object.len, &mut client.stream)?;
    let head = client.head()?;
    if head.status != 200 {
        return Err(io::Error::other("refused"));
    }
    object.assert_whole(&client.body(&head)?);
    count(&tally.whole);
    Ok(true)
}

/// Asks the origin through the proxy.
fn tunnel(client: &mut Client, origin: SocketAddr, object: Body, tally: &Tally) -> io::Result<bool> {
    write!(client.stream, "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n")?;
    if client.head()?.status != 200 {
        return Err(io::Error::other("refused"));
    }
    object.assert_whole(&client.fetch(&object.target(), "")?.body);
    count(&tally.whole);
    Ok(false)
}

/// Returns the disk space of a proxy in a directory: its files, and open files without a name.
fn disk_bytes(proxy: &Proxy, folder: &Path) -> u64 {
    let named = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let paths = named.chain(proxy.open_files(folder));
    // A file that was removed or closed meanwhile takes no space.
    let files = paths.filter_map(|path| fs::metadata(path).ok());
    let bytes: HashMap<_, _> = files.map(|metadata| (metadata.ino(), metadata.blocks() * 512)).collect();
    bytes.values().sum()
}

/// Returns the disk space while files change: one look may count a file and its successor, so the
/// least of several looks counts.
fn steady_disk_bytes(proxy: &Proxy, folder: &Path) -> u64 {
    let look = || disk_bytes(proxy, folder);
    (1..LOOKS).fold(look(), |least, _| if least > DISK_BYTES { least.min(look()) } else { least })
}

/// Memory and descriptors of a proxy without clients.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    memory_bytes: u64,
    descriptors: Descriptors,
}

fn quiet(proxy: &Proxy, listeners: usize) -> Quiet {
    assert!(proxy.await_sockets(listeners + WORKERS * IDLE_MAX), "{:?}", proxy.descriptors());
    Quiet { memory_bytes: proxy.memory(), descriptors: proxy.descriptors() }
}

/// Most descriptors of the proxy other than sockets, pipes and files of the store.
const FILES_BESIDE: usize = 24;

/// Runs the load and checks the disk meanwhile. Returns the most space used.
fn run(proxy: &Proxy, origin: &Origin, cache: &Path, tally: &Tally, span: Duration, seed: u64) -> u64 {
    let end = Instant::now() + span;
    let is_over = AtomicBool::new(false);
    let most = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(steady_disk_bytes(proxy, cache), Ordering::Relaxed);
                thread::sleep(LOOK);
            }
        });
        let (at, origin) = (proxy.address, origin.address);
        let load = |client| move || load(at, origin, seed + client, tally, end);
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(load(client))).collect();
        let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a body was wrong");
    });
    most.into_inner()
}

#[test]
fn mixed_load_with_aborts_leaks_no_resources() {
    let seconds = std::env::var("STRAIT_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let span = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let tally = Arc::new(Tally::default());
    let origin = origin(&tally);
    let cache = tempfile::tempdir().unwrap();
    let config = format!(
        "access.connect_ports = [{}]\nlimits.origin_idle = {IDLE_MAX}\nworkers = {WORKERS}\n[cache]\nmemory = \"8MiB\"\nsize = {DISK_BYTES}\n",
        origin.address.port()
    );
    let proxy = Setup::forward().config(&config).start_in(cache.path());
    let listeners = proxy.descriptors().sockets;
    let mut disk = run(&proxy, &origin, cache.path(), &tally, span / 4, 1 << 40);
    let before = quiet(&proxy, listeners);
    let peak = proxy.memory_peak();
    disk = disk.max(run(&proxy, &origin, cache.path(), &tally, span * 3 / 4, 2 << 40));
    let after = quiet(&proxy, listeners);

    println!(
        "{tally:?}\nafter a quarter: {before:?}, {peak} bytes of memory at most\nat the end: {after:?}\ndisk: {} MiB at most",
        disk >> 20
    );
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(of(&tally.whole) > 100 && of(&tally.hits) > 0 && of(&tally.left) > 0 && of(&tally.cut) > 0);
    // A response that is cut off has few followers.
    assert!(of(&tally.broken) <= 3 * of(&tally.cut), "more broke off than the origin cut off");
    assert!(after.descriptors.pipes <= 2 * WORKERS * PIPES_MAX, "{after:?}");
    let on_disk = fs::read_dir(cache.path()).unwrap().count();
    assert!(after.descriptors.others <= on_disk + FILES_BESIDE, "{on_disk} files on disk, {after:?}");
    // The proxy closes removed files within moments.
    assert!(wait_until(Duration::from_secs(10), || proxy.descriptors().deleted == 0), "{after:?}");
    // The allocator may keep what a load needed at its peak, which a short load does not reach in
    // its first quarter. In ten minutes, a hundred lost bytes per request exceed this limit.
    assert!(after.memory_bytes <= peak + (64 << 20), "{peak} {before:?} {after:?}");
    assert!(disk <= DISK_BYTES + BESIDE_BYTES, "{disk} bytes of disk");
}
