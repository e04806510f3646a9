//! The programs that users read capture files with, as oracles: tcpdump, tshark, capinfos.
//!
//! Each is run so that a warning fails the test.

use std::path::Path;

use lab::Launch;

use crate::rig::LIMIT;

/// Whether all three are installed; if not, the test is skipped.
pub(crate) fn present() -> bool {
    ["tcpdump", "tshark", "capinfos"].into_iter().all(lab::program_or_skip)
}

/// The lines that tcpdump prints for the packets of `file`.
pub(crate) fn tcpdump(file: &Path) -> Vec<String> {
    let finished = Launch::new("tcpdump").args(["-nn", "-r"]).arg(file).run(LIMIT).unwrap().success();
    let said: Vec<&str> =
        finished.stderr.lines().filter(|line| !line.starts_with("reading from file")).collect();
    assert!(said.is_empty(), "tcpdump: {said:?}");
    finished.text().lines().map(str::to_owned).collect()
}

/// The packets that capinfos counts in `file`, and the whole of what it says.
pub(crate) fn capinfos(file: &Path) -> (usize, String) {
    let finished = Launch::new("capinfos").arg("-M").arg(file).run(LIMIT).unwrap().success();
    assert_eq!(finished.stderr, "", "capinfos warns");
    let text = finished.text();
    let line = text.lines().find_map(|line| line.strip_prefix("Number of packets:"));
    (line.expect("a count").trim().parse().unwrap(), text)
}

/// What tshark says of each packet of `file`: the `fields`, with `options` before.
pub(crate) fn tshark(file: &Path, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let launch = Launch::new("tshark").arg("-r").arg(file).args(options).args(["-T", "fields"]);
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let finished = launch.args(fields).run(LIMIT).unwrap().success();
    let said: Vec<&str> =
        finished.stderr.lines().filter(|line| !line.starts_with("Running as user")).collect();
    assert!(said.is_empty(), "tshark: {said:?}");
    finished.text().lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// tshark's options to look at a pcapng file's blocks instead of its packets.
pub(crate) const AS_BLOCKS: [&str; 2] = ["-X", "read_format:MIME Files Format"];
/// tshark's options to check every checksum.
pub(crate) const CHECKSUMS: [&str; 6] =
    ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"];
