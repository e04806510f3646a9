//! Compressed capture files: those of other programs are read, and other programs read those that
//! are written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lab::{Launch, Wire, program_or_skip, wait_until};
use strait_capture::file::FileReader;

use crate::refusals::RECORDING;
use crate::rig::{
    Capture, LIMIT, assert_complete, count, failure, ledger, numbered, packets, run, send, strait,
};
use crate::tools::{self, capinfos, tcpdump};

/// Programs, and the endings of their files.
const PROGRAMS: [(&str, &str); 3] = [("zstd", "zst"), ("gzip", "gz"), ("lz4", "lz4")];

fn all_present() -> bool {
    PROGRAMS.iter().all(|(program, _)| program_or_skip(program))
}

/// Runs a compressor on a file, and returns its output.
fn filter(program: &str, option: &str, file: &Path) -> Vec<u8> {
    Launch::new(program).args([option, "-c"]).arg(file).run(LIMIT).unwrap().success().stdout
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the recording as compressed by each program, in two frames or members.
fn compressed_recordings(directory: &Path) -> Vec<PathBuf> {
    let recording = fs::read(RECORDING).unwrap();
    let (first, second) = recording.split_at(recording.len() / 3);
    let part = directory.join("part");
    let compress = |(program, ending): &(&str, &str)| {
        let mut joined = Vec::new();
        for content in [first, second] {
            fs::write(&part, content).unwrap();
            joined.extend(filter(program, "-9", &part));
        }
        // The name does not matter for reading.
        let file = directory.join(format!("{ending}.input"));
        fs::write(&file, joined).unwrap();
        file
    };
    PROGRAMS.iter().map(compress).collect()
}

#[test]
fn files_of_compressors_are_read_from_a_name_and_from_standard_input() {
    if !all_present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let expected = packets(Path::new(RECORDING));
    for input in compressed_recordings(directory.path()) {
        let output = directory.path().join("output.pcapng");
        let _ = run(&["capture", "-r", text(&input), "-w", text(&output)]).success();
        assert_eq!(packets(&output), expected, "{}", input.display());
        let command = [env!("CARGO_BIN_EXE_strait"), "capture", "-r", "-", "--json", "tcp"];
        let [plain, packed] = [Path::new(RECORDING), &input].map(|file| {
            let launch = Launch::new(command[0]).args(&command[1..]).stdin(File::open(file).unwrap());
            ledger(&launch.run(LIMIT).unwrap().success())
        });
        for name in ["received", "filtered", "delivered", "wire_bytes"] {
            assert_eq!(plain[name], packed[name], "{}", input.display());
        }
    }
}

#[test]
fn tables_of_compressed_files_have_all_packets() {
    if !all_present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let inputs = compressed_recordings(directory.path());
    let url = format!("file:{}", directory.path().join("lake").display());
    let reads = inputs.iter().flat_map(|input| ["-r", text(input)]);
    let arguments: Vec<&str> = ["capture", "--to", &url, "--json"].into_iter().chain(reads).collect();
    let ledger = ledger(&run(&arguments).success());
    assert_eq!(count(&ledger, "delivered"), 3 * packets(Path::new(RECORDING)).len() as u64);
}

#[test]
fn compressed_file_is_replayed() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !all_present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let expected = packets(Path::new(RECORDING));
    for input in compressed_recordings(directory.path()) {
        let arguments = ["replay", text(&input), "-o", wire.left().name(), "--rate", "max", "--json"];
        let finished = strait(wire.left(), &arguments).run(LIMIT).unwrap().success();
        let account: serde_json::Value = serde_json::from_str(&finished.text()).unwrap();
        assert_eq!(count(&account, "frames"), expected.len() as u64);
    }
}

#[test]
fn cut_and_damaged_files_give_the_packets_before_and_one_line() {
    if !all_present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (input, (_, ending)) in compressed_recordings(directory.path()).into_iter().zip(PROGRAMS) {
        let bytes = fs::read(&input).unwrap();
        let (output, damaged) = (directory.path().join("output.pcapng"), directory.path().join("damaged"));
        fs::write(&damaged, &bytes[..bytes.len() - 3]).unwrap();
        let (code, line) = failure(&run(&["capture", "-r", text(&damaged), "-w", text(&output)]));
        assert_eq!(code, 1, "{line}");
        let place = format!("is cut at byte {}: its ", bytes.len() - 3);
        assert!(line.contains(&place) && line.ends_with(" data is incomplete"), "{ending}: {line}");
        // The checksum is at the end of each format, after the last packet.
        assert_eq!(packets(&output), packets(Path::new(RECORDING)), "{ending}");
        let mut changed = bytes.clone();
        changed.extend(b"no frame");
        fs::write(&damaged, changed).unwrap();
        let (code, line) = failure(&run(&["capture", "-r", text(&damaged), "-w", text(&output)]));
        assert_eq!(code, 1, "{line}");
        assert!(line.contains("damaged: "), "{ending}: {line}");
        assert_eq!(packets(&output), packets(Path::new(RECORDING)), "{ending}");
    }
}

