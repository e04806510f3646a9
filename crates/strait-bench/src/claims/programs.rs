//! Receivers and generators of Strait and its peers, with the options that a user would give them.
//!
//! All frames go to a MAC address other than the receiver's, as on a mirror port: a capture gets
//! them, and the host's stack drops them at once, so that the generator's core does not route them.

use std::time::Duration;

use strait_capture::{Path, Wait};

use super::context::Context;
use crate::child::Program;
use crate::receiver;

/// Interface of the receiver.
const RECEIVE_ON: &str = "receiver";
/// Interface of the generator.
const SEND_ON: &str = "sender";
/// MAC address other than the receiver's.
const MIRRORED_MAC: &str = "02:00:00:00:00:99";
/// Snapshot length of tcpdump and of `strait capture`.
const SNAPLEN: &str = "262144";
/// Time for the last packets to reach a program that is woken for each packet or polls.
const DRAIN: Duration = Duration::from_millis(30);
/// libpcap delivers an incomplete block after its read timeout, a second by default.
const DRAIN_STOCK: Duration = Duration::from_millis(1200);

/// Capture program.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Name in the results.
    pub name: String,
    /// Program and arguments.
    pub program: Program,
    /// Sign that it counts.
    pub ready: Ready,
    /// Time after the last packet until the program has read all.
    pub drain: Duration,
    /// Form of its counts.
    pub account: Account,
}

/// Sign that a receiver has started to count.
#[derive(Clone, Debug, PartialEq)]
pub enum Ready {
    /// It writes this to standard error.
    Says(&'static str),
    /// A packet socket is bound in its namespace.
    PacketSocket,
    /// An XDP program is attached to its interface.
    XdpProgram,
}

/// Form of a receiver's counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Account {
    /// JSON object with `delivered` on standard output.
    Json,
    /// JSON object with `delivered` and the delays of the packets.
    JsonDelays,
    /// Last lines of tcpdump on standard error.
    Tcpdump,
}

/// Program that sends and prints a JSON object with `frames` and `achieved_pps`.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Name in the results.
    pub name: String,
    /// Program and arguments.
    pub program: Program,
}

/// Strait's paths.
pub const PATHS: [&str; 4] = [Path::Recv.name(), Path::V2.name(), Path::V3.name(), Path::Xdp.name()];
/// Strait's wait policies.
pub const WAITS: [&str; Wait::ALL.len()] = [Wait::Latency.name(), Wait::Balanced.name(), Wait::Busy.name()];

