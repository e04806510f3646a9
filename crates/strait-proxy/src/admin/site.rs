//! What is shown, and what can be changed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Page, metrics};
use crate::contents::{Asked, AtHand, Contents, Pattern};
use crate::fill::Filled;
use crate::report::Report;
use crate::serving::Control;
use crate::settings::Settings;
use crate::worker::Shared;

const PAGE: &str = include_str!("page.html");
/// Objects that are told as the hottest.
const HOTTEST: usize = 20;
/// Fills that are told of.
const FILLS_MAX: usize = 50;
/// Stored responses that are told of where nothing is said, and at most.
const LISTED: usize = 1000;
const LISTED_MAX: usize = 1_000_000;
/// How long workers are waited for: one may be at a large file on a slow disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// What there is to tell of.
#[derive(Debug)]
pub(crate) struct Site {
    shared: Arc<Shared>,
    settings: Mutex<Arc<Settings>>,
    workers: Vec<UnboundedSender<Control>>,
    started: Instant,
    end: Notify,
}

/// Everything at one glance.
#[derive(Serialize)]
struct Status {
    name: String,
    version: &'static str,
    uptime_seconds: f64,
    #[serde(flatten)]
    report: Report,
    filling: Vec<Filled>,
    hottest: Vec<AtHand>,
}

impl Site {
    pub(crate) fn new(
        shared: Arc<Shared>,
        settings: Arc<Settings>,
        workers: Vec<UnboundedSender<Control>>,
    ) -> Self {
        let settings = Mutex::new(settings);
        Self { shared, settings, workers, started: Instant::now(), end: Notify::new() }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn adopt(&self, settings: Arc<Settings>) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Nothing is told any more.
    pub(crate) fn end(&self) {
        self.end.notify_one();
    }

    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    /// What GET shows.
    pub(super) async fn show(&self, path: &str, query: &str) -> Page {
        match path {
            "/" => Page { status: 200, content_type: "text/html; charset=utf-8", body: PAGE.into() },
            "/healthz" if self.settings().is_closing() => Page::text(503, "ending"),
            "/healthz" => Page::text(200, "ok"),
            "/metrics" => Page {
                status: 200,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body: metrics::text(&self.shared).into_bytes(),
            },
            "/status.json" => Page::json(&self.status().await),
            "/objects" => self.objects(query).await,
            "/object" => self.object(query),
            _ => Page::text(404, "there are /, /healthz, /metrics, /status.json, /objects and /object"),
        }
    }

    /// What POST changes.
    pub(super) async fn change(&self, path: &str, query: &str) -> Page {
        match path {
            "/purge" => {
                let uri = parameter(query, "uri").unwrap_or_default();
                match Pattern::of_uri(&uri) {
                    Ok(uri) => self.purge(uri).await,
                    Err(error) => Page::text(400, &error.to_string()),
                }
            }
            "/ban" => {
                let pattern = parameter(query, "pattern").unwrap_or_default();
                match Pattern::new(&pattern) {
                    Ok(pattern) => self.ban(pattern).await,
                    Err(error) => Page::text(400, &error.to_string()),
                }
            }
            "/verify" => self.verify().await,
            _ => Page::text(404, "there are /purge?uri=, /ban?pattern= and /verify"),
        }
    }

    async fn status(&self) -> Status {
        let mut hottest = self.hottest().await;
        hottest.truncate(HOTTEST);
        Status {
            name: self.settings().name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            report: Report::of(&self.shared),
            filling: self.shared.fills.list(FILLS_MAX),
            hottest,
        }
    }

    /// The objects that all workers together were asked for most often.
    async fn hottest(&self) -> Vec<AtHand> {
        let (sender, receiver) = unbounded_channel();
        self.ask(&Asked::Hottest(HOTTEST, sender));
        let mut all: Vec<AtHand> = Vec::new();
        for told in self.answers(receiver).await.into_iter().flatten() {
            match all.iter_mut().find(|own| own.uri == told.uri) {
                Some(own) => own.hits += told.hits,
                None => all.push(told),
            }
        }
        all.sort_by_key(|object| std::cmp::Reverse(object.hits));
        all
    }

    fn ask(&self, asked: &Asked) {
        for worker in &self.workers {
            // A worker that has ended has nothing.
            let _ = worker.send(Control::Asked(asked.clone()));
        }
    }

    /// What the workers say, those that say it in time.
    async fn answers<T>(&self, mut receiver: UnboundedReceiver<T>) -> Vec<T> {
        let mut answers = Vec::new();
        let all = async {
            while let Some(answer) = receiver.recv().await {
                answers.push(answer);
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all).await;
        answers
    }

    fn contents(&self) -> Result<Contents, Page> {
        let store = self.shared.store.clone();
        store.map(Contents::of).ok_or_else(|| Page::text(404, "there is no store: cache.dir names none"))
    }

    async fn objects(&self, query: &str) -> Page {
        let pattern = parameter(query, "pattern").unwrap_or_else(|| "*".to_owned());
        let most = parameter(query, "most").map_or(Ok(LISTED), |most| most.parse());
        let (Ok(pattern), Ok(most)) = (Pattern::new(&pattern), most) else {
            return Page::text(400, "pattern=PATTERN and most=NUMBER are understood");
        };
        let now = self.shared.clock.now();
        self.on_contents(move |contents| contents.list(&pattern, most.min(LISTED_MAX), now)).await
    }

    fn object(&self, query: &str) -> Page {
        let uri = Pattern::of_uri(&parameter(query, "uri").unwrap_or_default());
        match (uri, self.contents()) {
            (Err(error), _) => Page::text(400, &error.to_string()),
            (_, Err(page)) => page,
            (Ok(uri), Ok(contents)) => Page::json(&contents.get(&uri, self.shared.clock.now())),
        }
    }

    async fn purge(&self, uri: String) -> Page {
        self.shared.fills.outdate_all(|key| key == uri);
        self.shared.leases.end(strait_store::hash_of(uri.as_bytes()));
        let stored = self.contents().map_or(0, |contents| contents.purge(&uri));
        let at_hand = self.forget(Pattern::exact(uri)).await;
        Page::json(&json!({"stored": stored, "at_hand": at_hand}))
    }

    async fn ban(&self, pattern: Pattern) -> Page {
        self.shared.fills.outdate_all(|key| pattern.matches(key));
        // Nobody knows which keys are meant of what is on its way; what is in memory alone is fetched again.
        self.shared.leases.end_all();
        let at_hand = self.forget(pattern.clone()).await;
        let Ok(contents) = self.contents() else {
            return Page::json(&json!({"stored": 0, "at_hand": at_hand}));
        };
        match tokio::task::spawn_blocking(move || contents.ban(&pattern)).await {
            Ok(stored) => Page::json(&json!({"stored": stored, "at_hand": at_hand})),
            Err(error) => Page::text(500, &error.to_string()),
        }
    }

    /// Has all workers forget what matches; how many objects that were.
    async fn forget(&self, pattern: Pattern) -> usize {
        let (sender, receiver) = unbounded_channel();
        self.ask(&Asked::Forget(Arc::new(pattern), sender));
        self.answers(receiver).await.iter().sum()
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

    /// What takes as long as the disk does, while others are answered.
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

/// A parameter of a query, decoded.
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
