//! Worker: the state of one thread, and the state that all threads share.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strait_http::cache_control::{OfRequest, OfResponse};
use strait_http::fields::Fields;
use strait_http::lifetimes::Lifetimes;
use strait_store::Stores;
use strait_transfer::descriptors::Budget;
use strait_transfer::pipe::Pipes;
use tokio::time::Instant;

use crate::cache::compressor::Compressor;
use crate::cache::disk::{self, Found, NotFound, Query, Seen};
use crate::cache::fill_costs::{FillCosts, MEASURED_BYTES_MIN};
use crate::cache::fills::Fills;
use crate::cache::generation::Generations;
use crate::cache::hit_for_miss::HitForMiss;
use crate::cache::memory::MemoryCache;
use crate::cache::object::{Body, Home, Object};
use crate::cache::removals::Heir;
use crate::cache::scans::Scans;
use crate::config::cache_rules::CacheRules;
use crate::config::file::{FillMethod, Format};
use crate::config::keys::KeyFields;
use crate::config::limits::{files_allowed, files_open, files_shared};
use crate::config::route_limits::RouteLimits;
use crate::config::settings::Settings;
use crate::config::sites::{Manner, Resource};
use crate::config::trace::Trace;
use crate::io::clock::Clock;
use crate::io::gate::Gates;
use crate::io::head::Heads;
use crate::io::splice::Splicing;
use crate::observe::Outputs;
use crate::observe::access::Account;
use crate::observe::counters::{Counters, SpanCounters, Sum};
use crate::observe::log::Gathered;
use crate::observe::refusals::{Refusal, Refusals};
use crate::observe::report::Report;
use crate::upstream::background::Background;
use crate::upstream::dns::Dns;
use crate::upstream::links;
use crate::upstream::pool::{Pool, Upstream};

/// Time after the start in which a miss waits for the journal of the store's index: for its check,
/// and for the part with the requested key, which is loaded next.
const JOURNAL_WAIT: Duration = Duration::from_millis(900);
/// Time after the start in which a miss waits for the scan of the records that the journal does not
/// know. A scan of all records can take long; after this time no request waits for it.
const SCAN_WAIT: Duration = Duration::from_millis(500);

/// State that all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) store: Option<Arc<Stores>>,
    pub(crate) fills: Fills,
    /// The memory cache.
    pub(crate) memory: MemoryCache,
    /// Generations of objects in memory alone.
    pub(crate) generations: Arc<Generations>,
    /// Scans for purges by tag.
    pub(crate) scans: Scans,
    /// Responses that wait to be compressed.
    pub(crate) compressor: Compressor,
    /// Places for connections to origins in use, and for request bodies that are read ahead.
    pub(crate) gates: Arc<Gates>,
    /// Fetches without a waiting client.
    pub(crate) background: Arc<Background>,
    /// Files that connections and pipes of all workers may have open.
    pub(crate) descriptors: Arc<Budget>,
    /// Counters of each worker.
    pub(crate) counters: Box<[Counters]>,
    /// HTTP/2 connections to origins that exceeded a limit.
    pub(crate) origin_http2_abuses: Arc<links::Abuses>,
    /// Lines of the access log that could not be written.
    pub(crate) log_lost: Arc<AtomicU64>,
    /// Refused connections and HTTP/2 requests.
    pub(crate) refusals: Refusals,
    /// Exported spans.
    pub(crate) spans: Arc<SpanCounters>,
    /// Process that takes over the store.
    pub(crate) heir: Heir,
    /// Number of upgrades that failed.
    pub(crate) failed_upgrades: AtomicU64,
    /// Number of reloads that failed.
    pub(crate) failed_reloads: AtomicU64,
}

impl Shared {
    /// Returns the lane of the store in which the compressor writes.
    pub(crate) fn compressor_lane(&self) -> usize {
        self.counters.len()
    }

    /// Returns the numbers of all workers and of the store.
    pub(crate) fn report(&self) -> Report {
        let store = self.store.as_ref().map(|store| store.stats());
        Report::of(&self.sum(), self.fills.count(), store)
    }

    /// Returns the sums of all workers.
    pub(crate) fn sum(&self) -> Sum {
        let mut sum = Sum::of(&*self.counters);
        sum.log_dropped += self.log_lost.load(Ordering::Relaxed);
        sum
    }

