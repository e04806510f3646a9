//! Server that a request is sent to, and the other servers of its pool that may take its place.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use strait_http::cookies;
use strait_http::head::Request;
use tokio::time::timeout;

use crate::config::edge::{Balance, OriginHttp2};
use crate::config::member::{Load, Member};
use crate::config::pool::ServerPool;
use crate::config::route_limits::RouteLimits;
use crate::config::server::Server;
use crate::config::sites::Resource;
use crate::io::gate::Client;
use crate::upstream::error::{Failure, OriginError};

/// Server of a request.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) server: Server,
    /// Limits of the route.
    pub(crate) limits: RouteLimits,
    choice: Option<Choice>,
}

/// Servers of a pool that a request was sent to.
#[derive(Clone, Debug)]
struct Choice {
    pool: Arc<ServerPool>,
    /// Hash of the part of the request by which the pool chooses, if it has that part.
    hash: Option<u64>,
    /// Present server.
    member: Arc<Member>,
    /// Servers so far, the present one included.
    tried: SmallVec<[Arc<Member>; 4]>,
    /// Number of other addresses of a name among them, which do not count as attempts.
    siblings: usize,
    /// Servers that the request is sent to, if the ones before fail.
    attempts: usize,
    /// First failure after the request was sent.
    suspect: Option<Suspect>,
    /// Server that the client's cookie names, if the pool is sticky for the request.
    sticky: Option<Named>,
}

/// Server that a cookie names; `None` if it names no server of the pool.
#[derive(Clone, Debug)]
struct Named(Option<Arc<Member>>);

/// Maximum of addresses of names that a request tries in addition to its attempts, after no
/// connection was possible: addresses can be out of date.
const SIBLINGS_MAX: usize = 3;

/// Maximum of servers that an error lists.
const STATES_MAX: usize = 8;

/// Failure of a server after the request was sent: the server or the request may be the reason. It
/// counts unless another server fails in the same way. Otherwise one client could eject all servers
/// by a request that no server answers.
#[derive(Clone, Debug)]
struct Suspect {
    member: Arc<Member>,
    kind: Discriminant<OriginError>,
    why: String,
    /// True if another server has failed in the same way.
    is_excused: bool,
}

impl Origin {
    /// Returns the server of a resource: `chosen` of its pool, or another one if that is down.
    pub(crate) fn of(
        resource: &Resource<'_>,
        request: &Request<'_>,
        chosen: Option<Arc<Member>>,
        now: u64,
    ) -> Self {
        let limits = resource.manner.limits();
        let Some(pool) = resource.pool else {
            return Self { server: Server::of(&resource.uri), limits, choice: None };
        };
        let hash = hash_of(pool.balance(), resource, request);
        let chosen = chosen.filter(|member| !member.is_out() && !member.is_gone());
        let chosen = chosen.or_else(|| pool.choose(now, hash, &[]));
        // A pool has at least one server. Without one, the client's host must not take its place.
        let Some(member) = chosen.or_else(|| pool.members().first().cloned()) else {
            return Self { server: Server::none(), limits, choice: None };
        };
        let (server, tried) = (member.server.clone(), smallvec![member.clone()]);
        let (pool, suspect, sticky) = (pool.clone(), None, None);
        let attempts = limits.retries.map_or(pool.attempts, |retries| retries as usize + 1);
        let choice = Choice { pool, hash, member, tried, siblings: 0, attempts, suspect, sticky };
        Self { server, limits, choice: Some(choice) }
    }

