//! `strait relay`: TCP connections from one address to another, in the kernel.

mod log;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use clap::Args as ClapArgs;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use serde_json::json;
use strait_program::Streams;
use strait_program::files::allow_files;
use strait_transfer::descriptors::Budget;
use strait_transfer::relay::proxy_protocol::Version;
use strait_transfer::relay::{Account, Options, Relay};

use crate::Error;
use crate::bulk::{cannot_listen, look_up, no_address};
use crate::output::{print_notice, tell};
use crate::parse::{seconds, seconds_or_none};
use log::Log;

/// Options of `strait relay`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait relay --listen 0.0.0.0:5432 --to db.internal:5432
  strait relay --listen [::]:443 --to 10.0.0.2:443 --proxy-protocol v2 --idle 300 --json-log
  strait relay --listen 127.0.0.1:8080 --to localhost:80 --tee web     # web.1.up, web.1.down, ...")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_parser = crate::parse::listen)]
    listen: SocketAddr,
    /// Host and port that connections go to; the name is looked up once
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Copy what passes to files: PREFIX.N.up from client N, PREFIX.N.down to it; numbers go on
    /// after those that are there
    #[arg(long, value_name = "PREFIX")]
    tee: Option<PathBuf>,
    /// Connections at a time; more wait until one ends [default: 10000, or as many as open files
    /// are allowed for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,
    /// Reset connections on which nothing moved for so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    idle: Option<Duration>,
    /// Seconds that the server may take to accept
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    connect_timeout: Duration,
    /// Seconds that connections, idle ones too, may go on after SIGTERM or SIGINT; then they are
    /// reset, as after a second signal
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds_or_none)]
    drain: Duration,
    /// Tell the server who its client is: v1 or v2 of the PROXY protocol
    #[arg(long, value_name = "VERSION")]
    proxy_protocol: Option<Version>,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Print a JSON object a connection, when it has ended; while nothing reads them, --log-queue
    /// are kept and more are dropped and counted
    #[arg(long)]
    json_log: bool,
    /// Lines of --json-log that are kept while nothing reads them
    #[arg(long, value_name = "N", default_value_t = log::LINES, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    log_queue: u32,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;
/// Connections at a time unless told otherwise.
const CONNECTIONS_MAX: u32 = 10_000;
/// Descriptors that a connection has beside its sockets while both its ends take less than comes: a
/// pipe each way.
const DESCRIPTORS_HELD_UP: u64 = 4;
/// Descriptors beside those: standard streams and the log; a listener, an epoll set and a socket to
/// the server's next address a worker.
const DESCRIPTORS_BESIDE: u64 = 16;
const DESCRIPTORS_WORKER: u64 = 3;
/// Descriptors that connections never take: those of 128 pipes a worker, so that streams that move
/// need no copy.
const DESCRIPTORS_PIPES_MIN: u64 = 2 * 128;

/// Maximum number of a copy that is counted on from: another user may have planted a file with a
/// higher one.
const NUMBER_MAX: u64 = 1 << 48;

impl Args {
    /// The standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        Streams::output(self.json || self.json_log)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let to: Vec<SocketAddr> = look_up(&args.to)?.collect();
    if to.is_empty() {
        return Err(no_address(&args.to));
    }
    if to.contains(&args.listen) {
        return Err(Error::Usage(format!(
            "{} would relay to itself: give --to another address",
            args.listen
        )));
    }
    let room = Room::of(args)?;
    let numbers = first_number(args)?;
    let listeners = listen_on(args.listen, args.workers)?;
    strait_sys::process::drop_capabilities(false)?;
    if let Some(listener) = listeners.first() {
        let address = listener.local_addr().map_err(|error| Error::Failed(format!("listen: {error}")))?;
        tell(format_args!("relaying {address} to {}, {} connections at a time\n", args.to, room.connections));
    }
    let options = options(args, to, &room, numbers);
    let log = Log::start(args.json_log, args.log_queue as usize)?;
    let account = relay(&log, &options, listeners, terminated);
    let (dropped, is_stalled) = log.end();
    let account = account?;
    let line = if args.json { as_json(&account, dropped).to_string() } else { as_text(&account) };
    if dropped > 0 || is_stalled {
        tell(format_args!("strait: the log's reader was too slow or gone: {dropped} lines were dropped\n"));
    }
    if is_stalled {
        // It would take no account either.
        tell(format_args!("{line}\n"));
        return Ok(());
    }
    Ok(print_notice(&line)?)
}

