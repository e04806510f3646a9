//! Requests that go past the cache: other methods, tunnels, PURGE, and the proxy's own answers.

use strait_http::cache_status::Why;
use strait_http::fields::Fields;
use strait_http::forward::{Hops, write_trace};
use strait_http::framing::BodyFraming;
use strait_http::head::Request;
use strait_http::invalidation::invalidated;
use strait_http::method::is_safe;
use strait_http::target::{Authority, Scheme, Target, Uri};

use crate::cache::disk;
use crate::cache::invalidation::{Effect, Removed};
use crate::cache::tag::Tag;
use crate::config::edge::{OriginHttp2, Redirect};
use crate::config::server::Server;
use crate::config::sites::Resource;
use crate::io::head::{push_date, push_field, push_status_line};
use crate::io::socket::SocketError;
use crate::observe::access::Outcome;
use crate::serve::admission::{Denial, verify};
use crate::serve::ask::Permission;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::lookup::answer;
use crate::serve::response::{Framing, ResponseOptions, write_end};
use crate::serve::route::{Bypass, Route, WEBSOCKET, too_long, upgrades};
use crate::upstream::error::{FetchError, OriginError};
use crate::upstream::fetch::fetch;
use crate::upstream::origin_request::Purpose;
use crate::upstream::pool::{Connection, code_for_client};

/// Returns the text for the client of a purge.
fn done(effect: Effect) -> &'static str {
    match effect {
        Effect::Remove => "removed",
        Effect::Expire => "marked as stale",
    }
}

/// Head of the response to a successful CONNECT.
pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

impl Exchange<'_, '_> {
    /// Handles a request that bypasses the cache. Returns true if the connection can carry another
    /// request.
    pub(crate) async fn bypass(&mut self, bypass: Bypass<'_>) -> Result<bool, ExchangeError> {
        match bypass {
            Bypass::Origin(resource, hops, why) => self.pass(&resource, hops, why).await,
            Bypass::Tunnel(authority) => Box::pin(self.connect(&authority)).await,
            Bypass::Here => self.answer_here().await,
            Bypass::Purge(resource) => Box::pin(self.purge(&resource)).await,
            Bypass::File(uri, dir, manner) => Box::pin(self.answer_with_file(&uri, dir, manner)).await,
            Bypass::Verify(route, auth, credentials) => {
                match Box::pin(verify(self.worker, auth, credentials, self.peer.ip())).await {
                    Ok(()) => {
                        self.client.record.is_authenticated = true;
                        Box::pin(self.verified(*route)).await
                    }
                    Err(denial) => {
                        Ok(self.refuse_with(denial.status, denial.why, &denial.field_lines).await?)
                    }
                }
            }
            Bypass::Ask(route, asked) => match Box::pin(self.ask(&route, asked)).await? {
                Permission::Granted => Box::pin(self.verified(*route)).await,
                Permission::Refused(stays) => Ok(stays),
            },
            Bypass::Denied(Denial { status, why, field_lines }, _) => {
                Ok(self.refuse_with(status, why, &field_lines).await?)
            }
            Bypass::Redirect(uri, redirect, _) => self.redirect(&uri, redirect).await,
            Bypass::Fixed(response, _) => {
                self.answer_fixed((response.status, &response.field_lines, &response.body)).await
            }
        }
    }

    /// Returns true if the body is longer than the route allows. A client that the route refuses
    /// learns no limit, so permission is asked first.
    pub(crate) fn is_too_long_for(&self, route: &Route<'_>) -> bool {
        let is_decided =
            !matches!(route, Route::Bypass(Bypass::Denied(..) | Bypass::Verify(..) | Bypass::Ask(..)));
        is_decided && matches!(self.body, BodyFraming::Length(length) if length > self.upload.bytes_max())
    }

    /// Handles a request that was found to be allowed.
    async fn verified(&mut self, route: Route<'_>) -> Result<bool, ExchangeError> {
        match route {
            _ if self.is_too_long_for(&route) => Err(too_long(self.upload.bytes_max()).into()),
            Route::Cache(resource) => answer(self, &resource).await,
            Route::Bypass(bypass) => self.bypass(bypass).await,
        }
    }

    /// Answers OPTIONS and TRACE with Max-Forwards 0 (RFC 9110, sections 7.6.2 and 9.3.8).
    async fn answer_here(&mut self) -> Result<bool, ExchangeError> {
        let (mut field_lines, mut body) = (Vec::new(), Vec::new());
        if self.request.method == "TRACE" {
            write_trace(self.request, &mut body);
            push_field(&mut field_lines, "Content-Type", b"message/http");
        } else {
            push_field(&mut field_lines, "Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");
        }
        self.answer_fixed((200, &field_lines, &body)).await
    }

