//! One point: runs a receiver and a generator on a wire, each on its own core, and collects the
//! figures.

use std::time::Duration;

use lab::{Offload, Wire, wait_until};
use strait_sys::ethtool::Ethtool;
use strait_sys::netlink::Netlink;

use crate::child::{Child, Ended};
use crate::contestants::{Account, Generator, Ready, Receiver};
use crate::error::{Error, Result};
use crate::results::Figures;
use crate::tools::Tools;

/// CPU of the generator; this program's threads stay there too, away from the receiver.
pub(crate) const GENERATOR_CPU: u32 = 0;
/// CPU of the receiver.
pub(crate) const RECEIVER_CPU: u32 = 1;
/// Time limit of a program beyond its measured time.
const SLACK: Duration = Duration::from_secs(30);
/// Timeout of a receiver's sockets.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// Time from the first sign of a receiver to the first packet: it may still be in its last
/// setsockopt.
const SETTLE: Duration = Duration::from_millis(50);

/// Creates a wire on which frames arrive one by one, in the sender's context, for `sendmmsg`.
pub(crate) fn plain_wire() -> Result<Wire> {
    Ok(Wire::builder().build()?)
}

/// Creates a wire whose ends receive by NAPI, in batches: veth takes redirected XDP frames only so.
///
/// A veth end offers this to its peer when GRO is switched on while both are up
/// (`veth_set_features` in drivers/net/veth.c), so GRO is switched off and on again.
pub(crate) fn napi_wire() -> Result<Wire> {
    let wire = Wire::builder().offloads(&[Offload::Gro]).build()?;
    for end in [wire.left(), wire.right()] {
        end.run(|| {
            let ethtool = Ethtool::open(end.name())?;
            [false, true].iter().try_for_each(|on| ethtool.set_offload(Offload::Gro, *on))
        })?;
    }
    Ok(wire)
}

/// Runs `receiver` and `generator` on `wire` for `seconds`.
///
/// CPU time is measured from the generator's start to its end and the receiver's last packet,
/// without the creation and the removal of rings. `cpu_total_s` is that of the receiver's whole
/// life.
pub(crate) fn point(
    tools: &Tools,
    wire: &Wire,
    receiver: &Receiver,
    generator: &Generator,
    seconds: f64,
) -> Result<Figures> {
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let mut receiving = start_receiver(tools, wire, receiver, limit * 2)?;
    let (arrived_before, cpu_before) = (wire.right().stats().rx_packets, receiving.cpu_so_far()?);
    let sent = Child::start(tools, wire.left(), &generator.program, GENERATOR_CPU, limit)?.wait(limit)?;
    std::thread::sleep(receiver.drain);
    let cpu = receiving.cpu_so_far()?.saturating_sub(cpu_before);
    let arrived = wire.right().stats().rx_packets - arrived_before;
    let received = receiving.interrupt()?;
    let mut figures = rates(&sent, delivered(&received, receiver.account)?)?;
    figures.insert("arrived_packets", arrived as f64);
    costs(&mut figures, cpu, &received);
    if receiver.account == Account::JsonDelays {
        delays(&mut figures, &received)?;
    }
    Ok(figures)
}

/// Runs `generator` alone, without a receiver.
pub(crate) fn generator_alone(
    tools: &Tools,
    wire: &Wire,
    generator: &Generator,
    seconds: f64,
) -> Result<Figures> {
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let arrived_before = wire.right().stats().rx_packets;
    let sent = Child::start(tools, wire.left(), &generator.program, GENERATOR_CPU, limit)?.wait(limit)?;
    let arrived = wire.right().stats().rx_packets - arrived_before;
    let frames = sent.number("frames")?;
    Ok(Figures::from([
        ("offered_packets", frames),
        ("offered_pps", sent.number("achieved_pps")?),
        ("arrived_packets", arrived as f64),
        ("cpu_s_per_million", per_million(sent.cpu, frames)),
    ]))
}

