//! `strait relay`: relays TCP connections from one address to another in the kernel.

mod log;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use clap::Args as ClapArgs;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use serde_json::json;
use strait_ledger::prometheus::Text;
use strait_program::Streams;
use strait_program::files::allow_files;
use strait_transfer::descriptors::Budget;
use strait_transfer::relay::proxy_protocol::Version;
use strait_transfer::relay::{Account, Copies, Options, Relay, Snapshot};

use crate::Error;
use crate::bulk::{cannot_listen, look_up, no_address};
use crate::metrics::{self, Metrics};
use crate::output::{print_notice, print_stderr};
use crate::parse::{seconds, seconds_or_none};
use log::Log;

/// Options of `strait relay`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait relay --listen 0.0.0.0:5432 --to db.internal:5432
  strait relay --listen [::]:443 --to 10.0.0.2:443 --proxy-protocol v2 --idle 300 --json-log
  strait relay --listen 127.0.0.1:8080 --to localhost:80 --tee web     # web.1.up, web.1.down, ...")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDR", value_parser = crate::parse::listen)]
    listen: SocketAddr,
    /// Host and port of the server; the name is looked up once
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Copy the bytes of connection N to the files PREFIX.N.up (from the client) and PREFIX.N.down
    /// (to the client); numbers continue after those of existing files
    #[arg(long, value_name = "PREFIX")]
    tee: Option<PathBuf>,
    /// Maximum concurrent connections; further ones wait until one ends [default: 10000, or fewer
    /// if the limit of open files is low]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,
    /// Reset connections without traffic for this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    idle: Option<Duration>,
    /// Seconds that the server may take to accept a connection
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    connect_timeout: Duration,
    /// Seconds that connections, including idle ones, may continue after SIGTERM or SIGINT; then,
    /// or after a second signal, they are reset
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds_or_none)]
    drain: Duration,
    /// Send the client's address to the server by v1 or v2 of the PROXY protocol
    #[arg(long, value_name = "VERSION")]
    proxy_protocol: Option<Version>,
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Print one JSON object per connection when it has ended; up to --log-queue lines wait for a
    /// slow reader, and further ones are dropped and counted
    #[arg(long)]
    json_log: bool,
    /// Maximum lines of --json-log that wait for a slow reader
    #[arg(long, value_name = "N", default_value_t = log::LINES, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    log_queue: u32,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
    /// Serve the counters to Prometheus at http://ADDR/metrics, updated twice a second; without an
    /// address the port is on 127.0.0.1; port 0 selects a free port
    #[arg(long, value_name = "ADDR", value_parser = crate::parse::local)]
    metrics: Option<SocketAddr>,
}

/// Maximum connections that wait in the kernel to be accepted.
const BACKLOG: i32 = 4096;
/// Default maximum of concurrent connections.
const CONNECTIONS_MAX: u32 = 10_000;
/// Descriptors of a connection with backpressure in both directions, in addition to its sockets:
/// one pipe per direction.
const DESCRIPTORS_BACKPRESSURE: u64 = 4;
/// Descriptors of the process: standard streams and the log. Those of each worker are a listener,
/// an epoll set and a socket to the server's next address.
const DESCRIPTORS_PROCESS: u64 = 16;
const DESCRIPTORS_WORKER: u64 = 3;
/// Descriptors reserved for 128 pipes per worker, so that moving streams need no copy.
const DESCRIPTORS_PIPES_MIN: u64 = 2 * 128;

impl Args {
    /// The standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        Streams::output(self.json || self.json_log)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let to: Vec<SocketAddr> = look_up(&args.to)?.collect();
    if to.is_empty() {
        return Err(no_address(&args.to));
    }
    if to.contains(&args.listen) {
        return Err(Error::Usage(format!(
            "{} would relay to itself: give another address to --to",
            args.listen
        )));
    }
    let limits = Limits::of(args)?;
    let copies = open_copies(args)?;
    let listeners = listen_on(args.listen, args.workers)?;
    let metrics = Metrics::open(args.metrics)?;
    strait_os::process::drop_capabilities(false)?;
    if let Some(listener) = listeners.first() {
        let address = listener.local_addr().map_err(|error| Error::Failed(format!("listen: {error}")))?;
        print_stderr(format_args!(
            "relaying {address} to {}, at most {} connections at a time\n",
            args.to, limits.connections
        ));
    }
    metrics.iter().for_each(Metrics::announce);
    let options = options(args, to, &limits, copies);
    let log = Log::start(args.json_log, args.log_queue as usize)?;
    let account = relay(&log, &options, listeners, terminated, metrics.as_ref());
    let (dropped, is_stalled) = log.end();
    let account = account?;
    let line = if args.json { as_json(&account, dropped).to_string() } else { as_text(&account) };
    if dropped > 0 || is_stalled {
        print_stderr(format_args!(
            "strait: the reader of the log was too slow or has closed it: {dropped} lines were dropped\n"
        ));
    }
    if is_stalled {
        // The reader of the log would not read the account either.
        print_stderr(format_args!("{line}\n"));
        return Ok(());
    }
    Ok(print_notice(&line)?)
}

/// Maximum connections within the limit of open files, and the descriptors that connections and
/// pipes share.
struct Limits {
    connections: u32,
    descriptors: Arc<Budget>,
}

