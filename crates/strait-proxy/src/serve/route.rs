//! Routing: decides from the head and the settings how a request is handled.

use std::cell::OnceCell;
use std::net::IpAddr;

use strait_http::Malformed;
use strait_http::cache_status::Why;
use strait_http::forward::{Hops, has_passed, hops};
use strait_http::framing::BodyFraming;
use strait_http::head::{self, Request, Version};
use strait_http::method::is_answered_from_store;
use strait_http::poisoning::bypasses_cache;
use strait_http::target::{Authority, Scheme, Target, Uri, host};

use crate::cache::fill::Refusal;
use crate::config::auth::{BasicAuth, Credentials};
use crate::config::edge::Redirect;
use crate::config::rules::{AuthRequest, RequestRules, Rules};
use crate::config::settings::Settings;
use crate::config::sites::{
    Directory, FixedResponse, Found, Manner, NoTarget, Resource, Sites, Target as SiteTarget,
};
use crate::config::variables::Variables;
use crate::serve::admission::{Admission, Denial, admission};

/// Only protocol that a connection may change to.
pub(crate) const WEBSOCKET: &str = "websocket";

/// Reason of the refusal of a path that a route cannot rewrite.
pub(crate) const REWRITTEN: &str = "programs read the path differently, and this site rewrites it";

/// Route of a request.
#[derive(Debug)]
pub(crate) enum Route<'b> {
    /// Through the cache.
    Cache(Resource<'b>),
    Bypass(Bypass<'b>),
}

impl<'b> Route<'b> {
    /// Returns how requests of the site's route are treated.
    pub(crate) fn manner(&self) -> Manner<'b> {
        match self {
            Self::Cache(resource) | Self::Bypass(Bypass::Origin(resource, ..) | Bypass::Purge(resource)) => {
                resource.manner
            }
            Self::Bypass(
                Bypass::File(.., manner)
                | Bypass::Fixed(_, manner)
                | Bypass::Redirect(.., manner)
                | Bypass::Denied(_, manner),
            ) => *manner,
            Self::Bypass(Bypass::Tunnel(_) | Bypass::Here) => Manner::default(),
            Self::Bypass(Bypass::Verify(route, ..) | Bypass::Ask(route, _)) => route.manner(),
        }
    }

    /// Returns the URI of a request to a pool.
    pub(crate) fn uri(&self) -> Option<Uri<'b>> {
        match self {
            Self::Cache(resource) | Self::Bypass(Bypass::Origin(resource, ..) | Bypass::Purge(resource)) => {
                Some(resource.uri)
            }
            Self::Bypass(Bypass::Verify(route, ..) | Bypass::Ask(route, _)) => route.uri(),
            // Each answer of the proxy itself is named: a new one must decide if it needs
            // permission.
            Self::Bypass(
                Bypass::Tunnel(_)
                | Bypass::Here
                | Bypass::Redirect(..)
                | Bypass::File(..)
                | Bypass::Fixed(..)
                | Bypass::Denied(..),
            ) => None,
        }
    }

    /// Returns the rules of the site's route.
    pub(crate) fn rules(&self) -> Option<&'b Rules> {
        self.manner().rules
    }

    /// Applies rules to a request: decides if it is admitted, and changes its fields.
    /// `filled` is the place of rules with variables.
    pub(crate) fn apply(
        &mut self,
        rules: &'b Rules,
        request: &mut Request<'b>,
        client: IpAddr,
        filled: &'b OnceCell<RequestRules>,
    ) -> Applied {
        let mut applied = Applied::default();
        if let Some(asked) = &rules.auth_request {
            let route = std::mem::replace(self, Self::Bypass(Bypass::Here));
            *self = Self::Bypass(Bypass::Ask(Box::new(route), asked));
        }
        match admission(rules, request, client) {
            Admission::Admitted => applied.is_authenticated = rules.auth.is_some(),
            Admission::Denied(denial) => {
                *self = Self::Bypass(Bypass::Denied(denial, self.manner()));
                return applied;
            }
            Admission::Unverified(auth, credentials) => {
                let route = std::mem::replace(self, Self::Bypass(Bypass::Here));
                *self = Self::Bypass(Bypass::Verify(Box::new(route), auth, credentials));
            }
        }
        let Some(changes) = &rules.request else { return applied };
        // The answers of the proxy itself need no fields.
        if let (true, Some(uri)) = (changes.has_variables, self.uri()) {
            let variables = Variables { client, uri: &uri, method: request.method };
            let Some(new) = changes.filled(&variables) else {
                *self = Self::Bypass(Bypass::Denied(too_long_to_write(), self.manner()));
                return applied;
            };
            filled.get_or_init(|| new).apply(request);
        } else {
            changes.apply(request);
        }
        applied.is_changed = true;
        applied
    }
}

