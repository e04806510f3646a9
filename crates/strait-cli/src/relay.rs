//! `strait relay`: TCP connections from one address to another, in the kernel.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use clap::Args as ClapArgs;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use strait_transfer::relay::proxy_protocol::Version;
use strait_transfer::relay::{Account, Ended, Options, Relay};

use crate::Error;
use crate::bulk::{look_up, no_address};
use crate::output::{print_line, tell};
use crate::parse::seconds;

/// Options of `strait relay`.
#[derive(ClapArgs)]
#[command(after_help = "Examples:
  strait relay --listen 0.0.0.0:5432 --to db.internal:5432
  strait relay --listen [::]:443 --to 10.0.0.2:443 --proxy-protocol v2 --idle 300 --json-log
  strait relay --listen 127.0.0.1:8080 --to localhost:80 --tee web     # web.1.up, web.1.down, ...")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Host and port that connections go to; the name is looked up once
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Copy what passes to files: PREFIX.N.up from client N, PREFIX.N.down to it
    #[arg(long, value_name = "PREFIX")]
    tee: Option<PathBuf>,
    /// Connections at a time; more wait until one ends [default: 10000, or as many as open files are allowed for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,
    /// Close connections on which nothing moved for so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    idle: Option<Duration>,
    /// Seconds that the server may take to accept
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    connect_timeout: Duration,
    /// Seconds that connections may go on after SIGTERM or SIGINT
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    drain: Duration,
    /// Tell the server who its client is: v1 or v2 of the PROXY protocol
    #[arg(long, value_name = "VERSION")]
    proxy_protocol: Option<Version>,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Print a JSON object a connection, when it has ended
    #[arg(long)]
    json_log: bool,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;
/// Connections at a time unless told otherwise.
const CONNECTIONS_MAX: u32 = 10_000;
/// Descriptors of a connection: two sockets; with files a file and a pipe each way.
const DESCRIPTORS: u64 = 2;
const DESCRIPTORS_TEED: u64 = 8;
/// Descriptors beside those: pipes for bytes on their way, listeners, epoll sets.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_sys::process::on_termination()?;
    let to = look_up(&args.to)?.next().ok_or_else(|| no_address(&args.to))?;
    if to == args.listen {
        return Err(Error::Usage(format!("{to} would relay to itself: give --to another address")));
    }
    let connections_max = connections_max(args)?;
    let listeners = listen_on(args.listen, args.workers)?;
    strait_sys::process::drop_capabilities(false)?;
    if let Some(listener) = listeners.first() {
        let address = listener.local_addr().map_err(|error| Error::Failed(format!("listen: {error}")))?;
        tell(format_args!("relaying {address} to {to}\n"));
    }
    let account = relay(args, to, connections_max, listeners, terminated)?;
    let line = if args.json { as_json(&account).to_string() } else { as_text(&account) };
    print_line(&line)
}

/// How many connections there may be. The limit of open files is raised as far as it is needed and may be.
fn connections_max(args: &Args) -> Result<u32, Error> {
    let each = if args.tee.is_some() { DESCRIPTORS_TEED } else { DESCRIPTORS };
    let wanted = args.max_connections.unwrap_or(CONNECTIONS_MAX);
    let files = u64::from(wanted) * each + DESCRIPTORS_BESIDE;
    let allowed = allow_files(files)?;
    if allowed >= files {
        return Ok(wanted);
    }
    let fitting = allowed.saturating_sub(DESCRIPTORS_BESIDE) / each;
    if args.max_connections.is_some() || fitting == 0 {
        return Err(Error::Refused(format!(
            "{allowed} open files are allowed, and {wanted} connections need {files}: ulimit -n {files}, or a lower --max-connections"
        )));
    }
    Ok(u32::try_from(fitting).unwrap_or(wanted))
}

/// Raises the limit of open files to `wanted`, or as far as this process may; returns what it is then.
fn allow_files(wanted: u64) -> Result<u64, Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|current| *current < wanted) else { return Ok(wanted) };
    let raised = |maximum| setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    // With CAP_SYS_RESOURCE past the hard limit too.
    if maximum.is_none_or(|maximum| wanted <= maximum) && raised(maximum) || raised(Some(wanted)) {
        return Ok(wanted);
    }
    let hard = maximum.unwrap_or(current);
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum })
        .map_err(|error| Error::Failed(format!("raise the limit of open files: {error}")))?;
    Ok(hard)
}

/// A listener for each worker, among which the kernel shares connections out.
fn listen_on(address: SocketAddr, workers: u32) -> Result<Vec<TcpListener>, Error> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    for _ in 0..workers {
        // The first may have taken a free port, which the others share.
        let address = listeners.first().and_then(|first| first.local_addr().ok()).unwrap_or(address);
        let failed = |error: rustix::io::Errno| {
            Error::System(strait_sys::Error::from_io("listen on", address.to_string(), &error.into()))
        };
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

fn relay(
    args: &Args,
    to: SocketAddr,
    connections_max: u32,
    listeners: Vec<TcpListener>,
    terminated: &AtomicBool,
) -> Result<Account, Error> {
    let options = Options {
        to,
        tee: args.tee.clone(),
        connections_max: (connections_max / args.workers).max(1) as usize,
        idle: args.idle,
        connect: args.connect_timeout,
        drain: args.drain,
        proxy_protocol: args.proxy_protocol,
        numbers: Arc::new(AtomicU64::new(0)),
    };
    std::thread::scope(|scope| {
        let work = |listener| {
            let options = options.clone();
            move || Relay::new(listener, options)?.run(terminated, &mut |ended| report(args, ended))
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

/// Tells of a connection's end: all of them with --json-log, else those that went wrong.
fn report(args: &Args, ended: &Ended) {
    let tee = ended.tee_failure.as_ref().map(|failure| format!("the copy ended early: {failure}"));
    if args.json_log {
        let line = json!({
            "number": ended.number, "client": ended.client.to_string(), "seconds": ended.lasted.as_secs_f64(),
            "up": ended.up, "down": ended.down, "teed": ended.teed, "end": ended.cause.name(),
            "failure": ended.failure, "tee_failure": ended.tee_failure,
        });
        // A log whose reader is gone ends no connection.
        let _ = writeln!(std::io::stdout(), "{line}");
    } else if let Some(failure) = ended.failure.as_ref().or(tee.as_ref()) {
        tell(format_args!("strait: connection {} of {}: {failure}\n", ended.number, ended.client));
    }
}

fn as_json(account: &Account) -> serde_json::Value {
    json!({
        "connections": account.connections, "failed": account.failed, "spliced": account.bytes, "teed": account.teed,
        "full": account.full, "connections_max": account.connections_max,
    })
}

fn as_text(account: &Account) -> String {
    format!(
        "relayed {} connections, {} at most at a time, {} not to their end: {} bytes spliced, {} teed",
        account.connections, account.connections_max, account.failed, account.bytes, account.teed
    )
}
