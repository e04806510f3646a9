//! Contestants: receivers and generators of Strait and its peers, with the options that a user
//! would give them.
//!
//! All frames go to a MAC address other than the receiver's, as on a mirror port: a capture gets
//! them, and the host's stack drops them at once, so that the generator's core does not route them.

use std::time::Duration;

use crate::child::Program;
use crate::tools::Tools;

/// Interface of the receiver.
pub(crate) const RECEIVE_ON: &str = "right";
/// Interface of the generator.
pub(crate) const SEND_ON: &str = "left";
/// MAC address other than the receiver's.
const MIRRORED_MAC: &str = "02:00:00:00:00:99";
/// Time for the last packets to reach a program that is woken for each packet or polls.
const DRAIN: Duration = Duration::from_millis(30);
/// libpcap delivers an incomplete block after its read timeout, a second by default.
const DRAIN_STOCK: Duration = Duration::from_millis(1200);

/// Capture program.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) ready: Ready,
    /// Time after the last packet until the program has read all.
    pub(crate) drain: Duration,
    pub(crate) account: Account,
}

/// Sign that a receiver counts from now on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ready {
    /// It writes this to standard error.
    Says(&'static str),
    /// A packet socket is bound in its namespace.
    PacketSocket,
    /// An XDP program is attached to its interface.
    XdpProgram,
}

/// Form of a receiver's counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Account {
    /// JSON object with `delivered` on standard output.
    Json,
    /// JSON object with `delivered` and the delays of the packets.
    JsonDelays,
    /// Last lines of tcpdump on standard error.
    Tcpdump,
}

/// Program that sends and prints a JSON object with `frames` and `achieved_pps`.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    pub(crate) name: String,
    pub(crate) program: Program,
}

/// Strait's paths.
pub(crate) const PATHS: [&str; 4] = ["recv", "v2", "v3", "xdp"];
/// Strait's wait policies.
pub(crate) const WAITS: [&str; 3] = ["latency", "balanced", "busy"];

