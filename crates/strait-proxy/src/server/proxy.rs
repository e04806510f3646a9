//! The proxy as a whole: start, reload and shutdown.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strait_store::{Change, OnChange, Stores};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use crate::admin::{self, Site};
use crate::cache::compressor;
use crate::cache::fills::Fills;
use crate::cache::memory::MemoryCache;
use crate::cache::removals::Removals;
use crate::cache::worker::{Shared, descriptors};
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::read::Checked;
use crate::config::settings::Settings;
use crate::io::clock::Clock;
use crate::io::gate::Gates;
use crate::observe::OnNote;
use crate::observe::counters::Counters;
use crate::observe::log::{Log, Writer};
use crate::observe::report::Report;
use crate::server::accept::{Control, work};
use crate::server::checks;
use crate::server::client_limits::ClientLimits;
use crate::server::listen::{Address, Inherited, Listener, Listeners};
use crate::server::notices::NoticeThread;
use crate::server::outputs::OutputThreads;
use crate::server::upgrade::ANSWER_MAX;

/// Interval between two attempts to open a store that another process uses.
const IN_USE_EVERY: Duration = Duration::from_millis(10);

/// Proxy with open sockets, but without threads and store: the caller can drop privileges now.
pub struct Bound {
    config: Config,
    settings: Settings,
    listeners: Listeners,
    is_activated: bool,
    admin: Option<(TcpListener, SocketAddr)>,
    log: Option<(Log, Writer)>,
    log_lost: Arc<AtomicU64>,
    on_note: OnNote,
}

