//! One point: runs a receiver and a generator on a wire, each on its own core, and collects the
//! figures.

use std::time::Duration;

use serde_json::Value;
use strait_os::netlink::Netlink;
use strait_os::wait;

use super::context::{GENERATOR_CPU, RECEIVER_CPU};
use super::programs::{Account, Generator, Ready, Receiver};
use crate::child::{Child, Launcher, Output, Program};
use crate::error::{Error, Result};
use crate::results::{Figures, figures};
use crate::wire::{Reception, Wire};

/// Time limit of a program beyond its measured time.
const SLACK: Duration = Duration::from_secs(30);
/// Time for a program to end.
const END_MAX: Duration = Duration::from_secs(20);
/// Time limit for a receiver to open its sockets.
const READY_MAX: Duration = Duration::from_secs(10);
/// Time from the ready sign of a receiver to the first packet: it may still be in its last
/// setsockopt(2).
const SETTLE: Duration = Duration::from_millis(50);

/// Creates a wire on which frames arrive one by one, in the sender's context, for `sendmmsg`.
pub fn plain_wire() -> Result<Wire> {
    Ok(Wire::private(1, Reception::Direct)?)
}

/// Creates a wire that receives in batches (NAPI): only then veth accepts redirected XDP frames.
pub fn napi_wire() -> Result<Wire> {
    Ok(Wire::private(1, Reception::Batched)?)
}

/// Runs `receiver` and `generator` on `wire` for `seconds`.
///
/// CPU time is measured from the generator's start to its end and the receiver's last packet,
/// without the creation and the removal of rings. `cpu_total_s` is that of the receiver's whole
/// life.
pub fn point(
    launcher: &Launcher,
    wire: &Wire,
    receiver: &Receiver,
    generator: &Generator,
    seconds: f64,
) -> Result<Figures> {
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let receiving = start_receiver(launcher, wire, receiver, limit * 2)?;
    let (arrived_before, before) = (wire.receiver().stats()?.rx_packets, receiving.cost()?);
    let sent = send(launcher, wire, generator, limit)?;
    wait::sleep(receiver.drain);
    let cpu = receiving.cost()?.since(before).cpu;
    let arrived = wire.receiver().stats()?.rx_packets - arrived_before;
    let received = Ended { program: &receiver.program, output: receiving.interrupt(END_MAX)? };
    let mut figures = rates(&sent, delivered(&received, receiver.account)?)?;
    figures.insert("arrived_packets".into(), arrived as f64);
    costs(&mut figures, cpu, &received);
    if receiver.account == Account::JsonDelays {
        delays(&mut figures, &received)?;
    }
    Ok(figures)
}

/// Runs `generator` alone, without a receiver.
pub fn generator_alone(
    launcher: &Launcher,
    wire: &Wire,
    generator: &Generator,
    seconds: f64,
) -> Result<Figures> {
    let arrived_before = wire.receiver().stats()?.rx_packets;
    let sent = send(launcher, wire, generator, Duration::from_secs_f64(seconds) + SLACK)?;
    let arrived = wire.receiver().stats()?.rx_packets - arrived_before;
    let frames = sent.number("frames")?;
    Ok(figures([
        ("offered_packets", frames),
        ("offered_pps", sent.number("achieved_pps")?),
        ("arrived_packets", arrived as f64),
        ("cpu_s_per_million", per_million(sent.output.usage.cpu, frames)),
    ]))
}

fn send<'a>(
    launcher: &Launcher,
    wire: &Wire,
    generator: &'a Generator,
    limit: Duration,
) -> Result<Ended<'a>> {
    let program = &generator.program;
    let sending = launcher.start(wire.sender(), program, &[GENERATOR_CPU], limit)?;
    Ok(Ended { program, output: sending.finish(limit + END_MAX)? })
}

/// Starts a receiver and waits until it counts.
fn start_receiver(launcher: &Launcher, wire: &Wire, receiver: &Receiver, limit: Duration) -> Result<Child> {
    let mut child = launcher.start(wire.receiver(), &receiver.program, &[RECEIVER_CPU], limit)?;
    child.wait_until(READY_MAX, |child| is_ready(wire, child, &receiver.ready))?;
    wait::sleep(SETTLE);
    Ok(child)
}

