//! Server that a request is sent to, and the other servers of its pool that may take its place.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use strait_http::head::Request;

use crate::config::pool::{Load, ServerPool};
use crate::config::server::Server;
use crate::config::sites::Resource;
use crate::io::gate::Client;
use crate::upstream::error::{Failure, OriginError};

/// Server of a request.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) server: Server,
    choice: Option<Choice>,
}

/// Servers of a pool that a request was sent to.
#[derive(Clone, Debug)]
struct Choice {
    pool: Arc<ServerPool>,
    /// Hash of the URI, if the choice depends on it.
    hash: u64,
    /// Position of the present server.
    at: usize,
    /// Positions of the servers so far, the present one included.
    tried: SmallVec<[usize; 4]>,
    /// First failure after the request was sent.
    suspect: Option<Suspect>,
    /// Server that the client's cookie names, if the pool is sticky for the request.
    sticky: Option<Named>,
}

/// Position of the server that a cookie names; `None` if it names no server of the pool.
#[derive(Clone, Copy, Debug)]
struct Named(Option<usize>);

/// Failure of a server after the request was sent: the server or the request may be the reason. It
/// counts unless another server fails in the same way. Otherwise one client could eject all servers
/// by a request that no server answers.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// Position of the server.
    at: usize,
    kind: Discriminant<OriginError>,
    /// True if another server has failed in the same way.
    is_excused: bool,
}

impl Origin {
    /// Returns the server of a resource: `chosen` of its pool, or another one if that is down.
    pub(crate) fn of(resource: &Resource<'_>, chosen: Option<usize>, now: u64) -> Self {
        let Some(pool) = resource.pool else {
            return Self { server: Server::of(&resource.uri), choice: None };
        };
        let hash = if pool.is_by_uri() { hash_of(resource) } else { 0 };
        let chosen = chosen.filter(|at| !pool.members[*at].is_out());
        // A pool has at least one server.
        let at = chosen.or_else(|| pool.choose(now, hash, &[])).unwrap_or(0);
        let choice =
            Choice { pool: pool.clone(), hash, at, tried: smallvec![at], suspect: None, sticky: None };
        Self { server: pool.members[at].server.clone(), choice: Some(choice) }
    }

    /// Returns the server for a client's request: `chosen`, that of its cookie, or another one.
    pub(crate) fn of_request(
        resource: &Resource<'_>,
        request: &Request<'_>,
        chosen: Option<usize>,
        now: u64,
    ) -> Self {
        let sticky = resource.pool.and_then(|pool| Some((pool, pool.sticky.as_ref()?)));
        let Some((pool, sticky)) = sticky.filter(|_| resource.manner.may_be_sticky()) else {
            return Self::of(resource, chosen, now);
        };
        let named = sticky.named(request);
        let stuck = named.filter(|at| pool.may_stick(*at, now));
        let mut origin = Self::of(resource, chosen.or(stuck), now);
        if let Some(choice) = &mut origin.choice {
            choice.sticky = Some(Named(named));
        }
        origin
    }

    /// Returns the value of Set-Cookie for the client, if its cookie does not name the server.
    pub(crate) fn set_cookie(&self) -> Option<String> {
        let choice = self.choice.as_ref()?;
        let Named(named) = choice.sticky?;
        let sticky = choice.pool.sticky.as_ref().filter(|_| named != Some(choice.at))?;
        sticky.set_cookie(choice.at)
    }

    /// Returns the position of the server in its pool.
    pub(crate) fn position(&self) -> Option<usize> {
        self.choice.as_ref().map(|choice| choice.at)
    }

