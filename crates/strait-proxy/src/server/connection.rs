//! A client's connection: one request after the other.
//!
//! What a worker has at hand is answered right here, without allocation and under one short lock;
//! everything else goes through [`crate::serve::exchange`].

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_http::Malformed;
use strait_http::cache_status::{Answer, CacheStatus};
use strait_http::framing;
use strait_http::head::{self, Request, Version};
use strait_http::reuse::{Reuse, reuse};
use strait_http::target::Uri;
use strait_transfer::relay::proxy_protocol::{self, Source};
use tokio::net::TcpStream;

use crate::cache::object::{Object, Pinned};
use crate::cache::select::{Selected, select};
use crate::cache::worker::Worker;
use crate::config::settings::Port;
use crate::io::buffer::Buffer;
use crate::io::pace::Uptake;
use crate::io::socket::{Socket, SocketError};
use crate::io::tls;
use crate::observe::access::{Begun, ClientSocket};
use crate::serve::deliver;
use crate::serve::response::{ResponseOptions, write_own};
use crate::serve::route::{Route, malformed, read_request, route};
use crate::server::client_limits::Share;
use crate::server::current::Current;
use crate::server::dispatch::{self, Asked, Left};

/// How long somebody who was let in while the proxy is about to end may take to ask.
const LAST_CALL: Duration = Duration::from_secs(1);

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    socket: ClientSocket,
    buffer: Buffer,
    peer: SocketAddr,
    /// When the head began to come that is not whole yet.
    begun: Option<Instant>,
}

/// What the buffered bytes were.
enum Next {
    /// No whole head.
    More,
    /// A request that is answered from what is at hand.
    Hit(Hit),
    /// Any other, which has had its answer.
    Answered(Result<Left, SocketError>),
    /// None.
    Malformed(Malformed),
}

struct Hit {
    object: Arc<Object>,
    pinned: Pinned,
    selected: Selected,
    options: ResponseOptions,
    head_len: usize,
}

impl Client {
    pub(crate) fn new(worker: &Worker, tcp: TcpStream, peer: SocketAddr) -> Self {
        let settings = worker.settings();
        let mut socket = Socket::new(tcp, settings.timeouts.client);
        socket.uptake = Some(Uptake::new(settings.timeouts.response_grace, settings.response_rate));
        Self { socket: ClientSocket::new(socket), buffer: Buffer::default(), peer, begun: None }
    }

    /// Answers what it asks for, until it has gone.
    pub(crate) async fn serve(
        mut self,
        current: &Current,
        port: Port,
        is_idle: &Cell<bool>,
        share: &mut Share,
    ) {
        if port.is_proxied && Box::pin(self.learn_client(&current.worker(), share)).await.is_none() {
            return;
        }
        if port.is_tls && Box::pin(self.shake_hands(&current.worker())).await.is_none() {
            return;
        }
        // Whatever ends a connection ends it for both sides.
        let _ = self.requests(current, is_idle).await;
    }

    async fn shake_hands(&mut self, worker: &Worker) -> Option<()> {
        let settings = worker.settings();
        self.socket.secure(tls::accept(&settings.tls)?, settings.timeouts.head).await.ok()
    }

    /// Reads who the client is, from a header before its first request, and counts the connection
    /// for it; `None` where that is not told, or it may not use the proxy, or not with another
    /// connection.
    async fn learn_client(&mut self, worker: &Worker, share: &mut Share) -> Option<()> {
        let settings = worker.settings();
        let told = loop {
            if let Some((told, len)) = proxy_protocol::read(self.buffer.filled()).ok()? {
                self.buffer.consume(len);
                break told;
            }
            let begun = self.begun.get_or_insert_with(Instant::now);
            let limit = settings.timeouts.head.saturating_sub(begun.elapsed());
            if self.socket.read_within(limit, &mut self.buffer).await.ok()? == 0 {
                return None;
            }
        };
        self.begun = None;
        if let Source::Client(client) = told {
            self.peer = client;
        }
        let client = self.peer.ip();
        let is_admitted = settings.access.allows(client) && share.name_client(settings, client);
        worker.counters().refused.add(u64::from(!is_admitted));
        is_admitted.then_some(())
    }

    async fn requests(&mut self, current: &Current, is_idle: &Cell<bool>) -> Result<(), SocketError> {
        loop {
            // Each request sees the settings that are in force when it comes.
            let worker = &current.worker();
            let stays = match self.next(worker).await {
                Next::More => {
                    is_idle.set(self.buffer.is_empty());
                    let read = self.read(worker).await;
                    is_idle.set(false);
                    match read? {
                        0 => return Ok(()),
                        _ => continue,
                    }
                }
                Next::Hit(hit) => self.hit(worker, hit).await?,
                Next::Answered(left) => {
                    let Left { buffer, keeps_alive } = left?;
                    self.buffer = buffer;
                    keeps_alive
                }
                Next::Malformed(error) => Box::pin(self.refuse(worker, error)).await?,
            };
            if !stays || worker.settings().is_closing() {
                return self.socket.close(&mut self.buffer).await;
            }
        }
    }