/// Returns the refusal of a request with a host or URI too long for a field of the rules.
fn too_long_to_write() -> Denial {
    Denial {
        status: 414,
        why: "the URI is too long for a field that this site sends",
        field_lines: Vec::new(),
    }
}

/// Result of the rules of a route for a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Applied {
    /// True if they have changed its fields.
    pub(crate) is_changed: bool,
    /// True if it has the right password.
    pub(crate) is_authenticated: bool,
}

/// Route without the cache.
#[derive(Debug)]
pub(crate) enum Bypass<'b> {
    /// To the origin, with the reason.
    Origin(Resource<'b>, Hops, Why),
    /// CONNECT (RFC 9110, section 9.3.6).
    Tunnel(Authority<'b>),
    /// OPTIONS and TRACE with Max-Forwards 0 (RFC 9110, sections 7.6.2, 9.3.7 and 9.3.8).
    Here,
    /// PURGE.
    Purge(Resource<'b>),
    /// Redirection of a site's route.
    Redirect(Uri<'b>, &'b Redirect, Manner<'b>),
    /// File below the directory of a site's route.
    File(Uri<'b>, &'b Directory, Manner<'b>),
    /// Fixed response of a site's route.
    Fixed(&'b FixedResponse, Manner<'b>),
    /// Route after the verification of a password.
    Verify(Box<Route<'b>>, &'b BasicAuth, Credentials),
    /// Route after a server was asked if the request is allowed.
    Ask(Box<Route<'b>>, &'b AuthRequest),
    /// Refusal by the rules of a site's route.
    Denied(Denial, Manner<'b>),
}

/// Parses a request without the fields that are dropped from every request; `None` while its head
/// is not complete.
pub(crate) fn read_request<'b>(
    settings: &Settings,
    bytes: &'b [u8],
) -> Result<Option<(Request<'b>, usize)>, Malformed> {
    let mut read = head::request(bytes)?;
    if let Some((request, _)) = &mut read {
        drop_fields(settings, request);
    }
    Ok(read)
}

/// Removes the fields that are dropped from every request.
pub(crate) fn drop_fields(settings: &Settings, request: &mut Request<'_>) {
    request.fields.remove(|name| settings.forwarded.drops(name));
}

/// Parses the head of a request again, as the rules of its route change it.
pub(crate) fn read_ruled<'b>(
    settings: &Settings,
    head: &'b [u8],
    rules: Option<&'b RequestRules>,
) -> Option<Request<'b>> {
    let (mut request, _) = read_request(settings, head).ok()??;
    if let Some(rules) = rules {
        rules.apply(&mut request);
    }
    Some(request)
}

/// Returns the route of a request with that body, or the refusal. `path` is the place of a
/// rewritten path.
pub(crate) fn route<'b>(
    settings: &'b Settings,
    request: &Request<'b>,
    body: BodyFraming,
    is_encrypted: bool,
    path: &'b OnceCell<String>,
) -> Result<Route<'b>, Refusal> {
    let target = Target::parse(request.method, request.target).map_err(malformed)?;
    // Host is checked for every form of the target, but names the server only for a path (RFC 9112,
    // section 3.2.2).
    let host = host(request).map_err(malformed)?;
    let hops = hops(request.method, &request.fields).map_err(malformed)?;
    let names_host = host.is_some() || matches!(target, Target::Absolute(_));
    let uri = match target {
        Target::Authority(authority) => return tunnel(settings, authority),
        _ if hops == Hops::None => return Ok(Route::Bypass(Bypass::Here)),
        Target::Absolute(uri) => absolute(settings, uri, is_encrypted)?,
        Target::Origin(path) => relative(settings, host, path, is_encrypted)?,
        Target::Asterisk => relative(settings, host, "", is_encrypted)?,
    };
    if has_passed(&request.fields, &settings.via.text) {
        return Err((508, "the request has passed through this proxy before: a loop".to_owned()));
    }
    if !settings.answers_for(&uri.authority.host) {
        return Err((421, "this proxy does not serve that host".to_owned()));
    }
    let mut resource = match &settings.sites {
        None => Resource { uri, pool: None, manner: Manner::default() },
        Some(sites) => {
            match at_site(sites, uri, request, is_encrypted)? {
                // The authority of a server is for that server alone.
                Route::Bypass(Bypass::Redirect(..) | Bypass::File(..)) if !names_host => {
                    return Err(no_host());
                }
                Route::Cache(resource) => resource,
                own @ Route::Bypass(_) => return Ok(own),
            }
        }
    };
    let rules = match resource.manner.rules.map(|rules| changed(&mut resource, rules, request, path)) {
        Some(Ok(rules)) => rules,
        // The route is known, and its other rules apply.
        Some(Err(denial)) => return Ok(Route::Bypass(Bypass::Denied(denial, resource.manner))),
        None => None,
    };
    Ok(match request.method {
        "PURGE" => Route::Bypass(Bypass::Purge(resource)),
        method if !is_answered_from_store(method) => {
            Route::Bypass(Bypass::Origin(resource, hops, Why::Method))
        }
        _ if body == BodyFraming::None
            && !bypasses(settings, request, rules)
            && is_cached(resource.manner, request, rules) =>
        {
            Route::Cache(resource)
        }
        _ => Route::Bypass(Bypass::Origin(resource, hops, Why::Bypass)),
    })
}

