//! Several directories: placement, and directories that are lost and come back.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lab::wait_until;
use rustix::io::Errno;
use tempfile::TempDir;

use super::{PATIENCE, config, fill_of};
use crate::disk::{Call, Disk};
use crate::file::lock;
use crate::{Change, Config, Error, OnChange, Stores, hash_of};

const OBJECTS: u64 = 300;
const OBJECT_BYTES: usize = 2000;

/// Notes the changes of directories.
#[derive(Clone, Default)]
struct Changes(Arc<Mutex<Vec<String>>>);

impl Changes {
    fn callback(&self) -> OnChange {
        let all = self.0.clone();
        Arc::new(move |change| {
            let text = match change {
                Change::Lost(dir, error) => format!("lost {}: {error}", dir.display()),
                Change::Back(dir) => format!("back {}", dir.display()),
                Change::Reopened(dir) => format!("reopened {}", dir.display()),
            };
            lock(&all).push(text);
        })
    }

    /// Waits for that number of changes; returns the last one.
    fn wait_for(&self, count: usize) -> String {
        assert!(wait_until(PATIENCE, || lock(&self.0).len() >= count), "{:?}", self.0);
        assert_eq!(lock(&self.0).len(), count, "{:?}", self.0);
        lock(&self.0)[count - 1].clone()
    }
}

fn stores(configs: &[Config], changes: &Changes) -> Arc<Stores> {
    let stores = Stores::open(configs.to_vec(), &changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    stores
}

fn put(stores: &Stores, number: u64) -> Result<(), Error> {
    stores.put(0, &number.to_le_bytes(), b"meta", &[&fill_of(number, OBJECT_BYTES)]).map(drop)
}

fn put_all(stores: &Stores) {
    (0..OBJECTS).for_each(|number| put(stores, number).unwrap());
}

/// Objects that are found, with the right body.
fn found(stores: &Stores) -> Vec<u64> {
    let has = |number: &u64| {
        let found = stores.find(hash_of(&number.to_le_bytes()));
        let Some(record) = found.first() else { return false };
        let loaded = stores.load(record, OBJECT_BYTES).unwrap();
        assert_eq!(loaded.body().unwrap(), fill_of(*number, OBJECT_BYTES));
        true
    };
    (0..OBJECTS).filter(has).collect()
}

fn segments(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".segment")).count()
}

#[test]
fn objects_are_spread_and_found_again_after_a_restart() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mut configs = dirs.iter().map(config).collect::<Vec<_>>();
    let changes = Changes::default();
    let stores = self::stores(&configs, &changes);
    put_all(&stores);
    let shares: Vec<_> = stores.all().map(|store| store.stats().records).collect();
    assert!(shares.iter().all(|share| share * 6 > OBJECTS), "{shares:?}");
    let record = &stores.find(hash_of(&7_u64.to_le_bytes()))[0];
    let updated = stores.update(0, record, b"other").unwrap();
    stores.touch(&updated);
    assert_eq!(stores.load(&updated, 0).unwrap().meta(), b"other");
    stores.remove(&stores.find(hash_of(&8_u64.to_le_bytes()))[0]);
    assert_eq!((stores.records().len() as u64, stores.stats().records), (OBJECTS - 1, OBJECTS - 1));
    assert_eq!((stores.verify().whole, stores.verify().corrupt), (OBJECTS - 1, 0));
    stores.close();
    // The order of the directories does not matter.
    configs.reverse();
    let stores = self::stores(&configs, &changes);
    assert_eq!(found(&stores).len() as u64, OBJECTS - 1);
    let again: Vec<_> = stores.all().map(|store| store.stats().records).collect();
    assert_eq!(again.into_iter().rev().sum::<u64>(), OBJECTS - 1);
    stores.close();
    assert!(lock(&changes.0).is_empty());
}

