//! Measured programs that the benchmarks start: receiver, sender, relay, origin and client, and the
//! command that puts a program on its CPUs and into its namespace.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use strait_bench::child::{self, Exec};
use strait_bench::contestant::Way;
use strait_bench::proxy::workload::{Http2, Workload};
use strait_bench::proxy::{load, origin};
use strait_bench::receiver;
use strait_bench::send::peers::PeersLoad;
use strait_bench::send::{self, transmit};
use strait_capture::{TapRings, Wait};
use strait_program::Error;
use strait_program::parse::NumberList;

use crate::capture::wait;
use crate::proxy::Axes;

#[derive(ClapArgs)]
pub(crate) struct ReceiveArgs {
    /// Interface to receive on
    #[arg(short, long)]
    interface: String,
    /// Way to capture
    #[arg(long)]
    path: Way,
    /// Wait policy
    #[arg(long, value_parser = wait(), default_value = Wait::Balanced.name())]
    wait: Wait,
    /// Queues or fanout members
    #[arg(long, default_value_t = 1)]
    lanes: u32,
    /// Measure the delay of one packet in this many
    #[arg(long, default_value_t = 0)]
    delay_of_each: u64,
    /// Snapshot length in bytes
    #[arg(long, default_value_t = 2048)]
    snaplen: u32,
    /// Filter in libpcap's language
    #[arg(long)]
    filter: Option<String>,
    /// Do not copy packets into a staging ring
    #[arg(long)]
    no_stage: bool,
    /// Do not stamp frames
    #[arg(long)]
    no_timestamps: bool,
    /// Rings of the tap
    #[arg(long)]
    tap_rings: Option<TapRings>,
    /// Find the owner of each packet
    #[arg(long)]
    owners: bool,
}

#[derive(ClapArgs)]
pub(crate) struct TransmitArgs {
    /// Address of the receiver
    #[arg(long)]
    to: SocketAddr,
    /// Way to send
    #[arg(long)]
    way: send::Way,
    /// Small pieces of a message
    #[arg(long, default_value_t = 0)]
    pieces: usize,
    /// Bytes of the body
    #[arg(long, default_value_t = 0)]
    body: usize,
    /// Bytes of a file, instead of a message
    #[arg(long, default_value_t = 0)]
    file: u64,
    /// Time of the measurement, in seconds
    #[arg(long)]
    seconds: f64,
    /// Time before the measurement, in seconds
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// Number of peers, at consecutive addresses
    #[arg(long, default_value_t = 1)]
    peers: u32,
    /// Number of sends to each peer, instead of a time
    #[arg(long, default_value_t = 0)]
    sends: u32,
    /// Pause after each of these sends, in milliseconds
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
}

#[derive(ClapArgs)]
pub(crate) struct PassArgs {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Address to connect to
    #[arg(long)]
    to: SocketAddr,
}

#[derive(ClapArgs)]
pub(crate) struct OriginArgs {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
}

#[derive(ClapArgs)]
pub(crate) struct LoadArgs {
    /// Address of the proxy
    #[arg(long)]
    to: SocketAddr,
    /// Address of the origin, which counts requests
    #[arg(long)]
    origin: SocketAddr,
    /// Id of the measured process
    #[arg(long)]
    watch: u32,
    #[command(flatten)]
    axes: Axes,
    /// Time of the measurement, in seconds
    #[arg(long)]
    seconds: f64,
    /// Time before the measurement, in seconds
    #[arg(long)]
    warm_up: f64,
    /// Compare every body
    #[arg(long)]
    verify_all: bool,
    /// Send requests as long as the bodies through tunnels to the origin
    #[arg(long)]
    tunnel: bool,
    /// Open the tunnels by CONNECT
    #[arg(long)]
    connect: bool,
    /// Address of the proxy for HTTP/2, which is measured instead of HTTP/1.1
    #[arg(long)]
    http2: Option<SocketAddr>,
    /// Concurrent requests of a connection with HTTP/2
    #[arg(long, default_value_t = 1)]
    streams: u32,
    /// HTTP/2 with TLS
    #[arg(long)]
    tls: bool,
}

#[derive(ClapArgs)]
pub(crate) struct ExecArgs {
    /// Network namespace to enter
    #[arg(long)]
    netns: Option<PathBuf>,
    /// CPUs to run on
    #[arg(long)]
    cpus: Option<NumberList>,
    /// Time limit in seconds
    #[arg(long)]
    seconds: u32,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) fn receive(args: &ReceiveArgs) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let by = args.path.by(args.wait, !args.no_timestamps);
    let by = by.ok_or_else(|| Error::usage(format!("{} is a program of its own", args.path)))?;
    let options = receiver::Options {
        interface: args.interface.clone(),
        by,
        lanes: args.lanes,
        snaplen: args.snaplen,
        filter: args.filter.clone(),
        stage: !args.no_stage,
        delay_of_each: args.delay_of_each,
        rings: args.tap_rings,
        owners: args.owners,
    };
    Ok(receiver::run(&options, terminated)?)
}

pub(crate) fn transmit(args: &TransmitArgs) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let message = match (args.pieces, args.body, args.file) {
        (0, 0, 0) => return Err(Error::usage("give --pieces, --body or --file")),
        (pieces, body, 0) => transmit::Message::Memory { pieces, body },
        (.., bytes) => transmit::Message::File(bytes),
    };
    let (time, warm_up) = (seconds(args.seconds)?, seconds(args.warm_up)?);
    let peers = (args.sends > 0).then(|| PeersLoad {
        peers: args.peers.max(1),
        sends: args.sends,
        bytes: args.body as u32,
        pause: Duration::from_millis(args.pause_ms),
    });
    let options = transmit::Options { to: args.to, way: args.way, message, time, warm_up, peers };
    Ok(transmit::run(&options, terminated)?)
}

fn seconds(seconds: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(seconds).map_err(|error| Error::usage(format!("{seconds} s: {error}")))
}

pub(crate) fn origin(args: &OriginArgs) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    Ok(origin::run(args.listen, terminated)?)
}

pub(crate) fn load(args: &LoadArgs) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let http2 = args.http2.map(|to| (to, Http2 { streams: args.streams, is_tls: args.tls }));
    let options = load::Options {
        to: args.to,
        http2,
        origin: args.origin,
        workload: Workload { is_tunnel: args.tunnel, ..args.axes.workload() },
        connects: args.connect,
        warm_up: seconds(args.warm_up)?,
        time: seconds(args.seconds)?,
        watch: args.watch,
        verify_all: args.verify_all,
    };
    Ok(load::run(&options, terminated)?)
}

pub(crate) fn pass(args: &PassArgs) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    Ok(send::pass::run(args.listen, args.to, terminated)?)
}

pub(crate) fn exec(args: &ExecArgs) -> Error {
    let cpus = args.cpus.as_ref().map(|list| list.0.as_slice()).unwrap_or_default();
    child::exec(&Exec { netns: args.netns.as_deref(), cpus, seconds: args.seconds, command: &args.command })
        .into()
}
