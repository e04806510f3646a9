//! Tests of the program `strait-upload` with moto's server: files of each size, and a store that is
//! down.

mod formats;
mod kafka;
mod publish;

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
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

/// Launches an upload to a store without TLS at this address.
fn launch<'a>(spool: &Path, endpoint: &str) -> Launch<'a> {
    Launch::new(PROGRAM)
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .arg(spool)
        .arg("s3://lake/raw")
}

/// Starts a store that answers a request with this head, and then with `chunk` until its client
/// closes the connection. The thread returns the number of sent chunks.
fn endless_store(head: &'static str, chunk: Vec<u8>) -> (SocketAddr, std::thread::JoinHandle<u64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 1 << 12]).unwrap() > 0);
        stream.write_all(head.as_bytes()).unwrap();
        let mut sent = 0;
        while stream.write_all(&chunk).is_ok() {
            sent += 1;
        }
        sent
    });
    (address, serving)
}

#[test]
fn endless_errors_of_a_store_are_cut_and_reported() {
    const MIB_MAX: u64 = 100;
    let spool = spool(&[("a.parquet", 100)]);
    let text = vec![b'A'; MIB];
    let chunk = [b"100000\r\n", &text[..], b"\r\n"].concat();
    for (head, chunk) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 1099511627776\r\n\r\n", text),
        ("HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n", chunk),
    ] {
        let (address, serving) = endless_store(head, chunk);
        let finished = launch(spool.path(), &format!("http://{address}")).run(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("403") && finished.stderr.len() < 1000, "{}", finished.stderr);
        assert!(serving.join().unwrap() < MIB_MAX);
    }
    assert!(file(spool.path(), "a.parquet").exists());
}

#[test]
fn password_in_the_address_of_the_store_is_refused_and_not_shown() {
    let spool = spool(&[("a.parquet", 100)]);
    let finished = launch(spool.path(), "http://user:PASSWORD@127.0.0.1:1").run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
    let stderr = finished.stderr;
    assert!(stderr.contains("AWS_ENDPOINT_URL has a user") && !stderr.contains("PASSWORD"), "{stderr}");
}

#[test]
fn files_stay_while_the_store_is_down_and_are_sent_when_it_is_up() {
    let Some(mut moto) = Moto::down_or_skip() else { return };
    // The directory stays, as unfinished files are in it.
    let spool = spool(&[("a.parquet", 1000), (".b.parquet.part", 1), (".c.parquet.part", 1)]);
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
    fs::rename(file(spool.path(), ".b.parquet.part"), file(spool.path(), "b.parquet")).unwrap();
    assert!(wait_until(LIMIT, || !file(spool.path(), "b.parquet").exists()));
    fs::rename(file(spool.path(), ".c.parquet.part"), file(spool.path(), "c.parquet")).unwrap();
    drop(follows);
    let _ = program.wait(LIMIT).unwrap().success();
    assert_eq!(moto.keys(), ["a", "b", "c"].map(|name| format!("{LEAF}/{name}.parquet")));
}

/// Starts a store that takes any number of files. It answers the first one when `answer` does.
fn late_store(answer: std::sync::mpsc::Receiver<()>) -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (taken, takes) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = std::io::BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                let mut length = 0;
                let mut field = String::new();
                while stream.read_line(&mut field).unwrap() > 2 {
                    let field = std::mem::take(&mut field).to_ascii_lowercase();
                    if let Some(value) = field.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                if taken.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
                // An error: it has answered the first one.
                let _ = answer.recv();
                let response = b"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n";
                stream.get_mut().write_all(response).unwrap();
            }
        }
    });
    (address, takes)
}

#[test]
fn file_that_is_completed_while_the_last_one_is_sent_is_sent_too() {
    let spool = spool(&[("a.parquet", 100)]);
    let (answers, answer) = std::sync::mpsc::channel();
    let (address, takes) = late_store(answer);
    let (input, follows) = std::io::pipe().unwrap();
    let program =
        launch(spool.path(), &format!("http://{address}")).arg("--follow").stdin(input).spawn().unwrap();
    assert!(takes.recv_timeout(LIMIT).unwrap().contains("a.parquet"));
    fs::write(file(spool.path(), "b.parquet"), "x").unwrap();
    drop(follows);
    // The program looks for the end twice a second.
    std::thread::sleep(Duration::from_millis(1500));
    drop(answers);
    let _ = program.wait(LIMIT).unwrap().success();
    assert!(takes.recv_timeout(LIMIT).unwrap().contains("b.parquet"));
    assert!(!file(spool.path(), "b.parquet").exists());
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