#[test]
fn closed_stores_are_read_while_others_use_the_directories_and_are_opened_again() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let configs = dirs.iter().map(config).collect::<Vec<_>>();
    let changes = Changes::default();
    let stores = self::stores(&configs, &changes);
    put_all(&stores);
    let old = stores.find(hash_of(&7_u64.to_le_bytes()))[0].clone();
    stores.close();
    assert_eq!(found(&stores).len() as u64, OBJECTS);
    assert!(matches!(put(&stores, 0), Err(Error::Closed { .. })));
    let other = self::stores(&configs, &changes);
    assert_eq!(found(&other).len() as u64, OBJECTS);
    // Without an effect on the other one.
    stores.forget();
    assert!(found(&stores).is_empty() && !old.is_alive());
    assert_eq!(found(&other).len() as u64, OBJECTS);
    other.remove(&other.find(hash_of(&8_u64.to_le_bytes()))[0]);
    other.close();
    stores.reopen(&changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    assert_eq!(found(&stores).len() as u64, OBJECTS - 1);
    put(&stores, 8).unwrap();
    assert_eq!(found(&stores).len() as u64, OBJECTS);
    assert_eq!(stores.stats().stored, OBJECTS + 1);
    assert!(lock(&changes.0).is_empty());
    // The directories are watched again.
    fs::rename(dirs[0].path(), dirs[0].path().with_extension("gone")).unwrap();
    assert!(changes.wait_for(1).starts_with("lost "));
    stores.close();
    fs::remove_dir_all(dirs[0].path().with_extension("gone")).unwrap();
}

#[test]
fn objects_of_a_store_that_is_reopened_late_are_kept_until_a_removal_is_missed() {
    for misses_removal in [false, true] {
        let dirs = [(); 1].map(|()| tempfile::tempdir().unwrap());
        let (configs, changes) = (dirs.iter().map(config).collect::<Vec<_>>(), Changes::default());
        let stores = self::stores(&configs, &changes);
        put_all(&stores);
        stores.close();
        // Another process has it.
        let other = self::stores(&configs, &changes);
        stores.reopen(&changes.callback()).unwrap();
        assert!(changes.wait_for(1).starts_with("lost ") && found(&stores).is_empty());
        assert!(matches!(put(&stores, 0), Err(Error::Lost { .. })));
        if misses_removal {
            stores.end_unloaded(hash_of(&7_u64.to_le_bytes()));
        }
        other.close();
        let expected = if misses_removal { "back " } else { "reopened " };
        assert!(changes.wait_for(2).starts_with(expected));
        assert!(stores.wait_loaded(PATIENCE));
        assert_eq!(found(&stores).len() as u64, if misses_removal { 0 } else { OBJECTS });
        stores.close();
    }
}

#[test]
fn directory_that_was_replaced_is_not_reopened() {
    let dirs = [(); 1].map(|()| tempfile::tempdir().unwrap());
    let (configs, changes) = (dirs.iter().map(config).collect::<Vec<_>>(), Changes::default());
    let stores = self::stores(&configs, &changes);
    put_all(&stores);
    stores.close();
    let (dir, away) = (dirs[0].path(), dirs[0].path().with_extension("away"));
    fs::rename(dir, &away).unwrap();
    fs::create_dir(dir).unwrap();
    stores.reopen(&changes.callback()).unwrap();
    assert!(changes.wait_for(1).contains("the directory was replaced"));
    fs::remove_dir(dir).unwrap();
    fs::rename(&away, dir).unwrap();
    assert!(changes.wait_for(2).starts_with("reopened "));
    assert!(stores.wait_loaded(PATIENCE));
    assert_eq!(found(&stores).len() as u64, OBJECTS);
    stores.close();
}

#[test]
fn objects_of_a_failed_disk_are_misses_until_it_comes_back_empty() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (good, bad) = (Disk::default(), Disk::default());
    let changes = Changes::default();
    let members = vec![(good, config(&dirs[0])), (bad.clone(), config(&dirs[1]))];
    let stores = Stores::open_on(members, &changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    put_all(&stores);
    let held = stores.records();
    let of_good = stores.all().next().unwrap().stats().records;
    for call in [Call::Write, Call::Create, Call::Sync] {
        bad.faults.inject(call, 0, u32::MAX, Errno::IO.raw_os_error());
    }
    // The first failed writes show the failure.
    let failed = (OBJECTS..2 * OBJECTS).filter(|number| put(&stores, *number).is_err()).count();
    assert!(failed > 0);
    let lost = changes.wait_for(1);
    assert!(
        lost.starts_with(&format!("lost {}", dirs[1].path().display())) && lost.contains("error"),
        "{lost}"
    );
    assert_eq!((found(&stores).len() as u64, stores.stats().lost), (of_good, 1));
    assert_eq!(held.iter().filter(|record| record.is_alive()).count() as u64, of_good);
    // Other disks take the objects over.
    (0..OBJECTS).for_each(|number| put(&stores, number).unwrap());
    assert_eq!(found(&stores).len() as u64, OBJECTS);
    bad.faults.clear();
    assert_eq!(changes.wait_for(2), format!("back {}", dirs[1].path().display()));
    assert_eq!(stores.stats().lost, 0);
    let back = stores.all().last().unwrap();
    assert!(back.wait_loaded(PATIENCE));
    assert_eq!(back.stats().records, 0, "objects of the lost disk have missed the removals meanwhile");
    put_all(&stores);
    assert!(back.stats().records * 3 > OBJECTS);
    stores.close();
}

