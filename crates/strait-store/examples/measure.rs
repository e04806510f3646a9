//! Measures the store: `cargo run --release -p strait-store --example measure -- DIR`. Prints the
//! cost of each operation. With `recover` as second argument, measures the start after a kill
//! instead: a child process fills a store with 500,000 objects of 1 to 4 KiB, or as many as a third
//! argument says, syncs it, and kills itself.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_store::{Config, Error, Record, Store, hash_of};

/// Number of stored objects.
const OBJECTS: u32 = 100_000;
/// Number of objects of a store that is killed.
const RECOVERED: u32 = 500_000;
const ROUNDS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: measure DIR [recover [OBJECTS]]";
    let dir = std::env::args_os().nth(1).map(PathBuf::from).ok_or(usage)?;
    let count = std::env::args().nth(3).map_or(Ok(RECOVERED), |count| count.parse())?;
    match std::env::args().nth(2).as_deref() {
        None => measure(&dir),
        Some("recover") => recover(&dir, count),
        Some(FILL) => fill_and_die(&dir, count),
        Some(_) => Err(usage.into()),
    }
}

fn measure(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let config =
        Config { capacity_bytes: 2 << 30, sync_every: None, ..Config::new(dir.join("strait-measure")) };
    let store = Store::open(config.clone())?;
    store.wait_loaded(Duration::from_mins(1));

    let body = vec![b'.'; 13 << 10];
    let ns = put_all(&store, OBJECTS, &body)?;
    println!("put 13 KiB            {ns:>9.0} ns");
    let records = found(&store);
    let hashes: Vec<u64> = (0..OBJECTS).map(|number| hash_of(&key(number))).collect();
    let ns = each(ROUNDS, |round| drop(store.find(hashes[spread(round) as usize])));
    println!("find                  {ns:>9.0} ns  of {} records", records.len());
    let ns = each(ROUNDS, |_| drop(store.find(hashes[0])));
    println!("find the same         {ns:>9.0} ns");
    let ns = each(100_000, |round| drop(store.load(&records[spread(round) as usize], 0)));
    println!("load a head           {ns:>9.0} ns");
    let ns = each(100_000, |round| drop(store.load(&records[spread(round) as usize], 1 << 20)));
    println!("load 13 KiB           {ns:>9.0} ns");

    drop(records);
    put_all(&store, OBJECTS, &body[..4 << 10])?;
    let small = found(&store);
    let ns = each(100_000, |round| drop(store.load(&small[spread(round) as usize], 1 << 20)));
    println!("load 4 KiB            {ns:>9.0} ns");
    drop(small);
    let ns = each(500, |round| drop(store.reserve(0, &key(round), &[b'm'; 300], Some(1 << 20))));
    println!("reserve 1 MiB         {ns:>9.0} ns");
    let ns = each(500, |round| drop(store.reserve(0, &key(round), &[b'm'; 300], None)));
    println!("reserve, length open  {ns:>9.0} ns");

    let begin = Instant::now();
    let (mut refused, mut stored) = (0, 0);
    for number in 0..3 * OBJECTS {
        match store.put(0, &key(number), &[b'm'; 300], &[&body]) {
            Ok(_) => stored += 1,
            Err(Error::Full { .. }) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    let ns = begin.elapsed().as_nanos() as f64 / f64::from(3 * OBJECTS);
    println!("put with eviction     {ns:>9.0} ns  {stored} stored, {refused} refused");

    restart(store, &config)?;
    std::fs::remove_dir_all(&config.dir)?;
    Ok(())
}

/// Second argument of the child process.
const FILL: &str = "fill";

fn to_recover(dir: &Path) -> Config {
    Config { capacity_bytes: 8 << 30, sync_every: None, ..Config::new(dir.join("strait-recover")) }
}

/// Fills and syncs a store, and ends this process by SIGKILL.
fn fill_and_die(dir: &Path, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open(to_recover(dir))?;
    let body = vec![b'.'; 4 << 10];
    for number in 0..count {
        let size = (1 << 10) + number as usize * 7 % (3 << 10);
        while let Err(error) = store.put(0, &key(number), &[b'm'; 300], &[&body[..size]]) {
            // Eviction makes the next segments.
            if !matches!(error, Error::Full { .. }) {
                return Err(error.into());
            }
        }
    }
    store.sync()?;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    Ok(())
}

/// Measures the start after a kill: with the journal of the index, and by a scan.
fn recover(dir: &Path, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let config = to_recover(dir);
    for how in ["journal", "scan"] {
        let _ = std::fs::remove_dir_all(&config.dir);
        let mut child = Command::new(std::env::current_exe()?);
        let status = child.arg(dir).args([FILL, &count.to_string()]).status()?;
        if status.signal() != Some(9) {
            return Err(format!("the child process was not killed: {status}").into());
        }
        if how == "scan" {
            std::fs::remove_file(config.dir.join("index"))?;
        }
        start(&config, how, count)?;
    }
    std::fs::remove_dir_all(&config.dir)?;
    Ok(())
}

/// Opens a store, and prints when its objects are found.
fn start(config: &Config, how: &str, count: u32) -> Result<(), Box<dyn std::error::Error>> {
    let (reads, begin) = (reads()?, Instant::now());
    let ms = || begin.elapsed().as_secs_f64() * 1e3;
    let store = Store::open(config.clone())?;
    println!("open by {how:<14} {:>9.1} ms", ms());
    // The newest objects are loaded first.
    for (age, number) in [("newest", count - 1), ("middle", count / 2), ("oldest", 0)] {
        let record = loop {
            match store.find(hash_of(&key(number))).into_iter().next() {
                Some(record) => break record,
                None if store.is_loaded() => return Err(format!("object {number} is lost").into()),
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        };
        store.load(&record, 1 << 20)?;
        println!("first hit, {age:<11} {:>9.1} ms", ms());
    }
    store.wait_loaded(Duration::from_mins(5));
    let (ms, after) = (ms(), self::reads()?);
    let lost = (0..count).filter(|number| store.find(hash_of(&key(*number))).is_empty()).count();
    let (calls, bytes) = (after.0 - reads.0, after.1 - reads.1);
    println!("loaded                {ms:>9.1} ms  {calls} reads of {bytes} bytes, {lost} of {count} lost");
    Ok(())
}

/// Number of read calls of this process, and of the bytes that they returned (proc(5)).
fn reads() -> Result<(u64, u64), Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).ok_or(format!("/proc/self/io: no {name}"))
    };
    Ok((value("syscr:")?, value("rchar:")?))
}

