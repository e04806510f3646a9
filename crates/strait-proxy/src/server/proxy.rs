//! The proxy as a whole: start, reload and shutdown.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use strait_store::{Change, OnChange, Stores};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::admin::{self, Site};
use crate::cache::compressor;
use crate::cache::fills::Fills;
use crate::cache::memory::MemoryCache;
use crate::cache::worker::{Shared, descriptors};
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::settings::{Port, Settings};
use crate::io::clock::Clock;
use crate::io::gate::Gates;
use crate::observe::OnNote;
use crate::observe::counters::Counters;
use crate::observe::log::{Log, Writer};
use crate::observe::report::Report;
use crate::server::accept::{Control, work};
use crate::server::checks;
use crate::server::client_limits::ClientLimits;
use crate::server::listen::{Listener, Listeners};

/// Proxy with open sockets, but without threads and store: the caller can drop privileges now.
pub struct Bound {
    config: Config,
    settings: Settings,
    listeners: Listeners,
    is_inherited: bool,
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
    pub fn new(config: &Config, inherited: Vec<TcpListener>) -> Result<Self> {
        let mut settings = Settings::new(config)?;
        let is_inherited = !inherited.is_empty();
        let listeners = if is_inherited {
            Listeners::inherit(&settings, inherited)?
        } else {
            Listeners::open(&settings, &[])?
        };
        settings.ports = listeners.addresses.iter().map(|(port, _)| *port).collect();
        let admin = settings.admin.listen.map(admin::listen_on).transpose()?;
        let log_lost = Arc::default();
        let log = config.log.access.as_deref().map(|path| Log::open(path, &log_lost)).transpose()?;
        let on_note: OnNote = Arc::new(|_| {});
        Ok(Self { config: config.clone(), settings, listeners, is_inherited, admin, log, log_lost, on_note })
    }

    /// Sets the function that gets a line for the operator when a directory of the cache, or the
    /// access log, can no longer be used, or can be used again.
    #[must_use]
    pub fn on_note(self, on_note: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { on_note: Arc::new(on_note), ..self }
    }

    /// Starts the proxy.
    ///
    /// # Errors
    /// The store cannot be opened, or threads cannot be started.
    pub fn start(self, clock: Clock) -> Result<Proxy> {
        let Self { config, settings, listeners, is_inherited, admin, log, log_lost, on_note } = self;
        let store = open_stores(&config, &settings, on_note.clone())?;
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
        });
        let settings = Arc::new(settings);
        let (controls, receivers): (Vec<_>, Vec<_>) =
            (0..settings.workers).map(|_| unbounded_channel()).unzip();
        let site = Arc::new(Site::new(shared.clone(), settings.clone()));
        let (log, writer) = log.unzip();
        let mut proxy = Proxy {
            config,
            addresses: listeners.addresses,
            is_inherited,
            admin: admin.as_ref().map(|(_, address)| *address),
            threads: Vec::new(),
            logs: writer.map(|writer| writer.start(on_note.clone())).transpose()?.into_iter().collect(),
            log,
            on_note,
            controls,
            shared,
            checked: watch::Sender::new(settings.clone()),
            settings: Mutex::new(settings),
            site,
        };
        proxy.start_workers(listeners.by_worker, receivers)?;
        if proxy.settings().is_reverse() {
            let (checked, shared) = (proxy.checked.subscribe(), proxy.shared.clone());
            let run = move || checks::run(checked, &shared.gates, &shared.clock);
            proxy.threads.push(thread("checks".to_owned(), run)?);
            // A reload can add routes that compress.
            let shared = proxy.shared.clone();
            proxy.threads.push(thread("compress".to_owned(), move || compressor::run(&shared))?);
        }
        if let Some((socket, _)) = admin {
            let site = proxy.site.clone();
            proxy.threads.push(thread("admin".to_owned(), move || admin::serve(&site, socket))?);
        }
        Ok(proxy)
    }
}

