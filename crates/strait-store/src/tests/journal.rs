//! The journal of the index: after a kill, a start finds all objects without reading the segments,
//! and no removed one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use tempfile::TempDir;

use super::{PATIENCE, body_of, config, fill_of, killed, open, open_on_disk, wait_until};
use crate::budget::Share;
use crate::disk::{Call, Disk};
use crate::file::name_of;
use crate::format::journal::{BLOCK_BYTES, Block, Cut, FileEntry};
use crate::format::{STATE_AT, State};
use crate::index::Index;
use crate::lane::RESERVES;
use crate::open::Opened;
use crate::policy::Area;
use crate::recovery::Recovery;
use crate::unread::Found;
use crate::{Config, Error, Store, append, eviction, hash_of, load, open as opening};

fn put(store: &Store, number: u64) {
    store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 1000)]).unwrap();
}

fn has(store: &Store, number: u64) -> bool {
    let found = store.find(hash_of(&number.to_le_bytes()));
    let is_served = found.iter().any(|record| match store.load(record, 1 << 20) {
        Ok(loaded) => loaded.body() == Some(&fill_of(number, 1000)[..]),
        Err(Error::Removed { .. }) => false,
        Err(error) => panic!("{error}"),
    });
    let is_found = !store.find(hash_of(&number.to_le_bytes())).is_empty();
    assert_eq!(is_served, is_found, "a record that has ended is dropped when it is loaded");
    is_served
}

fn remove(store: &Store, number: u64) {
    store.find(hash_of(&number.to_le_bytes())).iter().for_each(|record| store.remove(record));
}

/// Ends the lane's segment.
fn seal(store: &Store) {
    append::seal(&store.shared, &mut store.shared.lane(0, "test").unwrap());
}

/// Opens the store that a killed process would leave, with the faults of `disk`.
fn reopened(dir: &Path, disk: &Disk) -> (TempDir, Arc<Store>) {
    let dir = killed(dir);
    let store = Store::open_on(disk.clone(), config(&dir)).unwrap();
    assert!(store.wait_loaded(PATIENCE));
    (dir, store)
}

/// Numbers of the blocks of the cuts in a journal.
fn cuts(dir: &Path) -> Vec<usize> {
    let bytes = fs::read(dir.join("index")).unwrap();
    let blocks = bytes.chunks_exact(BLOCK_BYTES).enumerate();
    let is_cut = |place: usize, block| Block::check(block, place as u64)?.items::<Cut>().next();
    blocks.filter_map(|(place, block)| is_cut(place, block).map(|_| place)).collect()
}

#[test]
fn start_after_a_kill_reads_the_journal_and_not_the_segments() {
    const COUNT: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 64 << 20, ..config(&dir) };
    let store = open(&config);
    for number in 0..COUNT {
        put(&store, number);
        // Some batches, and then a tail.
        if [COUNT / 2, COUNT * 3 / 4, COUNT - 5].contains(&number) {
            store.sync().unwrap();
        }
    }
    assert_eq!(cuts(dir.path()).len(), 3);
    let dir = killed(dir.path());
    let (disk, store) = open_on_disk(Config { dir: dir.path().into(), ..config.clone() });
    let (reads, stats) = (disk.faults.count(Call::Read), store.stats());
    // The checkpoint and the journal, twice and by batches; the header of each file; the begun and
    // the spare segments, in which the copy has no holes, and the last record.
    let blocks = fs::metadata(dir.path().join("index")).unwrap().len() / BLOCK_BYTES as u64;
    let of_journal = 2 * (blocks / 64 + 3);
    let spares = store.shared.segments.spares.count_max();
    let of_tails = ((spares + RESERVES) as u64 + 1) * config.segment_bytes.unwrap().div_ceil(64 << 10);
    let most = 1 + of_journal + stats.files + of_tails + 1;
    assert!(reads <= most, "{reads} reads, {blocks} blocks, {stats:?}");
    assert!(reads < COUNT / 40 && stats.records == COUNT, "{reads} reads, {stats:?}");
    assert!((0..COUNT).all(|number| has(&store, number)));
}

