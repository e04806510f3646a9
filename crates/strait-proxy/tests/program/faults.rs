//! A disk that is full, missing or damaged, and a lack of descriptors: clients get correct bodies
//! or an error.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use lab::{Launch, skip, wait_until};

use crate::body::Body;
use crate::client::{Client, await_hit, get};
use crate::framing::{Framed, Framing, origin_of_framings};
use crate::origin::Origin;
use crate::rig::{LIMIT, PROGRAM, Setup};

/// Mount point of the small disk.
const DISK: &str = "/mnt";

/// Starts a program with a disk of this many bytes in a mount namespace of its own.
fn with_disk(size: &str) -> Vec<String> {
    let script = format!("mount -t tmpfs -o size={size} tmpfs {DISK} && exec \"$@\"");
    ["unshare", "--mount", "sh", "-ec", &script, "sh"].map(str::to_owned).into()
}

/// Returns true if this process may mount file systems; else skips the test.
fn mounts_or_skip() -> bool {
    let tried = with_disk("64k");
    let may = Launch::new(&tried[0]).args(&tried[1..]).arg("true").run(LIMIT);
    let may = may.is_ok_and(|finished| finished.status.success());
    if !may {
        skip("mounting a file system needs root");
    }
    may
}

fn setup_with_disk(origin: SocketAddr, size: &str) -> Setup {
    let program = with_disk(size);
    Setup::for_origin(origin).by(&program.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn full_disk_damages_no_body() {
    if !mounts_or_skip() {
        return;
    }
    let origin = Origin::of_bodies();
    let proxy = setup_with_disk(origin.address, "6m").start_in(Path::new(DISK));
    let mut client = Client::connect(proxy.address).unwrap();
    for round in 0..2 {
        for id in 0..60 {
            let object = Body::new(id, 1 + id * 10_007);
            let response = client.fetch(&object.target(), "").unwrap();
            assert_eq!(response.head.status, 200, "round {round}");
            object.assert_whole(&response.body);
        }
    }
}

#[test]
fn disk_that_becomes_full_during_a_fill_damages_no_body() {
    if !mounts_or_skip() {
        return;
    }
    let origin = origin_of_framings();
    let proxy = setup_with_disk(origin.address, "6m").start_in(Path::new(DISK));
    for framing in Framing::ALL {
        let framed = Framed::whole(Body::new(1, 20_000_003), framing, true);
        // One client gets the rest past the store; the others get an incomplete body.
        let taken = Mutex::new(Vec::new());
        let take = || {
            let response = Client::connect(proxy.address).unwrap().fetch(&framed.target(), "");
            taken.lock().unwrap().push(response.map(|response| response.body));
        };
        thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(take))));
        let whole: Vec<_> = taken.into_inner().unwrap().into_iter().flatten().collect();
        assert!(!whole.is_empty(), "{framing:?}");
        for bytes in &whole {
            framed.body.assert_whole(bytes);
        }
        framed.body.assert_whole(&get(proxy.address, &framed.target(), "").body);
    }
}

#[test]
fn removed_directory_damages_no_body() {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    await_hit(proxy.address, &Body::new(0, 100_000));
    fs::remove_dir_all(cache.path()).unwrap();
    for id in 0..20 {
        for len in [1000, 100_000, 5_000_000] {
            let object = Body::new(id, len);
            object.assert_whole(&get(proxy.address, &object.target(), "").body);
        }
    }
}

#[test]
fn unwritable_directory_is_refused_at_start() {
    if !mounts_or_skip() {
        return;
    }
    let script = format!("mount -t tmpfs -o ro tmpfs {DISK} && exec \"$@\"");
    let launch = Launch::new("unshare").args(["--mount", "sh", "-ec", &script, "sh", PROGRAM]);
    let launch = launch.args(["--listen", "127.0.0.1:0", "--cache-dir", DISK]);
    let refused = launch.run(LIMIT).unwrap();
    let output = &refused.stderr;
    assert!(refused.status.code().is_some_and(|code| code > 0), "{output}");
    assert!(output.contains(DISK) && output.contains("Read-only file system"), "{output}");
    assert!(!output.contains("panicked") && !output.contains("listening"), "{output}");
}

