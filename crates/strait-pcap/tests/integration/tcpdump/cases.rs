//! Files that tcpdump writes on each path, compared with those of stock tcpdump for the same
//! packets.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;
use std::{fmt, fs};

use lab::{Process, Wire, program_or_skip, wait_until};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, PASSING, SOCKETS, assert_took, reporting_on, send_mixed};
use crate::savefile::Savefile;

/// A command line, and the number of packets that it captures from the traffic.
struct Case {
    device: &'static str,
    options: &'static [&'static str],
    filter: &'static str,
    packets: usize,
    traffic: Traffic,
    /// The case also runs on AF_XDP, which captures received packets only.
    xdp: bool,
}

#[derive(Clone, Copy)]
enum Traffic {
    /// 300 frames at once.
    Burst,
    /// 3000 frames, over 1.7 million bytes.
    Bulk,
    /// 300 frames over more than two seconds.
    Slow,
}

/// Number of datagrams that leave before the frames come in.
const SENT: usize = 20;
const ALL_RECEIVED: &str = "net 198.18.0.0/15 or ip6";

impl Case {
    const fn new(options: &'static [&'static str], filter: &'static str, packets: usize) -> Self {
        Self { device: "right", options, filter, packets, traffic: Traffic::Burst, xdp: true }
    }

    const fn traffic(self, traffic: Traffic) -> Self {
        Self { traffic, ..self }
    }

    const fn without_xdp(self) -> Self {
        Self { xdp: false, ..self }
    }

    /// Captures on all devices, which AF_XDP does not support.
    const fn any(self) -> Self {
        Self { device: "any", ..self.without_xdp() }
    }

    fn rotates_by_time(&self) -> bool {
        self.options.contains(&"-G")
    }

    fn rotates(&self) -> bool {
        self.rotates_by_time() || self.options.contains(&"-C")
    }
}

const CASES: [Case; 12] = [
    Case::new(&["--immediate-mode"], ALL_RECEIVED, 300),
    Case::new(&["--immediate-mode", "-c", "50"], "udp and port 20000", 50),
    Case::new(&["-Z", "root"], "tcp", 100),
    Case::new(&["-p", "-s", "60"], "greater 500", 150),
    Case::new(&["--immediate-mode", "--time-stamp-precision=nano"], "ip6", 100),
    Case::new(&["--immediate-mode", "-j", "host", "--micro"], "src net 198.18.0.0/15 and less 100", 50),
    Case::new(&["--immediate-mode", "-y", "EN10MB"], "ether[0] & 1 = 0 and not net 192.0.2.0/24", 300),
    Case::new(&["--immediate-mode", "-Q", "in"], "", 300),
    Case::new(&["--immediate-mode", "-Q", "out"], "", SENT).without_xdp(),
    Case::new(&["--immediate-mode"], "udp", 200 + SENT).without_xdp(),
    Case::new(&["--immediate-mode"], "src host 192.0.2.2", SENT).without_xdp(),
    // A filter with a loop: the kernel refuses it, libpcap and Strait interpret it.
    Case::new(&["--immediate-mode"], "ip6 protochain 17", 100).without_xdp(),
];

const ROTATIONS: [Case; 3] = [
    Case::new(&["-Z", "root", "-C", "1"], ALL_RECEIVED, 3000).traffic(Traffic::Bulk),
    Case::new(&["-Z", "root", "-C", "1", "-W", "2", "-c", "3000"], ALL_RECEIVED, 3000).traffic(Traffic::Bulk),
    Case::new(&["-Z", "root", "--immediate-mode", "-G", "1"], ALL_RECEIVED, 300).traffic(Traffic::Slow),
];

/// With a large snapshot length libpcap has space for few packets on all devices, so each case
/// limits it.
const ANY: [Case; 6] = [
    Case::new(&["-s", "2000", "--immediate-mode"], "", 300 + SENT).any(),
    Case::new(&["-s", "2000", "--immediate-mode", "-y", "LINUX_SLL"], "", 300 + SENT).any(),
    Case::new(&["-s", "2000", "-y", "LINUX_SLL2"], "tcp or ip6", 200).any(),
    Case::new(&["-s", "60", "-y", "LINUX_SLL"], "udp and port 20000 and greater 500", 100).any(),
    Case::new(&["-s", "2000", "--immediate-mode", "-Q", "in"], "udp", 200).any(),
    Case::new(&["-s", "2000", "--immediate-mode", "-Q", "out"], "", SENT).any(),
];

#[test]
fn tcpdump_writes_the_same_bytes_as_stock_tcpdump() {
    run_cases(&CASES);
}

#[test]
fn tcpdump_rotates_files_as_stock_tcpdump_does() {
    run_cases(&ROTATIONS);
}

#[test]
fn tcpdump_captures_on_all_devices_as_stock_tcpdump_does() {
    run_cases(&ANY);
}