    /// Sends the redirection of a route.
    async fn redirect(&mut self, uri: &Uri<'_>, redirect: &Redirect) -> Result<bool, ExchangeError> {
        let (slash, path) = uri.origin_form("GET");
        let host = uri.authority.host.to_string();
        let location = redirect.location.replace("{host}", &host).replace("{uri}", &format!("{slash}{path}"));
        let mut field_lines = Vec::new();
        push_field(&mut field_lines, "Location", location.as_bytes());
        self.answer_fixed((redirect.status, &field_lines, &[])).await
    }

    /// Sends a response of the proxy itself, with this status, these lines of fields and this body.
    pub(crate) async fn answer_fixed(
        &mut self,
        (status, field_lines, body): (u16, &[u8], &[u8]),
    ) -> Result<bool, ExchangeError> {
        let options = ResponseOptions {
            keeps_alive: self.options.keeps_alive && !self.upload.has_body(),
            ..self.options
        };
        let mut head = self.worker.heads.take();
        push_status_line(&mut head, status);
        push_date(&mut head, self.worker.now());
        head.extend_from_slice(field_lines);
        // RFC 9110 s8.6: a 204 has no Content-Length, and that of a 304 would be another body's.
        let framing =
            if matches!(status, 204 | 304) { Framing::None } else { Framing::Length(body.len() as u64) };
        write_end(&mut head, framing, None, options);
        self.client.record.other(status, Outcome::Own);
        self.client.add_overhead(head.len());
        self.client.write_all(&head, if options.is_head { &[] } else { body }).await?;
        self.worker.heads.give_back(head);
        Ok(options.keeps_alive)
    }

    /// Forwards request and response without the cache.
    async fn pass(&mut self, resource: &Resource<'_>, hops: Hops, why: Why) -> Result<bool, ExchangeError> {
        let counted = self.counted();
        // A stream of messages may wait for the response to each, and has no connection of its
        // own.
        let is_stream = self.body == BodyFraming::Chunked
            && self.client.socket.http2_id().is_some()
            && resource.pool.is_some_and(|pool| match pool.http2 {
                OriginHttp2::On => true,
                OriginHttp2::Auto => is_grpc(self.request),
                OriginHttp2::Off => false,
            });
        if !is_stream {
            self.upload.read_ahead(&self.worker.upstream(), &mut self.client.socket, counted).await?;
        }
        let mut origin_request = self.origin_request(resource, self.body, Purpose::Bypass);
        if let Hops::Left(hops) = hops {
            origin_request.add("Max-Forwards", hops.to_string().as_bytes());
        }
        if upgrades(self.request) {
            origin_request.add("Connection", b"Upgrade");
            origin_request.add("Upgrade", WEBSOCKET.as_bytes());
        }
        let fetched = fetch(&self.worker.upstream(), &mut origin_request, Some(self.sender())).await;
        if let Err(FetchError::Origin(OriginError::Reset(code))) = &fetched
            && self.client.socket.http2_id().is_some()
        {
            self.client.socket.reset_stream(code_for_client(*code));
            return Err(SocketError::Closed.into());
        }
        let incoming = fetched?;
        if origin_request.is_unrequested_304(&incoming) {
            return Err(OriginError::NotModified.into());
        }
        self.worker.heads.give_back(origin_request.head);
        if !is_safe(self.request.method) {
            self.invalidate(&resource.uri, incoming.status, &incoming.response().fields);
        }
        self.pass_response(incoming, why).await
    }