/// Connections that the limit of open files allows, and the descriptors that these share with
/// pipes.
struct Room {
    connections: u32,
    descriptors: Arc<Budget>,
}

impl Room {
    /// The limit of open files is raised as far as it is needed and may be.
    fn of(args: &Args) -> Result<Self, Error> {
        let each = Options::descriptors_each(args.tee.is_some());
        let workers = u64::from(args.workers);
        let wanted = args.max_connections.unwrap_or(CONNECTIONS_MAX);
        let beside = DESCRIPTORS_BESIDE + workers * DESCRIPTORS_WORKER;
        let all = beside + u64::from(wanted) * (each + DESCRIPTORS_HELD_UP);
        let allowed = allow_files(all)?;
        let least = if allowed < all { beside + workers * DESCRIPTORS_PIPES_MIN } else { beside };
        let fitting = u32::try_from(allowed.saturating_sub(least) / each).unwrap_or(wanted).min(wanted);
        if fitting == 0 || fitting < args.max_connections.unwrap_or(0) {
            let connections = args.max_connections.unwrap_or(1);
            let files = least + u64::from(connections) * each;
            return Err(Error::Refused(format!(
                "{allowed} open files are allowed, and for {connections} connections {files} are needed: ulimit -n {files}"
            )));
        }
        let descriptors = Budget::new(allowed - beside, u64::from(fitting) * each);
        Ok(Self { connections: fitting, descriptors })
    }
}

/// The number that connections are counted from: past those whose files are there already.
fn first_number(args: &Args) -> Result<u64, Error> {
    let Some(prefix) = &args.tee else { return Ok(0) };
    let directory = match prefix.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let failed = |error: std::io::Error| Error::Failed(format!("{}: {error}", directory.display()));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).map_err(|error| failed(error.into()))?;
    let entries = std::fs::read_dir(directory).map_err(failed)?.filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| {
        let entry = entry.file_name();
        let (number, _way) = entry.to_str()?.strip_prefix(&name)?.split_once('.')?;
        number.parse().ok().filter(|number| *number <= NUMBER_MAX)
    });
    Ok(numbers.max().unwrap_or(0))
}

/// A listener for each worker, among which the kernel shares connections out.
fn listen_on(address: SocketAddr, workers: u32) -> Result<Vec<TcpListener>, Error> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    for _ in 0..workers {
        // The first may have taken a free port, which the others share.
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

fn options(args: &Args, to: Vec<SocketAddr>, room: &Room, first_number: u64) -> Options {
    Options {
        servers: to,
        tee: args.tee.clone(),
        connections_max: (room.connections / args.workers).max(1) as usize,
        descriptors: Arc::clone(&room.descriptors),
        idle: args.idle,
        connect: args.connect_timeout,
        drain: args.drain,
        proxy_protocol: args.proxy_protocol,
        numbers: Arc::new(AtomicU64::new(first_number)),
    }
}

fn relay(
    log: &Log,
    options: &Options,
    listeners: Vec<TcpListener>,
    terminated: &AtomicBool,
) -> Result<Account, Error> {
    std::thread::scope(|scope| {
        let work = |listener| {
            let (options, writer) = (options.clone(), log.writer());
            move || Relay::new(listener, options)?.run(terminated, &mut |ended| writer.report(ended))
        };
        let workers: Vec<_> = listeners.into_iter().map(|listener| scope.spawn(work(listener))).collect();
        let mut sum = Account::default();
        for worker in workers {
            let account = worker.join().map_err(|_| Error::Failed("a worker died".into()))??;
            sum.add(&account);
        }
        Ok(sum)
    })
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
        "relayed {} connections, {} at most at a time, {} not to their end, {} times as many as may be: {spliced} bytes spliced, {} copied, {} teed",
        account.connections,
        account.connections_max,
        account.failed,
        account.full,
        account.copied,
        account.teed
    )
}
