//! tcpdump's options, alone and combined, with tcpdump as the oracle where its output is equal.

use std::path::Path;

use lab::{Launch, Wire};
use serde_json::Value;

use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, STRAIT, count, numbered, run, send, strait};
use crate::tools;

/// Returns the output of `strait capture` with `options` for the recording.
fn strait_output(options: &[&str]) -> String {
    run(&[&["capture", "-r", RECORDING], options].concat()).success().text()
}

/// Returns the output of tcpdump for it.
fn tcpdump_output(options: &[&str]) -> String {
    Launch::new("tcpdump").args(["-r", RECORDING]).args(options).run(LIMIT).unwrap().success().text()
}

#[test]
fn options_of_tcpdump_work_alone_and_combined() {
    let plain = strait_output(&["-c", "5"]);
    for options in [&["-n"][..], &["-nn"], &["-S"], &["-l"], &["-lU"], &["-nnlS"], &["-s0"], &["-nnSs0"]] {
        assert_eq!(strait_output(&[options, &["-c", "5"]].concat()), plain, "{options:?}");
    }
    for options in ["-v", "-vv", "-e", "-X", "-XX", "-A", "-x", "-tttt", "-nnvvXSs0", "-nevvXX"] {
        let text = strait_output(&[options, "-c", "5"]);
        assert!(text.len() > plain.len() && text != plain, "{options}: {text}");
    }
    let quick = strait_output(&["-q", "-c", "50", "tcp"]);
    assert!(quick.lines().all(|line| line.contains(": tcp ") || line.contains("tcp")), "{quick}");
    assert!(quick.lines().count() == 50 && !quick.contains("Flags"), "{quick}");
    assert_eq!(strait_output(&["--quiet"]), "");
}

#[test]
fn fields_of_segments_equal_those_of_tcpdump() {
    if !tools::present() {
        return;
    }
    // The messages of applications differ, which follow the length.
    let segments = |text: &str| -> Vec<String> {
        let segment = |line: &str| {
            let (fields, rest) = line.split_once(", length ").unwrap_or((line, ""));
            let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            format!("{fields}, length {}", &rest[..digits])
        };
        text.lines().map(segment).collect()
    };
    for options in ["-t", "-St"] {
        let (ours, theirs) = (strait_output(&[options, "tcp"]), tcpdump_output(&["-nn", options, "tcp"]));
        assert_eq!(segments(&ours), segments(&theirs), "{options}");
        assert_eq!(ours.contains("seq 1:"), options == "-t", "{ours}");
    }
    assert_eq!(strait_output(&["-S", "tcp"]), strait_output(&["--absolute-tcp-sequence-numbers", "tcp"]));
}

#[test]
fn hexadecimal_dumps_equal_those_of_tcpdump() {
    if !tools::present() {
        return;
    }
    let dumps = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("\t0x")).map(|line| line.trim_end().to_owned()).collect()
    };
    for options in ["-x", "-X", "-xx", "-XX", "-XA", "-Ax", "-xX", "-AxxX"] {
        let (ours, tcpdump_output) =
            (strait_output(&[options, "udp"]), tcpdump_output(&["-nn", options, "udp"]));
        assert!(dumps(&ours).len() > 10, "{ours}");
        assert!(dumps(&ours) == dumps(&tcpdump_output), "{options}: {ours}\n{tcpdump_output}");
    }
}

#[test]
fn link_headers_and_times_equal_those_of_tcpdump() {
    if !tools::present() {
        return;
    }
    let filter = "udp and ip";
    let heads = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect()
    };
    let (ours, theirs_e) = (strait_output(&["-te", filter]), tcpdump_output(&["-nnte", filter]));
    assert!(heads(&ours).len() > 10);
    assert_eq!(heads(&ours), heads(&theirs_e));
    for options in ["-tt", "-ttt", "-tttt", "-ttttt"] {
        // tcpdump prints the file's digits, or microseconds.
        let ours = strait_output(&[options, filter]);
        for (ours, tcpdump_output) in ours.lines().zip(tcpdump_output(&["-nn", options, filter]).lines()) {
            let (their_time, _) = tcpdump_output.trim_start().split_once(" IP").unwrap();
            let (time, _) = ours.split_once(" IP").unwrap();
            // For -ttt and -ttttt tcpdump rounds differences of nanoseconds to microseconds.
            let digits = if options.len() % 2 == 0 { their_time.len() - 1 } else { their_time.len() };
            assert!(time.starts_with(&their_time[..digits]), "{options}: {time} {their_time}");
        }
    }
}

#[test]
fn verbose_lines_have_the_fields_of_tcpdump() {
    if !tools::present() {
        return;
    }
    let filter = "udp and ip";
    let fields = |text: String| -> Vec<String> {
        let firsts = text.lines().filter(|line| !line.starts_with([' ', '\t']));
        firsts.filter_map(|line| line.split_once("IP (").map(|(_, fields)| fields.to_owned())).collect()
    };
    let ours = fields(strait_output(&["-v", filter]));
    assert!(ours.len() > 10, "{ours:?}");
    assert_eq!(ours, fields(tcpdump_output(&["-nnv", filter])));
}

