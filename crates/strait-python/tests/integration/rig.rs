//! The installed wheel, programs that import it, and their traffic.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lab::{Launch, Process, Wire, fetched_or_skip, program_or_skip, skip};
use serde_json::Value;
use strait_capture::sink::{FileSink, FrameRef, SinkOptions, Target};
use strait_capture::{InjectPath, Injector};
use strait_packet::traffic::{Kind, Traffic};

/// Time limit of any step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);
/// Paths that leave the packets to the host.
pub(crate) const PATHS: [&str; 4] = ["recv", "v2", "v3", "tap"];

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/python");
const PACKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wheel.py");
const PYTHON: &str = "/usr/bin/python3";

/// Returns Python with the installed wheel, or skips the test if there is no Python 3.11.
pub(crate) fn python_or_skip() -> Option<&'static Path> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match INSTALLED.get_or_init(install) {
        Ok(python) => Some(python),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// Packs the library that Cargo has built next to its tests, and installs it with pip into a clean
/// environment, which replaces that of an earlier run. Returns the interpreter.
fn install() -> Result<PathBuf, String> {
    let needed = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";
    let has_python = Launch::new(PYTHON).args(["-c", needed]).run(LIMIT);
    if !has_python.is_ok_and(|finished| finished.status.success()) {
        return Err(format!("{PYTHON} is not Python 3.11 or newer with venv; `make setup` installs it"));
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let _ = Launch::new(PYTHON).args(["-m", "venv", "--clear"]).arg(&place).run(LIMIT).unwrap().success();
    let library = std::env::current_exe().unwrap().with_file_name("libstrait_python.so");
    let version = env!("CARGO_PKG_VERSION");
    let packed = Launch::new(PYTHON).arg(PACKER).arg(library).arg(version).arg(&place).run(LIMIT);
    let wheel = packed.unwrap().success().text();
    let pip = Launch::new(place.join("bin/pip")).args(["install", "--quiet", "--no-index", wheel.trim()]);
    let _ = pip.run(LIMIT).unwrap().success();
    Ok(place.join("bin/python"))
}

/// Returns a launch of `python/NAME.py`.
pub(crate) fn program<'a>(launch: Launch<'a>, name: &str, arguments: &[&str]) -> Launch<'a> {
    launch.env("PYTHONDONTWRITEBYTECODE", "1").arg(format!("{PROGRAMS}/{name}.py")).args(arguments)
}

/// Returns the directory of a package in an environment of `scripts/setup-programs`, for
/// `PYTHONPATH`, or skips the test if it is not installed.
pub(crate) fn package_or_skip(environment: &str, package: &str) -> Option<String> {
    let directory = packages_of(&fetched_or_skip(&format!("{environment}/bin/python"))?);
    program_or_skip(&format!("{directory}/{package}/__init__.py")).then_some(directory)
}

/// Returns the directory of the packages that are installed for a Python.
pub(crate) fn packages_of(python: &Path) -> String {
    let words = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    Launch::new(python).args(words).run(LIMIT).unwrap().success().text().trim().to_owned()
}

/// Starts a program at the right end of the wire, and waits until its capture is open.
pub(crate) fn start(wire: &Wire, python: &Path, name: &str, arguments: &[&str]) -> Process {
    started(program(wire.right().command(python), name, arguments))
}

/// Starts a program, and waits until it has printed `ready`.
pub(crate) fn started(launch: Launch<'_>) -> Process {
    let process = launch.spawn().unwrap();
    process.wait_for_stdout("ready\n", LIMIT).unwrap();
    process
}

/// Returns the last line of a successful program, which is JSON.
pub(crate) fn result(process: Process) -> Value {
    let text = process.wait(LIMIT).unwrap().success().text();
    let line = text.lines().last().expect("a line");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Returns frames of UDP and TCP over IPv4 and of UDP over IPv6 in turn, each with its own number.
pub(crate) fn frames(count: u64) -> Vec<Vec<u8>> {
    let kinds = [Kind::Udp4, Kind::Tcp4, Kind::Udp6];
    let traffic = Traffic::builder().kinds(&kinds).flows(3).sizes("64,512,1518".parse().unwrap());
    let traffic = traffic.build().unwrap();
    let frame = |sequence| {
        let mut bytes = vec![0; traffic.frame_len_max()];
        let len = traffic.write_frame(sequence, 0, &mut bytes);
        bytes.truncate(len);
        bytes
    };
    (0..count).map(frame).collect()
}

/// Sends frames from the left end in order, and waits until the right end has received them.
pub(crate) fn send(wire: &Wire, frames: &[Vec<u8>]) {
    let before = wire.right().stats().rx_packets;
    transmit(wire, frames);
    wire.await_arrival(before, frames.len() as u64);
}

/// Sends frames from the left end in order.
pub(crate) fn transmit(wire: &Wire, frames: &[Vec<u8>]) {
    wire.left().run_in_order(|| {
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        for frame in frames {
            injector.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
            injector.push(frame.len());
        }
        assert_eq!(injector.finish().unwrap().frames, frames.len() as u64);
    });
}

/// Writes a capture file.
pub(crate) fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut sink = FileSink::create(SinkOptions::new(Target::Path(path.to_owned()), 0)).unwrap();
    for (bytes, at) in frames.iter().zip(0..) {
        let timestamp_ns = 1_764_000_000_123_456_789 + at * 1_000_003;
        sink.write(&FrameRef { timestamp_ns, bytes, wire_len: bytes.len() as u32, ..FrameRef::default() })
            .unwrap();
    }
    sink.close(&[]).unwrap();
}

/// Returns the bytes of the frames, one after the other, as hexadecimal digits.
pub(crate) fn hex(frames: &[impl AsRef<[u8]>]) -> String {
    frames.iter().flat_map(AsRef::as_ref).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns a count of a ledger that balances.
pub(crate) fn count(ledger: &Value, name: &str) -> u64 {
    let number = |value: &Value| value.as_u64().expect("a count");
    let lost: u64 = ledger["lost"].as_object().expect("losses").values().map(number).sum();
    let accounted = number(&ledger["delivered"]) + number(&ledger["filtered"]) + lost;
    assert_eq!(number(&ledger["received"]), accounted, "{ledger}");
    name.split('.').fold(ledger, |value, key| &value[key]).as_u64().unwrap_or_else(|| panic!("{name}"))
}
