//! Admin page: metrics, status, stored objects, purge and ban, draining of servers. A thread of its
//! own serves it.
//!
//! Clients outside `admin.allow` are refused. So are foreign host names: their owners may have
//! pointed them here (DNS rebinding). Changes need a POST that does not come from a page of another
//! site.

mod guards;
mod metrics;
mod names;
mod servers;
mod site;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use strait_http::framing::{self, BodyFraming};
use strait_http::head::{self, Request};
use strait_http::target::{Authority, Target, host};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, oneshot};

pub(crate) use crate::admin::site::Site;
use crate::config::error::{Error, Result};
use crate::io::buffer::Buffer;
use crate::io::head::{push_field, push_number, push_status_line};
use crate::io::socket::{Socket, SocketError};

/// Time limit of each read and write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum of concurrent connections.
const CONNECTIONS_MAX: usize = 64;

/// Opens the listening socket.
pub(crate) fn listen_on(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind(address).map_err(|error| Error::os("listen on", &address, error))?;
    of_socket(socket)
}

/// Returns a listening socket that was opened before, and its address.
pub(crate) fn of_socket(socket: TcpListener) -> Result<(TcpListener, SocketAddr)> {
    let address = socket.set_nonblocking(true).and_then(|()| socket.local_addr());
    let address = address.map_err(|error| Error::os("use", &"the socket of the admin page", error))?;
    Ok((socket, address))
}

/// Prepares the admin page, reports that to `prepared`, and serves it from the message of `opened`
/// until the proxy ends.
pub(crate) fn serve(
    site: &Arc<Site>,
    socket: TcpListener,
    prepared: &Sender<io::Result<()>>,
    opened: oneshot::Receiver<()>,
) {
    // The caller waits for it.
    let report = |result| drop(prepared.send(result));
    let runtime =
        Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return report(Err(error)),
    };
    runtime.block_on(async {
        let listener = match tokio::net::TcpListener::from_std(socket) {
            Ok(listener) => listener,
            Err(error) => return report(Err(error)),
        };
        report(Ok(()));
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let accept = async {
            // The sender is dropped if the proxy is never opened.
            if opened.await.is_ok() {
                accept(site, listener, &room).await;
            }
        };
        tokio::select! {
            () = accept => {}
            () = site.ended() => {}
        }
        if site.settings().closing.is_handed_over() {
            // Requests under way get their responses.
            let all = room.acquire_many(CONNECTIONS_MAX as u32);
            let _ = tokio::time::timeout(PATIENCE, all).await;
        }
    });
    // A verification of all records may be under way, which takes long.
    runtime.shutdown_background();
}

async fn accept(site: &Arc<Site>, listener: tokio::net::TcpListener, room: &Arc<Semaphore>) {
    loop {
        // The semaphore is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((tcp, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let site = site.clone();
        tokio::task::spawn_local(async move {
            if site.settings().admin.allows(peer.ip()) {
                // Errors end the connection; there is no peer left to inform.
                let _ = converse(&site, Socket::new(tcp, PATIENCE), peer).await;
            }
            drop(permit);
        });
    }
}

/// Response of the admin page.
#[derive(Debug)]
pub(super) struct Page {
    status: u16,
    content_type: &'static str,
    /// Methods of the path, if the request has another one.
    allow: Option<&'static str>,
    body: Vec<u8>,
}

impl Page {
    fn text(status: u16, text: &str) -> Self {
        let (content_type, body) = ("text/plain; charset=utf-8", format!("{text}\n").into_bytes());
        Self { status, content_type, allow: None, body }
    }

    /// Refusal of a method (RFC 9110, section 15.5.6).
    fn not_allowed(allow: &'static str) -> Self {
        Self { allow: Some(allow), ..Self::text(405, &format!("expected {allow}")) }
    }

    fn json(value: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self { status: 200, content_type: "application/json", allow: None, body },
            Err(error) => Self::text(500, &error.to_string()),
        }
    }
}