#[test]
fn lost_directory_is_emptied_also_after_a_restart() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (bad, changes) = (Disk::default(), Changes::default());
    let members = vec![(Disk::default(), config(&dirs[0])), (bad.clone(), config(&dirs[1]))];
    let stores = Stores::open_on(members, &changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    put_all(&stores);
    let of_good = stores.all().next().unwrap().stats().records;
    for call in [Call::Write, Call::Create, Call::Sync, Call::Unlink] {
        bad.faults.inject(call, 0, u32::MAX, Errno::IO.raw_os_error());
    }
    assert!((OBJECTS..2 * OBJECTS).any(|number| put(&stores, number).is_err()));
    changes.wait_for(1);
    // Objects that are removed now are not found in the lost directory.
    stores.close();
    let configs: Vec<_> = dirs.iter().map(config).collect();
    for _ in 0..2 {
        let stores = self::stores(&configs, &changes);
        assert_eq!((found(&stores).len() as u64, stores.stats().lost), (of_good, 0));
        stores.close();
    }
    assert!(
        fs::read_dir(dirs[0].path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("lost") })
    );
}

#[test]
fn shortage_of_descriptors_loses_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, changes) = (Disk::default(), Changes::default());
    let stores = Stores::open_on(vec![(disk.clone(), config(&dir))], &changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    put(&stores, 0).unwrap();
    let creates = disk.faults.count(Call::Create);
    disk.faults.inject(Call::Create, 0, u32::MAX, Errno::MFILE.raw_os_error());
    disk.faults.inject_here(Call::Write, 0, 1, Errno::IO.raw_os_error());
    assert!(put(&stores, 1).is_err());
    let begin = Instant::now();
    while disk.faults.count(Call::Create) < creates + 2 {
        assert!(begin.elapsed() < PATIENCE);
        // Counts a failure again.
        disk.faults.inject_here(Call::Write, 0, 1, Errno::IO.raw_os_error());
        let _ = put(&stores, 1);
        thread::sleep(Duration::from_millis(5));
    }
    disk.faults.clear();
    put(&stores, 1).unwrap();
    assert_eq!(stores.find(hash_of(&0_u64.to_le_bytes())).len(), 1);
    stores.close();
    assert!(lock(&changes.0).is_empty(), "{:?}", changes.0);
}

#[test]
fn one_failed_call_loses_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, changes) = (Disk::default(), Changes::default());
    let stores = Stores::open_on(vec![(disk.clone(), config(&dir))], &changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    put(&stores, 0).unwrap();
    disk.faults.inject_here(Call::Write, 0, 1, Errno::IO.raw_os_error());
    assert!(put(&stores, 1).is_err());
    let creates = disk.faults.count(Call::Create);
    // The check writes a file.
    assert!(wait_until(PATIENCE, || disk.faults.count(Call::Create) != creates));
    put(&stores, 1).unwrap();
    stores.close();
    assert!(lock(&changes.0).is_empty(), "{:?}", changes.0);
    assert_eq!(stores.stats().lost, 0);
}

#[test]
fn deleted_directory_is_lost_and_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("cache");
    let changes = Changes::default();
    let config = Config { dir: dir.clone(), ..config(&parent) };
    let stores = self::stores(&[config], &changes);
    put_all(&stores);
    fs::rename(&dir, parent.path().join("gone")).unwrap();
    assert!(changes.wait_for(1).contains("No such file or directory"));
    // It may be back already, empty.
    assert!(found(&stores).is_empty());
    assert!(changes.wait_for(2).starts_with("back "));
    assert!(stores.wait_loaded(PATIENCE));
    put_all(&stores);
    assert_eq!((found(&stores).len() as u64, stores.stats().lost), (OBJECTS, 0));
    assert!(segments(&dir) > 0);
    stores.close();
}

