//! The store under steady eviction: a working set three times the disk limit, and a memory cache
//! larger than a segment.
//!
//! `STRAIT_CHURN_SCALE` multiplies the sizes; 32 is a disk of 1 GiB, 64 MiB of memory and 196,608
//! objects of 16 KiB.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lab::{deleted_files, wait_until};
use strait_proxy::Report;

use crate::rig::{Client, LIMIT, Rig};

/// Bytes of one object's body.
const OBJECT_BYTES: usize = 16 << 10;
/// Sizes at scale 1: 32 segments of 1 MiB.
const DISK_MIB: usize = 32;
const MEMORY_MIB: usize = 2;
const OBJECTS: usize = 6144;
/// Exponent of the popularity, and seed of the requests.
const EXPONENT: f64 = 0.9;
const SEED: u64 = 19;
/// Number of clients, each with one connection.
const CLIENTS: u64 = 4;
/// Requests of one client between two checks of the store, at scale 1: together they fill no more
/// than the segments that are kept ready.
const REQUESTS_PER_ROUND: usize = 20;
/// Rounds after the store was full once.
const ROUNDS_FULL: usize = 100;
/// Rounds within which the store is full.
const ROUNDS_MAX: usize = 500;
/// Deleted files that may be open at a time: responses and scans of the eviction thread hold them.
const DELETED_MAX: usize = 8;

/// Popularity of objects: the share of object `n` in all requests is proportional to
/// `1 / n^EXPONENT`.
struct Zipf {
    /// Share of the objects up to and including each.
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(objects: usize) -> Self {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=objects)
            .map(|rank| {
                sum += (rank as f64).powf(-EXPONENT);
                sum
            })
            .collect();
        for share in &mut cumulative {
            *share /= sum;
        }
        Self { cumulative }
    }

    /// Returns the object of request `number`.
    fn object(&self, number: u64) -> usize {
        let unit = (mixed(number) >> 11) as f64 / (1_u64 << 53) as f64;
        self.cumulative.partition_point(|share| *share < unit)
    }
}

/// Maps each number to another one by the finalizer of splitmix64.
fn mixed(number: u64) -> u64 {
    let z = (SEED + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn scale() -> usize {
    std::env::var("STRAIT_CHURN_SCALE").map_or(1, |scale| scale.parse().unwrap())
}

/// Sends one round of requests on all connections; the bodies are checked by their length.
fn run_round(clients: &mut [Client], requests: usize, zipf: &Zipf, next: &AtomicU64) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| {
                for _ in 0..requests {
                    let object = zipf.object(next.fetch_add(1, Ordering::Relaxed));
                    let answer = client.get(&format!("/200/600/{OBJECT_BYTES}/{object}"));
                    assert_eq!((answer.status(), answer.body.len()), (200, OBJECT_BYTES), "{answer:?}");
                }
            });
        }
    });
}

/// Returns true if every eviction thread of this process sleeps: one that was woken and waits for a
/// processor does not.
fn eviction_sleeps() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let is_awake = |stat: &str| stat.contains("(strait-store)") && !stat.contains(") S ");
    !stats.into_iter().any(|stat| is_awake(&stat))
}

/// Returns the share of hits in all requests so far, in percent.
fn hit_percent(report: &Report) -> u64 {
    100 * report.outcome("hit") / report.requests.max(1)
}

#[test]
fn a_working_set_larger_than_the_disk_keeps_the_store_full() {
    let scale = scale();
    let (disk, memory, objects) = (scale * DISK_MIB, scale * MEMORY_MIB, scale * OBJECTS);
    let rig =
        Rig::start(&format!("cache.size = \"{disk}MiB\"\ncache.memory = \"{memory}MiB\"\nworkers = 2\n"));
    let (zipf, next) = (Zipf::new(objects), AtomicU64::new(0));
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| rig.client()).collect();
    let (mut full, mut rounds_full) = (0, 0);
    for round in 1.. {
        run_round(&mut clients, REQUESTS_PER_ROUND * scale, &zipf, &next);
        // On a busy machine the thread may run late, and small segments are full until then.
        assert!(scale > 1 || wait_until(LIMIT, eviction_sleeps), "{:?}", rig.proxy.report());
        let report = rig.proxy.report();
        let store = report.store.unwrap();
        let deleted = deleted_files(rig.dir.path());
        println!(
            "{} requests, {} % hits: {} records, {} evicted, {} refused, {} bytes pinned, {deleted} deleted files open",
            report.requests,
            hit_percent(&report),
            store.records,
            store.evicted,
            store.refused,
            store.pinned_bytes
        );
        assert_eq!(store.refused, 0, "{store:?}");
        assert!(deleted <= DELETED_MAX, "{deleted} deleted files are open: {store:?}");
        if store.evicted == 0 {
            assert!(round < ROUNDS_MAX, "the store is never full: {store:?}");
            continue;
        }
        full = full.max(store.records);
        assert!(store.records * 10 >= full * 8, "{} of {full} records are left: {store:?}", store.records);
        rounds_full += 1;
        if rounds_full == ROUNDS_FULL {
            break;
        }
    }
}

#[test]
fn request_for_an_object_that_is_being_removed_gets_a_response() {
    // Larger than objects in the memory cache, so that each response pins a file.
    const BYTES: usize = 100_000;
    const REMOVALS: usize = 2000;
    let rig = Rig::start("workers = 2\naccess.purge = [\"127.0.0.1\"]\n");
    let is_over = AtomicBool::new(false);
    let path = format!("/200/600/{BYTES}/a");
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut client = rig.client();
            let (is_over, path) = (&is_over, &path);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client.send(format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
                    let answer = client.answer();
                    let got = answer.map(|answer| (answer.status(), answer.body.len()));
                    if got != Some((200, BYTES)) {
                        is_over.store(true, Ordering::Relaxed);
                        panic!("{got:?}");
                    }
                }
            });
        }
        let mut purger = rig.client();
        for _ in 0..REMOVALS {
            purger.send(format!("PURGE {path} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
            purger.answer().unwrap();
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
