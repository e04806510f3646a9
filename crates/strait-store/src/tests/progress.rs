//! Eviction makes progress: with objects of any size and on a full file system.

use rustix::io::Errno;

use super::{body_of, config, fill_of, open, open_on_disk, put_patiently, wait_until};
use crate::disk::Call;
use crate::{Config, append, hash_of};

/// Objects of some sizes fill so little of a segment that all of them could stay.
#[test]
fn objects_of_one_size_are_evicted() {
    for body_bytes in (30_000..62_000).step_by(4000) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&config(&dir));
        let body = fill_of(1, body_bytes);
        for number in 0_u64..400 {
            put_patiently(&store, 0, &number.to_le_bytes(), &body);
        }
        let stats = store.stats();
        assert!(stats.evicted > 200, "{body_bytes}: {stats:?}");
        // Less than 85 of 15 bytes freed.
        let stored_bytes = 400 * body_bytes as u64;
        assert!(stats.reinserted_bytes < 6 * stored_bytes, "{body_bytes}: {stats:?}");
    }
}

#[test]
fn idle_store_on_a_full_file_system_rests() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(config(&dir));
    wait_until(&store, || store.shared.segments.spares.lacking() == 0);
    disk.faults.inject(Call::Allocate, 0, u32::MAX, Errno::NOSPC.raw_os_error());
    let mut number = 0_u64;
    while store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, 60_000)]).is_ok() {
        number += 1;
    }
    let before = disk.faults.count(Call::Create);
    std::thread::sleep(std::time::Duration::from_millis(500));
    // The pauses between two attempts begin with 100 ms. Without them there are thousands.
    let attempts = disk.faults.count(Call::Create) - before;
    assert!(attempts < 50, "{attempts} attempts");
}

#[test]
fn lane_that_waits_for_a_spare_doubles_their_number_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&Config { capacity_bytes: 64 << 20, ..config(&dir) });
    let spares = &store.shared.segments.spares;
    wait_until(&store, || spares.lacking() == 0);
    let mut taken = spares.take_all();
    let before = spares.wanted();
    spares.note_missed();
    spares.add(taken.pop_front().unwrap());
    assert!(spares.take_late().is_some());
    assert_eq!(spares.wanted(), 2 * before);
}

#[test]
fn failed_growth_leaves_no_uncounted_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, store) = open_on_disk(Config { capacity_bytes: 32 << 20, ..config(&dir) });
    let mut writer = store.reserve(0, b"long", b"", None).unwrap();
    let file = writer.extent().file;
    let bytes = file.share.bytes();
    // As ext4 does: blocks are allocated before the call fails.
    disk.faults.inject_here(Call::Allocate, 0, 1, Errno::NOSPC.raw_os_error());
    rustix::fs::ftruncate(&*file, bytes + 50_000).unwrap();
    let grown = writer.grow(writer.writable_bytes() + 1);
    assert!(grown.is_err(), "{grown:?}");
    assert_eq!(std::fs::metadata(file.path()).unwrap().len(), file.share.bytes());
    assert_eq!(file.share.bytes(), bytes);
}

#[test]
fn slow_writers_keep_eviction_from_a_bounded_part_of_the_store() {
    const BODY_BYTES: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let store = open(&config);
    let segments = config.capacity_bytes / config.segment_bytes.unwrap();
    let put = |number: u64| {
        store.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, BODY_BYTES)]).unwrap();
    };
    // Between two of them a segment is filled by others.
    let slow_key = |slow: u64| (slow << 32).to_le_bytes();
    let writers: Vec<_> = (1..=segments)
        .map(|slow| {
            let writer = store.reserve(0, &slow_key(slow), b"meta", Some(BODY_BYTES as u64)).unwrap();
            (0..5).for_each(|number| put(5 * slow + number));
            writer
        })
        .collect();
    (0..100).for_each(|number| put(1000 + number));
    for (slow, writer) in (1..).zip(writers) {
        let extent = writer.extent();
        rustix::io::pwrite(&*extent.file, &fill_of(slow, BODY_BYTES), extent.offset).unwrap();
        drop(extent);
        writer.commit(BODY_BYTES as u64).unwrap();
        assert_eq!(body_of(&store, &slow_key(slow)), Some(fill_of(slow, BODY_BYTES)));
    }
    (0..200).for_each(|number| put(2000 + number));
    let stats = store.stats();
    assert!(stats.refused == 0 && stats.evicted > 200, "{stats:?}");
}

#[test]
fn no_byte_beyond_a_known_length_is_writable() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&Config { capacity_bytes: 32 << 20, ..config(&dir) });
    for length in [1000, 300_001, 3_000_001] {
        let mut writer = store.reserve(0, b"long", b"meta", Some(length)).unwrap();
        writer.grow(length).unwrap();
        assert_eq!(writer.writable_bytes(), length);
    }
}

#[test]
fn full_segment_is_truncated_when_its_last_writer_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    wait_until(&store, || store.shared.segments.spares.lacking() == 0);
    let writer = store.reserve(0, b"slow", b"", Some(1000)).unwrap();
    let file = writer.extent().file;
    append::seal(&store.shared, &mut store.shared.lane(0, "test").unwrap());
    let before = file.share.bytes();
    writer.commit(1000).unwrap();
    wait_until(&store, || file.share.bytes() < before);
}

#[test]
fn updates_of_a_body_use_no_memory_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&config(&dir));
    let mut record = store.put(0, b"key", b"meta", &[&fill_of(1, 70_000)]).unwrap();
    let body = record.body().unwrap().file;
    for _ in 0..100 {
        record = store.update(0, &record, b"other").unwrap();
    }
    assert_eq!(body.members(), [hash_of(b"key")]);
    assert!(record.is_alive());
}
