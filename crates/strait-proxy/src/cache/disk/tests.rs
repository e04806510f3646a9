//! Removals from the store.

use std::cell::Cell;
use strait_http::lifetimes::Lifetimes;

use super::*;

const KEY: &str = "http://a/";

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

fn store(dir: &tempfile::TempDir) -> Arc<Stores> {
    let config = strait_store::Config {
        capacity_bytes: 64 << 20,
        segment_bytes: Some(1 << 20),
        ..strait_store::Config::new(dir.path())
    };
    Stores::of(strait_store::Store::open(config).unwrap())
}

/// Stores a response with that variant and those times of request and receipt.
fn put(store: &Stores, variant: &str, (requested, received): (u64, u64), date: &str) -> Object {
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"{received}\"\r\nDate: {date}\r\n\r\n");
    let head = head.as_bytes();
    let meta = Meta {
        requested,
        received,
        age: 0,
        expired: None,
        forms: Forms::default(),
        lifetimes: Lifetimes::default(),
        first: 0,
        length: Some(1),
        variant,
        head,
    };
    let record = store.put(0, KEY.as_bytes(), &meta.encode(), &[b"x"]).unwrap();
    Object::new(KEY, &meta, Body::Memory(Arc::new([b'x']), Home::Store(record))).unwrap()
}

fn hash() -> u64 {
    strait_store::hash_of(KEY.as_bytes())
}

/// Removes the records of [`KEY`] with reads that call `on_read` first; returns their number.
fn remove_while(store: &Stores, on_read: impl Fn(&Arc<Record>)) -> usize {
    let load = |record: &Arc<Record>| {
        on_read(record);
        store.load(record, 0)
    };
    let is_match = |key: &[u8]| key == KEY.as_bytes();
    let mut removal = Removal::new(store, load, is_match);
    removal.remove_of_hash(hash());
    removal.removed
}

#[test]
fn later_mark_replaces_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    put(&store, "", (1, 1), "Thu, 01 Jan 1970 00:00:01 GMT");
    let listed = store.find(hash());
    assert_eq!([10, 10, 9, 20].map(|now| expire(&store, hash(), KEY, now)), [1, 0, 0, 1]);
    assert_eq!(expire(&store, hash(), "http://b/", 30), 0, "a record of another key");
    let found = store.find(hash());
    let (object, _) = load(&store, &found[0], KEY, 1).unwrap();
    assert_eq!((found.len(), object.times.expired), (1, Some(20)));
    assert!(matches!(object.body, Body::Memory(..)));
    // A validation that began before cannot store its result.
    assert!(store.update(0, &listed[0], b"").is_err());
    store.close();
}

#[test]
fn removal_includes_a_record_that_a_validation_replaces_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let old = store.put(0, KEY.as_bytes(), b"old", &[b"x"]).unwrap();
    // The validation ends between the listing and the read.
    let replace = |record: &Arc<Record>| {
        if Arc::ptr_eq(record, &old) {
            store.update(0, record, b"new").unwrap();
        }
    };
    assert_eq!(remove_while(&store, replace), 1);
    assert!(store.find(hash()).is_empty());
    store.close();
}

#[test]
fn removal_ends_although_validations_replace_each_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    store.put(0, KEY.as_bytes(), b"old", &[b"x"]).unwrap();
    let reads = Cell::new(0);
    let replace = |record: &Arc<Record>| {
        reads.set(reads.get() + 1);
        store.update(0, record, b"new").unwrap();
    };
    assert_eq!((remove_while(&store, replace), reads.get()), (1, LISTINGS_MAX));
    assert!(store.find(hash()).is_empty());
    store.close();
}

#[test]
fn removal_includes_a_record_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let record = store.put(0, KEY.as_bytes(), b"", &[b"x"]).unwrap();
    let load = |_: &Arc<Record>| Err(strait_os::Error::os("read", "segment", EIO).into());
    let mut removal = Removal::new(&store, load, |key: &[u8]| key == KEY.as_bytes());
    removal.remove_of_hash(hash());
    assert_eq!((removal.removed, record.is_alive()), (1, false));
    store.close();
}

#[test]
fn collection_of_keys_removes_a_record_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let (damaged, other) = (put(&store, "", (1, 2), SECOND_1000), put(&store, "", (3, 4), SECOND_1000));
    let is_damaged = |record: &Arc<Record>| damaged.records().any(|damaged| Arc::ptr_eq(damaged, record));
    let load = |record: &Arc<Record>| {
        if is_damaged(record) {
            return Err(strait_os::Error::os("read", "segment", EIO).into());
        }
        store.load(record, 0)
    };
    assert_eq!(keys_with(&store, load, |_| false), []);
    assert!(!damaged.is_alive() && other.is_alive());
    store.close();
}

