//! A disk that fills up during a capture: one clear line, exit code 1, a closed ledger with losses
//! in `sink`, and a valid file.

use std::fs;
use std::path::{Path, PathBuf};

use lab::{Finished, Launch, Process, Wire};

use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, STRAIT, balances, count, failure, ledger, lost, numbered, send, sequence};
use crate::tools::{self, capinfos};

/// A small file system in a mount namespace, which is removed when it is dropped.
pub(crate) struct SmallDisk {
    holder: Process,
}

impl SmallDisk {
    /// Mount point in the namespace.
    const AT: &str = "/mnt";

    pub(crate) fn mount(size: &str) -> Self {
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs {} && echo mounted && exec sleep infinity",
            Self::AT
        );
        let holder = Launch::new("unshare").args(["--mount", "sh", "-c", &script]).spawn().unwrap();
        holder.wait_for_stdout("mounted", LIMIT).unwrap();
        Self { holder }
    }

    /// Starts `strait capture` at the right end, in the mount namespace.
    pub(crate) fn capture(&self, wire: &Wire, options: &[&str]) -> Capture {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.holder.id());
        let launch =
            wire.right().command("nsenter").args([&namespace, STRAIT, "capture", "-i", "right", "--json"]);
        Capture::watch(launch.args(options))
    }

    /// Returns the path of the disk outside of its namespace.
    pub(crate) fn directory(&self) -> PathBuf {
        format!("/proc/{}/root{}", self.holder.id(), Self::AT).into()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Number of frames for about 300 KiB.
const FRAMES: u64 = 600;

/// Asserts the result of a capture to a full disk, and returns the number of delivered packets.
/// Packets in the ring when the disk filled up are unread; all others are in the file or lost in
/// the sink.
fn assert_reported(finished: &Finished) -> u64 {
    let (code, line) = failure(finished);
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("No space left on device"), "{line}");
    let ledger = ledger(finished);
    let loss = |place: &str| ledger["lost"][place].as_u64().unwrap();
    assert!(loss("sink") > 0, "{ledger}");
    assert_eq!(loss("sink") + loss("unread"), lost(&ledger), "{ledger}");
    for lane in ledger["lanes"].as_array().unwrap() {
        assert!(balances(lane), "{lane}");
    }
    count(&ledger, "delivered")
}

/// Asserts that the file has the first `packets` packets and that capinfos can read it.
fn assert_valid(file: &Path, packets: u64) {
    assert_eq!(sequence(file), (0..packets).collect::<Vec<_>>());
    assert_eq!(capinfos(file).0 as u64, packets);
}

#[test]
fn full_disk_ends_the_capture_and_keeps_written_packets() {
    for format in ["pcapng", "pcap"] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        if !tools::present() {
            return;
        }
        let disk = SmallDisk::mount("128k");
        let capture = disk.capture(&wire, &["-w", "/mnt/capture", "--format", format]);
        send(&wire, &numbered(FRAMES));
        let finished = capture.wait();
        let delivered = assert_reported(&finished);
        assert!(
            delivered > 0 && finished.stderr.contains(&format!("wrote {delivered} packets, ")),
            "{}",
            finished.stderr
        );
        let size = fs::metadata(disk.directory().join("capture")).unwrap().len();
        let total = finished.stderr.replace(',', "").contains(&format!("packets {size} bytes to "));
        assert!(total && finished.stderr.matches(" bytes").count() == 1, "one total: {}", finished.stderr);
        assert_eq!(disk.names(), ["capture"]);
        assert_valid(&disk.directory().join("capture"), delivered);
    }
}

#[test]
fn full_disk_ends_a_capture_on_several_lanes_and_its_ledger_balances() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let disk = SmallDisk::mount("128k");
    let capture = disk.capture(&wire, &["-w", "/mnt/capture", "--queues", "0-2"]);
    send(&wire, &numbered(FRAMES));
    let delivered = assert_reported(&capture.wait());
    assert_eq!(sequence(&disk.directory().join("capture")).len() as u64, delivered);
}

#[test]
fn full_disk_in_a_rotation_keeps_earlier_files() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let disk = SmallDisk::mount("1536k");
    let capture = disk.capture(&wire, &["-w", "/mnt/capture.pcapng", "--rotate-mib", "1"]);
    send(&wire, &numbered(FRAMES * 10));
    let delivered = assert_reported(&capture.wait());
    let names = disk.names();
    assert_eq!(names.len(), 2, "{names:?}");
    let kept: Vec<u64> = names.iter().flat_map(|name| sequence(&disk.directory().join(name))).collect();
    assert_eq!(kept, (0..delivered).collect::<Vec<_>>());
}

#[test]
fn full_disk_is_reported_before_the_capture_starts() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let full = full_device(directory.path());
    let launch = wire.right().command(STRAIT).args(["capture", "-i", "right", "-w"]).arg(&full);
    let (code, line) = failure(&launch.run(LIMIT).unwrap());
    assert_eq!(code, 1);
    assert!(line.contains("No space left on device"), "{line}");
}

/// Creates a device like `/dev/full` in the directory.
fn full_device(directory: &Path) -> PathBuf {
    let path = directory.join("full");
    let _ = Launch::new("mknod").arg(&path).args(["c", "1", "7"]).run(LIMIT).unwrap().success();
    path
}

#[test]
fn full_standard_output_is_named_in_the_error() {
    let script = r#"exec "$0" capture -r "$1" -w - > /dev/full"#;
    let launch = Launch::new("sh").args(["-c", script, STRAIT, RECORDING]);
    let (code, line) = failure(&launch.run(LIMIT).unwrap());
    assert!(code == 1 && line.starts_with("strait: write standard output: No space left"), "{code} {line}");
}

#[test]
fn unwritable_lines_are_lost_in_the_sink() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let full = full_device(directory.path());
    let script = r#"exec "$0" capture -i right --queues $2 > "$1""#;
    for queues in ["0", "0-2"] {
        let capture =
            Capture::watch(wire.right().command("sh").args(["-c", script, STRAIT]).arg(&full).arg(queues));
        send(&wire, &numbered(20));
        let finished = capture.wait();
        let (code, line) = failure(&finished);
        assert_eq!(code, 1);
        assert!(line.contains("write to standard output: No space left on device"), "{line}");
        let words = finished.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(" delivered 0 ") && words.contains(" sink "), "{words}");
        assert!(words.contains("the ledger balances"), "{words}");
    }
}