    /// Returns the number of client connections of all workers. A stream of HTTP/2 counts as one:
    /// it holds as much memory.
    pub(crate) fn connections(&self) -> usize {
        let open = |counters: &Counters| counters.open.get() + counters.http2_open.get();
        self.counters.iter().map(|counters| open(counters) as usize).sum()
    }
}

/// Worker with the settings and the outputs that were in force when a request was received, and
/// with the key fields of its route.
#[derive(Debug)]
pub(crate) struct Worker {
    settings: Arc<Settings>,
    /// Request fields that are part of the key, for lookups as well as for stored responses.
    key_fields: KeyFields,
    /// Cache policy of the route.
    cache: Option<Arc<CacheRules>>,
    outputs: Outputs,
    local: Rc<Local>,
}

impl Deref for Worker {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.local
    }
}

/// State of one worker.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    /// Number of the worker, and of its lane in the store.
    pub(crate) lane: usize,
    pub(crate) pool: RefCell<Pool>,
    pub(crate) links: links::OfWorker,
    /// Addresses of origins.
    pub(crate) dns: Dns,
    pub(crate) pipes: RefCell<Pipes>,
    pub(crate) hit_for_miss: HitForMiss,
    pub(crate) fill_costs: RefCell<FillCosts>,
    /// Lines of the access log.
    pub(crate) lines: Gathered,
    pub(crate) heads: Heads,
    key: RefCell<String>,
    random: RandomState,
    random_count: Cell<u64>,
    /// True once the store is known to be loaded.
    is_loaded: Cell<bool>,
    /// Start of the time in which a miss waits for the store to be loaded.
    loading_since: Instant,
}

/// Returns the budget of files that connections and pipes share. Pipes of all workers leave a part
/// of it to connections.
pub(crate) fn descriptors() -> Arc<Budget> {
    budget(files_allowed())
}