/// Returns `strait capture`, counting only.
pub(crate) fn strait(tools: &Tools, path: &str, wait: &str) -> Receiver {
    let arguments = ["capture", "-i", RECEIVE_ON, "--path", path, "--wait", wait, "--quiet", "--json"];
    Receiver {
        name: format!("{path} {wait}"),
        program: Program::new(tools.strait.to_string_lossy(), &arguments),
        ready: if path == "xdp" { Ready::XdpProgram } else { Ready::PacketSocket },
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns a program on Strait's engine that measures delays: this one, see `receiver.rs`.
pub(crate) fn strait_delays(tools: &Tools, path: &str, wait: &str) -> Receiver {
    let arguments = ["receiver", "-i", RECEIVE_ON, "--path", path, "--wait", wait];
    Receiver {
        name: format!("{path} {wait}"),
        program: Program::new(tools.bench.to_string_lossy(), &arguments),
        ready: Ready::Says("ready\n"),
        drain: DRAIN,
        account: Account::JsonDelays,
    }
}

/// Name of [`stock`] without options.
pub(crate) const STOCK: &str = "libpcap";
/// Name of [`stock`] in immediate mode.
pub(crate) const STOCK_IMMEDIATE: &str = "libpcap immediate";

/// Returns stock libpcap, by default or in immediate mode.
pub(crate) fn stock(tools: &Tools, immediate: bool) -> Receiver {
    let mut arguments = vec!["-i", RECEIVE_ON];
    if immediate {
        arguments.push("-I");
    }
    Receiver {
        name: if immediate { STOCK_IMMEDIATE } else { STOCK }.into(),
        program: Program::new(tools.peer("pcap_count").to_string_lossy(), &arguments),
        ready: Ready::Says("ready\n"),
        drain: if immediate { DRAIN } else { DRAIN_STOCK },
        account: Account::Json,
    }
}

/// Returns [`stock`] with measured delays.
pub(crate) fn stock_delays(tools: &Tools, immediate: bool) -> Receiver {
    let mut receiver = stock(tools, immediate);
    receiver.program.arguments.push("-l".into());
    receiver.account = Account::JsonDelays;
    receiver
}

/// Returns a libpcap program that measures delays, without immediate mode, with the given read
/// timeout.
pub(crate) fn timed_out(tools: &Tools, timeout_ms: u32) -> Receiver {
    let mut receiver = stock_delays(tools, false);
    receiver.name = format!("{STOCK} {timeout_ms} ms");
    receiver.program.arguments.extend(["-t".into(), timeout_ms.to_string()]);
    receiver
}

/// Returns the program of [`timed_out`], unchanged, started by `strait run`; it fails if libpcap
/// would have to take over.
pub(crate) fn dropin(tools: &Tools, path: &str, wait: &str, peer: &Receiver) -> Receiver {
    let arguments = ["run", "--strict", "--path", path, "--wait", wait, "--", &peer.program.path];
    let mut program = Program::new(tools.strait.to_string_lossy(), &arguments);
    program.arguments.extend(peer.program.arguments.clone());
    Receiver { name: format!("{path} {wait}"), program, drain: DRAIN, ..peer.clone() }
}

/// Returns a packet socket read by `recvfrom` or `recvmmsg`.
pub(crate) fn packet_socket(tools: &Tools, batched: bool) -> Receiver {
    let mut arguments = vec!["-i", RECEIVE_ON];
    if batched {
        arguments.push("-m");
    }
    Receiver {
        name: if batched { "recvmmsg in C" } else { "recvfrom in C" }.into(),
        program: Program::new(tools.peer("afpacket_recv").to_string_lossy(), &arguments),
        ready: Ready::Says("ready\n"),
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns `strait capture -w`.
pub(crate) fn strait_file(tools: &Tools, format: &str, file: &str) -> Receiver {
    let arguments = ["capture", "-i", RECEIVE_ON, "-w", file, "--format", format, "--quiet", "--json"];
    Receiver {
        name: format!("strait {format}"),
        program: Program::new(tools.strait.to_string_lossy(), &arguments),
        ready: Ready::PacketSocket,
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns `tcpdump -w`. It stays root, because another user could not write to the benchmark's
/// directory.
pub(crate) fn tcpdump(file: &str) -> Receiver {
    Receiver {
        name: "tcpdump".into(),
        program: Program::new("tcpdump", &["-i", RECEIVE_ON, "-n", "-Z", "root", "-w", file]),
        ready: Ready::Says("listening on"),
        drain: DRAIN_STOCK,
        account: Account::Tcpdump,
    }
}

/// Returns `strait generate` by `path`, at `rate` packets/s or `max`, with frames of `size` bytes
/// including the frame check sequence.
pub(crate) fn generate(tools: &Tools, path: &str, rate: &str, size: &str, seconds: f64) -> Generator {
    let seconds = seconds.to_string();
    let arguments = ["generate", "-o", SEND_ON, "--path", path, "--rate", rate, "--size", size];
    let more = ["--duration", &seconds, "--destination-mac", MIRRORED_MAC, "--json"];
    Generator {
        name: format!("strait {path}"),
        program: Program::new(tools.strait.to_string_lossy(), &[&arguments[..], &more].concat()),
    }
}

/// Returns `sendmmsg` in C with `batch` frames a call: equal ones, or numbered and stamped ones.
pub(crate) fn send_in_c(tools: &Tools, batch: u32, numbered: bool, seconds: f64) -> Generator {
    let (batch, seconds) = (batch.to_string(), seconds.to_string());
    let mut arguments = vec!["-o", SEND_ON, "-d", &seconds, "-b", &batch];
    if numbered {
        arguments.push("-n");
    }
    let kind = if numbered { "numbered" } else { "equal frames" };
    Generator {
        name: format!("sendmmsg in C, {kind}, {batch} a call"),
        program: Program::new(tools.peer("sendmmsg_gen").to_string_lossy(), &arguments),
    }
}

/// Returns a quiet line: `batch` numbered and stamped frames, then a pause of 1 to `pause_ms_max`
/// milliseconds.
pub(crate) fn send_at_times(tools: &Tools, batch: u32, pause_ms_max: u32, seconds: f64) -> Generator {
    let mut generator = send_in_c(tools, batch, true, seconds);
    generator.program.arguments.extend(["-p".into(), pause_ms_max.to_string()]);
    generator
}