#[test]
fn removed_object_does_not_return_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    (0..40).for_each(|number| put(&store, number));
    store.put(0, b"own", b"meta", &[&fill_of(1, 100_000)]).unwrap();
    store.sync().unwrap();
    remove(&store, 1);
    store.sync().unwrap();
    remove(&store, 2);
    let own = store.find(hash_of(b"own")).remove(0);
    assert!(own.body().unwrap().file.is_own());
    // Only the unlink of its file is missing.
    store.shared.segments.disk.faults.inject(Call::Unlink, 0, u32::MAX, Errno::IO.raw_os_error());
    store.remove(&own);
    let (dir, store) = reopened(dir.path(), &Disk::default());
    assert_eq!(store.stats().records, 39, "the journal still has the one removed after the sync");
    assert!(store.find(hash_of(b"own")).is_empty());
    assert!((0..40).all(|number| has(&store, number) != [1, 2].contains(&number)));
    assert_eq!((store.stats().records, store.stats().corrupt), (38, 0));
    // Nor if this session ends before its first sync, or is read-only.
    let (_again, store) = reopened(dir.path(), &Disk::default());
    assert!(!has(&store, 1) && !has(&store, 2) && has(&store, 3));
    let store = Store::open_to_read(killed(dir.path()).path()).unwrap();
    assert!(!has(&store, 1) && !has(&store, 2) && has(&store, 3));
}

#[test]
fn eviction_drops_a_record_that_ended_in_an_earlier_session() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    (0..40).for_each(|number| put(&store, number));
    store.sync().unwrap();
    remove(&store, 2);
    let (_dir, store) = reopened(dir.path(), &Disk::default());
    store.records().iter().for_each(|record| record.touch());
    let file = store.records()[0].location().unwrap().head;
    eviction::evict(&store.shared, Area::Main, &file);
    assert!((0..40).all(|number| has(&store, number) == (number != 2)), "{:?}", store.stats());
}

#[test]
fn object_moved_after_the_sync_is_found_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    (0..40).for_each(|number| put(&store, number));
    store.sync().unwrap();
    seal(&store);
    store.records().iter().for_each(|record| record.touch());
    let file = store.shared.segments.queued().remove(0);
    eviction::evict(&store.shared, Area::Main, &file);
    // The first place of a record, with its header marked dead, is still there.
    let disk = Disk::default();
    for is_synced in [false, true] {
        let (_dir, after) = reopened(dir.path(), &disk);
        assert!((0..40).all(|number| has(&after, number)), "{is_synced}");
        assert_eq!(after.stats().records, 40);
        store.sync().unwrap();
    }
}

#[test]
fn extent_that_is_filled_during_a_sync_is_found_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put(&store, 1);
    let key = 2_u64.to_le_bytes();
    let writer = store.reserve(0, &key, b"meta", Some(1000)).unwrap();
    put(&store, 3);
    seal(&store);
    store.sync().unwrap();
    let abandoned = store.reserve(0, b"abandoned", b"meta", Some(1000)).unwrap();
    store.sync().unwrap();
    rustix::io::pwrite(&*writer.extent().file, &fill_of(2, 1000), writer.extent().offset).unwrap();
    writer.commit(1000).unwrap();
    drop(abandoned);
    let (_dir, after) = reopened(dir.path(), &Disk::default());
    assert!((1..4).all(|number| has(&after, number)));
    assert_eq!(after.stats().records, 3);
}

/// A process that has handed the directory over still fills its extents, and its clients read them.
#[test]
fn extent_that_is_filled_after_the_store_is_closed_stays_whole() {
    // In a segment, and in a file of its own.
    for len in [20_000, 200_000] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&config(&dir));
        put(&store, 1);
        let writer = store.reserve(0, b"open", b"meta", Some(len as u64)).unwrap();
        let (extent, body) = (writer.extent(), fill_of(2, len));
        let write = |from: usize, part: &[u8]| {
            assert_eq!(rustix::io::pwrite(&*extent.file, part, extent.offset + from as u64), Ok(part.len()));
        };
        write(0, &body[..len / 2]);
        drop(store);
        let after = open(&config(&dir));
        assert!(has(&after, 1) && after.stats().records == 1);
        write(len / 2, &body[len / 2..]);
        let mut read = vec![0; len];
        assert_eq!(rustix::io::pread(&*extent.file, &mut read[..], extent.offset), Ok(len));
        assert!(read == body, "{len}");
        writer.commit(len as u64).unwrap_err();
    }
}

#[test]
fn any_beginning_of_the_journal_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    for round in 0..5 {
        (0..30).for_each(|number| put(&store, 30 * round + number));
        remove(&store, 30 * round + 1);
        if round == 2 {
            seal(&store);
            store.records().iter().for_each(|record| record.touch());
            let file = store.shared.segments.queued().remove(0);
            eviction::evict(&store.shared, Area::Main, &file);
        }
        store.sync().unwrap();
    }
    remove(&store, 45);
    let of_journal = cuts(dir.path());
    assert_eq!(of_journal.len(), 5);
    let image = killed(dir.path());
    let journal = fs::read(image.path().join("index")).unwrap();
    for cut in (0..=journal.len()).step_by(BLOCK_BYTES / 2) {
        fs::write(image.path().join("index"), &journal[..cut]).unwrap();
        let (_dir, after) = reopened(image.path(), &Disk::default());
        for number in 0..150 {
            let is_removed = number % 30 == 1 || number == 45;
            assert_eq!(has(&after, number), !is_removed, "{number} with {cut} bytes");
        }
        assert_eq!(after.stats().records, 144);
    }
}

