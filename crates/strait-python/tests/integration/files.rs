//! Capture files: the rows that tshark prints, and the lines of wrong arguments.

use std::fs::File;
use std::io::pipe;

use lab::{Launch, program_or_skip};
use rustix::process::Signal;

use crate::rig::{LIMIT, frames, hex, package_or_skip, program, python_or_skip, write};

/// Fields of tshark, each with the column of the same value.
const FIELDS: [(&str, &str); 9] = [
    ("frame.time_epoch", "time"),
    ("frame.len", "length"),
    ("frame.cap_len", "captured_length"),
    ("ip.src", "source_address"),
    ("ip.dst", "destination_address"),
    ("ip.proto", "protocol"),
    ("tcp.srcport", "source_port"),
    ("tcp.dstport", "destination_port"),
    ("tcp.seq_raw", "tcp_sequence"),
];

#[test]
fn rows_of_a_file_have_the_fields_that_tshark_prints() {
    let Some(python) = python_or_skip() else { return };
    let Some(engines) = package_or_skip("tables", "pyarrow") else { return };
    if !program_or_skip("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.pcapng");
    write(&file, &frames(200));
    let file = file.to_str().unwrap();
    let mut tshark = Launch::new("tshark").args(["-r", file, "-Y", "tcp && ip", "-T", "fields"]);
    tshark = FIELDS.iter().fold(tshark, |launch, (field, _)| launch.args(["-e", field]));
    let printed = tshark.run(LIMIT).unwrap().success().text();
    let names: Vec<&str> = FIELDS.iter().map(|(_, name)| *name).collect();
    let arguments = [file, "tcp and ip", &names.join(",")];
    let launch = program(Launch::new(python), "rows", &arguments).env("PYTHONPATH", &engines);
    let rows = launch.run(LIMIT).unwrap().success().text();
    assert!(printed.lines().count() > 50, "{printed}");
    assert_eq!(rows, printed);
}

#[test]
fn frames_of_a_file_are_its_packets_and_the_count_ends_them() {
    let Some(python) = python_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let written = frames(700);
    let expected = format!("{}\n600 600\n", hex(&written[..600]));
    for name in ["day.pcapng", "day.pcapng.zst"] {
        let file = directory.path().join(name);
        write(&file, &written);
        let arguments = [file.to_str().unwrap(), "600"];
        let printed = program(Launch::new(python), "file", &arguments).run(LIMIT).unwrap().success().text();
        assert!(printed == expected, "{name}");
        let input = program(Launch::new(python), "file", &["-", "600"]).stdin(File::open(file).unwrap());
        assert!(input.run(LIMIT).unwrap().success().text() == expected, "{name}");
    }
}

#[test]
fn scapy_takes_frames() {
    let Some(python) = python_or_skip() else { return };
    let Some(scapy) = package_or_skip("python", "scapy") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.pcapng");
    write(&file, &frames(9));
    let launch = program(Launch::new(python), "dissect", &[file.to_str().unwrap()]).env("PYTHONPATH", scapy);
    let printed = launch.run(LIMIT).unwrap().success().text();
    assert_eq!(printed, "Ether/IP/UDP Ether/IP/TCP Ether/IPv6/UDP\n".repeat(3));
}

#[test]
fn interrupt_ends_the_wait_for_standard_input() {
    let Some(python) = python_or_skip() else { return };
    let (input, output) = pipe().unwrap();
    let process = program(Launch::new(python), "input", &[]).stdin(input).spawn().unwrap();
    process.wait_for_stdout("ready\n", LIMIT).unwrap();
    process.signal(Signal::INT);
    assert_eq!(process.wait(LIMIT).unwrap().success().text(), "ready\ninterrupted\n");
    drop(output);
}

#[test]
fn damaged_file_gives_the_packets_before_the_damage_and_then_its_error() {
    let Some(python) = python_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.pcapng");
    write(&file, &frames(100));
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let file = file.to_str().unwrap();
    let printed = program(Launch::new(python), "damaged", &[file]).run(LIMIT).unwrap().success().text();
    let [rows, delivered, error] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!(rows, delivered);
    assert!(rows.parse::<u64>().unwrap() > 10, "{printed}");
    assert!(error.starts_with("Error: ") && error.contains(file), "{error}");
}
