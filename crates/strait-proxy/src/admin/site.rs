//! Pages and operations of the admin page.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;

use super::names::{NameStatus, names};
use super::servers::{ServerStatus, servers};
use super::{Page, metrics};
use crate::cache::contents::Contents;
use crate::cache::disk;
use crate::cache::fill::FillProgress;
use crate::cache::invalidation::{Effect, Keys, Removed};
use crate::cache::memory::MemoryEntry;
use crate::cache::pattern::Pattern;
use crate::cache::tag::Tag;
use crate::cache::worker::Shared;
use crate::config::error::Result;
use crate::config::rules::Guards;
use crate::config::settings::Settings;
use crate::config::sites::Sites;
use crate::observe::report::Report;

const PAGE: &str = include_str!("page.html");
/// Maximum of listed objects with the most hits.
const MOST_REQUESTED_MAX: usize = 20;
/// Maximum of listed fills.
const FILLS_MAX: usize = 50;
/// Default and maximum of listed objects.
const LISTED: usize = 1000;
const LISTED_MAX: usize = 1_000_000;

/// State of the admin page.
#[derive(Debug)]
pub(crate) struct Site {
    shared: Arc<Shared>,
    settings: Mutex<Arc<Settings>>,
    started: Instant,
    end: Notify,
}

/// Contents of `/status.json`.
#[derive(Serialize)]
struct Status {
    name: String,
    version: &'static str,
    uptime_seconds: f64,
    #[serde(flatten)]
    report: Report,
    fill_progress: Vec<FillProgress>,
    most_requested: Vec<MemoryEntry>,
    servers: Vec<ServerStatus>,
    names: Vec<NameStatus>,
}