/// Directory in another file system than temporary ones, and a link to it.
fn on_another_file_system(links: &TempDir) -> Option<(TempDir, std::path::PathBuf)> {
    use std::os::unix::fs::MetadataExt as _;
    let other = TempDir::new_in("/dev/shm").ok()?;
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    let differs = device(other.path()).ok()? != device(links.path()).ok()?;
    differs.then(|| (other, links.path().join("link")))
}

/// Lets a link name a directory, in place of an earlier one.
fn point(link: &Path, to: &Path) {
    let new = link.with_extension("new");
    std::os::unix::fs::symlink(to, &new).unwrap();
    fs::rename(&new, link).unwrap();
}

#[test]
fn nothing_is_stored_where_a_missing_disk_is_mounted() {
    let links = tempfile::tempdir().unwrap();
    let Some((disk, link)) = on_another_file_system(&links) else {
        println!("SKIP: /dev/shm is no other file system");
        return;
    };
    point(&link, disk.path());
    let changes = Changes::default();
    let stores = self::stores(&[Config { dir: link.clone(), ..config(&links) }], &changes);
    put_all(&stores);
    // As if the disk was removed, and the empty directory below it shows.
    let below = tempfile::tempdir_in(links.path()).unwrap();
    point(&link, below.path());
    assert!(changes.wait_for(1).contains("replaced"));
    assert!(matches!(put(&stores, 0), Err(Error::Lost { .. })));
    // Before the check, the store may have begun segments here.
    let files = || fs::read_dir(below.path()).unwrap().count();
    let before = files();
    // Long enough for some checks; an early end of this wait would only test less.
    thread::sleep(Duration::from_secs(3));
    assert_eq!((files(), stores.stats().lost), (before, 1));
    point(&link, disk.path());
    assert!(changes.wait_for(2).starts_with("back "));
    put(&stores, 0).unwrap();
    assert_eq!(found(&stores), [0]);
    stores.close();
}

/// Locks a directory as a process that reads it, for which [`Stores::reopen`] waits.
fn lock_as_reader(dir: &Path) -> fs::File {
    let file = fs::File::open(dir.join("lock")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    file
}

#[test]
fn removal_while_directories_are_opened_again_is_not_missed() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (configs, changes) = (dirs.iter().map(config).collect::<Vec<_>>(), Changes::default());
    let stores = self::stores(&configs, &changes);
    put_all(&stores);
    let before = stores.changes();
    stores.close();
    let reader = lock_as_reader(dirs[0].path());
    thread::scope(|scope| {
        let reopened = scope.spawn(|| stores.reopen(&changes.callback()));
        // No later directory still answers from before.
        assert!(wait_until(PATIENCE, || stores.stats().lost == 2));
        assert!(found(&stores).is_empty());
        stores.end_unloaded(hash_of(&7_u64.to_le_bytes()));
        drop(reader);
        reopened.join().unwrap().unwrap();
    });
    assert!(stores.wait_loaded(PATIENCE) && found(&stores).is_empty());
    assert!(stores.changes() > before, "a removal that began before must be repeated");
    assert!(lock(&changes.0).iter().all(|change| change.starts_with("back ")), "{:?}", changes.0);
    put_all(&stores);
    assert_eq!((found(&stores).len() as u64, stores.stats().lost), (OBJECTS, 0));
    stores.close();
}

#[test]
fn directory_that_is_lost_after_it_was_reopened_comes_back_empty() {
    let (dir, disk, changes) = (tempfile::tempdir().unwrap(), Disk::default(), Changes::default());
    let stores = Stores::open_on(vec![(disk.clone(), config(&dir))], &changes.callback()).unwrap();
    put_all(&stores);
    stores.close();
    stores.reopen(&changes.callback()).unwrap();
    assert!(stores.wait_loaded(PATIENCE));
    for call in [Call::Write, Call::Create, Call::Sync, Call::Unlink] {
        disk.faults.inject(call, 0, u32::MAX, Errno::ROFS.raw_os_error());
    }
    // The mark of this removal is not written.
    stores.remove(&stores.find(hash_of(&7_u64.to_le_bytes()))[0]);
    assert!(changes.wait_for(1).starts_with("lost "));
    disk.faults.clear();
    assert!(changes.wait_for(2).starts_with("back "));
    assert!(stores.wait_loaded(PATIENCE) && found(&stores).is_empty());
    stores.close();
}