    /// Returns the server for a client's request: `chosen`, that of its cookie, or another one.
    pub(crate) fn of_request(
        resource: &Resource<'_>,
        request: &Request<'_>,
        chosen: Option<Arc<Member>>,
        now: u64,
    ) -> Self {
        let sticky = resource.pool.and_then(|pool| Some((pool, pool.sticky.as_ref()?)));
        let Some((pool, sticky)) = sticky.filter(|(_, sticky)| resource.manner.may_be_sticky(&sticky.name))
        else {
            return Self::of(resource, request, chosen, now);
        };
        let named = sticky.named(request, &pool.members());
        let stuck = named.clone().filter(|member| pool.may_stick(member, now));
        let mut origin = Self::of(resource, request, chosen.or(stuck), now);
        if let Some(choice) = &mut origin.choice {
            choice.sticky = Some(Named(named));
        }
        origin
    }

    /// Returns the value of Set-Cookie for the client, if its cookie does not name the server.
    pub(crate) fn set_cookie(&self) -> Option<String> {
        let choice = self.choice.as_ref()?;
        let Named(named) = choice.sticky.as_ref()?;
        let is_named = named.as_ref().is_some_and(|named| named.is_same(&choice.member));
        let sticky = choice.pool.sticky.as_ref().filter(|_| !is_named)?;
        sticky.set_cookie(&choice.member)
    }

    /// Returns the use of HTTP/2 to the server.
    pub(crate) fn http2(&self) -> OriginHttp2 {
        self.choice.as_ref().map_or(OriginHttp2::Off, |choice| choice.pool.http2)
    }

    /// Returns the server of its pool.
    pub(crate) fn member(&self) -> Option<&Arc<Member>> {
        self.choice.as_ref().map(|choice| &choice.member)
    }

