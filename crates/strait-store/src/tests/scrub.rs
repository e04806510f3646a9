//! Hashes of bodies that did not pass through memory, and the scrub.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, pwrite};

use super::{PATIENCE, config, fill_of, killed, open, open_on_disk};
use crate::check::{Check, Verified};
use crate::disk::Call;
use crate::policy::Area;
use crate::{Config, Error, Record, Scrub, Store, Writer, eviction, hash_of};

/// A scrub without a limit, with one pass.
const ONCE: Option<Scrub> = Some(Scrub { bytes_per_second: u64::MAX, every: Duration::from_hours(1) });

/// Sizes of bodies: short, in pages of a segment, of several pieces, and in a file of its own.
const SIZES: [usize; 7] = [0, 10, 5000, 50_000, 60_000, 300_000, 900_000];

fn wait_for(what: &str, mut is_met: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_met() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reserves space and writes a body there that the store does not see.
fn written(store: &Store, key: &[u8], meta: &[u8], body: &[u8], is_known: bool) -> Writer {
    let len = body.len() as u64;
    let mut writer = store.reserve(0, key, meta, is_known.then_some(len)).unwrap();
    writer.grow(len).unwrap();
    let extent = writer.extent();
    assert_eq!(pwrite(&*extent.file, body, extent.offset).unwrap(), body.len());
    writer
}

fn stored(store: &Store, key: &[u8], body: &[u8]) -> Arc<Record> {
    written(store, key, b"meta", body, true).commit(body.len() as u64).unwrap()
}

/// Returns true if the header on disk has a hash of the body.
fn has_hash(store: &Store, record: &Arc<Record>) -> bool {
    store.load(record, 0).unwrap().header.body_hash.is_some()
}

fn verified(store: &Store) -> (u64, u64, u64, u64) {
    let Verified { whole, unhashed, corrupt, unreadable, .. } = store.verify();
    (whole, unhashed, corrupt, unreadable)
}

fn larger(dir: &tempfile::TempDir) -> Config {
    Config { capacity_bytes: 16 << 20, ..config(dir) }
}

#[test]
fn scrub_adds_hashes_to_new_bodies() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&Config { scrub: ONCE, ..larger(&dir) });
    let records: Vec<_> = SIZES
        .into_iter()
        .map(|size| stored(&store, size.to_string().as_bytes(), &fill_of(size as u64, size)))
        .collect();
    wait_for("all bodies have hashes", || records.iter().all(|record| has_hash(&store, record)));
    let updated: Vec<_> = records.iter().map(|record| store.update(0, record, b"new").unwrap()).collect();
    assert!(updated.iter().all(|record| has_hash(&store, record)));
    // A killed process leaves the hashes, and a closed one too.
    let copy = killed(dir.path());
    store.close();
    for dir in [&copy, &dir] {
        let store = open(&larger(dir));
        assert_eq!(verified(&store), (SIZES.len() as u64, 0, 0, 0));
    }
}

#[test]
fn verification_adds_missing_hashes_unless_the_store_is_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&larger(&dir));
    for size in [10, 300_000, 900_000] {
        stored(&store, size.to_string().as_bytes(), &fill_of(1, size));
    }
    store.close();
    let store = Store::open_to_read(dir.path()).unwrap();
    assert_eq!((verified(&store), verified(&store)), ((0, 3, 0, 0), (0, 3, 0, 0)));
    let store = open(&larger(&dir));
    assert_eq!((verified(&store), verified(&store)), ((0, 3, 0, 0), (3, 0, 0, 0)));
}

#[test]
fn bytes_passed_in_order_give_a_hash_at_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&larger(&dir));
    let body = fill_of(7, 400_000);
    for (key, parts, expected) in [
        ("all", [0..100_000, 100_000..400_000], true),
        ("gap", [0..100_000, 200_000..400_000], false),
        ("beginning", [0..100_000, 100_000..100_000], false),
        ("twice", [0..400_000, 0..400_000], false),
        ("end", [400_000..400_000, 0..400_000], false),
    ] {
        let mut writer = written(&store, key.as_bytes(), b"", &body, true);
        for part in parts {
            writer.hash(part.start as u64, &body[part]);
        }
        let record = writer.commit(400_000).unwrap();
        assert_eq!(has_hash(&store, &record), expected, "{key}");
    }
    assert_eq!(verified(&store), (1, 4, 0, 0));
}