/// Gives a resource the path and the query of its rules; OPTIONS * has none. Returns the rules for
/// fields, or the refusal of a request that evades them.
fn changed<'b>(
    resource: &mut Resource<'b>,
    rules: &'b Rules,
    request: &Request<'_>,
    path: &'b OnceCell<String>,
) -> Result<Option<&'b RequestRules>, Denial> {
    let refused = |why| Denial { status: 400, why, field_lines: Vec::new() };
    let has_path = request.method != "OPTIONS" || !resource.uri.path.is_empty();
    let mut new = None;
    if let Some(rewrite) = rules.rewrite.as_ref().filter(|_| has_path) {
        let rewritten = rewrite.apply(resource.uri.path);
        new = Some(rewritten.ok_or_else(|| refused(REWRITTEN))?);
    }
    let query = rules.cache.as_ref().and_then(|cache| cache.query.as_ref());
    if let Some(query) = query.filter(|_| matches!(request.method, "GET" | "HEAD" | "PURGE")) {
        new = query.apply(new.as_deref().unwrap_or(resource.uri.path)).or(new);
    }
    if let Some(new) = new {
        resource.uri.path = path.get_or_init(|| new);
    }
    let rules = rules.request.as_deref();
    if rules.is_some_and(|rules| rules.are_evaded_by(request)) {
        return Err(refused("Connection names a field that the proxy sets"));
    }
    Ok(rules)
}

/// Returns the route of a request at its site, as if its method and fields allowed the cache.
fn at_site<'b>(
    sites: &'b Sites,
    uri: Uri<'b>,
    request: &Request<'_>,
    is_encrypted: bool,
) -> Result<Route<'b>, Refusal> {
    let found = sites.find(&uri, request);
    let Found { target, manner } = found.map_err(|why| no_target(why, is_encrypted))?;
    let own = match target {
        // No rules: a client must not send its password without TLS. RFC 6797 s7.2: no HSTS.
        _ if manner.is_https_only && !is_encrypted => {
            Bypass::Redirect(uri, &sites.to_https, Manner::default())
        }
        SiteTarget::Pool(pool) => return Ok(Route::Cache(Resource { uri, pool: Some(pool), manner })),
        SiteTarget::Files(dir) => Bypass::File(uri, dir, manner),
        SiteTarget::Redirect(redirect) => Bypass::Redirect(uri, redirect, manner),
        SiteTarget::Fixed(response) => Bypass::Fixed(response, manner),
    };
    Ok(Route::Bypass(own))
}

/// Returns the refusal of a request that no route of a site has. Over TLS the client may have
/// reused a connection to another host, and repeats the request on a new one after 421 (RFC 9110,
/// section 15.5.20).
fn no_target(why: NoTarget, is_encrypted: bool) -> Refusal {
    let (status, text) = match why {
        NoTarget::Host if is_encrypted => (421, "this proxy does not serve that host"),
        NoTarget::Host => (404, "this proxy does not serve that host"),
        NoTarget::Path => (404, "no route of this site has the path"),
        NoTarget::Conditions => (404, "no route of the path has conditions that hold for the request"),
        NoTarget::Evasion => (400, "Connection names a field that selects the route"),
        NoTarget::Ambiguous => {
            (400, "programs read the path differently, and routes of this site depend on it")
        }
    };
    (status, text.to_owned())
}

