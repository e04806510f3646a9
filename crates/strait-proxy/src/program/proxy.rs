//! `strait proxy`: the proxy as a service, with its options, its checks and its signals.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::process::Signal;
use strait_os::process::Signals;
use strait_os::{process, service};
use strait_program::files::{HELP_TO_LISTEN, allow_files};
use strait_program::output::{account_text, print_account, print_stderr, print_text, warn};
use strait_program::parse::{address, bytes, listen};
use strait_program::{Error, Kind, Streams, name};
use strait_proxy::{Bound, Checked, Clock, Config, FillMethod, Inherited, Proxy};

use crate::small_pages::SmallPages;
use crate::upgrade::{Ended, Predecessor, Program, Progress, Upgrade};

/// Returns the examples of the help, with the name by which the program was called.
pub(crate) fn examples() -> String {
    let name = name();
    format!(
        "Examples:
  {name} --listen 127.0.0.1:3128 --cache-dir /var/cache/strait       # a forward cache for this machine
  {name} --listen [::]:80 --origin http://127.0.0.1:8080 --cache-dir /var/cache/strait --cache-size 20GB
  http_proxy=http://127.0.0.1:3128 curl -I http://example.com/

Signals:
  TERM, INT  end after the responses in progress
  HUP        read the configuration again
  USR1       open the access log again
  USR2       let a new process of this program take over, without a refused connection"
    )
}

/// Options of `strait proxy`.
#[derive(ClapArgs)]
#[group(skip)]
pub(crate) struct Args {
    /// Configuration file, strait.toml; options override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:3128]
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    listen: Vec<SocketAddr>,
    /// Be a reverse proxy for this server
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Directory of stored responses; without it small ones are kept in memory
    /// [default: cache.dir of the configuration, else $CACHE_DIRECTORY]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Size limit of the directory [default: 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    cache_size: Option<ByteSize>,
    /// Size limit of responses in memory [default: 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    memory: Option<ByteSize>,
    /// Number of threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Admin address: metrics, a page for browsers, strait cache
    #[arg(long, value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Access log, one line for each request; - is standard output
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Become this user once the sockets are open
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Check the configuration, and print the addresses to listen on
    #[arg(long)]
    check_config: bool,
    /// Print a configuration with every key, its default and its purpose
    #[arg(long)]
    print_default_config: bool,
    /// Print the account as one JSON object; on standard error if standard output is the log
    #[arg(long)]
    json: bool,
    /// Send stored bodies by read and write in place of sendfile, to compare
    #[arg(long)]
    no_sendfile: bool,
    /// Move no bodies by splice, to compare
    #[arg(long)]
    no_splice: bool,
    /// Move bodies into the store by splice or copy in place of the cheaper of both, to compare
    #[arg(long, value_name = "METHOD", value_parser = fill_methods())]
    fill: Option<FillMethod>,
}

impl Args {
    /// Returns the standard streams that carry data. A log of the configuration is checked later.
    pub(crate) fn streams(&self) -> Streams {
        let prints = self.print_default_config || self.check_config;
        Streams::output(prints || self.json || self.log.as_deref() == Some(Path::new("-")))
    }
}

/// Names of the methods that move bodies into the store.
fn fill_methods() -> impl TypedValueParser<Value = FillMethod> {
    PossibleValuesParser::new(["auto", "splice", "copy"]).map(|name| match &*name {
        "splice" => FillMethod::Splice,
        "copy" => FillMethod::Copy,
        _ => FillMethod::Auto,
    })
}

/// Parses the size of an option.
fn byte_size(text: &str) -> Result<ByteSize, String> {
    bytes(text).map(ByteSize)
}