impl Site {
    pub(crate) fn new(shared: Arc<Shared>, settings: Arc<Settings>) -> Self {
        let settings = Mutex::new(settings);
        Self { shared, settings, started: Instant::now(), end: Notify::new() }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn adopt(&self, settings: Arc<Settings>) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Ends the admin page.
    pub(crate) fn end(&self) {
        self.end.notify_one();
    }

    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    /// Responds to GET.
    pub(super) async fn show(&self, path: &str, query: &str) -> Page {
        match path {
            "/" => {
                let content_type = "text/html; charset=utf-8";
                Page { status: 200, content_type, allow: None, body: PAGE.into() }
            }
            "/healthz" if self.settings().is_closing() => Page::text(503, "ending"),
            "/healthz" => Page::text(200, "ok"),
            "/metrics" => Page {
                status: 200,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                allow: None,
                body: self.metrics().into_bytes(),
            },
            "/status.json" => Page::json(&self.status()),
            "/objects" => self.objects(query).await,
            "/object" => self.object(query),
            "/purge" | "/ban" | "/verify" | "/drain" | "/undrain" => Page::not_allowed("POST"),
            _ => Page::text(404, "expected /, /healthz, /metrics, /status.json, /objects or /object"),
        }
    }

    /// Responds to POST.
    pub(super) async fn change(&self, path: &str, query: &str) -> Page {
        match path {
            "/purge" => self.purge(query).await,
            "/ban" => {
                let pattern = parameter(query, "pattern").unwrap_or_default();
                match Pattern::new(&pattern) {
                    Ok(pattern) => self.ban(pattern).await,
                    Err(error) => Page::text(400, &error.to_string()),
                }
            }
            "/verify" => self.verify().await,
            "/drain" => self.drain(query, true),
            "/undrain" => self.drain(query, false),
            "/" | "/healthz" | "/metrics" | "/status.json" | "/objects" | "/object" => {
                Page::not_allowed("GET, HEAD")
            }
            _ => Page::text(
                404,
                "expected /purge?uri=, /purge?tag=, /ban?pattern=, /verify, /drain?server= or /undrain?server=",
            ),
        }
    }

    fn status(&self) -> Status {
        Status {
            name: self.settings().name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            report: self.shared.report(),
            fill_progress: self.shared.fills.list(FILLS_MAX),
            most_requested: self.shared.memory.most_requested(MOST_REQUESTED_MAX),
            servers: self.servers(),
            names: names(&self.settings()),
        }
    }

    fn servers(&self) -> Vec<ServerStatus> {
        servers(&self.settings(), &self.shared.gates, self.shared.clock.now())
    }

    fn metrics(&self) -> String {
        let names = names(&self.settings());
        let settings = self.settings();
        metrics::text(&self.shared, (&self.servers(), &names), &self.guards(), &settings.tls.expiries())
    }

    fn guards(&self) -> Guards {
        self.settings().sites.as_ref().map(Sites::guards).unwrap_or_default()
    }

    fn contents(&self) -> Result<Contents, Page> {
        let store = self.shared.store.clone();
        store.map(Contents::of).ok_or_else(|| Page::text(404, "there is no store: cache.dir is not set"))
    }

    async fn objects(&self, query: &str) -> Page {
        let pattern = parameter(query, "pattern").unwrap_or_else(|| "*".to_owned());
        let most = parameter(query, "most").map_or(Ok(LISTED), |most| most.parse());
        let (Ok(pattern), Ok(most)) = (Pattern::new(&pattern), most) else {
            return Page::text(400, "expected pattern=PATTERN or most=NUMBER");
        };
        let now = self.shared.clock.now();
        self.on_contents(move |contents| contents.list(&pattern, most.min(LISTED_MAX), now)).await
    }

    fn object(&self, query: &str) -> Page {
        let keys = self.keys_of(&parameter(query, "uri").unwrap_or_default());
        match (keys, self.contents()) {
            (Err(error), _) => Page::text(400, &error.to_string()),
            (_, Err(page)) => page,
            (Ok(keys), Ok(contents)) => {
                let now = self.shared.clock.now();
                Page::json(&keys.iter().flat_map(|key| contents.of_key(key, now)).collect::<Vec<_>>())
            }
        }
    }

    /// Returns the cache keys of a URI: those of one pool if its name follows, as in the list of
    /// objects, and those of all pools otherwise.
    fn keys_of(&self, text: &str) -> Result<Vec<String>> {
        Ok(self.settings().keys_for_client(Pattern::of_uri(text)?))
    }

    async fn purge(&self, query: &str) -> Page {
        let effect = match parameter(query, "soft").as_deref() {
            None => Effect::Remove,
            Some("1") => Effect::Expire,
            Some(_) => return Page::text(400, "expected soft=1, which marks responses as stale"),
        };
        if let Some(tag) = parameter(query, "tag") {
            return match Tag::new(&tag) {
                Ok(tag) => self.scan(move |shared| shared.purge_tags(&[tag], effect)).await,
                Err(error) => Page::text(400, &error.to_string()),
            };
        }
        let Some(uri) = parameter(query, "uri") else {
            return Page::text(400, "the parameter uri or tag is missing, or not encoded as in a URI");
        };
        match self.keys_of(&uri) {
            Ok(keys) => {
                let of_all = move |shared: &Shared| {
                    // A record that is not loaded yet would have no mark of its removal.
                    shared.store.as_ref().inspect(|store| disk::await_loaded(store));
                    keys.iter().map(|key| shared.purge(key, effect)).sum::<Removed>()
                };
                self.invalidate(of_all).await
            }
            Err(error) => Page::text(400, &error.to_string()),
        }
    }

    async fn ban(&self, pattern: Pattern) -> Page {
        self.scan(move |shared| shared.invalidate(Keys::Matching(&pattern))).await
    }

    /// Purges objects on another thread, and reports their numbers.
    async fn invalidate(&self, remove: impl FnOnce(&Shared) -> Removed + Send + 'static) -> Page {
        let shared = self.shared.clone();
        match tokio::task::spawn_blocking(move || remove(&shared)).await {
            Ok(removed) => Page::removed(removed),
            Err(error) => Page::text(500, &error.to_string()),
        }
    }

    /// Like [`Self::invalidate`], for a purge that reads all heads: one runs at a time.
    async fn scan(&self, remove: impl FnOnce(&Shared) -> Removed + Send + 'static) -> Page {
        let shared = self.shared.clone();
        match self.shared.scans.run(move || remove(&shared)).await {
            Ok(removed) => Page::removed(removed),
            Err(error) => Page::text(error.status(), &error.to_string()),
        }
    }

    /// Takes a server out of its pools, or back in.
    fn drain(&self, query: &str, is_drained: bool) -> Page {
        let (server, pool) = (parameter(query, "server").unwrap_or_default(), parameter(query, "pool"));
        let settings = self.settings();
        let drain =
            |sites: &Sites| sites.drain(&server, pool.as_deref(), is_drained, self.shared.clock.now());
        match settings.sites.as_ref().map_or(0, drain) {
            0 => Page::text(404, &no_server(&server, pool.as_deref())),
            pools => Page::json(&json!({ "pools": pools })),
        }
    }

    async fn verify(&self) -> Page {
        self.on_contents(|contents| {
            let verified = contents.verify();
            json!({
                "whole": verified.whole, "unhashed": verified.unhashed, "corrupt": verified.corrupt,
                "unreadable": verified.unreadable, "bytes": verified.bytes,
            })
        })
        .await
    }

    /// Runs disk-bound work on another thread, and serves other requests meanwhile.
    async fn on_contents<T: Serialize + Send + 'static>(
        &self,
        work: impl FnOnce(&Contents) -> T + Send + 'static,
    ) -> Page {
        let contents = match self.contents() {
            Ok(contents) => contents,
            Err(page) => return page,
        };
        match tokio::task::spawn_blocking(move || Page::json(&work(&contents))).await {
            Ok(page) => page,
            Err(error) => Page::text(500, &error.to_string()),
        }
    }
}

impl Page {
    /// Page with the numbers of removed objects. The loaded objects are removed also if the removal
    /// is partial, because the index is being loaded.
    fn removed(Removed { stored, in_memory }: Removed) -> Self {
        Self::json(&json!({"stored": stored, "in_memory": in_memory}))
    }
}

/// Returns the text for a server that no pool has.
fn no_server(server: &str, pool: Option<&str>) -> String {
    let server = server.escape_default();
    let has = match pool {
        Some(pool) => format!("the pool \"{}\" has no", pool.escape_default()),
        None => "no pool has the".to_owned(),
    };
    format!("{has} server \"{server}\"; /status.json lists all servers of pools")
}

/// Returns a decoded parameter of a query.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(own, _)| *own == name)?;
    let mut pieces = value.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        assert_eq!(parameter("a=1&uri=http://a/%3Fb%26c", "uri").as_deref(), Some("http://a/?b&c"));
        assert_eq!(parameter("a=1", "uri"), None);
        assert_eq!(parameter("uri=%4", "uri"), None);
        assert_eq!(parameter("uri=%zz", "uri"), None);
    }
}