fn run_cases(cases: &[Case]) {
    if !program_or_skip("tcpdump") || Wire::builder().or_skip().is_none() {
        return;
    }
    for case in cases {
        let paths = if case.device == "any" { &SOCKETS[..] } else { &PASSING };
        let beside: Vec<_> = [None].into_iter().chain(paths.iter().copied().map(Some)).collect();
        let mut written = capture(case, &beside);
        if case.xdp {
            written.extend(capture(case, &[Some("xdp")]));
        }
        compare(case, &written);
    }
}

/// Captures the same traffic on all `paths` at once. Returns the files of each path.
fn capture<'a>(case: &Case, paths: &[Option<&'a str>]) -> Vec<(Option<&'a str>, Vec<Savefile>)> {
    let wire = Wire::builder().ipv4().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let place = |path: Option<&str>| directory.path().join(path.unwrap_or("stock"));
    let launch = |path: Option<&'a str>| {
        fs::create_dir(place(path)).unwrap();
        (path, case.start(&wire, path, &place(path)))
    };
    let running: Vec<_> = paths.iter().copied().map(launch).collect();
    send_datagrams(&wire);
    send_frames(&wire, case.traffic);
    let end = |(path, process): (Option<&'a str>, Process)| {
        case.end(path, process, &place(path));
        (path, files(&place(path)))
    };
    running.into_iter().map(end).collect()
}

impl Case {
    fn start(&self, wire: &Wire, path: Option<&str>, directory: &Path) -> Process {
        let name = if self.rotates_by_time() { "packets-%s.pcap" } else { "packets.pcap" };
        let launch = wire.right().command("tcpdump").args(["-Un", "-B", "8192", "-i", self.device]);
        let launch = launch.args(self.options).arg("-w").arg(directory.join(name)).arg(self.filter);
        let process = reporting_on(path, launch).spawn().unwrap();
        process.wait_for_stderr("listening on", LIMIT).unwrap();
        process
    }

    /// Ends a capture after its last packet, and checks its output.
    fn end(&self, path: Option<&str>, process: Process, directory: &Path) {
        let ends_itself = self.options.contains(&"-c");
        let packets = || files(directory).iter().map(|file| file.packets).sum::<usize>();
        let complete = ends_itself || wait_until(LIMIT, || packets() >= self.packets);
        assert!(complete, "{path:?} {self}: {} packets; {}", packets(), process.stderr());
        let ended = if ends_itself { process.wait(LIMIT) } else { process.interrupt(LIMIT) };
        let output = ended.unwrap().success().stderr;
        assert_took(path, &output);
        assert!(
            output.contains(&format!("{} packets captured\n", self.packets)),
            "{path:?} {self}: {output}"
        );
        // libpcap also counts packets that its direction or its own interpreter rejects, and
        // packets that it received after the last printed one.
        let interprets = path.is_none() && self.filter.contains("protochain");
        let is_exact = !ends_itself && !self.options.contains(&"-Q") && !interprets;
        let received = format!("\n{} packets received by filter\n0 packets dropped by kernel", self.packets);
        assert!(!is_exact || output.contains(&received), "{path:?} {self}: {output}");
    }
}

/// Returns the captures' files in order of their names.
fn files(directory: &Path) -> Vec<Savefile> {
    let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.iter().map(|name| Savefile::read(name)).collect()
}

/// Sends datagrams from the right end. Each capture has seen them when they have arrived.
fn send_datagrams(wire: &Wire) {
    let receiver = wire.left().run(|| UdpSocket::bind((wire.left().ipv4(), 0)).unwrap());
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    let sender = wire.right().run(|| UdpSocket::bind((wire.right().ipv4(), 0)).unwrap());
    for _ in 0..SENT {
        sender.send_to(&[7; 40], receiver.local_addr().unwrap()).unwrap();
        receiver.recv(&mut [0; 40]).unwrap();
    }
}

fn send_frames(wire: &Wire, traffic: Traffic) {
    let (count, pause) = match traffic {
        Traffic::Burst => (300, Duration::ZERO),
        Traffic::Bulk => (3000, Duration::from_micros(100)),
        Traffic::Slow => (300, Duration::from_millis(8)),
    };
    send_mixed(wire, &[Kind::Udp4, Kind::Tcp4, Kind::Udp6], count, pause);
}

/// Asserts that all captures equal that of stock tcpdump, the first one: file by file, or
/// concatenated if the files are split by time.
fn compare(case: &Case, written: &[(Option<&str>, Vec<Savefile>)]) {
    let content = |files: &[Savefile]| -> Vec<Vec<u8>> {
        if case.rotates_by_time() {
            vec![files.iter().flat_map(Savefile::body).copied().collect()]
        } else {
            files.iter().map(|file| file.bytes.clone()).collect()
        }
    };
    let stock = content(&written[0].1);
    for (path, files) in written {
        assert!(files.len() > 1 || !case.rotates(), "{path:?} {case}: one file");
        assert!(content(files) == stock, "{path:?} {case}: differs from stock tcpdump's");
    }
}

impl fmt::Display for Case {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "tcpdump -i {} {} {:?}", self.device, self.options.join(" "), self.filter)
    }
}