/// Interval between two checks for signals.
const SIGNAL_POLL: Duration = Duration::from_millis(50);
/// Interval between two lines about damaged records.
const DAMAGE_EVERY: Duration = Duration::from_mins(1);
/// Interval between two looks for new notes.
const NOTES_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for the service manager to learn of the new process.
const NOTIFIED_MAX: Duration = Duration::from_secs(5);
/// Open files for each connection: the client's, the origin's, and two for the store and pipes.
const FILES_EACH: u64 = 4;
/// Open files for listeners and idle connections to origins.
const FILES_BESIDE: u64 = 4096;
/// Fewest open files for them; with fewer the proxy warns.
const FILES_BESIDE_MIN: u64 = 256;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.print_default_config {
        return print_text(Config::DEFAULT_TOML);
    }
    let checked = checked(args, Config::checked);
    if args.check_config {
        let checked = checked?;
        let config = checked.config();
        check_system(args, config)?;
        become_and_check(args, config)?;
        check_room(args, config);
        check_changes(args, config, |again| checked.check_again(&again));
        print_notes(&checked.notes());
        return print_text(&as_checked(config));
    }
    let signals = process::on_service_signals()?;
    let checked = checked?;
    check_system(args, checked.config())?;
    check_room(args, checked.config());
    let logs_to_stdout = logs_to_stdout(checked.config());
    Streams::output(logs_to_stdout).check()?;
    let program = Program::of_this_process();
    let proxy = start(args, checked, signals)?;
    let (account, end) = serve(args, proxy, signals, &program);
    if logs_to_stdout {
        print_stderr(format_args!("{}\n", account_text(&account, args.json)?));
    } else {
        print_account(&account, args.json)?;
    }
    end
}

/// Serves until a signal ends the proxy, or until another process has taken over; returns the
/// numbers since the start, and an error if that process has failed meanwhile.
fn serve(
    args: &Args,
    mut proxy: Proxy,
    signals: Signals,
    program: &io::Result<Program>,
) -> (strait_proxy::Report, Result<(), Error>) {
    let mut damage = DamageReport::default();
    let mut notes = NoteReport::new(&proxy);
    let mut upgrade: Option<Upgrade> = None;
    let mut has_reopened = false;
    while !signals.terminated.load(Ordering::Relaxed) {
        damage.print(&proxy);
        notes.print(&proxy);
        if signals.reopens.swap(false, Ordering::Relaxed) {
            reopen_log(&proxy);
            // The successor may have opened the old file.
            has_reopened |= upgrade.is_some();
        }
        // A record that is not loaded yet may have been removed: only the loaded index knows that.
        let is_due = signals.upgrades.load(Ordering::Relaxed) && proxy.wait_loaded(Duration::ZERO);
        if is_due && signals.upgrades.swap(false, Ordering::Relaxed) {
            begin_upgrade(&mut upgrade, &proxy, program);
        }
        let Some(under_way) = &mut upgrade else {
            if signals.reloads.swap(false, Ordering::Relaxed) {
                reload(args, &mut proxy);
                notes = NoteReport::new(&proxy);
            }
            std::thread::sleep(SIGNAL_POLL);
            continue;
        };
        // A reload waits: it is for the process that serves afterwards.
        match under_way.step(&mut proxy, SIGNAL_POLL) {
            Progress::UnderWay => {}
            Progress::Failed(why) => {
                not_upgraded(&proxy, &why);
                upgrade = None;
            }
            Progress::HandedOver => {
                if has_reopened {
                    under_way.pass_on(Signal::USR1);
                }
                return drain(proxy, signals, under_way);
            }
        }
    }
    if let Some(upgrade) = upgrade {
        upgrade.cancel();
    }
    notify("STOPPING=1");
    (proxy.stop(), Ok(()))
}

/// Starts the successor, unless one is under way.
fn begin_upgrade(upgrade: &mut Option<Upgrade>, proxy: &Proxy, program: &io::Result<Program>) {
    if upgrade.is_some() {
        return warn(format_args!("not upgraded again: an upgrade is under way\n"));
    }
    let begun = match program {
        Ok(program) => Upgrade::begin(program, proxy),
        Err(error) => Err(format!("find this program: {error}")),
    };
    match begun {
        Ok(begun) => {
            print_stderr(format_args!("upgrade: process {} starts\n", begun.successor()));
            *upgrade = Some(begun);
        }
        Err(why) => not_upgraded(proxy, &why),
    }
}

fn not_upgraded(proxy: &Proxy, why: &str) {
    proxy.note_failed_upgrade();
    warn(format_args!("not upgraded, this process goes on: {why}\n"));
}

