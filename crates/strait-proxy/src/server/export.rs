//! Thread that sends spans to a collector by OTLP over HTTP (OTLP specification 1.x, section
//! "OTLP/HTTP"), with one connection for each batch.
//!
//! A collector that is slow or fails costs spans, which are counted, and never a request: workers
//! do not wait for this thread.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use strait_http::framing::{self, BodyFraming};
use strait_http::head;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::dns::Dns as DnsSettings;
use crate::config::edge::OriginHttp2;
use crate::config::error::{Error, Result};
use crate::config::export::Endpoint;
use crate::config::settings::Settings;
use crate::config::tls::Tls;
use crate::io::buffer::Buffer;
use crate::io::socket::Socket;
use crate::io::tls;
use crate::observe::counters::{SpanCounters, SpanLoss};
use crate::observe::spans::{Span, message};
use crate::observe::{OnNote, Spans};
use crate::upstream::dns::Dns;
use crate::upstream::pool::first;

/// Maximum of spans in a batch.
const BATCH_MAX: usize = 512;
/// Maximum time that a span waits for others of its batch.
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// Maximum time of an attempt, from the lookup of the name to the end of the response.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// Attempts to send a batch.
const ATTEMPTS: u32 = 5;
/// Wait before the second attempt; it doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(500);
/// Maximum of the wait that a collector can demand by Retry-After.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Maximum time for the remaining spans at the end of the proxy, or after a reload that begins
/// another export.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Minimum time between two notes of a failure.
const NOTE_EVERY: Duration = Duration::from_mins(1);

/// Running thread.
#[derive(Debug)]
pub(super) struct Exporter {
    thread: JoinHandle<()>,
    /// The end of the thread begins when it is dropped.
    ends: Option<oneshot::Sender<()>>,
}

impl Exporter {
    /// Starts the thread if the settings have a collector. It ends with the last copy of the queue.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        settings: &Settings,
        counters: &Arc<SpanCounters>,
        on_note: &OnNote,
    ) -> Result<Option<(Spans, Self)>> {
        let Some(endpoint) = settings.tracing.export.clone() else { return Ok(None) };
        let (spans, receiver) = Spans::new(counters.clone());
        let state = State {
            tls: endpoint.is_tls.then(|| settings.tls.of_client()),
            endpoint,
            service: settings.name.clone(),
            counters: counters.clone(),
            on_note: on_note.clone(),
            unsent: Cell::default(),
            lost: Cell::default(),
            noted: Cell::default(),
            is_failing: Cell::default(),
        };
        let (ends, ended) = oneshot::channel();
        let dns = settings.dns.clone();
        let run = move || run(&state, dns, receiver, ended);
        let thread = std::thread::Builder::new().name("spans".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::os("start", &"a thread", error))?;
        Ok(Some((spans, Self { thread, ends: Some(ends) })))
    }

    /// Returns true if the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Begins the end. The thread ends once the queue is empty, at the latest after [`FLUSH_MAX`].
    /// The queue has no other copy.
    pub(super) fn begin_end(&mut self) {
        self.ends = None;
    }

    /// Begins the end, and returns the thread.
    pub(super) fn end(mut self) -> JoinHandle<()> {
        self.begin_end();
        self.thread
    }
}

/// State of the thread.
struct State {
    endpoint: Endpoint,
    /// `None` for a collector without TLS.
    tls: Option<Tls>,
    service: String,
    counters: Arc<SpanCounters>,
    on_note: OnNote,
    /// Spans of the batch that is being sent.
    unsent: Cell<u64>,
    /// Spans lost since the last note of success.
    lost: Cell<u64>,
    /// Time of the last note of a failure.
    noted: Cell<Option<Instant>>,
    /// True from a note of a failure until that of success.
    is_failing: Cell<bool>,
}

/// Failure of an attempt.
#[derive(Debug)]
struct AttemptError {
    why: String,
    /// Wait that the collector demands; `None` if another attempt cannot succeed.
    retry_after: Option<Duration>,
}