/// Running proxy.
pub struct Proxy {
    config: Config,
    addresses: Vec<(Port, SocketAddr)>,
    is_inherited: bool,
    admin: Option<SocketAddr>,
    threads: Vec<JoinHandle<()>>,
    /// The access log, if there is one; its thread ends with the last copy.
    log: Option<Log>,
    logs: Vec<JoinHandle<()>>,
    on_note: OnNote,
    controls: Vec<UnboundedSender<Control>>,
    pub(crate) shared: Arc<Shared>,
    /// Settings of the active checks, whose thread ends with the sender.
    checked: watch::Sender<Arc<Settings>>,
    settings: Mutex<Arc<Settings>>,
    site: Arc<Site>,
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
        Bound::new(config, Vec::new())?.start(clock)
    }

    fn start_workers(
        &mut self,
        listeners: Vec<Vec<Listener>>,
        receivers: Vec<UnboundedReceiver<Control>>,
    ) -> Result<()> {
        let client_limits: Arc<ClientLimits> = <_>::default();
        for (lane, (listeners, controls)) in listeners.into_iter().zip(receivers).enumerate() {
            let shared = (self.shared.clone(), client_limits.clone());
            let settings = (self.settings(), self.log.clone());
            let name = format!("worker-{lane}");
            self.threads.push(thread(name, move || work(shared, settings, lane, listeners, controls))?);
        }
        Ok(())
    }

    /// Returns the first address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0].1
    }

    /// Returns notes for the operator: missing kernel features and their cost.
    pub fn notes(&self) -> Vec<String> {
        self.settings().tls.note.iter().cloned().collect()
    }

    /// Waits until the store's index is loaded; returns false after `limit`. Until then stored
    /// objects may be fetched again.
    pub fn wait_loaded(&self, limit: Duration) -> bool {
        self.shared.store.as_ref().is_none_or(|store| store.wait_loaded(limit))
    }

    /// Returns all addresses that clients connect to.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|(_, address)| *address)
    }

    /// Returns the address of the admin page, if there is one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    fn settings(&self) -> Arc<Settings> {
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
        let before = self.settings();
        let mut settings = Settings::after(config, Some(&before))?;
        settings.workers = before.workers;
        settings.closing = before.closing.clone();
        settings.via = settings.via.after(&before.via);
        if self.is_inherited {
            settings.ports.clone_from(&before.ports);
        }
        let opened = Listeners::open(&settings, &self.addresses)?;
        let log = match (&config.log.access, &self.log) {
            (None, _) => None,
            (Some(path), Some(log)) if log.path == *path => Some(log.clone()),
            (Some(path), _) => {
                let (log, writer) = Log::open(path, &self.shared.log_lost)?;
                self.logs.push(writer.start(self.on_note.clone())?);
                Some(log)
            }
        };
        let deferred = self.deferred(config);
        self.shared.memory.limit(settings.memory);
        self.shared.gates.limit(settings.gates);
        self.shared.gates.limit_servers(settings.server_limits());
        let settings = Arc::new(settings);
        for (control, listeners) in self.controls.iter().zip(opened.by_worker) {
            // A worker that has ended needs no settings.
            let _ = control.send(Control::Adopt(settings.clone(), log.clone(), listeners));
        }
        self.addresses.retain(|(port, _)| settings.ports.contains(port));
        self.addresses.extend(opened.addresses);
        self.log = log;
        self.site.adopt(settings.clone());
        self.checked.send_replace(settings.clone());
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        Ok(deferred)
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
            ("listen", self.is_inherited && own.listen != config.listen),
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
        self.log.as_ref().map_or(Ok(()), Log::reopen)
    }

    /// Returns a text about the last damaged record that was dropped, once.
    pub fn take_damage(&self) -> Option<String> {
        self.shared.store.as_ref().and_then(|store| store.take_damage())
    }

    /// Returns the numbers since the start.
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Shuts the proxy down: accepts no more connections, ends idle ones at once and others after
    /// their response. Returns the numbers since the start.
    pub fn stop(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.settings().closing.store(true, Ordering::Relaxed);
        for control in self.controls.drain(..) {
            let _ = control.send(Control::Drain);
        }
        self.site.end();
        self.shared.compressor.end();
        // The receiver ends with its sender.
        self.checked = watch::Sender::new(self.settings());
        for thread in self.threads.drain(..) {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
        // The log's thread ends with the last copy of the log.
        self.log = None;
        for thread in self.logs.drain(..) {
            let _ = thread.join();
        }
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

/// Opens the stores of all directories; returns `None` if there are none.
fn open_stores(config: &Config, settings: &Settings, on_note: OnNote) -> Result<Option<Arc<Stores>>> {
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
            lanes: settings.workers,
            sync_every,
            scrub,
            ..strait_store::Config::new(dir)
        })
        .collect();
    let on_change: OnChange = Arc::new(move |change| on_note(&describe(change)));
    if configs.is_empty() { Ok(None) } else { Ok(Some(Stores::open(configs, &on_change)?)) }
}

fn describe(change: &Change<'_>) -> String {
    match change {
        Change::Lost(dir, error) => format!(
            "the cache lost {}: {error}; its objects are fetched again, and it is tried each second",
            dir.display()
        ),
        Change::Back(dir) => format!("the cache uses {} again; it is empty", dir.display()),
    }
}