fn budget(allowed: usize) -> Arc<Budget> {
    let shared = files_shared(allowed) as u64;
    Budget::new(shared, shared)
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        settings: Arc<Settings>,
        outputs: Outputs,
        lane: usize,
    ) -> Rc<Self> {
        let local = Rc::new(Local {
            pool: RefCell::new(Pool::new(settings.origin_idle_max)),
            links: links::OfWorker::default(),
            dns: Dns::new(settings.dns.clone()),
            fill_costs: RefCell::default(),
            pipes: RefCell::new(Pipes::sharing(shared.descriptors.clone())),
            hit_for_miss: HitForMiss::default(),
            lines: Gathered::default(),
            heads: Heads::default(),
            key: RefCell::default(),
            random: RandomState::new(),
            random_count: Cell::default(),
            is_loaded: Cell::default(),
            loading_since: Instant::now(),
            shared,
            lane,
        });
        let key_fields = settings.common_key_fields.clone();
        Rc::new(Self { settings, key_fields, cache: None, outputs, local })
    }

    /// Returns the worker with other settings and outputs.
    pub(crate) fn with(&self, settings: Arc<Settings>, outputs: Outputs) -> Rc<Self> {
        self.pool.borrow_mut().limit(settings.origin_idle_max);
        self.dns.adopt(&settings.dns);
        let key_fields = settings.common_key_fields.clone();
        Rc::new(Self { settings, key_fields, cache: None, outputs, local: self.local.clone() })
    }

    /// Returns the worker for requests of a route, which may have key fields and a cache policy of
    /// its own.
    pub(crate) fn of_route(self: &Rc<Self>, manner: Manner<'_>) -> Rc<Self> {
        let cache = manner.rules.and_then(|rules| rules.cache.clone());
        if manner.key_fields.is_none() && cache.is_none() {
            return self.clone();
        }
        let (settings, outputs) = (self.settings.clone(), self.outputs.clone());
        let key_fields = manner.key_fields.unwrap_or(&self.key_fields).clone();
        Rc::new(Self { settings, key_fields, cache, outputs, local: self.local.clone() })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn key_fields(&self) -> &KeyFields {
        &self.key_fields
    }

    /// Returns the lifetimes that the policy gives a response to `request`.
    pub(crate) fn lifetimes(
        &self,
        request: &Fields<'_>,
        status: u16,
        (fields, directives): (&Fields<'_>, &OfResponse),
        received: u64,
    ) -> Lifetimes {
        let policy = self.cache.as_ref().map_or(self.settings.lifetimes, |cache| cache.lifetimes);
        let policy = if self.is_for_one(request) { policy.for_one() } else { policy };
        policy.lifetimes(status, fields, directives, received)
    }

    /// Returns true if a request has credentials, or a cookie that is not part of the key.
    pub(crate) fn is_for_one(&self, request: &Fields<'_>) -> bool {
        request.has("authorization") || self.has_other_cookie(request)
    }

    /// Returns true if a request has a cookie that is not part of the key.
    pub(crate) fn has_other_cookie(&self, request: &Fields<'_>) -> bool {
        request.has("cookie") && self.cache.as_ref().is_none_or(|cache| cache.has_other_cookie(request))
    }

    /// Finds the response to a request, in memory or in the store.
    pub(crate) fn find(&self, hash: u64, key: &str, request: &Fields<'_>) -> Result<Arc<Object>, NotFound> {
        let query = self.query(hash, key, request);
        let in_memory = self.find_in_memory(&query);
        if let Some(object) =
            in_memory.filter(|object| !object.is_worth_memory(self.settings.memory_body_max))
        {
            return Ok(object);
        }
        let Some(store) = &self.shared.store else { return self.other_variants(&query) };
        // An object that is invalidated while it is read must not get into memory.
        let generation = self.shared.generations.take(hash);
        // Reading an object in one piece verifies its checksum, also if it is sent from its file
        // later.
        match disk::find(store, &query, self.settings.memory_object) {
            Ok(Found { object: found, seen }) => {
                let found = found.in_memory_up_to(self.settings.memory_body_max);
                let object = Arc::new(found);
                // A response that came meanwhile may be more recent, or the object was removed.
                let is_current = || generation.holds(key) && object.is_alive() && seen.is_all(store, hash);
                // Another worker may add parts to an incomplete object.
                if object.is_whole() {
                    let found = (object.clone(), seen.rivals.clone());
                    self.shared.memory.insert(hash, found, query.keys, is_current);
                }
                Ok(object)
            }
            // An object that the store has refused is in memory alone.
            Err(NotFound(None)) => self.other_variants(&query),
            Err(others) => Err(others),
        }
    }

    /// Returns the key and the rules of a lookup.
    pub(crate) fn query<'a, 'b>(&'a self, hash: u64, key: &'a str, request: &'a Fields<'b>) -> Query<'a, 'b> {
        Query { hash, key, request, keys: &self.key_fields, policy: &self.settings.storing }
    }

    /// Returns the error for a key with objects in memory that do not answer the request.
    fn other_variants(&self, query: &Query<'_, '_>) -> Result<Arc<Object>, NotFound> {
        let is_match = |object: &Object| object.is_for(query.key) && object.is_alive();
        let other = self.shared.memory.peek(query.hash, is_match);
        let variant = other.and_then(|other| other.variant_of(query.request, query.keys));
        Err(NotFound(variant))
    }

    /// Counts a hit on a stored response.
    pub(crate) fn touch(&self, object: &Object) {
        if let Some(store) = &self.shared.store {
            object.records().for_each(|record| store.touch(record));
        }
    }

    /// Returns the stored responses that match a request and can be validated, fresh or stale, one
    /// for each variant.
    pub(crate) fn candidates(&self, hash: u64, key: &str, request: &Fields<'_>) -> Vec<Arc<Object>> {
        let query = self.query(hash, key, request);
        let is_match = |object: &Object| {
            object.is_for(key)
                && object.is_alive()
                && object.is_allowed(query.policy)
                && object.matches(request, query.keys)
        };
        let mut all = self.shared.memory.all(hash, is_match);
        let stored = self.shared.store.as_ref().map(|store| disk::candidates(store, &query));
        for object in stored.into_iter().flatten() {
            if !all.iter().any(|other| other.is_for_same(&object)) {
                all.push(Arc::new(object));
            }
        }
        all
    }

    /// Finds the response to a request in memory.
    pub(crate) fn find_in_memory(&self, query: &Query<'_, '_>) -> Option<Arc<Object>> {
        let is_wanted = |object: &Object| {
            object.is_for(query.key)
                && object.is_alive()
                && object.is_allowed(query.policy)
                && object.matches(query.request, query.keys)
        };
        self.shared.memory.find(query.hash, query.request, is_wanted)
    }

    /// Replaces the object that answers the same requests, unless that is more recent. A new object
    /// in the store enters memory on its next request, because most objects have none.
    pub(crate) fn replace(&self, hash: u64, object: &Arc<Object>) {
        let (keys, store) = (&self.key_fields, self.shared.store.as_ref());
        let seen = match store {
            Some(store) => disk::replace(store, hash, object, keys),
            None => Some(Seen::default()),
        };
        let Some(seen) = seen else { return };
        let has_seen_all = || store.is_none_or(|store| seen.is_all(store, hash));
        let is_current = || object.is_alive() && object.is_current() && has_seen_all();
        self.shared.memory.replace(hash, (object, seen.rivals.clone()), keys, is_current);
    }

    /// Removes one object.
    pub(crate) fn discard(&self, hash: u64, object: &Object) {
        if let Some(store) = &self.shared.store {
            object.records().for_each(|record| store.remove(record));
        }
        self.shared.memory.remove(hash, |other| other.is_for_same(object));
    }

    /// Returns the directives of a request from `client`, without those that `access.refresh` does
    /// not allow it.
    pub(crate) fn directives(&self, client: IpAddr, fields: &Fields<'_>) -> OfRequest {
        let directives = OfRequest::of(fields);
        if self.settings.access.allows_refresh(client) { directives } else { directives.without_refresh() }
    }

    /// Closes connections that were idle for too long, and removes dead objects from memory.
    pub(crate) fn tidy(&self) {
        self.shared.memory.tidy();
        self.pool.borrow_mut().tidy(self.settings.timeouts.origin_idle);
        self.links.borrow_mut().tidy(self.settings.origin_idle_max);
        let descriptors = &self.shared.descriptors;
        if let (true, Some(open)) = (descriptors.is_lowered(), files_open()) {
            descriptors.recover(files_allowed().saturating_sub(open) as u64);
        }
    }

    /// Returns the state that requests to origins need.
    pub(crate) fn upstream(&self) -> Upstream<'_> {
        let counters = self.counters();
        Upstream {
            settings: &self.settings,
            limits: RouteLimits::default(),
            clock: &self.shared.clock,
            pool: &self.pool,
            links: &self.links,
            dns: &self.dns,
            pipes: &self.pipes,
            heads: &self.heads,
            gates: &self.shared.gates,
            background: &self.shared.background,
            descriptors: &self.shared.descriptors,
            opened: &counters.opened,
            reused: &counters.reused,
            http2_abuses: &self.shared.origin_http2_abuses,
        }
    }

    /// Returns the pipes and the settings for their use.
    pub(crate) fn splicing(&self) -> Splicing<'_> {
        Splicing { pipes: &self.pipes, transfer: &self.settings.transfer }
    }

    /// Returns how a body of `len` bytes moves into the store: the method, which is not `Auto`, and
    /// whether its CPU time is to be measured.
    pub(crate) fn fill_method(&self, len: u64) -> (FillMethod, bool) {
        let transfer = &self.settings.transfer;
        match transfer.fill {
            _ if !transfer.splice => (FillMethod::Copy, false),
            FillMethod::Auto if len < MEASURED_BYTES_MIN => (FillMethod::Splice, false),
            FillMethod::Auto => {
                let stats = self.shared.store.as_ref().map(|store| store.stats()).unwrap_or_default();
                let hash_ns_per_byte = stats.scrub_cpu_ns as f64 / stats.scrubbed_bytes.max(1) as f64;
                (self.fill_costs.borrow_mut().choose(hash_ns_per_byte), true)
            }
            method => (method, false),
        }
    }

    /// Returns true if an output has the request of the exchange.
    pub(crate) fn outputs_request(&self, trace: Option<&Trace>) -> bool {
        let is_sampled = || trace.is_some_and(|trace| trace.context.is_sampled());
        self.outputs.log.is_some() || (self.outputs.spans.is_some() && is_sampled())
    }

    /// Returns true if an output has the traces of exchanges.
    pub(crate) fn outputs_traces(&self) -> bool {
        let logs = self.outputs.log.is_some() && self.settings.log_format == Format::Json;
        logs || self.outputs.spans.is_some()
    }

    /// Returns true if the log has the reasons of the proxy's own responses.
    pub(crate) fn logs_reasons(&self) -> bool {
        let has_reasons = matches!(self.settings.log_format, Format::Json | Format::Combined);
        self.outputs.log.is_some() && has_reasons
    }

    /// Returns the identification of a request; `None` if none is configured.
    pub(crate) fn trace(&self, fields: &Fields<'_>) -> Option<Trace> {
        self.settings.tracing.of(fields, || self.random())
    }

    /// Counts and logs a finished exchange, and exports its span.
    pub(crate) fn account(&self, account: &Account<'_, '_>) {
        self.counters().count(account);
        let is_logged = || account.record.status >= 400 || self.settings.log_sample.takes(|| self.random());
        let log = self.outputs.log.as_ref().filter(|_| is_logged());
        // Queries can be secret: the collector gets none that the log does not get.
        if let Some(spans) = &self.outputs.spans {
            spans.add(account, log.is_some());
        }
        if let Some(log) = log {
            self.lines.add(log, self.settings.log_format, account, &self.counters().log_dropped);
        }
    }
}