#[test]
fn record_moved_during_its_check_gets_the_hash_at_its_new_place() {
    let dir = tempfile::tempdir().unwrap();
    // The thread of the scrub waits for its next pass, and takes only queued records.
    let store = open(&Config { segment_bytes: Some(1 << 20), scrub: ONCE, ..larger(&dir) });
    wait_for("the first pass ends", || store.stats().is_loaded);
    let record = stored(&store, b"key", &fill_of(1, 200_000));
    store.touch(&record);
    let mut check = Check::new(&record);
    check.step(&store.shared).unwrap();
    let file = record.location().unwrap().head;
    eviction::evict(&store.shared, Area::Main, &file);
    let moved = record.location().unwrap();
    assert!(!Arc::ptr_eq(&moved.head, &file), "it was moved");
    while check.step(&store.shared).unwrap().outcome.is_none() {}
    wait_for("the copy has a hash", || has_hash(&store, &record));
    assert_eq!(verified(&store), (1, 0, 0, 0));
}

#[test]
fn check_goes_on_in_the_pinned_body_of_a_removed_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&larger(&dir));
    let body = fill_of(1, 600_000);
    for is_damaged in [false, true] {
        let mut writer = written(&store, b"key", b"meta", &body, true);
        writer.hash(0, &body);
        let record = writer.commit(600_000).unwrap();
        let pinned = record.body().unwrap();
        let mut check = Check::new(&record);
        assert!(matches!(check.next_in(&pinned), Err(Error::Removed { .. })), "the hash is not known yet");
        // The head, and the first piece.
        (0..2).for_each(|_| assert!(!store.check_next(&mut check).unwrap()));
        if is_damaged {
            let last = pinned.after(599_999);
            assert_eq!(pwrite(&*last.file, &[!body[599_999]], last.offset).unwrap(), 1);
        }
        store.remove(&record);
        assert!(matches!(store.check_next(&mut check), Err(Error::Removed { .. })));
        assert!(!check.next_in(&pinned).unwrap());
        match check.next_in(&pinned) {
            Err(Error::Corrupt { .. }) => assert!(is_damaged),
            end => assert!(end.unwrap() && !is_damaged),
        }
    }
}

#[test]
fn failed_read_is_counted_and_drops_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(Config { scrub: ONCE, ..larger(&dir) });
    disk.faults.inject(Call::Read, 0, 1, Errno::IO.raw_os_error());
    let record = stored(&store, b"key", &fill_of(1, 300_000));
    wait_for("a read fails", || store.stats().failed > 0);
    assert!(record.is_alive() && store.stats().corrupt == 0);
    store.close();
    let store = open(&larger(&dir));
    assert_eq!(store.verify().corrupt, 0);
    assert_eq!(store.stats().records, 1);
}

#[test]
fn slow_scrub_ends_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Some(Scrub { bytes_per_second: 1, every: Duration::from_hours(1) });
    let store = open(&Config { scrub: slow, ..larger(&dir) });
    stored(&store, b"key", &fill_of(1, 900_000));
    wait_for("it has begun", || store.stats().scrubbed_bytes > 0);
    // At this rate the rest would take ten days.
    store.close();
    assert_eq!(store.stats().scrubbed, 0);
}