/// Lets the connections end after the upgrade; returns the numbers since the start, and an error
/// if the successor has failed.
fn drain(proxy: Proxy, signals: Signals, upgrade: &Upgrade) -> (strait_proxy::Report, Result<(), Error>) {
    let successor = upgrade.successor();
    print_stderr(format_args!("upgraded: process {successor} serves; this one ends with its connections\n"));
    // The successor has read the configuration, perhaps before it was changed.
    if signals.reloads.swap(false, Ordering::Relaxed) {
        upgrade.pass_on(Signal::HUP);
    }
    // It came before anyone could know that this process no longer serves.
    if signals.terminated.load(Ordering::Relaxed) {
        upgrade.pass_on(Signal::TERM);
    }
    if let Err(error) = service::await_notifications(NOTIFIED_MAX) {
        warn(format_args!("{error}\n"));
    }
    std::thread::scope(|scope| {
        let account = scope.spawn(|| proxy.stop());
        let (mut has_ended, mut end) = (false, Ok(()));
        loop {
            // Once more after the last connection.
            let is_last = account.is_finished();
            if !has_ended && let Some(status) = upgrade.status() {
                has_ended = true;
                warn(format_args!(
                    "process {successor} has ended ({status}): start the proxy, unless it was replaced\n"
                ));
                if let Ended::Failed(_) = status {
                    let why =
                        format!("process {successor}, which has replaced this one, has failed ({status})");
                    end = Err(Error::failed(why));
                }
            }
            if is_last {
                break;
            }
            if signals.upgrades.swap(false, Ordering::Relaxed) {
                warn(format_args!("not upgraded: process {successor} has replaced this one\n"));
            }
            std::thread::sleep(SIGNAL_POLL);
        }
        (account.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), end)
    })
}

/// Report of damaged records: a line at a time, with their number.
#[derive(Default)]
struct DamageReport {
    printed: Option<Instant>,
}

impl DamageReport {
    /// Prints a line about damage that was found since the last one, unless that was printed
    /// recently.
    fn print(&mut self, proxy: &Proxy) {
        if self.printed.is_some_and(|printed| printed.elapsed() < DAMAGE_EVERY) {
            return;
        }
        let Some(text) = proxy.take_damage() else { return };
        let count = proxy.report().store.map_or(0, |store| store.corrupt);
        warn(format_args!("{text}; damaged records since the start: {count}\n"));
        self.printed = Some(Instant::now());
    }
}

/// Report of notes that come while the proxy runs, as that a file has expired.
struct NoteReport {
    known: Vec<String>,
    checked: Instant,
}

impl NoteReport {
    /// The present notes are printed already.
    fn new(proxy: &Proxy) -> Self {
        Self { known: proxy.notes(), checked: Instant::now() }
    }

    fn print(&mut self, proxy: &Proxy) {
        if self.checked.elapsed() < NOTES_EVERY {
            return;
        }
        let notes = proxy.notes();
        for note in notes.iter().filter(|note| !self.known.contains(note)) {
            warn(format_args!("{note}\n"));
        }
        *self = Self { known: notes, checked: Instant::now() };
    }
}

/// Returns true if standard output is the access log, which gets no other lines.
fn logs_to_stdout(config: &Config) -> bool {
    config.log.access.as_deref().is_some_and(|path| path == "-")
}

/// Opens sockets and the log, gives up privileges, and starts the workers.
fn start(args: &Args, checked: Checked, signals: Signals) -> Result<Proxy, Error> {
    let config = checked.config();
    let each = FILES_EACH * u64::from(config.limits.connections);
    let allowed = allow_files(FILES_BESIDE + each)?;
    let needed = FILES_BESIDE_MIN + each;
    // Machines that allow fewer files than the default needs are common, and connections beyond
    // the limit wait: warn only about a number that the user chose.
    let is_chosen = config.limits.connections != Config::default().limits.connections;
    if allowed < needed && is_chosen {
        warn(format_args!(
            "{allowed} open files are allowed, and limits.connections needs {needed}: ulimit -n {needed}\n"
        ));
    }
    if args.cache_size.is_some() && config.cache.dir.is_none() {
        warn(format_args!("--cache-size has no effect without --cache-dir: see --memory\n"));
    }
    let mut descriptors = service::inherited_descriptors()?;
    let predecessor = Predecessor::of(&mut descriptors);
    // A file that an editor is writing may be valid, and another one than the author means.
    if let Some(error) = unfinished(args).filter(|_| predecessor.is_some()) {
        return Err(error);
    }
    let listener = |(name, socket)| Ok((name, service::listener(socket)?));
    let sockets = descriptors.into_iter().map(listener).collect::<Result<_, strait_os::Error>>()?;
    let bound = Bound::of(checked, Inherited::new(sockets)).map_err(refused)?;
    let config = bound.config();
    become_and_check(args, config)?;
    check_changes(args, config, |again| bound.check_again(&again));
    // Root keeps the right to write the cache and the log in directories of other users.
    let writes = config.cache.dir.is_some() || config.log.access.is_some();
    process::drop_capabilities(writes && args.user.is_none())?;
    let bound = bound.on_note(|line| warn(format_args!("{line}\n")));
    if let Some(predecessor) = predecessor {
        let explain = |error| as_user(error, args.user.as_deref());
        let proxy = predecessor.replace(bound, signals.terminated, explain)?;
        // The predecessor has notified the service manager.
        announce(&proxy);
        return Ok(proxy);
    }
    let proxy = bound.start(Clock::system()).map_err(|error| as_user(error, args.user.as_deref()))?;
    announce(&proxy);
    notify("READY=1");
    Ok(proxy)
}