fn is_ready(wire: &Wire, child: &Child, ready: &Ready) -> Result<bool> {
    let end = wire.receiver();
    match ready {
        Ready::Says(words) => Ok(child.stderr()?.contains(words)),
        Ready::PacketSocket => Ok(end.run(has_bound_packet_socket)?),
        Ready::XdpProgram => Ok(end.run(|| {
            let mut netlink = Netlink::open()?;
            let index = netlink.interface(end.interface())?.index;
            Ok::<_, strait_sys::Error>(netlink.xdp(index)?.is_some())
        })??),
    }
}

/// Returns true if a packet socket in the calling thread's namespace receives packets: the sixth
/// column of `/proc/net/packet` says that its protocol hook is on.
fn has_bound_packet_socket() -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    table.lines().skip(1).any(|line| line.split_whitespace().nth(5) == Some("1"))
}

/// Ended program with its output.
struct Ended<'a> {
    program: &'a Program,
    output: Output,
}

impl Ended<'_> {
    /// Returns a number of the JSON object on standard output, by its path such as `delay.p99_ns`.
    fn number(&self, path: &str) -> Result<f64> {
        let pointer = format!("/{}", path.replace('.', "/"));
        let json: Option<Value> = serde_json::from_str(&self.output.stdout).ok();
        json.and_then(|json| json.pointer(&pointer)?.as_f64()).ok_or_else(|| self.silent(path))
    }

    /// Returns the number before `words` on standard error, as in tcpdump's `12 packets captured`.
    fn number_before(&self, words: &str) -> Result<f64> {
        let line = self.output.stderr.lines().find_map(|line| line.strip_suffix(words));
        line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| self.silent(words))
    }

    fn silent(&self, wanted: &str) -> Error {
        let Output { stdout, stderr, .. } = &self.output;
        let message = format!("did not report {wanted}; output: {stdout}{stderr}");
        Error::Program { program: self.program.name(), message }
    }
}

fn delivered(received: &Ended<'_>, account: Account) -> Result<f64> {
    match account {
        Account::Json | Account::JsonDelays => received.number("delivered"),
        Account::Tcpdump => {
            received.number_before("packets captured").or_else(|_| received.number_before("packet captured"))
        }
    }
}

fn rates(sent: &Ended<'_>, delivered: f64) -> Result<Figures> {
    let (offered, offered_pps) = (sent.number("frames")?, sent.number("achieved_pps")?);
    let seconds = sent.number("seconds")?;
    if offered < 1.0 || seconds <= 0.0 {
        return Err(Error::Invalid("the generator sent nothing".into()));
    }
    if delivered < 1.0 {
        return Err(Error::Invalid(format!("the receiver got none of {offered} packets")));
    }
    Ok(figures([
        ("offered_packets", offered),
        ("offered_pps", offered_pps),
        ("delivered_packets", delivered),
        ("delivered_pps", delivered / seconds),
        ("lost_packets", offered - delivered),
        ("loss_percent", (offered - delivered) * 100.0 / offered),
        ("generator_cpu_s", sent.output.usage.cpu.as_secs_f64()),
    ]))
}

fn costs(found: &mut Figures, cpu: Duration, received: &Ended<'_>) {
    let (delivered, usage) = (found["delivered_packets"], received.output.usage);
    found.extend(figures([
        ("cpu_s", cpu.as_secs_f64()),
        ("cpu_s_per_million", per_million(cpu, delivered)),
        ("cpu_total_s", usage.cpu.as_secs_f64()),
        ("cpu_total_s_per_million", per_million(usage.cpu, delivered)),
        ("voluntary_switches", usage.voluntary_switches as f64),
        ("involuntary_switches", usage.involuntary_switches as f64),
    ]));
}

/// Adds delays from the generator's stamp, and from the packet's own time if the receiver measured
/// them.
fn delays(figures: &mut Figures, received: &Ended<'_>) -> Result<()> {
    for (figure, path) in [("p50_us", "delay.p50_ns"), ("p99_us", "delay.p99_ns"), ("max_us", "delay.max_ns")]
    {
        figures.insert(figure.into(), received.number(path)? / 1000.0);
    }
    let captured = [
        ("captured_p50_us", "captured_delay.p50_ns"),
        ("captured_p99_us", "captured_delay.p99_ns"),
        ("captured_max_us", "captured_delay.max_ns"),
    ];
    let found =
        |(figure, path): (&str, &str)| Some((figure.to_owned(), received.number(path).ok()? / 1000.0));
    figures.extend(captured.into_iter().filter_map(found));
    Ok(())
}

fn per_million(cpu: Duration, packets: f64) -> f64 {
    if packets > 0.0 { cpu.as_secs_f64() * 1e6 / packets } else { 0.0 }
}
