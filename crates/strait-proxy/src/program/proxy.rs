//! `strait proxy`: the proxy as a service, with its options, its checks and its signals.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args as ClapArgs;
use strait_program::files::{HELP_TO_LISTEN, allow_files};
use strait_program::output::{account_text, print_account, print_text, tell, warn};
use strait_program::parse::{address, bytes, listen};
use strait_program::{Kind, Streams, process, service};
use strait_proxy::{Bound, Clock, Config, Proxy};

use crate::Error;

pub(crate) const EXAMPLES: &str = "Examples:
  strait proxy --listen 127.0.0.1:3128 --cache-dir /var/cache/strait       # a forward cache for this machine
  strait proxy --listen [::]:80 --origin http://127.0.0.1:8080 --cache-dir /var/cache/strait --cache-size 20GB
  http_proxy=http://127.0.0.1:3128 curl -I http://deb.debian.org/debian/dists/stable/InRelease";

/// Options of `strait proxy`.
#[derive(ClapArgs)]
#[group(skip)]
pub(crate) struct Args {
    /// The configuration, strait.toml; what is given here goes before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:3128]
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    listen: Vec<SocketAddr>,
    /// Stand before this server: a reverse proxy
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Keep responses here; without it small ones are kept in memory
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// What they may take on disk [default: 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    cache_size: Option<ByteSize>,
    /// What small ones may take in memory [default: 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    memory: Option<ByteSize>,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Tell of itself here: metrics, an admin page, strait cache
    #[arg(long, value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Write a line a request to this file; - is standard output
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Become this user once the sockets are open
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Say whether the configuration holds, and where it would listen
    #[arg(long)]
    check_config: bool,
    /// Print a configuration with every key, its default, and what it is for
    #[arg(long)]
    print_default_config: bool,
    /// Print the account as one JSON object; it goes to standard error where standard output is the
    /// log
    #[arg(long)]
    json: bool,
    /// Read stored bodies and send them, in place of sendfile: to compare
    #[arg(long)]
    no_sendfile: bool,
    /// Read bodies from origins and write them, in place of splice: to compare
    #[arg(long)]
    no_splice: bool,
}

impl Args {
    /// The standard streams that carry data, but for a log that the configuration names.
    pub(crate) fn streams(&self) -> Streams {
        let prints = self.print_default_config || self.check_config;
        Streams::output(prints || self.json || self.log.as_deref() == Some(Path::new("-")))
    }
}

/// Size of an option.
fn byte_size(text: &str) -> Result<ByteSize, String> {
    bytes(text).map(ByteSize)
}

/// How often it is looked what the process is told by signals.
const SIGNAL_POLL: Duration = Duration::from_millis(50);
/// Open files for each connection: the client's and the origin's, and as many again for the store
/// and for pipes.
const FILES_EACH: u64 = 4;
/// Open files beside those: listeners, idle connections to origins; and those that there have to
/// be.
const FILES_BESIDE: u64 = 4096;
const FILES_BESIDE_MIN: u64 = 256;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.print_default_config {
        return Ok(print_text(Config::DEFAULT_TOML)?);
    }
    let config = config(args);
    if args.check_config {
        let config = config?;
        check_system(args, &config)?;
        become_and_check(args, &config)?;
        config.check_room().map_err(|error| in_file(args, error))?;
        return Ok(print_text(&as_checked(&config))?);
    }
    let signals = process::on_service_signals()?;
    let config = config?;
    check_system(args, &config)?;
    if let Err(error) = config.check_room() {
        warn(format_args!("{}\n", in_file(args, error)));
    }
    Streams::output(logs_to_stdout(&config)).check()?;
    let mut proxy = start(args, &config)?;
    while !signals.terminated.load(Ordering::Relaxed) {
        if signals.reloads.swap(false, Ordering::Relaxed) {
            reload(args, &mut proxy);
        }
        if signals.reopens.swap(false, Ordering::Relaxed) {
            reopen_log(&proxy);
        }
        std::thread::sleep(SIGNAL_POLL);
    }
    notify("STOPPING=1");
    let account = proxy.stop();
    if logs_to_stdout(&config) {
        tell(format_args!("{}\n", account_text(&account, args.json)?));
        return Ok(());
    }
    Ok(print_account(&account, args.json)?)
}

