//! `--keylog`: secrets in pcapng files. openssl makes the exchanges, tshark decrypts them from the
//! files alone, and editcap adds secrets for comparison.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use lab::{Launch, Wire, program_or_skip, wait_until};

use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, STRAIT, run};
use crate::tools::{AS_BLOCKS, tshark};

/// Options of tshark for a TLS server on a port of its own.
const PORT: &str = "4433";
const AS_TLS: [&str; 2] = ["-d", "tcp.port==4433,tls"];

/// A line of a key log that belongs to no connection.
fn line(label: &str) -> String {
    format!("{label} {} {}\n", "0a".repeat(32), "bc".repeat(48))
}

fn path(directory: &tempfile::TempDir, name: &str) -> PathBuf {
    directory.path().join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the directory of a certificate and its key, or `None` without one of the programs.
fn certificate() -> Option<tempfile::TempDir> {
    if !["openssl", "tshark", "editcap"].into_iter().all(program_or_skip) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let (key, cert) = (path(&directory, "key.pem"), path(&directory, "cert.pem"));
    let request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let launch = Launch::new("openssl").args(request).args(["-days", "2", "-subj", "/CN=test"]);
    succeed(launch.args(["-keyout", text(&key), "-out", text(&cert)]));
    Some(directory)
}

/// Sends a request over TLS from the left end to the right one, and waits for the response.
fn exchange(wire: &Wire, files: &tempfile::TempDir, version: &str, target: &str) {
    let (key, cert) = (path(files, "key.pem"), path(files, "cert.pem"));
    let server = wire.right().command("openssl").args(["s_server", "-accept", PORT, "-www", "-naccept", "1"]);
    let server = server.args(["-key", text(&key), "-cert", text(&cert)]).spawn().unwrap();
    server.wait_for_stdout("ACCEPT", LIMIT).unwrap();
    let request = path(files, "request");
    fs::write(&request, format!("GET {target} HTTP/1.0\r\n\r\n")).unwrap();
    let client = wire.left().command("openssl").args(["s_client", version, "-ign_eof", "-quiet"]);
    let client = client.args(["-connect", &format!("{}:{PORT}", wire.right().ipv4())]);
    let client = client.args(["-keylogfile", text(&path(files, "keys.log"))]);
    let answer = client.stdin(File::open(&request).unwrap()).run(LIMIT).unwrap();
    assert!(answer.text().contains("200 ok"), "{}{}", answer.text(), answer.stderr);
    server.wait(LIMIT).unwrap();
}

/// Runs a program to its end, which must succeed.
fn succeed(launch: Launch<'_>) -> String {
    launch.run(LIMIT).unwrap().success().stderr
}

/// Returns the targets of the HTTP requests that tshark decrypts without a key log of its own.
fn decrypted(file: &Path) -> Vec<String> {
    let requests = tshark(file, &[&AS_TLS[..], &["-Y", "http.request"]].concat(), &["http.request.uri"]);
    requests.into_iter().flatten().collect()
}

/// Returns the types of the blocks of a file.
fn blocks(file: &Path) -> Vec<u32> {
    let found = tshark(file, &AS_BLOCKS, &["pcapng.block.type"]).remove(0).remove(0);
    let block = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    found.split(',').map(block).collect()
}

#[test]
fn tshark_decrypts_live_captures_and_their_copies_from_the_file_alone() {
    let Some(wire) = Wire::builder().ipv4().or_skip() else { return };
    let Some(files) = certificate() else { return };
    let keys = path(&files, "keys.log");
    fs::write(&keys, line("OLDER")).unwrap();
    for (version, name) in [("-tls1_2", "two.pcapng"), ("-tls1_3", "three.pcapng.zst")] {
        let file = path(&files, name);
        let capture = Capture::start(wire.right(), &["-w", text(&file), "--keylog", text(&keys)]);
        exchange(&wire, &files, version, "/secret");
        let ended = capture.finish();
        assert!(!ended.stderr.contains("key log"), "{}", ended.stderr);
        assert_eq!(decrypted(&file), ["/secret"], "{version}");

        // Copies keep the secrets: of the file, and of one with the secrets of editcap.
        let copy = path(&files, "copy.pcapng");
        succeed(Launch::new(STRAIT).args(["capture", "-r", text(&file), "-w", text(&copy)]));
        assert_eq!(decrypted(&copy), ["/secret"], "copy of {version}");
        let (bare, injected) = (path(&files, "bare.pcapng"), path(&files, "injected.pcapng"));
        succeed(Launch::new("editcap").args(["--discard-all-secrets", text(&copy), text(&bare)]));
        assert!(decrypted(&bare).is_empty());
        let inject = format!("tls,{}", text(&keys));
        let editcap =
            Launch::new("editcap").args(["--inject-secrets", &inject, text(&bare), text(&injected)]);
        succeed(editcap);
        succeed(Launch::new(STRAIT).args(["capture", "-r", text(&injected), "-w", text(&copy)]));
        assert_eq!(decrypted(&copy), ["/secret"], "secrets of editcap");

        // The log of a complete capture, also with a last line without an end.
        fs::write(path(&files, "cut.log"), fs::read_to_string(&keys).unwrap().trim_end()).unwrap();
        let cut = path(&files, "cut.log");
        succeed(Launch::new(STRAIT).args([
            "capture",
            "-r",
            text(&bare),
            "-w",
            text(&copy),
            "--keylog",
            text(&cut),
        ]));
        assert_eq!(decrypted(&copy), ["/secret"], "log with -r");
        let found = blocks(&copy);
        assert_eq!(found[..3], [0x0a0d_0d0a, 1, 10], "secrets precede all packets");
        assert_eq!(found.iter().filter(|kind| **kind == 10).count(), 1);
    }
}

#[test]
fn each_file_of_a_rotation_has_all_lines() {
    if !program_or_skip("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (keys, file) = (path(&directory, "keys.log"), path(&directory, "out.pcapng"));
    fs::write(&keys, [line("A"), line("B")].concat()).unwrap();
    let ended =
        run(&["capture", "-r", RECORDING, "-w", text(&file), "--keylog", text(&keys), "--rotate-mib", "16k"]);
    let ended = ended.success();
    assert!(!ended.stderr.contains("strait: note"), "{}", ended.stderr);
    let rotated: Vec<PathBuf> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| text(path).ends_with(".pcapng"))
        .collect();
    assert!(rotated.len() > 3, "{rotated:?}");
    for file in rotated {
        assert!(file.metadata().unwrap().len() <= 16 << 10, "{}", file.display());
        assert_eq!(blocks(&file)[..3], [0x0a0d_0d0a, 1, 10]);
        let bytes = fs::read(&file).unwrap();
        let text = [line("A"), line("B")].concat();
        assert!(bytes.windows(text.len()).any(|window| window == text.as_bytes()), "{}", file.display());
    }
}

#[test]
fn lines_that_come_during_the_capture_are_checked_and_counted() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !program_or_skip("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (keys, file) = (path(&directory, "keys.log"), path(&directory, "out.pcapng"));
    fs::write(&keys, "").unwrap();
    let capture = Capture::start(wire.right(), &["-w", text(&file), "--keylog", text(&keys)]);
    let append = |path: &Path, text: &str| {
        OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    append(&keys, &format!("{}not a secret\n{}", line("FIRST"), line("SECOND")));
    let part = path(&directory, "out.pcapng.part");
    let has = |words: &str| {
        wait_until(LIMIT, || String::from_utf8_lossy(&fs::read(&part).unwrap()).contains(words))
    };
    assert!(has("SECOND"), "lines are written without packets");
    fs::write(&keys, line("AFTER")).unwrap();
    assert!(has("AFTER"), "lines after a truncation");
    let old = path(&directory, "old.log");
    fs::rename(&keys, &old).unwrap();
    fs::write(&keys, line("OTHER")).unwrap();
    assert!(wait_until(LIMIT, || capture.stderr().contains("was replaced")));
    append(&old, line("LAST").trim_end());
    let ended = capture.finish();
    for words in [
        "has become shorter: it is read from its start again",
        "keys.log was replaced or deleted: lines of a new file are not read",
        "keys.log, which were left out: 1\n",
    ] {
        assert_eq!(ended.stderr.matches(words).count(), 1, "{words}: {}", ended.stderr);
    }
    let bytes = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
    for label in ["FIRST", "SECOND", "AFTER", "LAST"] {
        assert_eq!(bytes.matches(&line(label)).count(), 1, "{label}");
    }
    assert!(!bytes.contains("not a secret") && !bytes.contains("OTHER"));
    assert_eq!(blocks(&file), [0x0a0d_0d0a, 1, 10, 10, 10, 5]);
}

#[test]
fn unusable_key_logs_and_outputs_are_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let [keys, bad, link, fifo, file] =
        ["keys.log", "bad.log", "link.log", "fifo.log", "out.pcapng"].map(|name| path(&directory, name));
    fs::write(&keys, line("SECRET")).unwrap();
    fs::write(&bad, line("SECRET") + "password\n").unwrap();
    symlink(&keys, &link).unwrap();
    succeed(Launch::new("mkfifo").arg(&fifo));
    let missing = path(&directory, "missing.log");
    let pcap = path(&directory, "out.pcap");
    for (code, log, write, words) in [
        (1, &bad, Some(&file), "line 2 of the key log"),
        (1, &link, Some(&file), "is a symbolic link"),
        (1, &fifo, Some(&file), "is a FIFO or a device"),
        (1, &missing, Some(&file), "create it first"),
        (2, &keys, Some(&pcap), "only pcapng holds secrets"),
        (2, &keys, Some(&keys), "--keylog and -w name the same file"),
        (2, &keys, None, "--keylog needs an output: give -w FILE"),
    ] {
        let mut arguments = vec!["capture", "-r", RECORDING, "--keylog", text(log)];
        arguments.extend(write.into_iter().flat_map(|file| ["-w", text(file)]));
        let refused = run(&arguments);
        let stderr = &refused.stderr;
        assert_eq!(refused.status.code(), Some(code), "{words}: {stderr}");
        assert!(stderr.contains(words) && stderr.lines().count() == 1, "{words}: {stderr}");
        assert!(!stderr.contains("password"), "{stderr}");
    }
    assert!(!file.exists() && !path(&directory, "out.pcapng.part").exists());
}

#[test]
fn secrets_of_a_file_that_pcap_cannot_hold_are_reported() {
    if !program_or_skip("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [keys, file, pcap] = ["keys.log", "out.pcapng", "out.pcap"].map(|name| path(&directory, name));
    fs::write(&keys, line("SECRET")).unwrap();
    succeed(Launch::new(STRAIT).args([
        "capture",
        "-r",
        RECORDING,
        "-c",
        "3",
        "-w",
        text(&file),
        "--keylog",
        text(&keys),
    ]));
    let copied = run(&["capture", "-r", text(&file), "-w", text(&pcap)]).success();
    assert!(
        copied.stderr.contains("note: blocks of secrets or names that are in no file: 1; pcap"),
        "{}",
        copied.stderr
    );
}

#[test]
fn copied_secrets_are_counted_and_no_secrets_omits_them() {
    let directory = tempfile::tempdir().unwrap();
    let [keys, file, copy] = ["keys.log", "out.pcapng", "copy.pcapng"].map(|name| path(&directory, name));
    fs::write(&keys, line("SECRET")).unwrap();
    let has_secret = |file: &Path| {
        let (bytes, secret) = (fs::read(file).unwrap(), line("SECRET"));
        bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    let mode = |file: &Path| file.metadata().unwrap().permissions().mode() & 0o777;
    let note = "note: blocks of secrets of the input that were copied: 1;";
    let written = run(&["capture", "-r", RECORDING, "-w", text(&file), "--keylog", text(&keys)]).success();
    assert!(has_secret(&file) && !written.stderr.contains(note), "{}", written.stderr);
    assert_eq!(mode(&file), 0o600);
    let copied = run(&["capture", "-r", text(&file), "-w", text(&copy), "tcp"]).success();
    assert!(has_secret(&copy) && copied.stderr.contains(note), "{}", copied.stderr);
    assert_eq!(mode(&copy), 0o600);
    let bare = run(&["capture", "-r", text(&file), "-w", text(&copy), "--no-secrets", "tcp"]).success();
    assert!(!has_secret(&copy) && !bare.stderr.contains("secrets"), "{}", bare.stderr);
    for arguments in [&["-r", text(&file)][..], &["-i", "lo", "-w", text(&copy)]] {
        let refused = run(&[&["capture", "--no-secrets"], arguments].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    }
}
