//! Comments and names of addresses in pcapng files, as capinfos and tshark read them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::refusals::RECORDING;
use crate::rig::{failure, run};
use crate::tools::{self, capinfos, tshark};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a copy of `file` to OUT.pcapng with further options.
fn copy(file: &str, directory: &tempfile::TempDir, name: &str, options: &[&str]) -> PathBuf {
    let out = directory.path().join(name);
    let _ = run(&[&["capture", "-r", file, "-w", text(&out)], options].concat()).success();
    out
}

/// Returns the values of lines of capinfos that start with `name`.
fn values(file: &Path, name: &str) -> Vec<String> {
    let lines = capinfos(file).1;
    let values = lines.lines().filter_map(|line| line.strip_prefix(name));
    values.map(|value| value.trim_start_matches(':').trim().to_owned()).collect()
}

#[test]
fn each_file_has_the_comments() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let long = "é".repeat(1024);
    let options = ["--comment", "day – one", "--comment", &long, "--rotate-mib", "16k"];
    copy(RECORDING, &directory, "out.pcapng", &options);
    let files: Vec<PathBuf> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 3);
    for file in files {
        assert_eq!(values(&file, "Capture comment"), ["day – one", &long], "{}", file.display());
    }
}

#[test]
fn comments_and_names_that_no_file_can_hold_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (pcapng, pcap) = (directory.path().join("out.pcapng"), directory.path().join("out.pcap"));
    let long = "é".repeat(1025);
    let many = ["--comment", "x"].repeat(17);
    for (file, options, words) in [
        (Some(&pcap), &["--comment", "x"][..], "only pcapng holds comments"),
        (Some(&pcap), &["--names"], "only pcapng holds names"),
        (Some(&pcapng), &["--comment", &long], "a comment has 2050 bytes: give at most 2048"),
        (Some(&pcapng), &many, "17 comments: give at most 16"),
        (None, &["--comment", "x"], "--comment needs an output: give -w FILE"),
        (None, &["--names"], "--names needs an output: give -w FILE"),
    ] {
        let mut arguments = vec!["capture", "-r", RECORDING];
        arguments.extend(file.into_iter().flat_map(|file| ["-w", text(file)]));
        let (code, line) = failure(&run(&[&arguments, options].concat()));
        assert!(code == 2 && line.contains(words), "{words}: {code} {line}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn tshark_shows_the_names_of_dns_answers_without_these_packets() {
    if !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let hosts = |file: &Path| -> Vec<String> {
        let fields = tshark(file, &["-N", "n"], &["ip.dst_host", "ipv6.dst_host"]);
        let mut hosts: Vec<String> = fields.into_iter().flatten().filter(|host| !host.is_empty()).collect();
        hosts.sort();
        hosts.dedup();
        hosts
    };
    // The second copy has no packets of DNS.
    let web = "tcp port 80";
    let plain = copy(RECORDING, &directory, "plain.pcapng", &[web]);
    assert!(!hosts(&plain).iter().any(|host| host == "www.example.org"), "{:?}", hosts(&plain));
    let named = copy(RECORDING, &directory, "named.pcapng", &["--names"]);
    let web = copy(text(&named), &directory, "web.pcapng", &[web]);
    assert_eq!(hosts(&web), ["192.0.2.1", "2001:db8::1", "www.example.org"]);
    for file in [&named, &web] {
        assert_eq!(values(file, "Number of resolved IPv4 addresses in file"), ["1"]);
        assert_eq!(values(file, "Number of resolved IPv6 addresses in file"), ["1"]);
    }
}