#[test]
fn removal_by_pattern_includes_records_of_a_store_that_is_opened_again_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let config = strait_store::Config { capacity_bytes: 64 << 20, ..strait_store::Config::new(dir.path()) };
    let on_change: strait_store::OnChange = Arc::new(|_| {});
    let store = Stores::open(vec![config], &on_change).unwrap();
    put(&store, "", (1, 2), SECOND_1000);
    store.close();
    // The upgrade fails after the removal has listed the records.
    let is_closed = Cell::new(true);
    let is_match = |_: &str| {
        if is_closed.replace(false) {
            store.reopen(&on_change).unwrap();
            return false;
        }
        true
    };
    assert_eq!(remove_matching(&store, is_match), 1);
    assert!(store.find(hash()).is_empty());
    store.close();
}

#[test]
fn removal_by_pattern_keeps_other_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    put(&store, "", (1, 2), SECOND_1000);
    put(&store, "a:1\n", (3, 4), SECOND_1000);
    let other = store.put(0, b"http://b/", b"", &[b"x"]).unwrap();
    assert_eq!(remove_matching(&store, |key| key.starts_with("http://a/")), 2);
    assert!(store.find(hash()).is_empty() && other.is_alive());
    store.close();
}

/// Returns the times of receipt of the stored responses, by rank.
fn received(store: &Stores) -> Vec<u64> {
    let all = responses(store, &store.find(hash()), KEY, 0);
    all.iter().map(|object| object.times.received).collect()
}

const SECOND_1000: &str = "Thu, 01 Jan 1970 00:16:40 GMT";
const SECOND_2000: &str = "Thu, 01 Jan 1970 00:33:20 GMT";

#[test]
fn older_response_that_is_stored_last_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let newer = put(&store, "", (4000, 4010), SECOND_2000);
    assert!(replace(&store, hash(), &newer, &[]).is_some());
    // Under way at the same time, with an older Date.
    let older = put(&store, "", (3999, 4011), SECOND_1000);
    assert!(replace(&store, hash(), &older, &[]).is_none());
    assert!(!older.is_alive());
    assert_eq!(received(&store), [4010]);
    // Requested afterwards, from an origin with a slow clock.
    let next = put(&store, "", (4010, 4020), SECOND_1000);
    assert!(replace(&store, hash(), &next, &[]).is_some());
    assert_eq!(received(&store), [4020]);
    store.close();
}

#[test]
fn response_without_a_key_field_is_removed_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&dir), ["x-tenant".to_owned()]);
    assert!(replace(&store, hash(), &put(&store, "", (1, 2), SECOND_1000), &[]).is_some());
    let fields = Fields::default();
    let policy = Policy::default();
    let query = Query { hash: hash(), key: KEY, request: &fields, keys: &keys, policy: &policy };
    assert!(matches!(find(&store, &query, 0), Err(NotFound(Some(_)))));
    let next = put(&store, "x-tenant:a\n", (3, 4), SECOND_1000);
    assert!(replace(&store, hash(), &next, &keys).is_some());
    assert_eq!(received(&store), [4]);
    store.close();
}

#[test]
fn many_ranges_remove_no_whole_response() {
    let dir = tempfile::tempdir().unwrap();
    let (store, keys) = (store(&dir), ["x-tenant".to_owned()]);
    let whole: Vec<String> = (0..20).map(|tenant| format!("x-tenant:{tenant}\n")).collect();
    let ranges: Vec<String> =
        (0..RECORDS_MAX).map(|at| format!("x-tenant:0\nrange/part:bytes={at}-\n")).collect();
    for (at, variant) in (0..).zip(whole.iter().chain(&ranges)) {
        let object = put(&store, variant, (at, at), SECOND_1000);
        assert!(replace(&store, hash(), &object, &keys).is_some());
    }
    let all = responses(&store, &store.find(hash()), KEY, 0);
    let lone = all.iter().filter(|object| object.is_lone_part()).count();
    assert_eq!((lone, all.len() - lone), (LONE_PARTS_MAX, whole.len()));
    store.close();
}

#[test]
fn more_recent_response_of_another_variant_is_a_rival() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    for (variant, times, date) in [
        ("a:1\n", (4000, 4001), SECOND_1000),
        ("b:1\n", (4002, 4003), SECOND_2000),
        ("a:2\n", (4004, 4005), SECOND_2000),
    ] {
        assert!(replace(&store, hash(), &put(&store, variant, times, date), &[]).is_some());
    }
    let field = strait_http::fields::Field { name: "A", value: b"1" };
    let request: Fields<'_> = [field].into_iter().collect();
    let policy = Policy::default();
    let query = Query { hash: hash(), key: KEY, request: &request, keys: &[], policy: &policy };
    let Ok(first) = find(&store, &query, 0) else { panic!("nothing was found") };
    assert_eq!((&**first.object.variant(), first.seen.records.len()), ("a:1\n", 3));
    assert_eq!(first.seen.rivals.iter().map(|rival| &**rival).collect::<Vec<_>>(), ["b:1\n"]);
    assert!(first.seen.is_all(&store, hash()));
    let last = put(&store, "a:2\n", (4006, 4007), SECOND_1000);
    assert!(!first.seen.is_all(&store, hash()));
    assert_eq!(replace(&store, hash(), &last, &[]).unwrap().rivals.len(), 1);
    store.close();
}
