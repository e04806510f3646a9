//! Starts `strait` in a namespace, waits until its capture is open, sends packets to it and reads
//! its files.
//!
//! Tests wait for events. A capture is open when the program has dropped its capabilities. Frames
//! have arrived when the receiving interface has counted them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{End, Finished, Launch, Process, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strait_capture::file::FileReader;
use strait_capture::{InjectPath, Injector};
use strait_packet::traffic::{Kind, Sizes, Traffic};

/// Path of the program.
pub(crate) const STRAIT: &str = env!("CARGO_BIN_EXE_strait");
/// Time limit of any step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);
/// Capture paths of packet sockets.
pub(crate) const SOCKET_PATHS: [&str; 3] = ["recv", "v2", "v3"];
/// All paths of a live capture on a veth pair.
pub(crate) const PATHS: [&str; 5] = ["recv", "v2", "v3", "tap", "xdp"];

/// Returns a command that runs `strait` in `end`'s namespace.
pub(crate) fn strait<'a>(end: &'a End, arguments: &[&str]) -> Launch<'a> {
    end.command(STRAIT).args(arguments)
}

/// Runs `strait` with `arguments` to its end, in the test's namespace.
pub(crate) fn run(arguments: &[&str]) -> Finished {
    Launch::new(STRAIT).args(arguments).run(LIMIT).unwrap()
}

/// A running `strait capture` with open rings and output.
pub(crate) struct Capture {
    process: Process,
}

impl Capture {
    /// Starts `strait capture -i INTERFACE` at `end`.
    pub(crate) fn start(end: &End, arguments: &[&str]) -> Self {
        Self::watch(strait(end, &["capture", "-i", end.name()]).args(arguments))
    }

    /// Starts `launch`, which runs `strait capture`, and waits until it is open.
    pub(crate) fn watch(launch: Launch<'_>) -> Self {
        let process = launch.spawn().unwrap();
        assert!(await_open(process.id()), "no capture: {}{}", process.stdout(), process.stderr());
        Self { process }
    }

    /// Stops the process by SIGSTOP. Later packets stay in its rings.
    pub(crate) fn freeze(&self) {
        self.process.signal(Signal::STOP);
        let id = self.process.id().to_string();
        let is_stopped = || status(&id, "State").is_some_and(|state| state.starts_with('T'));
        assert!(wait_until(LIMIT, is_stopped));
    }

    /// Continues the process.
    pub(crate) fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Returns its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Returns the names of its threads.
    pub(crate) fn threads(&self) -> Vec<String> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.process.id())) else { return vec![] };
        let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
        let names = threads.flatten().filter_map(name);
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(self) -> Finished {
        self.process.wait(LIMIT).unwrap()
    }

    /// Sends `signal` several times.
    pub(crate) fn signal_often(&self, signal: Signal, times: u32) {
        for _ in 0..times {
            self.process.signal(signal);
        }
    }

    /// Ends it by `signal`.
    pub(crate) fn end(self, signal: Signal) -> Finished {
        self.process.signal(signal);
        self.wait()
    }

    /// Ends it by SIGINT, and asserts success.
    pub(crate) fn finish(self) -> Finished {
        self.end(Signal::INT).success()
    }
}

/// Waits until the process has fewer capabilities than this test: `strait` drops them when
/// everything is open. Returns false if it ends instead.
pub(crate) fn await_open(id: u32) -> bool {
    let mine = status("self", "CapEff");
    let id = id.to_string();
    let is_over = |state: Option<String>| state.is_none_or(|state| state.starts_with('Z'));
    let has_changed = wait_until(LIMIT, || status(&id, "CapEff") != mine || is_over(status(&id, "State")));
    has_changed && !is_over(status(&id, "State"))
}

/// Returns the value of a line of `/proc/ID/status`.
pub(crate) fn status(id: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns frames with sequence numbers from 0, of every kind in turn and of three sizes.
pub(crate) fn numbered(count: u64) -> Vec<Vec<u8>> {
    frames_of(
        &Traffic::builder().kinds(&Kind::ALL).sizes(sizes("64,512,1518")).flows(16).build().unwrap(),
        count,
    )
}

/// Returns numbered frames of two sizes with a VLAN tag.
pub(crate) fn tagged(count: u64) -> Vec<Vec<u8>> {
    let traffic = Traffic::builder().kinds(&Kind::ALL).sizes(sizes("64,512")).flows(16).vlan(Some(5));
    frames_of(&traffic.build().unwrap(), count)
}

pub(crate) fn sizes(text: &str) -> Sizes {
    text.parse().unwrap()
}

/// Returns the first frames of `traffic`.
pub(crate) fn frames_of(traffic: &Traffic, count: u64) -> Vec<Vec<u8>> {
    let frame = |sequence| {
        let mut bytes = vec![0; traffic.frame_len_max()];
        let len = traffic.write_frame(sequence, 0, &mut bytes);
        bytes.truncate(len);
        bytes
    };
    (0..count).map(frame).collect()
}

/// Sends `frames` from the left end in order, and waits until the right end has received them.
pub(crate) fn send(wire: &Wire, frames: &[Vec<u8>]) {
    let before = wire.right().stats().rx_packets;
    transmit(wire, frames);
    wire.await_arrival(before, frames.len() as u64);
}

/// Sends frames until `ended`, and waits until they have arrived. Returns their number. They must
/// last until then.
pub(crate) fn send_until(wire: &Wire, frames: &[Vec<u8>], ended: &AtomicBool) -> u64 {
    let mut sent = 0;
    for some in frames.chunks(50) {
        if ended.load(Ordering::Acquire) {
            return sent;
        }
        send(wire, some);
        sent += some.len() as u64;
    }
    panic!("all {sent} frames were sent before the capture was changed often enough");
}

/// Sends `frames` from the left end in order, without waiting for their arrival: a veth drops its
/// queue when an XDP program is detached.
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

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_len: u32,
}