/// Adds the remedy to a failure for lack of permission.
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

/// Adds the user of `--user` to a failure for lack of permission.
fn as_user(error: strait_proxy::Error, user: Option<&str>) -> Error {
    match user {
        Some(user) if error.kind() == Kind::Refused => Error::refused(format!("as user {user}: {error}")),
        _ => error.into(),
    }
}

fn announce(proxy: &Proxy) {
    for address in proxy.addresses() {
        print_stderr(format_args!("listening on {address}\n"));
    }
    if let Some(address) = proxy.admin() {
        print_stderr(format_args!("admin page on http://{address}/\n"));
    }
    print_notes(&proxy.notes());
}

fn print_notes(notes: &[String]) {
    for note in notes {
        print_stderr(format_args!("{note}\n"));
    }
}

/// Applies the current configuration file. A mistake in it is reported and changes nothing.
fn reload(args: &Args, proxy: &mut Proxy) {
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", service::monotonic_us()));
    let checked = again(args, |config| proxy.check(config));
    match checked.and_then(|checked| Ok(proxy.adopt_checked(checked)?)) {
        Ok(_) if args.config.is_none() => {
            warn(format_args!("nothing to reload: --config names no file\n"));
        }
        Ok(deferred) if deferred.is_empty() => print_stderr(format_args!("reloaded\n")),
        Ok(deferred) => {
            print_stderr(format_args!(
                "reloaded; these need an upgrade (SIGUSR2) or a restart: {}\n",
                deferred.join(", ")
            ));
        }
        Err(error) => {
            proxy.note_failed_reload();
            let line = error.to_string().replace('\n', "; ");
            warn(format_args!("not reloaded: {line}\n"));
        }
    }
    print_notes(&proxy.notes());
    reopen_log(proxy);
    notify("READY=1");
}

fn reopen_log(proxy: &Proxy) {
    if let Err(error) = proxy.reopen_log() {
        warn(format_args!("the access log is not reopened, and the old file is still written to: {error}\n"));
    }
}

/// Notifies the service manager, if there is one. A failure is reported and ends nothing.
pub(crate) fn notify(state: &str) {
    if let Err(error) = service::notify(state) {
        warn(format_args!("{error}\n"));
    }
}

/// Returns the output of `--check-config` for a valid configuration.
fn as_checked(config: &Config) -> String {
    let listen = config.listen.iter().map(|address| format!("listen {address}\n"));
    let tls = config.tls.listen.iter().map(|address| format!("listen {address} (TLS)\n"));
    let admin = config.admin.listen.map(|address| format!("admin {address}\n"));
    listen.chain(tls).chain(admin).fold("ok\n".to_owned(), |text, line| text + &line)
}

/// Reads the configuration for a reload, and checks it with `check`.
fn again<T>(args: &Args, check: impl FnOnce(Config) -> strait_proxy::Result<T>) -> Result<T, Error> {
    match unfinished(args) {
        Some(error) => checked(args, |config| config.check()).and(Err(error)),
        None => checked(args, check),
    }
}

/// Returns the reason why a reload or an upgrade refuses a file without keys, or without an end of
/// its last line, which is valid at a start: an editor may be writing it.
fn unfinished(args: &Args) -> Option<Error> {
    let path = args.config.as_ref()?;
    let text = std::fs::read_to_string(path).ok()?;
    let why = if Config::is_blank(&text) {
        "the file is empty; is it being written?"
    } else if !text.ends_with('\n') {
        "its last line has no end; is it being written? Otherwise end the line"
    } else {
        return None;
    };
    Some(Error::usage(format!("{}: {why}", path.display())))
}

