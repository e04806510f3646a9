//! Programs that read capture files, as oracles: tcpdump, tshark, capinfos.
//!
//! A warning of any of them fails the test.

use std::path::Path;

use lab::Launch;

use crate::rig::LIMIT;

/// Returns true if all three are installed. If not, the test is skipped.
pub(crate) fn present() -> bool {
    ["tcpdump", "tshark", "capinfos"].into_iter().all(lab::program_or_skip)
}

/// Returns tcpdump's lines for the packets of `file`.
pub(crate) fn tcpdump(file: &Path) -> Vec<String> {
    let finished = Launch::new("tcpdump").args(["-nn", "-r"]).arg(file).run(LIMIT).unwrap().success();
    let warnings: Vec<&str> =
        finished.stderr.lines().filter(|line| !line.starts_with("reading from file")).collect();
    assert!(warnings.is_empty(), "tcpdump: {warnings:?}");
    finished.text().lines().map(str::to_owned).collect()
}

/// Returns capinfos' count of packets in `file`, and its whole output.
pub(crate) fn capinfos(file: &Path) -> (usize, String) {
    let finished = Launch::new("capinfos").arg("-M").arg(file).run(LIMIT).unwrap().success();
    assert_eq!(finished.stderr, "", "capinfos warns");
    let text = finished.text();
    let line = text.lines().find_map(|line| line.strip_prefix("Number of packets:"));
    (line.expect("a count").trim().parse().unwrap(), text)
}

/// Returns the `fields` that tshark prints for each packet of `file` with `options`.
pub(crate) fn tshark(file: &Path, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let launch = Launch::new("tshark").arg("-r").arg(file).args(options).args(["-T", "fields"]);
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let finished = launch.args(fields).run(LIMIT).unwrap().success();
    let warnings: Vec<&str> =
        finished.stderr.lines().filter(|line| !line.starts_with("Running as user")).collect();
    assert!(warnings.is_empty(), "tshark: {warnings:?}");
    finished.text().lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Options of tshark to print the blocks of a pcapng file instead of its packets.
pub(crate) const AS_BLOCKS: [&str; 2] = ["-X", "read_format:MIME Files Format"];
/// Options of tshark to check every checksum.
pub(crate) const CHECKSUMS: [&str; 6] =
    ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"];