/// Whether standard output is the access log, which has lines of requests alone.
fn logs_to_stdout(config: &Config) -> bool {
    config.log.access.as_deref().is_some_and(|path| path == "-")
}

/// Opens what needs privileges, gives those up, and starts.
fn start(args: &Args, config: &Config) -> Result<Proxy, Error> {
    let each = FILES_EACH * u64::from(config.limits.connections);
    let allowed = allow_files(FILES_BESIDE + each)?;
    let needed = FILES_BESIDE_MIN + each;
    // The default is for machines that allow it: connections that do not fit wait.
    let is_asked_for = config.limits.connections != Config::default().limits.connections;
    if allowed < needed && is_asked_for {
        warn(format_args!(
            "{allowed} open files are allowed, and limits.connections needs {needed}: ulimit -n {needed}\n"
        ));
    }
    if args.cache_size.is_some() && config.cache.dir.is_none() {
        warn(format_args!("--cache-size has no effect without --cache-dir: see --memory\n"));
    }
    let bound = Bound::new(config, service::inherited_sockets()?).map_err(refused)?;
    become_and_check(args, config)?;
    // Root goes on writing the cache and the log wherever it could.
    let writes = config.cache.dir.is_some() || config.log.access.is_some();
    process::drop_capabilities(writes && args.user.is_none())?;
    let proxy = bound.start(Clock::system()).map_err(|error| as_user(error, args.user.as_deref()))?;
    announce(&proxy);
    notify("READY=1");
    Ok(proxy)
}

/// A failure, with what helps where this process may not.
fn refused(error: strait_proxy::Error) -> Error {
    match &error {
        strait_proxy::Error::Os { operation, error: cause, .. }
            if cause.kind() == io::ErrorKind::PermissionDenied =>
        {
            let help = if *operation == "listen on" { HELP_TO_LISTEN } else { "" };
            Error::refused(format!("{error}{help}"))
        }
        _ => error.into(),
    }
}

/// A failure after this process has become a user: it is that one who may not.
fn as_user(error: strait_proxy::Error, user: Option<&str>) -> Error {
    match user {
        Some(user) if error.kind() == Kind::Refused => Error::refused(format!("as user {user}: {error}")),
        _ => error.into(),
    }
}

fn announce(proxy: &Proxy) {
    for address in proxy.addresses() {
        tell(format_args!("listening on {address}\n"));
    }
    if let Some(address) = proxy.admin() {
        tell(format_args!("admin page on http://{address}/\n"));
    }
    for note in proxy.notes() {
        tell(format_args!("{note}\n"));
    }
}

/// Goes by the configuration as it is now. What is wrong with it is told, and nothing is changed.
fn reload(args: &Args, proxy: &mut Proxy) {
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", service::monotonic_us()));
    match again(args).and_then(|config| Ok(proxy.reload(&config)?)) {
        Ok(_) if args.config.is_none() => {
            warn(format_args!("nothing to reload: --config names no file\n"));
        }
        Ok(kept) if kept.is_empty() => tell(format_args!("reloaded\n")),
        Ok(kept) => tell(format_args!("reloaded; from the next start on: {}\n", kept.join(", "))),
        Err(error) => {
            let line = error.to_string().replace('\n', "; ");
            warn(format_args!("not reloaded: {line}\n"));
        }
    }
    reopen_log(proxy);
    notify("READY=1");
}

fn reopen_log(proxy: &Proxy) {
    if let Err(error) = proxy.reopen_log() {
        warn(format_args!("lines go on to the old access log: {error}\n"));
    }
}

