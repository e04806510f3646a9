//! Measures the store: `cargo run --release -p strait-store --example measure -- DIR`. Prints the
//! cost of each operation.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_store::{Config, Error, Record, Store, hash_of};

/// Number of stored objects.
const OBJECTS: u32 = 100_000;
const ROUNDS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: measure DIR")?;
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