    /// Returns true if its pool has other servers, which may have free connections.
    pub(crate) fn has_others(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.members.len() > 1)
    }

    /// Returns true if the server fails active checks or was taken out, maybe since it was chosen.
    pub(crate) fn is_out(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.members[choice.at].is_out())
    }

    /// Chooses another server in place of one that is out. Returns false if the others are out as
    /// well, or were tried.
    pub(crate) fn leave(&mut self, now: u64) -> bool {
        let Some(Choice { pool, hash, at, tried, .. }) = &mut self.choice else { return false };
        let up = pool.choose(now, *hash, tried).filter(|next| !pool.members[*next].is_out());
        let Some(next) = up else { return false };
        // The request was not sent to the one that is out, the last of `tried`.
        tried.pop();
        tried.push(next);
        *at = next;
        self.server = pool.members[next].server.clone();
        true
    }

    /// Counts a request that got no connection within the limits of the server.
    pub(crate) fn note_refused(&self) {
        if let Some(choice) = &self.choice {
            choice.pool.members[choice.at].note_refused();
        }
    }

    /// Counts a request to the server.
    pub(crate) fn load(&self) -> Option<Load> {
        self.choice.as_ref().map(|choice| Load::on(&choice.pool.members[choice.at]))
    }

    /// Counts a request that waits for its client's share of the server.
    pub(crate) fn waiting(&self) -> Option<Load> {
        self.choice.as_ref().map(|choice| Load::waiting(&choice.pool.members[choice.at]))
    }

    /// Notes that the server has responded.
    pub(crate) fn note_success(&mut self, now: u64) {
        if let Some(choice) = &mut self.choice {
            choice.count_suspect(now);
            choice.pool.note_success(choice.at, now);
        }
    }

    /// Notes an error of the server at a request of `client`. Returns true if the request now goes
    /// to another server of the pool.
    pub(crate) fn fail_over(&mut self, now: u64, client: Client, failure: &Failure) -> bool {
        let Some(choice) = &mut self.choice else { return false };
        let error = &failure.error;
        if error.is_of_server() && (error.is_unreachable() || !failure.was_sent) {
            choice.pool.note_failure(choice.at, now);
        } else if error.is_of_server() && failure.may_repeat {
            choice.suspect(error);
        } else if error.is_of_server() {
            choice.pool.note_unrepeated_failure(choice.at, client.address(), now);
        }
        let may_move = error.may_fail_over() && failure.may_repeat;
        if let Some(next) = may_move.then(|| choice.next(now)).flatten() {
            self.server = choice.pool.members[next].server.clone();
            return true;
        }
        choice.count_suspect(now);
        false
    }

    /// Returns the error for the client after the last server has failed.
    pub(crate) fn last_error(&self, error: OriginError) -> OriginError {
        let has_name = self.choice.as_ref().is_some_and(|choice| choice.pool.name.is_some());
        if has_name && error.is_unreachable() { OriginError::NoServer } else { error }
    }
}

impl Choice {
    /// Notes a failure after the request was sent.
    fn suspect(&mut self, error: &OriginError) {
        let (at, kind) = (self.at, discriminant(error));
        match &mut self.suspect {
            Some(first) => first.is_excused |= first.kind == kind,
            None => self.suspect = Some(Suspect { at, kind, is_excused: false }),
        }
    }

    /// Counts the first failure after the request was sent, unless another server has failed in the
    /// same way.
    fn count_suspect(&mut self, now: u64) {
        if let Some(Suspect { at, is_excused: false, .. }) = self.suspect.take() {
            self.pool.note_failure(at, now);
        }
    }

    /// Moves on to a server that was not tried, and gets requests.
    fn next(&mut self, now: u64) -> Option<usize> {
        if self.tried.len() >= self.pool.attempts {
            return None;
        }
        let next = self.pool.choose(now, self.hash, &self.tried)?;
        if self.pool.members[next].is_out() {
            return None;
        }
        self.tried.push(next);
        self.at = next;
        Some(next)
    }
}