/// Returns `strait capture`, counting only.
pub fn strait(context: &Context<'_>, path: &str, wait: &str) -> Receiver {
    let arguments = ["capture", "-i", RECEIVE_ON, "--path", path, "--wait", wait, "--quiet", "--json"];
    Receiver {
        name: format!("{path} {wait}"),
        program: context.launcher.strait(arguments),
        ready: if path == "xdp" { Ready::XdpProgram } else { Ready::PacketSocket },
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns [`crate::receiver`], which measures the delay of every packet.
pub fn strait_delays(context: &Context<'_>, path: &str, wait: &str) -> Receiver {
    let arguments = ["receive", "-i", RECEIVE_ON, "--path", path, "--wait", wait];
    let more = ["--delay-of-each", "1", "--snaplen", SNAPLEN, "--no-stage"];
    Receiver {
        name: format!("{path} {wait}"),
        program: context.launcher.own([&arguments[..], &more].concat()),
        ready: Ready::Says(receiver::READY),
        drain: DRAIN,
        account: Account::JsonDelays,
    }
}

/// Name of [`stock`] without options.
pub const STOCK: &str = "libpcap";
/// Name of [`stock`] in immediate mode.
pub const STOCK_IMMEDIATE: &str = "libpcap immediate";

/// Returns stock libpcap, by default or in immediate mode.
pub fn stock(context: &Context<'_>, immediate: bool) -> Receiver {
    let mut arguments = vec!["-i", RECEIVE_ON];
    if immediate {
        arguments.push("-I");
    }
    Receiver {
        name: if immediate { STOCK_IMMEDIATE } else { STOCK }.into(),
        program: context.peers.program("pcap_count", arguments),
        ready: Ready::Says("ready\n"),
        drain: if immediate { DRAIN } else { DRAIN_STOCK },
        account: Account::Json,
    }
}

/// Returns [`stock`] with measured delays.
pub fn stock_delays(context: &Context<'_>, immediate: bool) -> Receiver {
    let mut receiver = stock(context, immediate);
    receiver.program = receiver.program.with(["-l"]);
    receiver.account = Account::JsonDelays;
    receiver
}

/// Returns a libpcap program that measures delays, without immediate mode, with the given read
/// timeout.
pub fn timed_out(context: &Context<'_>, timeout_ms: u32) -> Receiver {
    let mut receiver = stock_delays(context, false);
    receiver.name = format!("{STOCK} {timeout_ms} ms");
    receiver.program = receiver.program.with(["-t", &timeout_ms.to_string()]);
    receiver
}

/// Returns the program of [`timed_out`], unchanged, started by `strait run`. It fails where
/// `strait run` would fall back to libpcap.
pub fn dropin(context: &Context<'_>, path: &str, wait: &str, peer: &Receiver) -> Receiver {
    let arguments = ["run", "--strict", "--path", path, "--wait", wait, "--", peer.program.path()];
    let program = context.launcher.strait(arguments).with(peer.program.arguments());
    Receiver { name: format!("{path} {wait}"), program, drain: DRAIN, ..peer.clone() }
}

/// Returns a packet socket read by `recvfrom` or `recvmmsg`.
pub fn packet_socket(context: &Context<'_>, batched: bool) -> Receiver {
    let mut arguments = vec!["-i", RECEIVE_ON];
    if batched {
        arguments.push("-m");
    }
    Receiver {
        name: if batched { "recvmmsg in C" } else { "recvfrom in C" }.into(),
        program: context.peers.program("afpacket_recv", arguments),
        ready: Ready::Says("ready\n"),
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns `strait capture -w`.
pub fn strait_file(context: &Context<'_>, format: &str, file: &str) -> Receiver {
    let arguments = ["capture", "-i", RECEIVE_ON, "-w", file, "--format", format, "--quiet", "--json"];
    Receiver {
        name: format!("strait {format}"),
        program: context.launcher.strait(arguments),
        ready: Ready::PacketSocket,
        drain: DRAIN,
        account: Account::Json,
    }
}

/// Returns `tcpdump -w`. It stays root, because another user could not write to the benchmark's
/// directory.
pub fn tcpdump(file: &str) -> Receiver {
    Receiver {
        name: "tcpdump".into(),
        program: Program::new("tcpdump", ["-i", RECEIVE_ON, "-n", "-Z", "root", "-w", file]),
        ready: Ready::Says("listening on"),
        drain: DRAIN_STOCK,
        account: Account::Tcpdump,
    }
}

/// Returns `strait generate` by `path`, at `rate` packets/s or `max`, with frames of `size` bytes
/// including the frame check sequence.
pub fn generate(context: &Context<'_>, path: &str, rate: &str, size: &str, seconds: f64) -> Generator {
    let seconds = seconds.to_string();
    let arguments = ["generate", "-o", SEND_ON, "--path", path, "--rate", rate, "--size", size];
    let more = ["--duration", &seconds, "--destination-mac", MIRRORED_MAC, "--json"];
    Generator {
        name: format!("strait {path}"),
        program: context.launcher.strait([&arguments[..], &more].concat()),
    }
}

/// Returns `sendmmsg` in C with `batch` frames a call: equal ones, or numbered and stamped ones.
pub fn send_in_c(context: &Context<'_>, batch: u32, numbered: bool, seconds: f64) -> Generator {
    let (batch, seconds) = (batch.to_string(), seconds.to_string());
    let mut arguments = vec!["-o", SEND_ON, "-d", &seconds, "-b", &batch];
    if numbered {
        arguments.push("-n");
    }
    let kind = if numbered { "numbered" } else { "equal frames" };
    Generator {
        name: format!("sendmmsg in C, {kind}, {batch} a call"),
        program: context.peers.program("sendmmsg_gen", arguments),
    }
}

/// Returns a quiet line: `batch` numbered and stamped frames, then a pause of 1 to `pause_ms_max`
/// milliseconds.
pub fn send_at_times(context: &Context<'_>, batch: u32, pause_ms_max: u32, seconds: f64) -> Generator {
    let mut generator = send_in_c(context, batch, true, seconds);
    generator.program = generator.program.with(["-p", &pause_ms_max.to_string()]);
    generator
}