#[test]
fn large_window_is_refused_with_the_command_that_decompresses() {
    if !program_or_skip("zstd") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("long.zst");
    // From a pipe zstd does not know the length, so that the window stays large.
    let launch = Launch::new("zstd").args(["-q", "--long=28", "-c"]).stdin(File::open(RECORDING).unwrap());
    let launch = launch.run(LIMIT).unwrap().success();
    fs::write(&input, launch.stdout).unwrap();
    let (code, line) = failure(&run(&["capture", "-q", "-r", text(&input)]));
    assert_eq!(code, 1, "{line}");
    assert!(line.contains("window is larger than 128 MiB") && line.contains("zstd -dc --long=31"), "{line}");
}

#[test]
fn written_files_are_decompressed_by_other_programs() {
    if !all_present() || !tools::present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (program, ending) in PROGRAMS {
        for format in ["pcapng", "pcap"] {
            let output = directory.path().join(format!("out.{format}.{ending}"));
            let finished = run(&["capture", "-r", RECORDING, "-w", text(&output)]).success();
            let _ = Launch::new(program).args(["-q", "-t"]).arg(&output).run(LIMIT).unwrap().success();
            let plain = directory.path().join("plain");
            fs::write(&plain, filter(program, "-d", &output)).unwrap();
            let lengths = [&output, &plain].map(|file| fs::metadata(file).unwrap().len());
            assert!(lengths[0] < lengths[1], "{lengths:?}");
            let grouped = lengths.map(|length| strait_ledger::Grouped(length).to_string());
            let summary = format!("{} bytes ({} before compression), to ", grouped[0], grouped[1]);
            assert!(finished.stderr.contains(&summary), "{}", finished.stderr);
            assert_eq!(tcpdump(&plain), tcpdump(Path::new(RECORDING)));
            assert_eq!(capinfos(&plain).0, capinfos(Path::new(RECORDING)).0);
            let reader = FileReader::open(text(&plain)).unwrap();
            assert_eq!(format!("{:?}", reader.format().unwrap()).to_lowercase(), format);
        }
    }
}

/// Returns the number of packets in the file of a running capture.
fn packets_so_far(part: &Path) -> usize {
    let Ok(mut reader) = FileReader::open(text(part)) else { return 0 };
    let mut packets = 0;
    while let Ok(Some(_)) = reader.next() {
        packets += 1;
    }
    packets
}

#[test]
fn running_capture_shows_each_batch_and_ends_its_file_after_a_signal() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !all_present() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let frames = numbered(60);
    for (program, ending) in PROGRAMS {
        let file = directory.path().join(format!("live.pcapng.{ending}"));
        let capture = Capture::start(wire.right(), &["-U", "-w", text(&file)]);
        for sent in [20, 40, 60] {
            send(&wire, &frames[sent - 20..sent]);
            let part = directory.path().join(format!("live.pcapng.{ending}.part"));
            assert!(wait_until(LIMIT, || packets_so_far(&part) == sent), "{ending}: {sent}");
        }
        let _ = capture.finish();
        assert_complete(&file, 60);
        let _ = Launch::new(program).args(["-q", "-t"]).arg(&file).run(LIMIT).unwrap().success();
    }
}

#[test]
fn rotated_files_keep_both_endings_and_the_limit() {
    if !all_present() {
        return;
    }
    for (program, ending) in PROGRAMS {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join(format!("web.pcap.{ending}"));
        let _ = run(&["capture", "-r", RECORDING, "-w", text(&target), "-C", "8k"]).success();
        let mut files: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 2, "{files:?}");
        let mut found = Vec::new();
        for (file, number) in files.iter().zip(1..) {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with(&format!("web_{number:05}_")), "{name}");
            assert!(name.ends_with(&format!(".pcap.{ending}")), "{name}");
            assert!(fs::metadata(file).unwrap().len() <= 8000, "{name}");
            let _ = Launch::new(program).args(["-q", "-t"]).arg(file).run(LIMIT).unwrap().success();
            found.extend(packets(file));
        }
        assert_eq!(found, packets(Path::new(RECORDING)));
    }
}

#[test]
fn index_of_a_compressed_file_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("x.pcapng.zst");
    let (code, line) = failure(&run(&["capture", "-r", RECORDING, "-w", text(&target), "--index"]));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("leave out --index"), "{line}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}