impl fmt::Debug for Bound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Bound").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Bound {
    /// Opens sockets and access log. Uses `inherited` listening sockets if there are any.
    ///
    /// # Errors
    /// The configuration is refused, or a system call fails.
    pub fn new(config: &Config, inherited: Inherited) -> Result<Self> {
        Self::of(config.clone().checked()?, inherited)
    }

    /// Like [`Self::new`], of a configuration that was checked.
    ///
    /// # Errors
    /// A system call fails.
    pub fn of(checked: Checked, mut inherited: Inherited) -> Result<Self> {
        let Checked { config, mut settings } = checked;
        let is_activated = inherited.is_activated();
        let admin = settings.admin.listen.map(|address| match inherited.take_admin(address) {
            Some(socket) => admin::of_socket(socket),
            None => admin::listen_on(address),
        });
        let admin = admin.transpose()?;
        let listeners = Listeners::inherit(&settings, inherited)?;
        settings.ports = listeners.addresses.iter().map(|address| address.port).collect();
        let log_lost = Arc::default();
        let log = config.log.access.as_deref().map(|path| Log::open(path, &log_lost)).transpose()?;
        let on_note: OnNote = Arc::new(|_| {});
        Ok(Self { config, settings, listeners, is_activated, admin, log, log_lost, on_note })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Checks another configuration. Certificates of unchanged files are not parsed again.
    ///
    /// # Errors
    /// As of [`Config::check`].
    pub fn check_again(&self, config: &Config) -> Result<()> {
        self.settings.check_again(config)
    }

    /// Returns true for a reverse proxy.
    pub fn is_reverse(&self) -> bool {
        self.settings.is_reverse()
    }

    /// Sets the function that gets a line for the operator when a directory of the cache, or the
    /// access log, can no longer be used, or can be used again; when a server of a pool changes its
    /// state; and when clients are refused.
    #[must_use]
    pub fn on_note(self, on_note: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { on_note: Arc::new(on_note), ..self }
    }

    /// Starts the proxy.
    ///
    /// # Errors
    /// The store cannot be opened, or threads cannot be started.
    pub fn start(self, clock: Clock) -> Result<Proxy> {
        let mut proxy = self.prepare(clock, Duration::ZERO)?;
        proxy.open();
        Ok(proxy)
    }

    /// Opens the store and starts the threads, but accepts no connection before [`Proxy::open`].
    /// Waits for at most `patience` while another process uses the store.
    ///
    /// # Errors
    /// The store cannot be opened, or threads cannot be started.
    pub fn prepare(self, clock: Clock, patience: Duration) -> Result<Proxy> {
        let Self { mut config, settings, listeners, is_activated, admin, log, log_lost, on_note } = self;
        let store = open_stores(&config, &settings, &on_change(on_note.clone()), patience)?;
        let counters = (0..settings.workers).map(|_| Counters::default()).collect();
        let shared = Arc::new(Shared {
            clock,
            store,
            fills: Fills::default(),
            memory: MemoryCache::new(settings.memory, settings.memory_object),
            generations: <_>::default(),
            scans: <_>::default(),
            compressor: <_>::default(),
            gates: gates(&settings),
            background: <_>::default(),
            descriptors: descriptors(),
            counters,
            origin_http2_abuses: Arc::default(),
            log_lost,
            refusals: <_>::default(),
            spans: Arc::default(),
            heir: <_>::default(),
            failed_upgrades: <_>::default(),
            failed_reloads: <_>::default(),
        });
        let settings = Arc::new(settings);
        let (controls, receivers): (Vec<_>, Vec<_>) =
            (0..settings.workers).map(|_| unbounded_channel()).unzip();
        let site = Arc::new(Site::new(shared.clone(), settings.clone()));
        // Only its keys that take effect at a start are read again, and that there are sites.
        config.site.truncate(1);
        config.site.shrink_to_fit();
        let mut proxy = Proxy {
            config,
            addresses: listeners.addresses,
            opens_admin: None,
            is_activated,
            admin,
            removals: None,
            threads: Vec::new(),
            notices: None,
            outputs: OutputThreads::start(log, &settings, &shared, &on_note)?,
            on_note,
            controls,
            shared,
            checked: watch::Sender::new(settings.clone()),
            settings: Mutex::new(settings),
            site,
        };
        proxy.start_workers(receivers)?;
        proxy.prepare_sockets(listeners.by_worker)?;
        let (checked, shared) = (proxy.checked.subscribe(), proxy.shared.clone());
        proxy.notices = Some(NoticeThread::start(checked, shared, proxy.on_note.clone())?);
        if proxy.settings().is_reverse() {
            let (checked, shared) = (proxy.checked.subscribe(), proxy.shared.clone());
            let run = move || checks::run(checked, &shared.gates, &shared.clock);
            proxy.threads.push(thread("checks".to_owned(), run)?);
            // A reload can add routes that compress.
            let shared = proxy.shared.clone();
            proxy.threads.push(thread("compress".to_owned(), move || compressor::run(&shared))?);
        }
        Ok(proxy)
    }
}

/// Running proxy.
pub struct Proxy {
    config: Config,
    pub(super) addresses: Vec<Address>,
    /// Lets the thread of the admin page accept.
    opens_admin: Option<oneshot::Sender<()>>,
    is_activated: bool,
    /// Socket of the admin page, and its address.
    pub(super) admin: Option<(TcpListener, SocketAddr)>,
    /// Removals of the process that this one has replaced.
    pub(super) removals: Option<Removals>,
    threads: Vec<JoinHandle<()>>,
    notices: Option<NoticeThread>,
    outputs: OutputThreads,
    pub(super) on_note: OnNote,
    pub(super) controls: Vec<UnboundedSender<Control>>,
    pub(crate) shared: Arc<Shared>,
    /// Settings of the active checks, whose thread ends with the sender.
    checked: watch::Sender<Arc<Settings>>,
    settings: Mutex<Arc<Settings>>,
    pub(super) site: Arc<Site>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Proxy").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy.
    ///
    /// # Errors
    /// The configuration is refused, or a system call fails.
    pub fn start(config: &Config, clock: Clock) -> Result<Self> {
        Bound::new(config, Inherited::default())?.start(clock)
    }