/// Returns all packets of a valid file.
pub(crate) fn packets(file: &Path) -> Vec<Packet> {
    let mut reader = FileReader::open(file.to_str().unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next().unwrap() {
        packets.push(Packet { bytes: packet.bytes.to_vec(), wire_len: packet.wire_len });
    }
    packets
}

/// Returns the sequence numbers in a file, in its order.
pub(crate) fn sequence(file: &Path) -> Vec<u64> {
    let number =
        |packet: Packet| strait_packet::probe::read(&packet.bytes).expect("a numbered frame").sequence;
    packets(file).into_iter().map(number).collect()
}

/// Asserts that the file has frames 0 to `count`, each once, in order.
pub(crate) fn assert_complete(file: &Path, count: u64) {
    assert_eq!(sequence(file), (0..count).collect::<Vec<_>>());
}

/// Returns the ledger, which is the only line on standard output, and asserts that it balances.
pub(crate) fn ledger(finished: &Finished) -> Value {
    let text = finished.text();
    assert!(text.ends_with('\n') && text.lines().count() == 1, "one line: {text}");
    let ledger: Value = serde_json::from_str(&text).unwrap();
    assert!(balances(&ledger), "{ledger}");
    ledger
}

/// Returns true if received = delivered + filtered + lost, for a session or a lane.
pub(crate) fn balances(ledger: &Value) -> bool {
    count(ledger, "received") == count(ledger, "delivered") + count(ledger, "filtered") + lost(ledger)
}

/// Returns the sum of all losses.
pub(crate) fn lost(ledger: &Value) -> u64 {
    ledger["lost"].as_object().expect("losses by place").values().map(|count| count.as_u64().unwrap()).sum()
}

/// Returns a count of the ledger.
pub(crate) fn count(ledger: &Value, name: &str) -> u64 {
    ledger[name].as_u64().unwrap_or_else(|| panic!("{name} of {ledger}"))
}

/// Removes the notes that an AF_XDP capture on a veth prints first.
pub(crate) fn without_notes(stderr: &str) -> String {
    const NOTES: [&str; 2] = ["strait: no zero-copy: ", "strait: right is a veth: "];
    let is_note = |line: &str| NOTES.iter().any(|note| line.starts_with(note));
    stderr.split_inclusive('\n').filter(|line| !is_note(line)).collect()
}

/// Returns the exit code and the error, which is the only line beside the ledger and the notes.
pub(crate) fn failure(finished: &Finished) -> (i32, String) {
    let stderr = without_notes(&finished.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("strait: ")).collect();
    assert_eq!(errors.len(), 1, "one line: {stderr}");
    (finished.status.code().expect("an exit, not a signal"), errors[0].to_owned())
}

/// Captures while the receiver of an export is down. The note and the error must have its `name`,
/// and the sink must have lost all packets. Returns the end of the capture.
pub(crate) fn export_to_none(wire: &Wire, url: &str, name: &str, cause: &str) -> Finished {
    let capture = Capture::start(wire.right(), &["--to", url, "--flow-idle", "1", "--json", "ip"]);
    send(wire, &numbered(100));
    let note = format!("note: the export to {name} fails: {cause}");
    assert!(wait_until(LIMIT, || capture.stderr().contains(&note)), "{}", capture.stderr());
    let finished = capture.end(Signal::INT);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let ledger = ledger(&finished);
    let lost = count(&ledger["lost"], "sink");
    assert!(lost > 0 && lost == count(&ledger, "received") - count(&ledger, "filtered"), "{ledger}");
    assert!(count(&ledger["exported"], "lost") > 0, "{ledger}");
    assert!(finished.stderr.contains(&format!("strait: export to {name}: ")), "{}", finished.stderr);
    finished
}