#[test]
fn removal_from_a_closed_store_holds_after_it_was_reopened() {
    for is_written in [true, false] {
        let (dir, disk, changes) = (tempfile::tempdir().unwrap(), Disk::default(), Changes::default());
        let stores = Stores::open_on(vec![(disk.clone(), config(&dir))], &changes.callback()).unwrap();
        put_all(&stores);
        stores.close();
        if !is_written {
            disk.faults.inject_here(Call::Write, 0, 1, Errno::IO.raw_os_error());
        }
        stores.end_unloaded(hash_of(&7_u64.to_le_bytes()));
        stores.remove(&stores.find(hash_of(&7_u64.to_le_bytes()))[0]);
        stores.reopen(&changes.callback()).unwrap();
        assert!(stores.wait_loaded(PATIENCE));
        // The journal may have the record still, but not its file.
        let is_found = |number: &u64| {
            stores.find(hash_of(&number.to_le_bytes())).iter().any(|record| stores.load(record, 0).is_ok())
        };
        let expected = if is_written { OBJECTS - 1 } else { 0 };
        assert_eq!((0..OBJECTS).filter(is_found).count() as u64, expected);
        stores.close();
    }
}

#[test]
fn directory_that_was_lost_before_is_not_taken_for_another_after_it_was_closed() {
    let links = tempfile::tempdir().unwrap();
    let Some((disk, link)) = on_another_file_system(&links) else {
        println!("SKIP: /dev/shm is no other file system");
        return;
    };
    point(&link, disk.path());
    let changes = Changes::default();
    let stores = self::stores(&[Config { dir: link.clone(), ..config(&links) }], &changes);
    put_all(&stores);
    let below = tempfile::tempdir_in(links.path()).unwrap();
    point(&link, below.path());
    assert!(changes.wait_for(1).contains("replaced"));
    stores.close();
    let files = || fs::read_dir(below.path()).unwrap().count();
    let before = files();
    stores.reopen(&changes.callback()).unwrap();
    // Long enough for some checks; an early end of this wait would only test less.
    thread::sleep(Duration::from_secs(3));
    assert_eq!((files(), stores.stats().lost, lock(&changes.0).len()), (before, 1, 1));
    point(&link, disk.path());
    assert!(changes.wait_for(2).starts_with("back "));
    stores.close();
}

#[test]
fn removal_that_a_lost_directory_has_missed_holds_after_a_restart() {
    let (dir, disk, changes) = (tempfile::tempdir().unwrap(), Disk::default(), Changes::default());
    let stores = Stores::open_on(vec![(disk.clone(), config(&dir))], &changes.callback()).unwrap();
    put_all(&stores);
    stores.close();
    // Files can be removed, but not written.
    disk.faults.inject(Call::Create, 0, u32::MAX, Errno::IO.raw_os_error());
    stores.reopen(&changes.callback()).unwrap();
    assert!(changes.wait_for(1).starts_with("lost "));
    let checkpoint = dir.path().join("marks");
    assert!(checkpoint.exists());
    stores.end_unloaded(hash_of(&7_u64.to_le_bytes()));
    assert!(wait_until(PATIENCE, || !checkpoint.exists()));
    stores.close();
    let stores = self::stores(&[config(&dir)], &changes);
    assert!(found(&stores).is_empty());
    stores.close();
}

#[test]
fn directory_that_is_not_reopened_is_noted_in_the_others_until_it_is() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (configs, changes) = (dirs.iter().map(config).collect::<Vec<_>>(), Changes::default());
    let stores = self::stores(&configs, &changes);
    put_all(&stores);
    stores.close();
    let other = self::stores(&configs[..1], &changes);
    stores.reopen(&changes.callback()).unwrap();
    assert!(changes.wait_for(1).starts_with("lost "));
    let notes = || {
        let names = fs::read_dir(dirs[1].path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("lost-")).count()
    };
    assert_eq!(notes(), 1);
    other.close();
    assert!(changes.wait_for(2).starts_with("reopened "));
    assert!(stores.wait_loaded(PATIENCE));
    assert_eq!((found(&stores).len() as u64, notes()), (OBJECTS, 0));
    stores.close();
}