    /// Returns true for a reverse proxy.
    pub fn is_reverse(&self) -> bool {
        self.config.is_reverse()
    }

    fn start_workers(&mut self, receivers: Vec<UnboundedReceiver<Control>>) -> Result<()> {
        let client_limits: Arc<ClientLimits> = <_>::default();
        for (lane, controls) in receivers.into_iter().enumerate() {
            let shared = (self.shared.clone(), client_limits.clone());
            let settings = (self.settings(), self.outputs.outputs.clone());
            let name = format!("worker-{lane}");
            self.threads.push(thread(name, move || work(shared, settings, lane, controls))?);
        }
        Ok(())
    }

    /// Prepares the workers and the admin page to accept. All that can fail is done here: when
    /// [`Self::open`] is called, the replaced process has stopped to accept.
    fn prepare_sockets(&mut self, by_worker: Vec<Vec<Listener>>) -> Result<()> {
        let failed = |error| Error::os("listen on", &"the configured addresses", error);
        for answer in self.prepare_workers(by_worker) {
            let answer = answer.recv_timeout(ANSWER_MAX);
            answer.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(failed)?;
        }
        let Some((socket, address)) = &self.admin else { return Ok(()) };
        let failed = |error| Error::os("listen on", address, error);
        let (site, socket) = (self.site.clone(), socket.try_clone().map_err(failed)?);
        let ((opens, opened), (sender, prepared)) = (oneshot::channel(), channel());
        let run = move || admin::serve(&site, socket, &sender, opened);
        self.threads.push(thread("admin".to_owned(), run)?);
        self.opens_admin = Some(opens);
        prepared.recv().unwrap_or_else(|error| Err(io::Error::other(error))).map_err(failed)
    }

    /// Sends each worker its sockets; returns the places of the answers.
    fn prepare_workers(&self, by_worker: Vec<Vec<Listener>>) -> Vec<Receiver<io::Result<()>>> {
        let send = |(control, listeners): (&UnboundedSender<Control>, _)| {
            let (sender, receiver) = channel();
            // Without the worker there is no answer.
            let _ = control.send(Control::Prepare(listeners, sender));
            receiver
        };
        self.controls.iter().zip(by_worker).map(send).collect()
    }

    /// Accepts connections from now on.
    pub fn open(&mut self) {
        if let Some(opens) = self.opens_admin.take() {
            // A thread that has ended accepts nothing.
            let _ = opens.send(());
        }
        self.adopt_settings(&self.settings());
    }

    fn adopt_settings(&self, settings: &Arc<Settings>) {
        for control in &self.controls {
            // A worker that has ended needs no settings.
            let _ = control.send(Control::Adopt(settings.clone(), self.outputs.outputs.clone()));
        }
    }