#[test]
fn filter_is_read_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "udp and\n  ip\n").unwrap();
    assert_eq!(strait_output(&["-F", file.path().to_str().unwrap()]), strait_output(&["udp and ip"]));
    let missing = run(&["capture", "-r", RECORDING, "-F", "/no/such/file"]);
    assert!(
        missing.status.code() == Some(1) && missing.stderr.contains("/no/such/file"),
        "{}",
        missing.stderr
    );
}

#[test]
fn interfaces_are_listed_with_the_paths_of_each() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let text = strait(wire.right(), &["capture", "-D"]).run(LIMIT).unwrap().success().text();
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{text}"));
    let right = line(".right ");
    assert!(
        right.contains("up, running, veth")
            && right.contains("v3, v2, recv; ")
            && right.contains("; xdp native copy, generic"),
        "{text}"
    );
    assert!(line(".any ").contains("; no tap; no xdp") && line(".lo ").contains("loopback"), "{text}");
    let json = strait(wire.right(), &["capture", "-D", "--json"]).run(LIMIT).unwrap().success().text();
    let entries: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert!(
        entries.iter().any(|entry| {
            entry["name"] == "right" && entry["xdp"][0] == "native copy" && entry["tap"].is_boolean()
        }),
        "{json}"
    );
}

#[test]
fn default_interface_is_selected_and_named() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for command in ["capture", "top"] {
        let arguments = [command, "--json", "--duration", "0.1"];
        let arguments = if command == "top" { &arguments[..2] } else { &arguments[..] };
        let process = strait(wire.right(), arguments).spawn().unwrap();
        process
            .wait_for_stderr("strait: no -i given: right is the first interface with a carrier\n", LIMIT)
            .unwrap();
        if command == "top" {
            process.wait_for_stdout("}\n", LIMIT).unwrap();
            let _ = process.interrupt(LIMIT).unwrap().success();
        } else {
            assert_eq!(
                process.wait(LIMIT).unwrap().success().text().matches("\"interface\":\"right\"").count(),
                1
            );
        }
    }
}

#[test]
fn rotation_options_of_tcpdump_rotate() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pcap");
    let name = file.to_str().unwrap();
    let rotated = |options: &[&str]| {
        let finished = run(&[&["capture", "-r", RECORDING, "-w", name], options].concat()).success();
        let mut files: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let sizes: Vec<u64> = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).collect();
        for file in &files {
            std::fs::remove_file(file).unwrap();
        }
        (finished.stderr, files, sizes)
    };
    let (stderr, files, sizes) = rotated(&["-C", "10k"]);
    assert!(files.len() > 2 && sizes.iter().all(|&size| size <= 10_000), "{sizes:?}");
    let (first, last) = (files[0].display(), files[files.len() - 1].display());
    let last_line = stderr.lines().next_back().unwrap();
    assert!(last_line.ends_with(&format!("to {} files, {first} to {last}", files.len())), "{last_line}");
    let (stderr, files, _) = rotated(&["-C", "10k", "-W", "2"]);
    assert!(files.len() == 2 && stderr.contains("older files were deleted"), "{files:?} {stderr}");
    let (_, files, _) = rotated(&["-C", "1"]);
    assert_eq!(files.len(), 1, "a million bytes");
    let (_, files, _) = rotated(&["-U", "-G", "1h", "-W", "1"]);
    assert_eq!(files.len(), 1);
}

#[test]
fn capture_by_time_ends_after_the_requested_files() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.pcapng");
    let capture = Capture::start(wire.right(), &["-w", file.to_str().unwrap(), "-G", "500ms", "-W", "2"]);
    send(&wire, &numbered(20));
    let _ = capture.wait().success();
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert!((1..=2).contains(&files), "{files}");
}

#[test]
fn note_about_missing_zero_copy_gives_no_useless_advice() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let stderr = Capture::start(wire.right(), &["--path", "xdp"]).finish().stderr;
    assert!(stderr.contains("\nstrait: no zero-copy: the driver of right does not support it\n"), "{stderr}");
}

#[test]
fn ring_sizes_and_durations_accept_units() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for options in
        [&["-B", "4096"][..], &["--ring-mib", "512KiB"], &["-Q", "inout", "-d", "1m"], &["-i", "right"]]
    {
        let all = [&["capture", "--json", "-d", "100ms"], options].concat();
        let all = if options.contains(&"-d") {
            [&["capture", "--json", "-c", "1k"], &options[..2]].concat()
        } else {
            all
        };
        if all.contains(&"1k") {
            let process = strait(wire.right(), &all).spawn().unwrap();
            process.wait_for_stderr("no -i given", LIMIT).unwrap();
            let _ = process.interrupt(LIMIT).unwrap().success();
            continue;
        }
        let finished = strait(wire.right(), &all).run(LIMIT).unwrap().success();
        let ledger: Value = serde_json::from_str(&finished.text()).unwrap();
        assert_eq!(count(&ledger, "received"), 0, "{options:?}");
    }
    let listening =
        Launch::new(STRAIT).args(["receive", "-l", "localhost:0", "--timeout", "1m"]).spawn().unwrap();
    listening.wait_for_stderr("listening on 127.0.0.1:", LIMIT).unwrap();
    assert!(Path::new(RECORDING).exists());
}