impl Local {
    /// Returns its counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters[self.lane]
    }

    /// Counts a refused connection, or a refused request of an HTTP/2 connection.
    pub(crate) fn note_refusal(&self, refusal: Refusal, client: IpAddr, is_stream: bool) {
        self.counters().refused[refusal as usize].add(1);
        self.shared.refusals.note(refusal, client, is_stream);
    }

    pub(crate) fn now(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Returns an unpredictable number: a keyed hash of a counter.
    pub(crate) fn random(&self) -> u64 {
        self.random_count.set(self.random_count.get() + 1);
        self.random.hash_one(self.random_count.get())
    }

    /// Calls `look` with the hash and the key of a resource.
    pub(crate) fn with_key<T>(&self, resource: &Resource<'_>, look: impl FnOnce(u64, &str) -> T) -> T {
        let mut key = self.key.borrow_mut();
        key.clear();
        resource.write_key(&mut key);
        look(strait_store::hash_of(key.as_bytes()), &key)
    }

    /// Waits until more of the store's index is loaded than at the last lookup of `hash`, within
    /// the time for it. `seen` is the state of the lookups of one request, `None` at first. Returns
    /// false if another lookup finds nothing more.
    pub(crate) async fn wait_loading(&self, hash: u64, seen: &mut Option<u64>) -> bool {
        let Some(store) = self.shared.store.as_ref().filter(|_| !self.is_loaded.get()) else { return false };
        let is_loaded = store.is_loaded();
        let steps = store.loading_steps();
        let before = seen.replace(steps);
        if before == Some(steps) && is_loaded {
            self.is_loaded.set(true);
            return false;
        }
        let until = self.loading_since + if before.is_none() { JOURNAL_WAIT } else { SCAN_WAIT };
        if Instant::now() >= until {
            self.is_loaded.set(is_loaded);
            return false;
        }
        let more = async {
            match before {
                None => store.known(hash).await,
                Some(steps) => store.loaded_after(steps).await,
            }
        };
        // Boxed, as everywhere on the path of a request: a timer needs much memory, which each
        // exchange would hold, and an alignment that makes its allocation slow.
        let waited = Box::pin(tokio::time::timeout_at(until, more)).await;
        before.is_none() || waited.is_ok()
    }

    /// Returns an object that memory alone holds with a new generation, for a validation that is
    /// about to begin. The old generation would be compared with all bans since it was taken, and
    /// would count as ended once the oldest of these bans is forgotten.
    pub(crate) fn with_new_generation(&self, hash: u64, object: Arc<Object>) -> Arc<Object> {
        let Body::Memory(bytes, Home::Memory(_)) = &object.body else { return object };
        let generation = self.shared.generations.take(hash);
        // An object that was removed before the generation was taken must not come back.
        if self.shared.memory.peek(hash, |other| std::ptr::eq(other, Arc::as_ptr(&object))).is_none() {
            return object;
        }
        Arc::new(object.with_body(object.length, Body::Memory(bytes.clone(), Home::Memory(generation))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all free pipes.
    fn take_all(pipes: &mut Pipes) -> Vec<strait_transfer::pipe::Pipe> {
        std::iter::from_fn(|| pipes.try_take()).collect()
    }

    #[test]
    fn pipes_share_the_budget_with_connections_and_other_workers() {
        let shared = budget(128);
        let (mut one, mut other) = (Pipes::sharing(shared.clone()), Pipes::sharing(shared.clone()));
        let connections: Vec<_> = (0..40).map(|_| shared.take_for_connection(1).unwrap()).collect();
        // 96 files, of which 40 are taken and 12 are left for connections.
        let held = take_all(&mut one);
        assert_eq!((held.len(), take_all(&mut other).len(), shared.used()), (22, 0, 84));
        drop(connections);
        assert_eq!((take_all(&mut other).len(), shared.used()), (20, 84));
    }
}