/// Tells the service manager, if there is one; one that does not listen stops nothing.
fn notify(state: &str) {
    if let Err(error) = service::notify(state) {
        warn(format_args!("{error}\n"));
    }
}

/// What a configuration comes to that was checked.
fn as_checked(config: &Config) -> String {
    let listen = config.listen.iter().map(|address| format!("listen {address}\n"));
    let admin = config.admin.listen.map(|address| format!("admin {address}\n"));
    listen.chain(admin).fold("ok\n".to_owned(), |text, line| text + &line)
}

/// The configuration for a reload, checked. A file without a key is being written or was truncated:
/// it is refused, although it would be a valid configuration to start with.
fn again(args: &Args) -> Result<Config, Error> {
    if let Some(path) = &args.config
        && std::fs::read_to_string(path).is_ok_and(|text| Config::is_blank(&text))
    {
        return Err(Error::usage(format!("{}: the file is empty; is it being written?", path.display())));
    }
    config(args)
}

/// The configuration, checked.
fn config(args: &Args) -> Result<Config, Error> {
    let Some(path) = &args.config else {
        let config = with_options(Config::default(), args);
        config.check()?;
        return Ok(config);
    };
    let of_file = |error: &dyn std::fmt::Display| Error::usage(located(args, &error.to_string()));
    let unread = |error: io::Error| Error::failed(format!("read {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let config = Config::from_toml(&text).map_err(|error| of_file(&error))?;
    let config = with_options(config, args);
    match config.check() {
        Ok(()) => Ok(config),
        Err(error @ strait_proxy::Error::Config(_)) => Err(of_file(&Config::locate(&text, error))),
        Err(error) => Err(error.into()),
    }
}

/// Becomes the user of `--user`, and checks what that one can do. The log is open by then.
fn become_and_check(args: &Args, config: &Config) -> Result<(), Error> {
    let Some(user) = &args.user else { return Ok(()) };
    service::become_user(user)?;
    let mut config = config.clone();
    config.log.access = None;
    check_system(args, &config).map_err(|error| match error {
        Error::Program(strait_program::Error::Usage(problems)) => {
            Error::usage(format!("as user {user}: {problems}"))
        }
        error => error,
    })
}

/// Checks what the system has to offer. A start makes the same checks as `--check-config`.
fn check_system(args: &Args, config: &Config) -> Result<(), Error> {
    if let Some(user) = &args.user {
        service::check_user(user)?;
    }
    config.check_places().map_err(|error| in_file(args, error))
}

/// A mistake of the configuration, with the line of the file that makes it.
fn in_file(args: &Args, error: strait_proxy::Error) -> Error {
    let text = args.config.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let error = Config::locate(&text.unwrap_or_default(), error);
    Error::usage(located(args, &error.to_string()))
}

/// Problems, each with the name of the file and the line that sets its key.
fn located(args: &Args, problems: &str) -> String {
    let Some(path) = &args.config else { return problems.to_owned() };
    let of_file = |line: &str| format!("{}: {line}", path.display());
    problems.lines().map(of_file).collect::<Vec<_>>().join("\n")
}

/// What was given as options goes before the file.
fn with_options(mut config: Config, args: &Args) -> Config {
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    config.origin = args.origin.clone().or(config.origin);
    config.cache.dir = args.cache_dir.clone().or(config.cache.dir);
    config.cache.size = args.cache_size.unwrap_or(config.cache.size);
    config.cache.memory = args.memory.unwrap_or(config.cache.memory);
    config.workers = args.workers.unwrap_or(config.workers);
    config.admin.listen = args.admin.or(config.admin.listen);
    config.log.access = args.log.clone().or(config.log.access);
    config.transfer.sendfile &= !args.no_sendfile;
    config.transfer.splice &= !args.no_splice;
    config
}