    /// Returns true if its pool has other servers, which may have free connections.
    pub(crate) fn has_others(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.members().len() > 1)
    }

    /// Returns true if the server fails active checks, was taken out, or has left its name, maybe
    /// since it was chosen.
    pub(crate) fn is_out(&self) -> bool {
        self.is_gone() || self.member().is_some_and(|member| member.is_out())
    }

    /// Returns true if its name no longer has its address: the address may be another machine's.
    pub(crate) fn is_gone(&self) -> bool {
        self.member().is_some_and(|member| member.is_gone())
    }

    /// Waits up to `limit` for the first lookup of a service, and moves on to one of its servers.
    pub(crate) async fn await_service(&mut self, limit: Duration, now: u64) {
        let Some(Choice { pool, hash, member, tried, .. }) = &self.choice else { return };
        if !matches!(member.server, Server::Service(_)) {
            return;
        }
        let _ = timeout(limit, member.entry.looked_up()).await;
        if !member.is_gone() {
            return;
        }
        if let Some(next) = pool.choose(now, *hash, tried) {
            self.replace(next);
        }
    }

    /// Moves on to another server in place of the present one, the last of `tried`, to which the
    /// request was not sent.
    fn replace(&mut self, next: Arc<Member>) {
        self.server = next.server.clone();
        if let Some(Choice { member, tried, .. }) = &mut self.choice {
            tried.pop();
            tried.push(next.clone());
            *member = next;
        }
    }

    /// Chooses another server in place of one that is out. Returns false if the others are out as
    /// well, or were tried.
    pub(crate) fn leave(&mut self, now: u64) -> bool {
        let Some(Choice { pool, hash, tried, .. }) = &self.choice else { return false };
        let up = pool.choose(now, *hash, tried).filter(|next| !next.is_out());
        let Some(next) = up else { return false };
        self.replace(next);
        true
    }

    /// Counts a request that got no connection within the limits of the server.
    pub(crate) fn note_refused(&self) {
        if let Some(member) = self.member() {
            member.note_refused();
        }
    }

    /// Counts a request to the server.
    pub(crate) fn load(&self) -> Option<Load> {
        self.member().map(|member| Load::on(member))
    }

    /// Counts a request that waits for its client's share of the server.
    pub(crate) fn waiting(&self) -> Option<Load> {
        self.member().map(|member| Load::waiting(member))
    }

    /// Notes that the server has responded.
    pub(crate) fn note_success(&mut self, now: u64) {
        if let Some(choice) = &mut self.choice {
            choice.count_suspect(now);
            choice.member.note_success(now);
        }
    }

    /// Returns true if its pool compares the times of its servers.
    pub(crate) fn notes_times(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.has_outliers())
    }

    /// Notes the time from the request of `client` to the head of the response, unless the client
    /// has chosen the server: it could choose slow requests for one, and quick ones for the others.
    pub(crate) fn note_time(&self, client: Client, time: Duration, now: u64) {
        if let Some(choice) = self.choice.as_ref().filter(|it| it.hash.is_none() && !it.is_stuck()) {
            choice.pool.note_time(&choice.member, client.address(), time, now);
        }
    }

    /// Returns the time after which a request is also sent to another server, and adds its share to
    /// the budget of the pool. `None` for a request that its client's cookie binds to the server.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        let choice = self.choice.as_ref().filter(|choice| !choice.is_stuck())?;
        let hedge = choice.pool.hedge.as_ref()?;
        hedge.earn();
        Some(hedge.after)
    }

    /// Returns true if requests to the pool are hedged.
    pub(crate) fn is_hedged(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.hedge.is_some())
    }

    /// Chooses another server that gets requests, if the budget of the pool allows one more. No
    /// backup is asked beside a server that is none.
    pub(crate) fn hedge(&self, now: u64) -> Option<Self> {
        let Choice { pool, hash, member, tried, .. } = self.choice.as_ref()?;
        let next = pool.choose(now, *hash, tried)?;
        if next.is_out() || next.is_ejected(now) || next.tier > member.tier {
            return None;
        }
        if !pool.hedge.as_ref()?.spend() {
            member.state.hedges_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        next.state.hedged.fetch_add(1, Ordering::Relaxed);
        let mut other = self.clone();
        other.server = next.server.clone();
        if let Some(choice) = &mut other.choice {
            choice.tried.push(next.clone());
            choice.member = next;
            // An earlier server's failure counts once, at the request itself.
            choice.suspect = None;
        }
        Some(other)
    }

    /// Moves on to the server of a hedged request, which has answered first or after the present
    /// server had `failed`.
    pub(crate) fn give_way(&mut self, other: Self, failed: Option<&OriginError>) {
        let suspect = self.choice.take().and_then(|mut choice| {
            if let Some(error) = failed.filter(|error| error.is_of_server()) {
                choice.suspect(error);
            }
            choice.suspect
        });
        *self = other;
        if let Some(choice) = &mut self.choice {
            choice.suspect = suspect;
        }
    }

    /// Notes that the server of a hedged request has failed as well: it is not asked again.
    pub(crate) fn note_tried(&mut self, other: &Self) {
        if let (Some(choice), Some(other)) = (&mut self.choice, &other.choice) {
            choice.tried.push(other.member.clone());
        }
    }

    /// Counts a hedged request that the server has answered first.
    pub(crate) fn note_hedge_won(&self) {
        if let Some(member) = self.member() {
            member.state.hedges_won.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes an error of the server at a request of `client`. Returns true if the request now goes
    /// to another server of the pool.
    pub(crate) fn fail_over(&mut self, now: u64, client: Client, failure: &Failure) -> bool {
        let Some(choice) = &mut self.choice else { return false };
        let error = &failure.error;
        if error.is_of_server() && (error.is_unreachable() || !failure.was_sent) {
            choice.pool.note_failure(&choice.member, now, error);
            choice.member.entry.doubt();
            choice.note_sibling(error);
        } else if error.is_of_server() && failure.may_repeat {
            choice.suspect(error);
        } else if error.is_of_server() {
            choice.pool.note_unrepeated_failure(&choice.member, client.address(), now, error);
        }
        let may_move = error.may_fail_over() && failure.may_repeat;
        if let Some(next) = may_move.then(|| choice.next(now)).flatten() {
            self.server = next;
            return true;
        }
        choice.count_suspect(now);
        false
    }

    /// Returns the error for the client after the last server has failed.
    pub(crate) fn last_error(&self, error: OriginError, now: u64) -> OriginError {
        let has_name = self.choice.as_ref().is_some_and(|choice| choice.pool.name.is_some());
        if !has_name || !error.is_unreachable() {
            return error;
        }
        OriginError::NoServer(format!("{error}; {}", self.states(now)))
    }

    /// Returns the error for a request that no server may get.
    pub(crate) fn no_server(&self, now: u64) -> OriginError {
        OriginError::NoServer(self.states(now))
    }

    /// Returns the servers of the pool with their states, for the log.
    fn states(&self, now: u64) -> String {
        let Some(Choice { pool, tried, .. }) = &self.choice else { return self.server.to_string() };
        let members = pool.members().to_vec();
        let state = |member: &Arc<Member>| match () {
            () if member.is_drained() => "drained",
            () if member.is_down() => "down",
            () if tried.iter().any(|it| Arc::ptr_eq(it, member)) => "failed now",
            () if member.is_ejected(now) => "ejected",
            () => "not tried",
        };
        let shown = members.iter().take(STATES_MAX).map(|it| format!("{} {}", it.server, state(it)));
        let others = members.len().saturating_sub(STATES_MAX);
        let others = (others > 0).then(|| format!("{others} others"));
        shown.chain(others).collect::<Vec<_>>().join(", ")
    }
}

impl Choice {
    /// Returns true if the client's cookie names the server.
    fn is_stuck(&self) -> bool {
        let named = self.sticky.as_ref().and_then(|Named(named)| named.as_ref());
        named.is_some_and(|named| named.is_same(&self.member))
    }

    /// Notes a failure after the request was sent.
    fn suspect(&mut self, error: &OriginError) {
        let kind = discriminant(error);
        if let Some(first) = &mut self.suspect {
            first.is_excused |= first.kind == kind;
        } else {
            let member = self.member.clone();
            self.suspect = Some(Suspect { member, kind, why: error.to_string(), is_excused: false });
        }
    }

    /// Notes that an address of a name has refused a connection, which is no attempt. One that does
    /// not answer is: waiting for several would take too long.
    fn note_sibling(&mut self, error: &OriginError) {
        let is_refused = error.is_unreachable() && self.member.server.is_at_address();
        self.siblings += usize::from(is_refused && self.siblings < SIBLINGS_MAX);
    }

    /// Counts the first failure after the request was sent, unless another server has failed in the
    /// same way.
    fn count_suspect(&mut self, now: u64) {
        if let Some(Suspect { member, why, is_excused: false, .. }) = self.suspect.take() {
            self.pool.note_failure(&member, now, &why);
        }
    }

    /// Moves on to a server that was not tried, and gets requests.
    fn next(&mut self, now: u64) -> Option<Server> {
        if self.tried.len() >= self.attempts + self.siblings {
            return None;
        }
        let next = self.pool.choose(now, self.hash, &self.tried)?;
        if next.is_out() {
            return None;
        }
        self.tried.push(next.clone());
        self.member = next;
        Some(self.member.server.clone())
    }
}

/// Returns the hash of the part of a request by which a balance chooses; `None` if there is none.
/// It is the same in all proxies and after a restart.
fn hash_of(balance: &Balance, resource: &Resource<'_>, request: &Request<'_>) -> Option<u64> {
    let key = match balance {
        Balance::RoundRobin | Balance::LeastConnections | Balance::PowerOfTwo => return None,
        Balance::Uri => {
            let mut key = String::new();
            resource.write_key(&mut key);
            key.into_bytes()
        }
        Balance::Header(name) => {
            let lines: Vec<_> = request.fields.all(name).map(|field| field.value).collect();
            lines.join(&b'\n')
        }
        Balance::Cookie(name) => cookies::values(&request.fields, name).next().unwrap_or_default().to_vec(),
    };
    (!key.is_empty()).then(|| strait_store::hash_of(&key))
}

#[cfg(test)]
mod tests;