impl From<io::Error> for AttemptError {
    fn from(error: io::Error) -> Self {
        Self { why: error.to_string(), retry_after: Some(Duration::ZERO) }
    }
}

fn run(state: &State, dns: Arc<DnsSettings>, mut spans: Receiver<Span>, ended: oneshot::Receiver<()>) {
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let dns = Dns::new(dns);
        let late = async {
            // Its sender is dropped, and sends nothing.
            let _ = ended.await;
            sleep(FLUSH_MAX).await;
        };
        tokio::select! {
            () = state.send_all(&dns, &mut spans) => {}
            () = late => {}
        }
    });
    spans.close();
    let mut left = state.unsent.get();
    while spans.try_recv().is_ok() {
        left += 1;
    }
    state.counters.lose(SpanLoss::End, left);
}

impl State {
    /// Sends batches until the queue is closed and empty.
    async fn send_all(&self, dns: &Dns, spans: &mut Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
            self.unsent.set(batch.len() as u64);
            let until = Instant::now() + GATHERED_FOR;
            while batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                match timeout_at(until, spans.recv_many(&mut batch, room)).await {
                    Ok(1..) => self.unsent.set(batch.len() as u64),
                    Ok(0) | Err(_) => break,
                }
            }
            self.send(dns, &batch).await;
            batch.clear();
            self.unsent.set(0);
        }
    }

    /// Sends a batch, and counts its spans.
    async fn send(&self, dns: &Dns, batch: &[Span]) {
        let body = message::request(&self.service, batch);
        let mut backoff = BACKOFF;
        for attempt in 1.. {
            let tried = timeout(ATTEMPT_MAX, self.attempt(dns, &body)).await;
            let tried = tried.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            match tried {
                Ok(rejected) => return self.note_sent(batch.len() as u64, rejected),
                Err(AttemptError { why, retry_after: None }) => {
                    return self.note_lost(SpanLoss::Refused, batch.len() as u64, &why);
                }
                Err(AttemptError { why, .. }) if attempt == ATTEMPTS => {
                    return self.note_lost(SpanLoss::Collector, batch.len() as u64, &why);
                }
                Err(AttemptError { retry_after: Some(wait), .. }) => sleep(wait.max(backoff)).await,
            }
            backoff *= 2;
        }
    }

    /// Counts the spans of a sent batch. The first one after a noted failure is noted.
    fn note_sent(&self, spans: u64, rejected: u64) {
        let rejected = rejected.min(spans);
        self.counters.send(spans - rejected);
        self.counters.lose(SpanLoss::Refused, rejected);
        if self.is_failing.take() {
            let (lost, authority) = (self.lost.take(), &self.endpoint.authority);
            (self.on_note)(&format!("spans are sent to {authority} again; lost spans: {lost}"));
        }
    }

    /// Counts the spans of a lost batch. A failure is noted once, and not sooner than
    /// [`NOTE_EVERY`] after the last one: a collector can fail and succeed by turns.
    fn note_lost(&self, loss: SpanLoss, spans: u64, why: &str) {
        self.counters.lose(loss, spans);
        self.lost.set(self.lost.get() + spans);
        let is_late = || self.noted.get().is_none_or(|at| at.elapsed() >= NOTE_EVERY);
        if !self.is_failing.get() && is_late() {
            self.is_failing.set(true);
            self.noted.set(Some(Instant::now()));
            let authority = &self.endpoint.authority;
            (self.on_note)(&format!(
                "spans cannot be sent to {authority}: {why}: they are dropped until it accepts them"
            ));
        }
    }

    /// Sends a batch once; returns the number of spans that the collector has not accepted.
    async fn attempt(&self, dns: &Dns, body: &[u8]) -> Result<u64, AttemptError> {
        let Endpoint { host, port, authority, path, .. } = &self.endpoint;
        let addresses = dns.addresses(host).await?;
        let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
        let connect = async |ip| TcpStream::connect(SocketAddr::new(ip, *port)).await;
        let tcp = first(&addresses, Instant::now() + ATTEMPT_MAX, timed_out, connect).await?;
        let mut socket = Socket::new(tcp, ATTEMPT_MAX);
        if let Some(tls) = &self.tls {
            let session = tls::connect(tls, host, OriginHttp2::Off).map_err(io::Error::other)?;
            socket.secure(session, ATTEMPT_MAX).await?;
        }
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\nUser-Agent: strait/{}\r\nConnection: close\r\n\r\n",
            body.len(),
            env!("CARGO_PKG_VERSION")
        );
        let closed = |_| io::Error::from(io::ErrorKind::ConnectionReset);
        socket.write_all(head.as_bytes(), body).await.map_err(closed)?;
        answer(&mut socket).await
    }
}