/// Reads the configuration, and checks it with `check`.
fn checked<T>(args: &Args, check: impl FnOnce(Config) -> strait_proxy::Result<T>) -> Result<T, Error> {
    let _pages = SmallPages::begin();
    let Some(path) = &args.config else {
        return Ok(check(with_options(Config::default(), args))?);
    };
    let of_file = |error: &dyn std::fmt::Display| Error::usage(located(args, &error.to_string()));
    let unread = |error: io::Error| {
        let text = format!("read {}: {error}", path.display());
        if error.kind() == io::ErrorKind::InvalidData { Error::usage(text) } else { Error::failed(text) }
    };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let config = Config::from_toml(&text).map_err(|error| of_file(&error))?;
    check(with_options(config, args)).map_err(|error| match error {
        strait_proxy::Error::Config(_) => of_file(&Config::locate(&text, error)),
        error => error.into(),
    })
}

/// Becomes the user of `--user`, and checks that user's permissions. The log is open already.
fn become_and_check(args: &Args, config: &Config) -> Result<(), Error> {
    let Some(user) = &args.user else { return Ok(()) };
    service::become_user(user)?;
    config.check_directories().map_err(|error| match in_file(args, error) {
        Error::Usage(problems) => Error::Usage(format!("as user {user}: {problems}")),
        error => error,
    })
}

/// Checks the user and the directories of the configuration, for a start and for `--check-config`.
fn check_system(args: &Args, config: &Config) -> Result<(), Error> {
    if let Some(user) = &args.user {
        service::check_user(user)?;
    }
    config.check_places().map_err(|error| in_file(args, error))
}

/// Warns if a reload, which uses `check`, or a rotation of the log will fail. The user of `--user`
/// does both.
fn check_changes(args: &Args, config: &Config, check: impl FnOnce(Config) -> strait_proxy::Result<()>) {
    let user = args.user.as_ref().map_or_else(String::new, |user| format!("as user {user}: "));
    // Without --user the process has read all other files just now.
    let refused = if args.user.is_some() && args.config.is_some() {
        again(args, check).err()
    } else {
        unfinished(args)
    };
    if let Some(error) = refused {
        let line = error.to_string().replace('\n', "; ");
        warn(format_args!("{user}{line}; the proxy starts, and refuses each reload\n"));
    }
    let log = config.log.access.as_ref().filter(|path| path.as_os_str() != "-");
    if let Some(path) = log
        && let Err(error) = OpenOptions::new().append(true).open(path)
        && error.kind() == io::ErrorKind::PermissionDenied
    {
        let path = path.display();
        warn(format_args!(
            "{user}log.access = \"{path}\": {error}; the proxy starts, and cannot open it again after a rotation: chown the file and its directory\n"
        ));
    }
}

/// Warns if the cache is larger than its file system.
fn check_room(args: &Args, config: &Config) {
    if let Err(error) = config.check_room() {
        let error = in_file(args, error);
        warn(format_args!("{error}; the proxy starts, and evicts before the disk is full\n"));
    }
}

/// Adds the file and the line to a mistake of the configuration.
fn in_file(args: &Args, error: strait_proxy::Error) -> Error {
    let text = args.config.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    let error = Config::locate(&text.unwrap_or_default(), error);
    Error::usage(located(args, &error.to_string()))
}

/// Adds the name of the file to each problem.
fn located(args: &Args, problems: &str) -> String {
    let Some(path) = &args.config else { return problems.to_owned() };
    let of_file = |line: &str| format!("{}: {line}", path.display());
    problems.lines().map(of_file).collect::<Vec<_>>().join("\n")
}

/// Overrides a configuration with the options of the command line.
fn with_options(mut config: Config, args: &Args) -> Config {
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    config.origin = args.origin.clone().or(config.origin);
    let dir = args.cache_dir.clone().or(config.cache.dir).or_else(cache_directory);
    config.cache.dir = dir.filter(|dir| !dir.as_os_str().is_empty());
    config.cache.size = args.cache_size.unwrap_or(config.cache.size);
    config.cache.memory = args.memory.unwrap_or(config.cache.memory);
    config.workers = args.workers.unwrap_or(config.workers);
    config.admin.listen = args.admin.or(config.admin.listen);
    config.log.access = args.log.clone().or(config.log.access);
    config.transfer.sendfile &= !args.no_sendfile;
    config.transfer.splice &= !args.no_splice;
    config.transfer.fill = args.fill.unwrap_or(config.transfer.fill);
    config
}

/// Returns the first directory of `CacheDirectory=` in the systemd unit (systemd.exec(5)).
fn cache_directory() -> Option<PathBuf> {
    let all = std::env::var_os("CACHE_DIRECTORY").filter(|all| !all.is_empty())?;
    std::env::split_paths(&all).next()
}
