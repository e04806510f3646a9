//! Tests of the program `strait-upload` with moto's server: files of each size, and a store that is
//! down.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Finished, Launch, Moto, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_strait-upload");
const LIMIT: Duration = Duration::from_secs(100);
const LEAF: &str = "flows/date=2026-11-25/hour=16/sensor=s";
const MIB: usize = 1 << 20;

/// Creates a spool directory with files of these names and sizes.
fn spool(files: &[(&str, usize)]) -> tempfile::TempDir {
    let spool = tempfile::tempdir().unwrap();
    fs::create_dir_all(spool.path().join(LEAF)).unwrap();
    for (name, bytes) in files {
        fs::write(file(spool.path(), name), content(*bytes)).unwrap();
    }
    spool
}

fn file(spool: &Path, name: &str) -> PathBuf {
    spool.join(LEAF).join(name)
}

/// Returns bytes that differ in each part of an upload.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 1021 % 251) as u8).collect()
}

fn run(moto: &Moto, spool: &Path, url: &str) -> Finished {
    moto.env(Launch::new(PROGRAM)).arg(spool).arg(url).run(LIMIT).unwrap()
}

#[test]
fn complete_files_of_each_size_are_sent_and_removed() {
    let Some(moto) = Moto::up_or_skip() else { return };
    let files = [
        ("a.parquet", 0),
        ("b.parquet", 1000),
        ("c.parquet", 8 * MIB - 1),
        ("d.parquet", 8 * MIB),
        ("e.parquet", 8 * MIB + 1),
        ("f.parquet", 20 * MIB),
    ];
    let spool = spool(&files);
    let unfinished = file(spool.path(), ".g.parquet.part");
    fs::write(&unfinished, "x").unwrap();
    let finished = run(&moto, spool.path(), "s3://lake/raw").success();
    let bytes: usize = files.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(finished.stderr, format!("uploaded 6 files, {bytes} bytes, to s3://lake/raw\n"));
    let key = |name: &str| format!("raw/{LEAF}/{name}");
    assert_eq!(moto.keys(), files.map(|(name, _)| key(name)));
    for (name, bytes) in files {
        assert!(moto.object(&key(name)) == content(bytes), "{name}");
        assert!(!file(spool.path(), name).exists(), "{name}");
    }
    assert!(unfinished.exists());
    assert_eq!(
        run(&moto, spool.path(), "s3://lake").success().stderr,
        "uploaded 0 files, 0 bytes, to s3://lake\n"
    );
}

#[test]
fn files_stay_while_the_store_is_down_and_are_sent_when_it_is_up() {
    let Some(mut moto) = Moto::down_or_skip() else { return };
    let spool = spool(&[("a.parquet", 1000)]);
    let refused = run(&moto, spool.path(), "s3://lake");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.starts_with("strait-upload: Connection refused")
            && refused.stderr.lines().count() == 1,
        "{}",
        refused.stderr
    );
    assert!(file(spool.path(), "a.parquet").exists());

    let (input, follows) = std::io::pipe().unwrap();
    let program =
        moto.env(Launch::new(PROGRAM)).arg(spool.path()).args(["s3://lake", "--follow"]).stdin(input);
    let program = program.spawn().unwrap();
    program.wait_for_stderr("strait: note: the upload to s3://lake fails: ", LIMIT).unwrap();
    moto.start();
    program.wait_for_stderr("strait: note: the upload to s3://lake works again", LIMIT).unwrap();
    fs::write(file(spool.path(), "b.parquet"), "x").unwrap();
    assert!(wait_until(LIMIT, || !file(spool.path(), "b.parquet").exists()));
    fs::write(file(spool.path(), "c.parquet"), "x").unwrap();
    drop(follows);
    let _ = program.wait(LIMIT).unwrap().success();
    assert_eq!(moto.keys(), ["a", "b", "c"].map(|name| format!("{LEAF}/{name}.parquet")));
}

#[test]
fn refusals_of_the_store_are_one_line() {
    let Some(moto) = Moto::up_or_skip() else { return };
    let spool = spool(&[("a.parquet", 10)]);
    let refused = run(&moto, spool.path(), "s3://nosuchbucket");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("NoSuchBucket") && refused.stderr.lines().count() == 1,
        "{}",
        refused.stderr
    );
    assert!(file(spool.path(), "a.parquet").exists());
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, words) in [
        (&["/nonexistent", "lake"][..], "give a bucket and a prefix, as in s3://lake/raw"),
        (&["/nonexistent", "s3://Lake"], "a bucket has 3 to 63 small letters"),
        (&["/nonexistent"], "required"),
    ] {
        let finished = Launch::new(PROGRAM).args(arguments).run(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{arguments:?}: {}", finished.stderr);
    }
    let missing = Launch::new(PROGRAM).args(["/nonexistent", "s3://lake"]).run(LIMIT).unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.stderr.contains("read /nonexistent: No such file"), "{}", missing.stderr);
}