fn hash_of(resource: &Resource<'_>) -> u64 {
    let mut key = String::new();
    resource.write_key(&mut key);
    strait_store::hash_of(key.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::Ordering;

    use rustix::io::Errno;
    use strait_http::target::Uri;

    use super::*;
    use crate::config::edge;
    use crate::config::pool::{Member, MemberOptions};
    use crate::config::sites::Manner;

    fn pool(servers: u16) -> Arc<ServerPool> {
        let config = edge::Pool { check: Some(edge::Check::default()), retries: 1, ..edge::Pool::default() };
        let server = |port| Server::Tcp { host: "a".into(), port, is_tls: false };
        let members = (1..=servers).map(|port| Member::new(server(port), MemberOptions::default())).collect();
        Arc::new(ServerPool::new(Some("p"), &config, members))
    }

    fn take_down(pool: &ServerPool, index: usize) {
        (0..100).for_each(|_| pool.note_check(index, 100, false));
    }

    fn origin(pool: &Arc<ServerPool>, chosen: usize) -> Origin {
        let uri = Uri::parse("http://a/").unwrap();
        Origin::of(&Resource { uri, pool: Some(pool), manner: Manner::default() }, Some(chosen), 100)
    }

    fn client() -> Client {
        Client::of([192, 0, 2, 1].into())
    }

    fn failures(pool: &ServerPool) -> Vec<u64> {
        pool.members.iter().map(|member| member.state.failures.load(Ordering::Relaxed)).collect()
    }

    /// Failure to connect.
    fn unsent(errno: Errno) -> Failure {
        let error = OriginError::of_connect(&"127.0.0.1:80", io::Error::from(errno));
        Failure { error, was_sent: false, may_repeat: true }
    }

    /// Failure after the request was sent.
    fn sent(error: OriginError) -> Failure {
        Failure { error, was_sent: true, may_repeat: true }
    }

    #[test]
    fn request_leaves_a_server_that_is_down_without_a_failed_attempt() {
        let pool = pool(3);
        take_down(&pool, 0);
        assert_ne!(origin(&pool, 0).position(), Some(0));
        let mut origin = origin(&pool, 1);
        take_down(&pool, 1);
        assert!(origin.is_out() && origin.leave(100) && !origin.is_out());
        assert_eq!((origin.position(), origin.server.to_string().as_str()), (Some(2), "a:3"));
        // The others are out: the failure stays that of this server.
        assert!(!origin.fail_over(100, client(), &unsent(Errno::CONNREFUSED)));
        assert_eq!((origin.position(), failures(&pool)), (Some(2), vec![0, 0, 1]));
    }

    #[test]
    fn server_is_not_charged_with_an_exhausted_host() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            let pool = pool(2);
            let mut origin = origin(&pool, 0);
            assert!(
                origin.fail_over(100, client(), &unsent(errno)) && origin.position() == Some(1),
                "{errno}"
            );
            assert!(!origin.fail_over(100, client(), &unsent(errno)), "{errno}");
            let error = origin.last_error(unsent(errno).error);
            assert_eq!((error.status(), failures(&pool)), (503, vec![0, 0]), "{errno}");
        }
        let pool = pool(1);
        assert!(!origin(&pool, 0).fail_over(100, client(), &unsent(Errno::CONNREFUSED)));
        assert_eq!(failures(&pool), [1]);
    }

    #[test]
    fn failure_after_the_request_was_sent_counts_unless_it_repeats_elsewhere() {
        use OriginError::{Closed, TimedOut};
        let refused = || unsent(Errno::CONNREFUSED);
        let unsent_in_time = || Failure { was_sent: false, ..sent(TimedOut) };
        let unrepeatable = |error| Failure { may_repeat: false, ..sent(error) };
        for (attempts, expected) in [
            (vec![Some(sent(Closed)), Some(sent(Closed))], [0, 0]),
            (vec![Some(sent(Closed)), Some(sent(TimedOut))], [1, 0]),
            (vec![Some(sent(Closed)), Some(refused())], [1, 1]),
            (vec![Some(refused()), Some(sent(Closed))], [1, 1]),
            (vec![Some(sent(Closed)), None], [1, 0]),
            (vec![Some(unrepeatable(Closed))], [1, 0]),
            // Without a connection the request is not the reason.
            (vec![Some(unsent_in_time()), Some(unsent_in_time())], [1, 1]),
            (vec![None], [0, 0]),
        ] {
            let pool = pool(2);
            let mut origin = origin(&pool, 0);
            for (index, attempt) in attempts.iter().enumerate() {
                match attempt {
                    Some(failure) => {
                        let has_next = index == 0 && failure.may_repeat;
                        assert_eq!(origin.fail_over(100, client(), failure), has_next, "{attempts:?}");
                    }
                    None => origin.note_success(100),
                }
            }
            assert_eq!(failures(&pool), expected, "{attempts:?}");
        }
    }
}