#[test]
fn loads_removals_and_moves_meet_no_half_written_header() {
    const ROUNDS: u64 = 900;
    let dir = tempfile::tempdir().unwrap();
    let large = Config { capacity_bytes: 64 << 20, ..config(&dir) };
    let store = open(&Config { scrub: ONCE, ..large.clone() });
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for record in store.records() {
                        let _ = store.load(&record, 0);
                    }
                }
            });
        }
        let writing = scope.spawn(|| {
            for number in 0..ROUNDS {
                let record = stored(&store, &number.to_le_bytes(), &fill_of(number, 40_000));
                if number % 3 == 0 {
                    store.remove(&record);
                } else if number % 3 == 1 {
                    drop(store.update(0, &record, b"updated"));
                }
            }
        });
        let written = writing.join();
        is_over.store(true, Ordering::Relaxed);
        written.unwrap();
    });
    assert_eq!(store.stats().corrupt, 0);
    assert!((0..ROUNDS).step_by(3).all(|number| store.find(hash_of(&number.to_le_bytes())).is_empty()));
    // A scan reads the headers as the scrub and the removals have left them.
    let copy = killed(dir.path());
    let store = open(&Config { dir: copy.path().into(), ..large });
    assert_eq!(store.verify().corrupt, 0);
    assert_eq!(store.stats().records, ROUNDS * 2 / 3);
    assert!((0..ROUNDS).step_by(3).all(|number| store.find(hash_of(&number.to_le_bytes())).is_empty()));
}

/// Pseudo-random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Number of damaged objects, and of others.
const DAMAGED: u64 = 1000;
const INTACT: u64 = 200;

/// Flips one byte of a record on disk: of its header, its key, its meta or its body in turn.
fn flip(record: &Record, number: u64, (key_len, meta_len): (u64, u64), chance: &mut Chance) {
    let location = record.location().unwrap();
    let head = location.offset;
    let (begin, len) = match number % 4 {
        0 => (head, 112),
        1 => (head + 112, key_len),
        2 => (head + 112 + key_len, meta_len),
        _ => (location.body_offset, record.body_len()),
    };
    let file = if number % 4 == 3 { &location.body } else { &location.head };
    let file = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
    let (at, bit) = (begin + chance.below(len), chance.below(8));
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

#[test]
fn scrub_finds_every_one_of_a_thousand_flipped_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 2 << 30, sync_every: None, ..Config::new(dir.path()) };
    let mut chance = Chance(25);
    let store = open(&Config { scrub: ONCE, ..config.clone() });
    let key = |number: u64| format!("http://host.example/object/{number}").into_bytes();
    for number in 0..DAMAGED + INTACT {
        // From 100 bytes to 8 MiB; a sixteenth is long.
        let bits = 7 + chance.below(if number % 16 == 7 { 17 } else { 9 });
        let body = fill_of(number, (100 + chance.below(1 << bits) as usize).min(8 << 20));
        let (key, meta) = (key(number), fill_of(number + 1, 50 + number as usize % 300));
        if number % 3 == 0 {
            store.put(0, &key, &meta, &[&body]).unwrap();
        } else {
            written(&store, &key, &meta, &body, number % 3 == 1).commit(body.len() as u64).unwrap();
        }
    }
    wait_for("all records have hashes", || store.records().iter().all(|record| has_hash(&store, record)));
    store.close();

    // The damage is on the disk before the next session, which trusts the snapshot.
    let store = Store::open_to_read(dir.path()).unwrap();
    for number in 0..DAMAGED {
        let records = store.find(hash_of(&key(number)));
        assert_eq!(records.len(), 1);
        let meta_len = store.load(&records[0], 0).unwrap().meta().len() as u64;
        flip(&records[0], number, (key(number).len() as u64, meta_len), &mut chance);
    }
    drop(store);

    let store = open(&Config { scrub: ONCE, ..config });
    wait_for("the pass ends", || {
        let stats = store.stats();
        stats.corrupt + stats.scrubbed >= DAMAGED + INTACT
    });
    let found = (0..DAMAGED).filter(|number| store.find(hash_of(&key(*number))).is_empty()).count();
    println!("{found} of {DAMAGED} flipped bytes found");
    let stats = store.stats();
    assert_eq!((found as u64, stats.corrupt, stats.records), (DAMAGED, DAMAGED, INTACT));
    assert!(store.take_damage().is_some_and(|text| text.contains("dropped")));
    for number in DAMAGED..DAMAGED + INTACT {
        assert_eq!(store.find(hash_of(&key(number))).len(), 1, "{number} is intact");
    }
    assert_eq!(verified(&store), (INTACT, 0, 0, 0));
}
