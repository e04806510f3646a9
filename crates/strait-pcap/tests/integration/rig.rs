//! Launches of programs with the library under test or with stock libpcap, and traffic for them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lab::{Launch, Wire};
use strait_capture::{InjectPath, Injector};
use strait_packet::traffic::{Kind, Sizes, Traffic};

pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// Paths of packet sockets.
pub(crate) const SOCKETS: [&str; 3] = ["recv", "v2", "v3"];
/// Paths that do not take packets from others, so that stock libpcap can capture at the same time.
pub(crate) const PASSING: [&str; 4] = ["recv", "v2", "v3", "tap"];
/// Stock libpcap, then every path.
pub(crate) const STOCK_AND_PATHS: [Option<&str>; 6] =
    [None, Some("recv"), Some("v2"), Some("v3"), Some("tap"), Some("xdp")];

/// Directory of the tests' programs in C and Python.
pub(crate) const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration");

/// Returns the library, which Cargo builds next to its tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.with_file_name("libstrait_pcap.so");
    assert!(built.is_file(), "{} is not built", built.display());
    built
}

/// Returns a directory that contains the library under libpcap's names, for programs that load
/// libpcap at run time.
fn names() -> &'static Path {
    static NAMES: OnceLock<PathBuf> = OnceLock::new();
    NAMES.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libpcap");
        fs::create_dir_all(&directory).unwrap();
        for name in ["libpcap.so.0.8", "libpcap.so.1"] {
            // Rename the link into place, because a concurrent test run may do the same.
            let new = directory.join(format!("{name}.{}", std::process::id()));
            symlink(library(), &new).unwrap();
            fs::rename(new, directory.join(name)).unwrap();
        }
        directory
    })
}

/// Sets up `launch` to capture with Strait on `path` and nothing else, or with stock libpcap if
/// there is no path.
pub(crate) fn on<'a>(path: Option<&str>, launch: Launch<'a>) -> Launch<'a> {
    on_with(path, launch, None)
}

/// Like [`on`], for a program with its own directory of libraries.
pub(crate) fn on_with<'a>(path: Option<&str>, launch: Launch<'a>, libraries: Option<&Path>) -> Launch<'a> {
    let names = path.map(|_| names());
    let places = std::env::join_paths(names.into_iter().chain(libraries)).unwrap();
    let launch = if places.is_empty() { launch } else { launch.env("LD_LIBRARY_PATH", places) };
    match path {
        Some(path) => launch.env("LD_PRELOAD", library()).env("STRAIT_PATH", path).env("STRAIT_STRICT", "1"),
        None => launch,
    }
}

/// Like [`on`], with a report at the end for [`assert_took`].
pub(crate) fn reporting_on<'a>(path: Option<&str>, launch: Launch<'a>) -> Launch<'a> {
    on(path, launch).env("STRAIT_REPORT", "1")
}

/// Panics unless the output contains a report of a capture on `path` with a ledger that balances.
pub(crate) fn assert_took(path: Option<&str>, output: &str) {
    if let Some(path) = path {
        assert!(output.contains(&format!("path {path} ")), "{path}: {output}");
        assert!(output.contains("wait balanced; ring "), "{path}: {output}");
        assert!(output.contains("the ledger balances"), "{path}: {output}");
    }
}

/// Builds a program in C from these files under `c`, and names it after the first one.
pub(crate) fn built(sources: &[&str], directory: &Path) -> PathBuf {
    let program = directory.join(sources[0].trim_end_matches(".c"));
    let launch = Launch::new("cc").args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-D_GNU_SOURCE"]);
    let launch = launch.args(sources.iter().map(|source| format!("{SOURCES}/c/{source}"))).arg("-o");
    let _ = launch.arg(&program).args(["-lpcap", "-lpthread"]).run(LIMIT).unwrap().success();
    program
}

/// Sends `count` frames, which cycle through `kinds`, from the left end with `pause` between them,
/// until `over` returns true.
pub(crate) fn send(wire: &Wire, kinds: &[Kind], count: u64, pause: Duration, over: impl Fn() -> bool + Sync) {
    let traffic = Traffic::builder().flows(kinds.len() as u32).kinds(kinds).build().unwrap();
    send_traffic(wire, &traffic, count, pause, over);
}

/// Like [`send`], with frame sizes that cycle through 64, 200, 594 and 1518 bytes.
pub(crate) fn send_mixed(wire: &Wire, kinds: &[Kind], count: u64, pause: Duration) {
    let sizes = Sizes::new(&[64, 200, 594, 1518]).unwrap();
    let traffic = Traffic::builder().flows(kinds.len() as u32).kinds(kinds).sizes(sizes).build().unwrap();
    send_traffic(wire, &traffic, count, pause, || false);
}

/// Sends `count` frames of `traffic` with `pause` between them, until `over` returns true.
pub(crate) fn send_traffic(
    wire: &Wire,
    traffic: &Traffic,
    count: u64,
    pause: Duration,
    over: impl Fn() -> bool + Sync,
) {
    wire.left().run(|| {
        let mut injector = Injector::open("left", InjectPath::Sendmmsg).unwrap();
        for sequence in (0..count).take_while(|_| !over()) {
            let len = traffic.write_frame(sequence, 1, injector.buffer().unwrap());
            injector.push(len);
            if !pause.is_zero() {
                injector.flush().unwrap();
                std::thread::sleep(pause);
            }
        }
        injector.finish().unwrap();
    });
}