    /// Purges the stored responses for a URI, or those with the tags of the request, if the client
    /// may. `Soft-Purge: 1` marks them as stale.
    async fn purge(&self, resource: &Resource<'_>) -> Result<bool, ExchangeError> {
        if !self.worker.settings().access.allows_purge(self.peer.ip()) {
            return Err(ExchangeError::Refuse(
                403,
                "PURGE is not allowed from here (access.purge)".to_owned(),
            ));
        }
        let effect = match self.request.fields.one("soft-purge") {
            None if !self.request.fields.has("soft-purge") => Effect::Remove,
            Some("1") => Effect::Expire,
            _ => {
                let why = "Soft-Purge: expected 1, which marks responses as stale".to_owned();
                return Err(ExchangeError::Refuse(400, why));
            }
        };
        let tags = Tag::of_purge(&self.request.fields)
            .map_err(|error| ExchangeError::Refuse(400, error.to_string()))?;
        if !tags.is_empty() {
            return self.purge_tags(tags, effect).await;
        }
        let key = |uri: &Uri<'_>| {
            let mut key = String::new();
            uri.write_key(&mut key);
            key
        };
        self.await_loaded().await?;
        let uris = [resource.uri, self.client_uri(&resource.uri)];
        match self.purge_all(uris.iter().map(key), effect) {
            0 => Err(ExchangeError::Refuse(404, "no response is stored for this URI".to_owned())),
            _ => Err(ExchangeError::Refuse(200, done(effect).to_owned())),
        }
    }

    /// Waits until the store is loaded. The response to a purge promises that it outlives the
    /// process, and a record that is not loaded yet has no mark of its removal.
    async fn await_loaded(&self) -> Result<(), ExchangeError> {
        let shared = &self.worker.shared;
        let Some(store) = shared.store.clone().filter(|store| !store.is_loaded()) else { return Ok(()) };
        let loaded = shared.scans.run(move || disk::await_loaded(&store)).await;
        loaded.map_err(|error| ExchangeError::Refuse(error.status(), error.to_string()))
    }

    /// Purges the stored responses with one of these tags, of all URIs. Another thread reads the
    /// heads.
    async fn purge_tags(&self, tags: Vec<Tag>, effect: Effect) -> Result<bool, ExchangeError> {
        let shared = self.worker.shared.clone();
        let removed = self.worker.shared.scans.run(move || shared.purge_tags(&tags, effect)).await;
        Err(match removed {
            Ok(Removed { in_memory: 0, stored: 0 }) => {
                ExchangeError::Refuse(404, "no stored response has one of these tags".to_owned())
            }
            Ok(_) => ExchangeError::Refuse(200, done(effect).to_owned()),
            Err(error) => ExchangeError::Refuse(error.status(), error.to_string()),
        })
    }

    /// RFC 9111 s4.4. The origin names URIs as it sees them, and its clients as they do.
    fn invalidate(&self, uri: &Uri<'_>, status: u16, fields: &Fields<'_>) {
        let of_origin = invalidated(self.request.method, uri, status, fields);
        let of_client = invalidated(self.request.method, &self.client_uri(uri), status, fields);
        self.purge_all(of_origin.into_iter().chain(of_client), Effect::Remove);
    }

    /// Returns a URI with the path as the client sent it.
    fn client_uri<'u>(&'u self, uri: &Uri<'u>) -> Uri<'u> {
        match Target::parse(self.request.method, self.request.target) {
            Ok(Target::Origin(path) | Target::Absolute(Uri { path, .. })) => Uri { path, ..*uri },
            _ => *uri,
        }
    }

    /// Purges the stored responses for URIs, of whatever pool, by their keys without one; returns
    /// their number.
    fn purge_all(&self, keys: impl Iterator<Item = String>, effect: Effect) -> usize {
        let mut keys: Vec<_> = keys.flat_map(|key| self.worker.settings().keys_for_client(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        // Most objects in memory are in the store as well.
        let number = |purged: Removed| purged.stored.max(purged.in_memory);
        keys.iter().map(|key| number(self.worker.shared.purge(key, effect))).sum()
    }

    /// RFC 9110 s9.3.6.
    async fn connect(&mut self, authority: &Authority<'_>) -> Result<bool, ExchangeError> {
        let port = authority.port_or_default(Scheme::Https);
        let host = authority.host.to_string();
        // Bytes inside the tunnel belong to client and origin: the proxy adds no TLS.
        let server = Server::tcp(host.trim_matches(['[', ']']), port, false);
        let mut connection = Connection::open(&self.worker.upstream(), &server, self.counted()).await?;
        self.client.record.other(200, Outcome::Tunnel);
        self.client.record.origin = connection.address;
        self.client.add_overhead(ESTABLISHED.len());
        self.client.write_all(ESTABLISHED, &[]).await?;
        let Connection { socket, buffer, .. } = &mut *connection;
        self.tunnel((socket, buffer)).await?;
        Ok(false)
    }
}

/// Returns true for a call of gRPC, whose server speaks HTTP/2.
fn is_grpc(request: &Request<'_>) -> bool {
    const GRPC: &str = "application/grpc";
    let media_type = request.fields.one("content-type").unwrap_or_default();
    media_type.get(..GRPC.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(GRPC))
}