/// Returns the refusal of a body of more than `most` bytes.
pub(crate) fn too_long(most: u64) -> Refusal {
    (413, format!("the body is longer than {most} bytes"))
}

/// Returns the refusal of a malformed message.
pub(crate) fn malformed(error: Malformed) -> Refusal {
    (error.status(), error.to_string())
}

/// Returns true for a request to change to WebSocket (RFC 6455). Other protocols would bypass every
/// check. Upgrade in HTTP/1.0 is ignored (RFC 9110, section 7.8), and so is one with another
/// method.
pub(crate) fn upgrades(request: &Request<'_>) -> bool {
    let fields = &request.fields;
    if request.version < Version::Http11 || request.method != "GET" {
        return false;
    }
    let names = |field, name: &str| fields.elements(field).any(|element| element.eq_ignore_ascii_case(name));
    fields.has("upgrade") && names("upgrade", WEBSOCKET) && names("connection", "upgrade")
}

/// Returns true if a request must not be answered from the cache: it compares with the origin's
/// state (RFC 9110, sections 13.1.1 and 13.1.4), changes the protocol, has a field that replaces
/// the method or target, or has a bypass field of the operator. A field that rules drop does not
/// count, nor does one that they write: all requests of the route have it.
fn bypasses(settings: &Settings, request: &Request<'_>, rules: Option<&RequestRules>) -> bool {
    let fields = &request.fields;
    let is_kept = |name: &str| !rules.is_some_and(|rules| rules.drops(name));
    let has = |name: &str| fields.has(name) && is_kept(name);
    has("if-match")
        || has("if-unmodified-since")
        || upgrades(request)
        || fields.iter().any(|field| bypasses_cache(field.name) && is_kept(field.name))
        || settings.bypass_fields.iter().any(|name| has(name))
}

/// Returns true if the cache policy of the route admits a request. Cookies that rules drop do not
/// count.
fn is_cached(manner: Manner<'_>, request: &Request<'_>, rules: Option<&RequestRules>) -> bool {
    let Some(cache) = manner.rules.and_then(|rules| rules.cache.as_ref()) else { return true };
    cache.admit(&request.fields, |name| rules.is_some_and(|rules| rules.drops_cookie(name)))
}

fn tunnel<'b>(settings: &Settings, authority: Authority<'b>) -> Result<Route<'b>, Refusal> {
    let port = authority.port_or_default(Scheme::Https);
    if settings.is_reverse() {
        return Err((405, "a reverse proxy opens no tunnels".to_owned()));
    }
    if !settings.access.connect_ports.contains(&port) {
        return Err((403, format!("tunnels to port {port} are not allowed (access.connect_ports)")));
    }
    Ok(Route::Bypass(Bypass::Tunnel(authority)))
}

fn absolute<'b>(settings: &Settings, uri: Uri<'b>, is_encrypted: bool) -> Result<Uri<'b>, Refusal> {
    match uri.scheme {
        Scheme::Https if !settings.is_reverse() || !is_encrypted => {
            Err((501, "https needs CONNECT".to_owned()))
        }
        // The scheme is that of a request for the path alone.
        _ if settings.is_reverse() => Ok(Uri { scheme: settings.scheme(is_encrypted), ..uri }),
        _ => Ok(uri),
    }
}

/// Returns the URI of a path. HTTP/1.0 may omit Host: a reverse proxy then takes the authority of
/// its origin, for the key as well as for the request to that origin.
fn relative<'b>(
    settings: &'b Settings,
    host: Option<Authority<'b>>,
    path: &'b str,
    is_encrypted: bool,
) -> Result<Uri<'b>, Refusal> {
    let scheme = settings.scheme(is_encrypted);
    let own = || settings.sites.as_ref().and_then(Sites::authority);
    match host.or_else(own) {
        _ if !settings.is_reverse() && !path.is_empty() => {
            Err((400, "a forward proxy needs whole URIs: GET http://host/path".to_owned()))
        }
        Some(authority) => Ok(Uri { scheme, authority, path }),
        None => Err(no_host()),
    }
}

fn no_host() -> Refusal {
    (400, "the request names no host".to_owned())
}