    /// Returns the first address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0].actual
    }

    /// Returns notes for the operator: missing kernel features and their cost, and OCSP responses
    /// that clients do not get.
    pub fn notes(&self) -> Vec<String> {
        self.settings().notes()
    }

    /// Waits until the store's index is loaded; returns false after `limit`. Until then stored
    /// objects may be fetched again.
    pub fn wait_loaded(&self, limit: Duration) -> bool {
        self.shared.store.as_ref().is_none_or(|store| store.wait_loaded(limit))
    }

    /// Returns all addresses that clients connect to.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| address.actual)
    }

    /// Returns the address of the admin page, if there is one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(_, address)| *address)
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Applies another configuration from the next request of each connection on. No connection is
    /// closed; addresses that are no longer configured are closed after pending connections were
    /// accepted. Returns the keys that take effect only at the next start.
    ///
    /// # Errors
    /// The configuration is refused, or a system call fails: nothing has changed then.
    pub fn reload(&mut self, config: &Config) -> Result<Vec<&'static str>> {
        self.refuse_other_kind(config)?;
        self.adopt_checked(self.check(config.clone())?)
    }

    /// Checks a configuration for [`Self::adopt_checked`]. Certificates of unchanged files are not
    /// parsed again.
    ///
    /// # Errors
    /// As of [`Config::check`].
    pub fn check(&self, config: Config) -> Result<Checked> {
        let settings = Settings::after(&config, &self.settings())?;
        Ok(Checked { config, settings })
    }

    /// Applies a configuration as [`Self::reload`] does, after [`Self::check`].
    ///
    /// # Errors
    /// The configuration makes another kind of proxy, or a system call fails: nothing has changed
    /// then.
    pub fn adopt_checked(&mut self, checked: Checked) -> Result<Vec<&'static str>> {
        let Checked { config, mut settings } = checked;
        let config = &config;
        self.refuse_other_kind(config)?;
        let before = self.settings();
        settings.workers = before.workers;
        settings.closing = before.closing.clone();
        settings.via = settings.via.after(&before.via);
        if self.is_activated {
            settings.ports.clone_from(&before.ports);
        }
        let opened = Listeners::open(&settings, &self.addresses)?;
        let (path, shared, on_note) = (config.log.access.as_deref(), &self.shared, &self.on_note);
        let outputs = self.outputs.prepare(path, (&before, &settings), shared, on_note)?;
        for answer in self.prepare_workers(opened.by_worker) {
            // A late worker still prepares before it adopts. An ended one needs nothing.
            if let Ok(Err(error)) = answer.recv_timeout(ANSWER_MAX) {
                drop(self.prepare_workers(self.controls.iter().map(|_| Vec::new()).collect()));
                return Err(Error::os("listen on", &"the new addresses", error));
            }
        }
        let deferred = self.deferred(config);
        self.shared.memory.limit(settings.memory);
        self.shared.gates.limit(settings.gates);
        self.shared.gates.limit_servers(settings.server_limits());
        let now = self.shared.clock.now();
        settings.sites.iter().for_each(|sites| sites.forget_checks(now));
        let settings = Arc::new(settings);
        self.outputs.outputs = outputs;
        self.adopt_settings(&settings);
        self.addresses.retain(|address| settings.ports.contains(&address.port));
        self.addresses.extend(opened.addresses);
        self.site.adopt(settings.clone());
        self.checked.send_replace(settings.clone());
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        Ok(deferred)
    }

    /// Counts a reload that failed.
    pub fn note_failed_reload(&self) {
        self.shared.failed_reloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Refuses to change the kind of proxy. A reverse proxy without origins would connect
    /// wherever clients ask; a half-written file could cause that.
    fn refuse_other_kind(&self, config: &Config) -> Result<()> {
        let change = match (self.config.is_reverse(), config.is_reverse()) {
            (true, false) => "missing; this reverse proxy would become a forward proxy",
            (false, true) => "set; this forward proxy would become a reverse proxy",
            _ => return Ok(()),
        };
        let remedy = "check that the file is complete; restart to change the kind of proxy";
        let key = if self.config.origin.is_some() || config.origin.is_some() { "origin" } else { "site" };
        Err(Error::Config(format!("{key}: {change}; {remedy}")))
    }

    /// Returns the changed keys that take effect only at the next start.
    fn deferred(&self, config: &Config) -> Vec<&'static str> {
        let own = &self.config;
        let (cache, new) = (&own.cache, &config.cache);
        [
            ("workers", own.workers != config.workers),
            ("cache.dir", cache.dir != new.dir),
            ("cache.further_dirs", cache.further_dirs != new.further_dirs),
            ("cache.size", cache.size != new.size),
            ("cache.sync", cache.sync != new.sync),
            ("cache.scrub", cache.scrub != new.scrub),
            ("cache.scrub_every", cache.scrub_every != new.scrub_every),
            ("admin.listen", own.admin.listen != config.admin.listen),
            ("listen", self.is_activated && own.listen != config.listen),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// Reopens the access log, after it was renamed.
    ///
    /// # Errors
    /// It cannot be opened: lines still go to the old file.
    pub fn reopen_log(&self) -> Result<()> {
        self.outputs.outputs.log.as_ref().map_or(Ok(()), Log::reopen)
    }

    /// Returns a text about the last damaged record that was dropped, once.
    pub fn take_damage(&self) -> Option<String> {
        self.shared.store.as_ref().and_then(|store| store.take_damage())
    }

    /// Returns the numbers since the start.
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Shuts the proxy down: accepts no more connections, ends idle ones at once, new ones that
    /// send no request soon, and others after their response. Returns the numbers since the start.
    pub fn stop(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.settings().closing.stop();
        // With this open, the kernel would go on to queue connections.
        self.admin = None;
        self.opens_admin = None;
        for control in self.controls.drain(..) {
            let _ = control.send(Control::Drain);
        }
        self.site.end();
        self.shared.compressor.end();
        if let Some(notices) = self.notices.take() {
            notices.end();
        }
        // The receiver ends with its sender.
        self.checked = watch::Sender::new(self.settings());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
        self.outputs.end();
        if let Some(removals) = self.removals.take() {
            // The replaced process may still send some, which the successor of this one needs.
            let settings = self.settings();
            let is_passed_on = settings.closing.is_handed_over();
            removals.end(if is_passed_on { settings.timeouts.drain } else { Duration::ZERO });
        }
        self.shared.heir.end();
        if let Some(store) = &self.shared.store {
            store.close();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end();
    }
}

fn thread(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name).spawn(work);
    started.map_err(|error| Error::os("start", &"a thread", error))
}

/// Returns the gates with the limits of all servers.
fn gates(settings: &Settings) -> Arc<Gates> {
    let gates = Gates::new(settings.gates);
    gates.limit_servers(settings.server_limits());
    Arc::new(gates)
}

/// Opens the stores of all directories; returns `None` if there are none. Waits for at most
/// `patience` while another process uses them.
fn open_stores(
    config: &Config,
    settings: &Settings,
    on_change: &OnChange,
    patience: Duration,
) -> Result<Option<Arc<Stores>>> {
    let sync_every = (config.cache.sync > 0).then(|| Duration::from_secs(config.cache.sync));
    let scrub = (config.cache.scrub.as_u64() > 0).then(|| strait_store::Scrub {
        bytes_per_second: config.cache.scrub.as_u64(),
        every: Duration::from_secs(config.cache.scrub_every),
    });
    let configs: Vec<_> = config
        .cache
        .dirs()
        .map(|dir| strait_store::Config {
            capacity_bytes: config.cache.size.as_u64(),
            // Another one for the compressor, so that no worker waits for its writes.
            lanes: settings.workers + 1,
            sync_every,
            scrub,
            ..strait_store::Config::new(dir)
        })
        .collect();
    if configs.is_empty() {
        return Ok(None);
    }
    let begin = Instant::now();
    loop {
        match Stores::open(configs.clone(), on_change) {
            Err(strait_store::Error::InUse(_)) if begin.elapsed() < patience => {
                std::thread::sleep(IN_USE_EVERY);
            }
            opened => return Ok(Some(opened?)),
        }
    }
}

/// Returns the callback that notes the changes of directories.
pub(super) fn on_change(on_note: OnNote) -> OnChange {
    Arc::new(move |change| on_note(&describe(change)))
}

fn describe(change: &Change<'_>) -> String {
    match change {
        Change::Lost(dir, error) => format!(
            "the cache lost {}: {error}; its objects are fetched again, and it is tried each second",
            dir.display()
        ),
        Change::Back(dir) => format!("the cache uses {} again; it is empty", dir.display()),
        Change::Reopened(dir) => format!("the cache uses {} again, with its objects", dir.display()),
    }
}