impl Limits {
    /// Raises the limit of open files as far as needed and allowed, and computes the limits.
    fn of(args: &Args) -> Result<Self, Error> {
        let each = Options::descriptors_each(args.tee.is_some());
        let workers = u64::from(args.workers);
        let requested = args.max_connections.unwrap_or(CONNECTIONS_MAX);
        let metrics = args.metrics.map_or(0, |_| metrics::DESCRIPTORS);
        let reserved = DESCRIPTORS_PROCESS + metrics + workers * DESCRIPTORS_WORKER;
        let all = reserved + u64::from(requested) * (each + DESCRIPTORS_BACKPRESSURE);
        let allowed = allow_files(all)?;
        let least = if allowed < all { reserved + workers * DESCRIPTORS_PIPES_MIN } else { reserved };
        let connections_max =
            u32::try_from(allowed.saturating_sub(least) / each).unwrap_or(requested).min(requested);
        if connections_max == 0 || connections_max < args.max_connections.unwrap_or(0) {
            let connections = args.max_connections.unwrap_or(1);
            let files = least + u64::from(connections) * each;
            return Err(Error::Refused(format!(
                "{connections} connections need {files} open files, but only {allowed} are allowed: ulimit -n {files}"
            )));
        }
        let descriptors = Budget::new(allowed - reserved, u64::from(connections_max) * each);
        Ok(Self { connections: connections_max, descriptors })
    }
}

/// Opens the directory of the copies. Returns the highest number of an existing copy, too, from
/// which connections are numbered.
fn open_copies(args: &Args) -> Result<(Option<Copies>, u64), Error> {
    let Some(prefix) = &args.tee else { return Ok((None, 0)) };
    let failed = |error: std::io::Error| Error::Failed(format!("--tee {}: {error}", prefix.display()));
    let copies = Copies::open(prefix).map_err(failed)?;
    let number = copies.last_number().map_err(failed)?;
    Ok((Some(copies), number))
}

/// Opens one listener per worker. The kernel distributes connections among them.
fn listen_on(address: SocketAddr, workers: u32) -> Result<Vec<TcpListener>, Error> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    for _ in 0..workers {
        // With port 0 the kernel chose a port for the first listener, which the others share.
        let address = listeners.first().and_then(|first| first.local_addr().ok()).unwrap_or(address);
        let failed = |error: rustix::io::Errno| cannot_listen(address, &error.into());
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))
            .map_err(failed)?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
        if workers > 1 {
            sockopt::set_socket_reuseport(&socket, true).map_err(failed)?;
        }
        bind(&socket, &address).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        listeners.push(socket.into());
    }
    Ok(listeners)
}

fn options(
    args: &Args,
    to: Vec<SocketAddr>,
    limits: &Limits,
    (tee, first_number): (Option<Copies>, u64),
) -> Options {
    Options {
        servers: to,
        tee,
        connections_max: (limits.connections / args.workers).max(1) as usize,
        descriptors: Arc::clone(&limits.descriptors),
        idle: args.idle,
        connect: args.connect_timeout,
        drain: args.drain,
        proxy_protocol: args.proxy_protocol,
        numbers: Arc::new(AtomicU64::new(first_number)),
        live: Arc::default(),
    }
}

fn relay(
    log: &Log,
    options: &Options,
    listeners: Vec<TcpListener>,
    terminated: &AtomicBool,
    metrics: Option<&Metrics>,
) -> Result<Account, Error> {
    std::thread::scope(|scope| {
        let _serving = metrics.map(|metrics| metrics.serve_in(scope, || exposition(&options.live.sum())));
        let work = |listener| {
            let (options, writer) = (options.clone(), log.writer());
            move || Relay::new(listener, options)?.run(terminated, &mut |ended| writer.report(ended))
        };
        let workers: Vec<_> = listeners.into_iter().map(|listener| scope.spawn(work(listener))).collect();
        let mut sum = Account::default();
        for worker in workers {
            let account = worker.join().map_err(|_| Error::Failed("a worker thread panicked".into()))??;
            sum.add(&account);
        }
        Ok(sum)
    })
}

/// Returns the totals as Prometheus text.
fn exposition(Snapshot { account, open }: &Snapshot) -> String {
    let mut text = Text::default();
    let numbers = [
        ("connections_total", "counter", "Accepted connections.", account.connections),
        ("connections", "gauge", "Open connections.", *open),
        ("failed_total", "counter", "Connections that did not end in order.", account.failed),
        ("teed_bytes_total", "counter", "Bytes that were also written to files.", account.teed),
        ("full_total", "counter", "Pauses because the limit of connections was reached.", account.full),
    ];
    text.single("strait_relay", &[], &numbers);
    text.family("strait_relay_bytes_total", "counter", "Relayed bytes in both directions, by mechanism.");
    text.sample("", &[("mechanism", "splice")], account.bytes.saturating_sub(account.copied));
    text.sample("", &[("mechanism", "copy")], account.copied);
    text.into_string()
}

fn as_json(account: &Account, log_dropped: u64) -> serde_json::Value {
    json!({
        "connections": account.connections, "failed": account.failed, "spliced": account.bytes - account.copied, "copied": account.copied,
        "teed": account.teed,
        "full": account.full, "connections_max": account.connections_max,
        "log_dropped": log_dropped,
    })
}

fn as_text(account: &Account) -> String {
    let spliced = account.bytes - account.copied;
    format!(
        "relayed {} connections, at most {} at a time, {} incomplete, {} times at the limit: {spliced} bytes spliced, {} copied, {} teed",
        account.connections,
        account.connections_max,
        account.failed,
        account.full,
        account.copied,
        account.teed
    )
}