/// Starts a receiver and waits until it counts.
fn start_receiver(tools: &Tools, wire: &Wire, receiver: &Receiver, limit: Duration) -> Result<Child> {
    let child = Child::start(tools, wire.right(), &receiver.program, RECEIVER_CPU, limit)?;
    let ready = wait_until(READY_LIMIT, || child.has_ended() || is_ready(wire, &child, &receiver.ready));
    if child.has_ended() {
        let ended = child.wait(Duration::ZERO)?;
        return Err(Error::Void(format!("{ended} ended before it was stopped")));
    }
    if !ready {
        return Err(Error::Void(format!("{} opened no socket", receiver.name)));
    }
    std::thread::sleep(SETTLE);
    Ok(child)
}

fn is_ready(wire: &Wire, child: &Child, ready: &Ready) -> bool {
    let end = wire.right();
    match ready {
        Ready::Says(words) => child.has_said(words),
        Ready::PacketSocket => end.run(has_bound_packet_socket),
        Ready::XdpProgram => {
            let index = end.interface().index;
            end.run(|| Netlink::open()?.xdp(index)).is_ok_and(|program| program.is_some())
        }
    }
}

/// Returns true if a packet socket in the calling thread's namespace receives packets: the sixth
/// column of `/proc/net/packet` says that its protocol hook is on.
fn has_bound_packet_socket() -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    table.lines().skip(1).any(|line| line.split_whitespace().nth(5) == Some("1"))
}

fn delivered(received: &Ended, account: Account) -> Result<f64> {
    match account {
        Account::Json | Account::JsonDelays => received.number("delivered"),
        Account::Tcpdump => {
            received.number_before("packets captured").or_else(|_| received.number_before("packet captured"))
        }
    }
}

fn rates(sent: &Ended, delivered: f64) -> Result<Figures> {
    let (offered, offered_pps) = (sent.number("frames")?, sent.number("achieved_pps")?);
    let seconds = sent.number("seconds")?;
    if offered < 1.0 || seconds <= 0.0 {
        return Err(Error::Void("the generator sent nothing".into()));
    }
    if delivered < 1.0 {
        return Err(Error::Void(format!("the receiver got none of {offered} packets")));
    }
    Ok(Figures::from([
        ("offered_packets", offered),
        ("offered_pps", offered_pps),
        ("delivered_packets", delivered),
        ("delivered_pps", delivered / seconds),
        ("lost_packets", offered - delivered),
        ("loss_percent", (offered - delivered) * 100.0 / offered),
        ("generator_cpu_s", sent.cpu.as_secs_f64()),
    ]))
}

fn costs(figures: &mut Figures, cpu: Duration, received: &Ended) {
    let delivered = figures["delivered_packets"];
    figures.extend([
        ("cpu_s", cpu.as_secs_f64()),
        ("cpu_s_per_million", per_million(cpu, delivered)),
        ("cpu_total_s", received.cpu.as_secs_f64()),
        ("cpu_total_s_per_million", per_million(received.cpu, delivered)),
        ("voluntary_switches", received.switches.0),
        ("involuntary_switches", received.switches.1),
    ]);
}

/// Adds delays from the generator's stamp, and from the packet's own time if the receiver measured
/// them.
fn delays(figures: &mut Figures, received: &Ended) -> Result<()> {
    for (figure, path) in [("p50_us", "delay.p50_ns"), ("p99_us", "delay.p99_ns"), ("max_us", "delay.max_ns")]
    {
        figures.insert(figure, received.number(path)? / 1000.0);
    }
    let captured = [
        ("captured_p50_us", "captured_delay.p50_ns"),
        ("captured_p99_us", "captured_delay.p99_ns"),
        ("captured_max_us", "captured_delay.max_ns"),
    ];
    let found = |(figure, path)| Some((figure, received.number(path).ok()? / 1000.0));
    figures.extend(captured.into_iter().filter_map(found));
    Ok(())
}

fn per_million(cpu: Duration, packets: f64) -> f64 {
    if packets > 0.0 { cpu.as_secs_f64() * 1e6 / packets } else { 0.0 }
}

#[cfg(test)]
mod tests;