#[test]
fn failed_write_of_the_journal_is_counted_and_costs_no_object() {
    for call in [Call::Allocate, Call::Create, Call::Rename, Call::Write] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&config(&dir));
        put(&store, 1);
        store.sync().unwrap();
        put(&store, 2);
        if call == Call::Write {
            // The first write is that of the checkpoint.
            store.shared.segments.disk.faults.inject_here(call, 1, 1, Errno::NOSPC.raw_os_error());
        } else {
            store.shared.journal.lose();
            let after = u32::from(call != Call::Allocate);
            store.shared.segments.disk.faults.inject_here(call, after, 1, Errno::NOSPC.raw_os_error());
        }
        store.sync().unwrap();
        assert_eq!(store.stats().failed, 1, "{call:?}");
        put(&store, 3);
        let (_dir, after) = reopened(dir.path(), &Disk::default());
        assert!((1..4).all(|number| has(&after, number)), "{call:?}");
        store.sync().unwrap();
        assert_eq!(cuts(dir.path()).len(), 1, "the next one is whole");
        assert!(!dir.path().join("index.new").exists());
    }
}

#[test]
fn journal_is_replaced_before_it_grows_long() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let mut longest = 0;
    for round in 0..200 {
        put(&store, round);
        remove(&store, round.wrapping_sub(50));
        store.sync().unwrap();
        longest = longest.max(cuts(dir.path()).len());
        let blocks = fs::metadata(dir.path().join("index")).unwrap().len() / BLOCK_BYTES as u64;
        assert!(blocks < 80, "{blocks}");
    }
    assert!((10..80).contains(&longest), "{longest} batches");
    let (_dir, after) = reopened(dir.path(), &Disk::default());
    assert_eq!(after.stats().records, 50);
    assert!((150..200).all(|number| has(&after, number)));
}

#[test]
fn journal_has_a_share_of_the_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    put(&store, 1);
    store.sync().unwrap();
    let bytes = fs::metadata(dir.path().join("index")).unwrap().len();
    put(&store, 2);
    store.sync().unwrap();
    let longer = fs::metadata(dir.path().join("index")).unwrap().len();
    assert!(longer > bytes);
    let (_dir, after) = reopened(dir.path(), &Disk::default());
    after.sync().unwrap();
    store.close();
    let on_disk = |dir: &Path| -> u64 {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let counted = entries.filter(|entry| !["lock", "marks"].map(Into::into).contains(&entry.file_name()));
        counted.map(|entry| entry.metadata().unwrap().len()).sum()
    };
    assert_eq!(store.stats().used_bytes, on_disk(dir.path()));
    assert_eq!(body_of(&store, &1_u64.to_le_bytes()), Some(fill_of(1, 1000)));
}

#[test]
fn interrupted_copy_of_a_record_does_not_replace_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    // Without a hash of its body.
    let writer = store.reserve(0, &1_u64.to_le_bytes(), b"meta", Some(1000)).unwrap();
    rustix::io::pwrite(&*writer.extent().file, &fill_of(1, 1000), writer.extent().offset).unwrap();
    let record = writer.commit(1000).unwrap();
    let from = record.location().unwrap();
    seal(&store);
    store.sync().unwrap();
    record.touch();
    eviction::evict(&store.shared, Area::Main, &from.head);
    let to = record.location().unwrap();
    // The process is killed in the middle of the copy.
    assert!(!to.has_head(&from.head, from.offset));
    let committed = State::Committed.code().to_le_bytes();
    rustix::io::pwrite(&*from.head, &committed, from.offset + STATE_AT).unwrap();
    rustix::io::pwrite(&*to.body, &[0; 500], to.body_offset + 500).unwrap();
    // The file is unlinked already, but open.
    let image = killed(dir.path());
    let bytes = from.head.read(from.head.share.bytes() as usize, 0).unwrap();
    fs::write(image.path().join(name_of(&from.head.header)), bytes).unwrap();
    for with_journal in [true, false] {
        if !with_journal {
            fs::remove_file(image.path().join("index")).unwrap();
        }
        let (_dir, after) = reopened(image.path(), &Disk::default());
        assert!(has(&after, 1), "{with_journal}");
        assert_eq!((after.stats().records, after.stats().corrupt), (1, 1));
    }
}