/// Measures closing, and loading from the snapshot and by a scan.
fn restart(store: Arc<Store>, config: &Config) -> Result<(), Box<dyn std::error::Error>> {
    let begin = Instant::now();
    store.close();
    println!("close                 {:>9.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    drop(store);
    for how in ["snapshot", "scan"] {
        if how == "scan" {
            std::fs::remove_file(config.dir.join("index"))?;
        }
        let begin = Instant::now();
        let store = Store::open(config.clone())?;
        let opened = begin.elapsed().as_secs_f64() * 1e3;
        store.wait_loaded(Duration::from_mins(5));
        let loaded = begin.elapsed().as_secs_f64() * 1e3;
        println!(
            "open, by {how:<12} {opened:>9.1} ms  loaded after {loaded:.1} ms: {} records",
            store.stats().records
        );
    }
    Ok(())
}

fn key(number: u32) -> Vec<u8> {
    format!("http://origin.example/some/path/{number}").into_bytes()
}

/// Number of an object, far from the last one.
fn spread(round: u32) -> u32 {
    round.wrapping_mul(2_654_435_761) % OBJECTS
}

fn put_all(store: &Store, count: u32, body: &[u8]) -> Result<f64, Error> {
    let keys: Vec<_> = (0..count).map(key).collect();
    let begin = Instant::now();
    for key in &keys {
        let replaced = store.find(hash_of(key));
        store.put(0, key, &[b'm'; 300], &[body])?;
        replaced.iter().for_each(|record| store.remove(record));
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(count))
}

fn found(store: &Store) -> Vec<Arc<Record>> {
    (0..OBJECTS).flat_map(|number| store.find(hash_of(&key(number)))).collect()
}

fn each(rounds: u32, mut what: impl FnMut(u32)) -> f64 {
    let begin = Instant::now();
    for round in 0..rounds {
        what(round);
    }
    begin.elapsed().as_nanos() as f64 / f64::from(rounds)
}