/// Reads the response of a collector; returns the number of spans that it has not accepted.
async fn answer(socket: &mut Socket) -> Result<u64, AttemptError> {
    let mut buffer = Buffer::default();
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "its response is not HTTP/1.1");
    let (status, wait, body) = loop {
        let head = head::response(buffer.filled()).map_err(invalid)?;
        let read = head.map(|(response, len)| {
            let wait = response.fields.one("retry-after").and_then(|wait| wait.parse().ok());
            (response.status, wait, framing::of_response(&response, "POST"), len)
        });
        match read {
            Some((100..=199, _, _, len)) => buffer.consume(len),
            Some((status, wait, body, len)) => {
                buffer.consume(len);
                break (status, wait, body);
            }
            None => more(socket, &mut buffer).await?,
        }
    };
    match status {
        200 => {}
        201..=299 => return Ok(0),
        // OTLP specification, section "Failures": these alone can be repeated.
        429 | 502..=504 => {
            let wait = Duration::from_secs(wait.unwrap_or(0)).min(RETRY_AFTER_MAX);
            return Err(AttemptError { why: format!("status {status}"), retry_after: Some(wait) });
        }
        _ => return Err(AttemptError { why: format!("status {status}"), retry_after: None }),
    }
    // The spans are accepted: a body that is long, chunked or incomplete is no failure.
    let Ok(BodyFraming::Length(len)) = body else { return Ok(0) };
    while (buffer.filled().len() as u64) < len {
        if more(socket, &mut buffer).await.is_err() {
            return Ok(0);
        }
    }
    Ok(message::rejected(&buffer.filled()[..len as usize]))
}

/// Reads more of a response.
async fn more(socket: &mut Socket, buffer: &mut Buffer) -> io::Result<()> {
    match socket.read(buffer).await {
        Ok(1..) => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_and_successes_by_turns_are_noted_once_a_minute() {
        let notes = Arc::<Mutex<Vec<String>>>::default();
        let noted = notes.clone();
        let endpoint =
            Endpoint { host: "a".into(), port: 1, is_tls: false, authority: "a:1".into(), path: "/".into() };
        let state = State {
            endpoint,
            tls: None,
            service: String::new(),
            counters: Arc::default(),
            on_note: Arc::new(move |note: &str| noted.lock().unwrap().push(note.to_owned())),
            unsent: Cell::default(),
            lost: Cell::default(),
            noted: Cell::default(),
            is_failing: Cell::default(),
        };
        let turns = || {
            for _ in 0..5 {
                state.note_lost(SpanLoss::Refused, 2, "status 400");
                state.note_sent(1, 0);
            }
            std::mem::take(&mut *notes.lock().unwrap())
        };
        let [failed, again] = &turns()[..] else { panic!("not one pair of notes") };
        assert!(failed.starts_with("spans cannot be sent to a:1: status 400: "), "{failed}");
        assert_eq!(again, "spans are sent to a:1 again; lost spans: 2");
        tokio::time::advance(NOTE_EVERY / 2).await;
        assert_eq!(turns(), [""; 0]);
        tokio::time::advance(NOTE_EVERY / 2).await;
        let [_, again] = &turns()[..] else { panic!("not one pair of notes") };
        assert_eq!(again, "spans are sent to a:1 again; lost spans: 20");
    }
}