#[test]
fn units_of_a_shard_have_all_records_of_its_keys() {
    const COUNT: u64 = 30_000;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { capacity_bytes: 64 << 20, ..config(&dir) };
    let store = open(&config);
    for number in 0..COUNT {
        put(&store, number);
        if [COUNT / 2, COUNT - 3].contains(&number) {
            store.sync().unwrap();
        }
    }
    let dir = killed(dir.path());
    let config = Config { dir: dir.path().into(), ..config };
    for number in [0, 1, COUNT / 2, COUNT / 2 + 1, COUNT - 3] {
        let Opened { shared, earlier, .. } = opening::open(Disk::default(), config.clone()).unwrap();
        let checkpoint = shared.durability.checkpoint().clone();
        let recovery = Recovery::open(&shared.segments.disk, dir.path(), &checkpoint).unwrap();
        assert!(recovery.units.len() > 4);
        let open_file = |entry: &FileEntry| {
            let found = earlier.files.iter().find(|found| found.number == entry.header.number)?;
            let share = Share::of_existing(&shared.segments.budget, found.share.bytes());
            load::open(&shared, Found { kind: found.kind, number: found.number, share })
        };
        let files: Vec<_> = recovery.files.iter().map(open_file).collect();
        let hash = hash_of(&number.to_le_bytes());
        let has_shard = |unit: &&usize| recovery.units[**unit].shards.contains(&Index::shard_of(hash));
        let units: Vec<_> = (0..recovery.units.len()).collect();
        let units: Vec<_> = units.iter().filter(has_shard).collect();
        assert!(units.len() < 4, "{} of {} units", units.len(), recovery.units.len());
        for unit in units {
            recovery.load(&shared, *unit, &files).unwrap();
        }
        assert_eq!(shared.index.find(hash).len(), 1, "{number}");
        assert!(shared.index.len() < COUNT as usize / 2);
    }
}

#[test]
fn key_that_is_removed_before_it_is_loaded_does_not_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    (0..20).for_each(|number| put(&store, number));
    store.put(0, b"own", b"meta", &[&fill_of(1, 100_000)]).unwrap();
    store.sync().unwrap();
    // The journal does not know these.
    (20..40).for_each(|number| put(&store, number));
    let removed =
        [3_u64, 33].map(|number| hash_of(&number.to_le_bytes())).into_iter().chain([hash_of(b"own")]);
    for by_journal in [true, false] {
        let dir = killed(dir.path());
        if !by_journal {
            fs::remove_file(dir.path().join("index")).unwrap();
        }
        let Opened { shared, earlier, .. } = opening::open(Disk::default(), config(&dir)).unwrap();
        removed.clone().for_each(|hash| shared.loading.end_key(hash));
        load::load(&shared, earlier);
        assert!(removed.clone().all(|hash| shared.index.find(hash).is_empty()));
        assert_eq!((shared.index.len(), shared.counters.removed.get()), (38, 3));
        // Nor in the next session, although this one ends without a sync. A removal after the end
        // of loading concerns later objects alone.
        let (_dir, store) = reopened(dir.path(), &Disk::default());
        assert!(!has(&store, 3) && !has(&store, 33) && has(&store, 4));
        assert!(store.find(hash_of(b"own")).iter().all(|record| store.load(record, 0).is_err()));
        store.end_unloaded(hash_of(&3_u64.to_le_bytes()));
        put(&store, 3);
        assert!(has(&store, 3));
    }
}

#[test]
fn journal_with_a_name_that_is_not_synced_counts() {
    let syncs = |fail_at: Option<u32>| {
        let dir = tempfile::tempdir().unwrap();
        let (disk, store) = open_on_disk(config(&dir));
        (0..10).for_each(|number| put(&store, number));
        let before = disk.faults.count_here(Call::Sync);
        if let Some(after) = fail_at {
            disk.faults.inject_here(Call::Sync, after, 1, Errno::IO.raw_os_error());
        }
        store.sync().unwrap();
        assert_eq!(store.stats().failed, u64::from(fail_at.is_some()));
        let is_counted = || {
            let files = fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
            let counted = files.filter(|file| !matches!(file.file_name().to_str(), Some("lock" | "marks")));
            counted.filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>()
                == store.stats().used_bytes
        };
        wait_until(&store, is_counted);
        disk.faults.count_here(Call::Sync) - before
    };
    let all = syncs(None);
    // The last one is that of the directory, after the journal has got its name.
    assert_eq!(syncs(Some(all as u32 - 1)), all);
}