#[test]
fn a_read_only_store_can_be_listed_and_verified() {
    if !mounts_or_skip() {
        return;
    }
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let objects: Vec<_> = (1..9).map(|id| Body::new(id, id * 40_000)).collect();
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    await_hits(proxy.address, &objects);
    let _ = proxy.terminate();
    let script = format!("mount --bind -r {} {DISK} && exec \"$@\"", cache.path().display());
    let look = |arguments: &[&str]| {
        let launch = Launch::new("unshare").args(["--mount", "sh", "-ec", &script, "sh", PROGRAM, "cache"]);
        let done = launch.args(arguments).args(["--cache-dir", DISK, "--json"]).run(LIMIT).unwrap();
        (done.status.code(), done.text())
    };
    let (code, listed) = look(&["ls"]);
    assert_eq!((code, listed.matches("\"uri\"").count()), (Some(0), objects.len()), "{listed}");
    let (code, verified) = look(&["verify"]);
    let counts: serde_json::Value = serde_json::from_str(&verified).unwrap();
    // The scrub may not have reached all of them.
    let sound = ["whole", "unhashed"].map(|name| counts[name].as_u64().unwrap()).iter().sum::<u64>();
    assert_eq!((code, sound), (Some(0), 8), "{verified}");
    assert!(look(&["stats"]).1.contains("\"records\":8"));
    assert_eq!(look(&["purge", "http://www.example/"]).0, Some(1), "this writes");
}

#[test]
fn lack_of_descriptors_damages_no_body() {
    const CLIENTS: u64 = 60;
    let origin = Origin::of_bodies();
    let proxy = Setup::for_origin(origin.address)
        .by(&["prlimit", "--nofile=64:64"])
        .config("limits.origin_idle = 0\n")
        .start();
    // Idle connections to the origin would take the remaining descriptors. A client that gets no
    // connection, or an error because the proxy gets none, tries again.
    let fetch = |object: &Body| -> io::Result<bool> {
        let response = Client::connect(proxy.address)?.fetch(&object.target(), "")?;
        if response.head.status == 200 {
            object.assert_whole(&response.body);
        }
        Ok(response.head.status == 200)
    };
    let work = |client: u64| {
        for number in 0..10 {
            let object = Body::new(client * 10 + number, 300_000);
            assert!(wait_until(LIMIT, || fetch(&object).unwrap_or(false)), "{}", object.target());
        }
    };
    thread::scope(|scope| (0..CLIENTS).for_each(|client| drop(scope.spawn(move || work(client)))));
    await_hit(proxy.address, &Body::new(0, 300_000));
}

fn await_hits(proxy: SocketAddr, objects: &[Body]) {
    for object in objects {
        await_hit(proxy, object);
    }
}

/// Returns the files of a store that hold objects.
fn files(cache: &Path) -> Vec<fs::File> {
    let paths = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    let holds =
        |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "segment" || end == "object");
    paths.filter(holds).map(|path| fs::File::options().read(true).write(true).open(path).unwrap()).collect()
}

/// Stores objects, stops the proxy, damages its files and starts it again. Returns the number of
/// requests to the origin after that.
fn requests_after_damage(objects: &[Body], damage: impl Fn(&fs::File, u64)) -> usize {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    await_hits(proxy.address, objects);
    assert_eq!(origin.asked().len(), objects.len());
    let _ = proxy.terminate();
    let files = files(cache.path());
    assert!(!files.is_empty());
    for file in files {
        damage(&file, file.metadata().unwrap().len());
    }
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    let mut client = Client::connect(proxy.address).unwrap();
    for object in objects {
        object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
    }
    await_hits(proxy.address, objects);
    origin.asked().len() - objects.len()
}

#[test]
fn corrupted_bytes_reach_no_client() {
    let objects: Vec<_> = (0..100).map(|id| Body::new(id, id * 300)).collect();
    let flip = |file: &fs::File, len: u64| {
        let mut byte = [0];
        for at in (4096 + 501..len.min(4 << 20)).step_by(20_011) {
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
        }
    };
    let again = requests_after_damage(&objects, flip);
    assert!(again > 20, "{again} of {} were fetched again", objects.len());
}

#[test]
fn damage_is_reported_by_one_line() {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let objects: Vec<_> = (1..30).map(|id| Body::new(id, id * 300)).collect();
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    await_hits(proxy.address, &objects);
    let _ = proxy.terminate();
    for file in files(cache.path()) {
        let mut byte = [0];
        for at in (1000..file.metadata().unwrap().len().min(60_000)).step_by(1000) {
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
        }
    }
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    await_hits(proxy.address, &objects);
    proxy.await_stderr("the record is dropped; damaged records since the start: ");
    let printed = proxy.terminate().stderr;
    assert_eq!(printed.matches("the record is dropped").count(), 1, "{printed}");
}

#[test]
fn truncated_files_and_files_with_a_corrupted_header_are_dropped() {
    let objects: Vec<_> = (0..40).map(|id| Body::new(id, 1000 + id * 50_000)).collect();
    let cut = |file: &fs::File, len: u64| file.set_len(len / 50).unwrap();
    assert!(requests_after_damage(&objects, cut) > 0);
    let corrupt_head = |file: &fs::File, _| file.write_all_at(&[0xff; 600], 0).unwrap();
    assert_eq!(requests_after_damage(&objects, corrupt_head), objects.len());
}