/// Reads one request and sends its response.
async fn converse(site: &Site, mut socket: Socket, peer: SocketAddr) -> Result<(), SocketError> {
    let mut buffer = Buffer::default();
    let (page, is_head) = loop {
        match head::request(buffer.filled()) {
            Ok(None) => {}
            Ok(Some((request, _))) => {
                break (Box::pin(answer(site, &request, peer)).await, request.method == "HEAD");
            }
            Err(error) => break (Page::text(error.status(), &error.to_string()), false),
        }
        if socket.read(&mut buffer).await? == 0 {
            return Ok(());
        }
    };
    let mut head = Vec::new();
    push_status_line(&mut head, page.status);
    push_field(&mut head, "Content-Type", page.content_type.as_bytes());
    if let Some(allow) = page.allow {
        push_field(&mut head, "Allow", allow.as_bytes());
    }
    push_number(&mut head, "Content-Length", page.body.len() as u64);
    head.extend_from_slice(FIELDS);
    let body = if is_head { &[][..] } else { &page.body };
    socket.write_all(&head, body).await?;
    socket.close(&mut buffer).await
}

/// Fields of every response: no caching, no content from other sites, no framing.
const FIELDS: &[u8] = b"Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    X-Content-Type-Options: nosniff\r\n\
    Connection: close\r\n\r\n";

async fn answer(site: &Site, request: &Request<'_>, peer: SocketAddr) -> Page {
    if is_forwarded(request) {
        return Page::text(403, "a proxy forwarded this request (Via); ask the admin page directly");
    }
    let authority = match host(request) {
        Ok(Some(authority)) => authority,
        Ok(None) => return Page::text(400, "no Host"),
        Err(error) => return Page::text(error.status(), &error.to_string()),
    };
    if !site.settings().admin.answers_for(&authority.host) {
        return Page::text(421, "this host name is not allowed; add it to admin.hosts");
    }
    let has_body = |body| !matches!(body, BodyFraming::None | BodyFraming::Length(0));
    if framing::of_request(request).is_ok_and(has_body) {
        return Page::text(413, "requests must have no body");
    }
    let Ok(Target::Origin(target)) = Target::parse(request.method, request.target) else {
        return Page::text(400, "ask for a path");
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match request.method {
        "GET" | "HEAD" => site.show(path, query).await,
        "POST" if !site.settings().admin.allows_change(peer.ip()) => {
            Page::text(403, "changes are not allowed from this address (admin.change)")
        }
        "POST" if !is_from_here(request, &authority) => {
            Page::text(403, "a page of another site sent this request")
        }
        "POST" => site.change(path, query).await,
        _ => Page::not_allowed("GET, HEAD, POST"),
    }
}

/// Returns true if a proxy forwarded the request (RFC 9110, section 7.6.3). An SRV record can make
/// the admin page a server of a pool: the clients of that are not those of `admin.allow`.
fn is_forwarded(request: &Request<'_>) -> bool {
    request.fields.has("via")
}

/// Returns true unless a browser reports that a page of another site made the request (Fetch
/// Standard: Origin and Sec-Fetch-Site).
fn is_from_here(request: &Request<'_>, authority: &Authority<'_>) -> bool {
    let own = format!("http://{authority}");
    let is_own = |origin: &str| origin.eq_ignore_ascii_case(&own);
    let is_near = |site: &str| matches!(site, "same-origin" | "none");
    let holds =
        |name, is: &dyn Fn(&str) -> bool| request.fields.all(name).all(|field| field.text().is_some_and(is));
    holds("origin", &is_own) && holds("sec-fetch-site", &is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_a_proxy_is_noticed() {
        for (field, expected) in [("Accept: */*", false), ("Via: 1.1 strait", true), ("via:", true)] {
            let text = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            let (request, _) = head::request(text.as_bytes()).unwrap().unwrap();
            assert_eq!(is_forwarded(&request), expected, "{field}");
        }
    }
}