    /// Looks at what was read, and has it answered if that takes more than what is at hand.
    async fn next(&mut self, worker: &Rc<Worker>) -> Next {
        let Self { socket, buffer, peer, begun } = self;
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Next::More;
        }
        let (request, len) = match read_request(worker.settings(), bytes) {
            Ok(None) => return Next::More,
            Ok(Some(read)) => read,
            Err(error) => return Next::Malformed(error),
        };
        *begun = None;
        let body = framing::of_request(&request);
        let routed = |body| route(worker.settings(), &request, body, socket.is_encrypted());
        let route = body.map_err(malformed).and_then(routed);
        if let Ok(Route::Cache(uri)) = &route
            && let Some(hit) = at_hand(worker, peer.ip(), &request, uri, len)
        {
            return Next::Hit(hit);
        }
        let asked = Asked { request: &request, body, route };
        let (peer, read) = (*peer, bytes.split_at(len));
        // The request lies in the box, once.
        let exchange = async move { exchange(worker, socket, peer, asked, read).await };
        Next::Answered(Box::pin(exchange).await)
    }

    async fn read(&mut self, worker: &Worker) -> Result<usize, SocketError> {
        let timeouts = &worker.settings().timeouts;
        let limit = if self.buffer.is_empty() {
            if worker.settings().is_closing() { LAST_CALL } else { timeouts.idle }
        } else {
            let begun = self.begun.get_or_insert_with(Instant::now);
            timeouts.head.saturating_sub(begun.elapsed())
        };
        self.socket.read_within(limit, &mut self.buffer).await
    }

    async fn hit(&mut self, worker: &Worker, hit: Hit) -> Result<bool, SocketError> {
        let Hit { object, pinned, selected, options, head_len } = hit;
        let settings = worker.settings();
        // The log tells what was asked. Without one nobody does, and a client that takes its time holds no
        // memory.
        let kept = if worker.has_log() { head_len } else { 0 };
        self.buffer.consume(head_len - kept);
        let ttl = Some(object.times.ttl(worker.now()));
        let status = CacheStatus { by: &settings.name, answer: Answer::Hit, ttl, detail: None };
        let begun = Begun::now(&mut self.socket);
        let found = (&object, &pinned);
        let sent = deliver::send_pinned(worker, &mut self.socket, found, &selected, &status, options).await;
        self.account(worker, begun, kept, sent.is_ok());
        self.buffer.consume(kept);
        sent.map(|()| options.keeps_alive)
    }

    /// Notes an exchange that is over, whose request is the first `kept` bytes that are buffered.
    fn account(&self, worker: &Worker, begun: Begun, kept: usize, is_whole: bool) {
        let read = &self.buffer.filled()[..kept];
        let request = if kept > 0 { head::request(read).ok().flatten() } else { None };
        let request = request.as_ref().map(|(request, _)| request);
        worker.account(&begun.end(&self.socket, self.peer, request, is_whole));
    }

    /// What is no request ends the connection: nobody knows where the next one begins.
    async fn refuse(&mut self, worker: &Worker, error: Malformed) -> Result<bool, SocketError> {
        let options = ResponseOptions { is_head: false, version: Version::Http11, keeps_alive: false };
        let mut head = worker.heads.take();
        let (status, why) = (error.status(), error.to_string());
        let head_len = write_own(&mut head, worker, status, &why, options);
        let begun = Begun::now(&mut self.socket);
        self.socket.record.refused(status, &why, worker.logs_reasons());
        self.socket.add_overhead(head_len);
        let sent = self.socket.write_all(&head, &[]).await;
        worker.heads.give_back(head);
        self.account(worker, begun, 0, sent.is_ok());
        sent.map(|()| false)
    }
}

/// Answers a request, of which `read` is all that was read: its head, and what came behind.
async fn exchange(
    worker: &Rc<Worker>,
    socket: &mut ClientSocket,
    peer: SocketAddr,
    asked: Asked<'_, '_>,
    read: (&[u8], &[u8]),
) -> Result<Left, SocketError> {
    let (begun, request) = (Begun::now(socket), asked.request);
    let left = dispatch::run(worker, socket, peer, asked, read).await;
    worker.account(&begun.end(socket, peer, Some(request), left.is_ok()));
    left
}

/// The answer to such a request, if the worker has it at hand and may give it at once.
fn at_hand(
    worker: &Worker,
    client: IpAddr,
    request: &Request<'_>,
    uri: &Uri<'_>,
    head_len: usize,
) -> Option<Hit> {
    let fields = &request.fields;
    let object = worker.with_key(uri, |hash, key| worker.at_hand(hash, key, fields))?;
    let asked = worker.directives(client, fields);
    if reuse(worker.now(), &object.times, &object.directives, &asked) != Reuse::Serve || !object.is_whole() {
        return None;
    }
    // What is asked for again is worth its memory: it is read in the other way.
    if object.is_worth_memory(worker.settings().at_hand) {
        return None;
    }
    let options = ResponseOptions::of(request);
    let selected = select(&object, object.length?, fields, options.is_head);
    // One that has just been evicted is looked for in the other way.
    let pinned = deliver::pinned(&object, &selected, options)?;
    object.touch();
    Some(Hit { object, pinned, selected, options, head_len })
}
