//! Server that a request is sent to, and the other servers of its pool that may take its place.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::config::pool::{Load, ServerPool};
use crate::config::server::Server;
use crate::config::sites::Resource;
use crate::upstream::error::OriginError;

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
}

impl Origin {
    /// Returns the server of a resource: `chosen` of its pool, or another one if that is down.
    pub(crate) fn of(resource: &Resource<'_>, chosen: Option<usize>, now: u64) -> Self {
        let Some(pool) = resource.pool else {
            return Self { server: Server::of(&resource.uri), choice: None };
        };
        let hash = if pool.is_by_uri() { hash_of(resource) } else { 0 };
        let chosen = chosen.filter(|at| !pool.members[*at].is_down());
        // A pool has at least one server.
        let at = chosen.or_else(|| pool.choose(now, hash, &[])).unwrap_or(0);
        let choice = Choice { pool: pool.clone(), hash, at, tried: smallvec![at] };
        Self { server: pool.members[at].server.clone(), choice: Some(choice) }
    }

    /// Returns the position of the server in its pool.
    pub(crate) fn position(&self) -> Option<usize> {
        self.choice.as_ref().map(|choice| choice.at)
    }

    /// Returns true if the server fails active checks. It may have begun to since it was chosen.
    pub(crate) fn is_down(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.pool.members[choice.at].is_down())
    }

    /// Chooses another server in place of one that is down. Returns false if the others are down as
    /// well, or were tried.
    pub(crate) fn leave(&mut self, now: u64) -> bool {
        let Some(Choice { pool, hash, at, tried }) = &mut self.choice else { return false };
        let up = pool.choose(now, *hash, tried).filter(|next| !pool.members[*next].is_down());
        let Some(next) = up else { return false };
        // The request was not sent to the one that is down, the last of `tried`.
        tried.pop();
        tried.push(next);
        *at = next;
        self.server = pool.members[next].server.clone();
        true
    }

    /// Counts a request to the server.
    pub(crate) fn load(&self) -> Option<Load> {
        self.choice.as_ref().map(|choice| Load::on(&choice.pool.members[choice.at]))
    }

    /// Notes that the server has responded.
    pub(crate) fn note_success(&self) {
        if let Some(Choice { pool, at, .. }) = &self.choice {
            pool.note_success(*at);
        }
    }

    /// Notes an error of the server. Returns true if the request now goes to another server of the
    /// pool; with `may_repeat` false, it does not.
    pub(crate) fn fail_over(&mut self, now: u64, error: &OriginError, may_repeat: bool) -> bool {
        let Some(Choice { pool, hash, at, tried }) = &mut self.choice else { return false };
        if !error.may_fail_over() {
            return false;
        }
        if error.is_of_server() {
            pool.note_failure(*at, now);
        }
        if !may_repeat || tried.len() >= pool.attempts {
            return false;
        }
        let Some(next) = pool.choose(now, *hash, tried) else { return false };
        tried.push(next);
        *at = next;
        self.server = pool.members[next].server.clone();
        true
    }

    /// Returns the error for the client after the last server has failed.
    pub(crate) fn last_error(&self, error: OriginError) -> OriginError {
        let has_name = self.choice.as_ref().is_some_and(|choice| choice.pool.name.is_some());
        if has_name && error.is_unreachable() { OriginError::NoServer } else { error }
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
    use crate::config::pool::Member;

    fn pool(servers: u16) -> Arc<ServerPool> {
        let server = |port| Server { host: "a".into(), port, is_tls: false };
        let members = (1..=servers).map(|port| Member::new(server(port), 1)).collect();
        Arc::new(ServerPool::new(Some("p"), &edge::Pool::default(), members))
    }

    fn origin(pool: &Arc<ServerPool>) -> Origin {
        let uri = Uri::parse("http://a/").unwrap();
        Origin::of(&Resource { uri, pool: Some(pool), is_https_only: false }, None, 100)
    }

    fn failures(pool: &ServerPool) -> Vec<u64> {
        pool.members.iter().map(|member| member.state.failures.load(Ordering::Relaxed)).collect()
    }

    /// Pool of servers with these ones down.
    fn pool_with_down(servers: u16, down: &[usize]) -> Arc<ServerPool> {
        let config = edge::Pool { check: Some(edge::Check::default()), retries: 1, ..edge::Pool::default() };
        let server = |port| Server { host: "a".into(), port, is_tls: false };
        let members = (1..=servers).map(|port| Member::new(server(port), 1)).collect();
        let pool = ServerPool::new(Some("p"), &config, members);
        for index in down {
            (0..100).for_each(|_| pool.note_check(*index, false));
        }
        Arc::new(pool)
    }

    #[test]
    fn request_leaves_a_server_that_is_down_without_a_failed_attempt() {
        let pool = pool_with_down(3, &[0]);
        let resource =
            Resource { uri: Uri::parse("http://a/").unwrap(), pool: Some(&pool), is_https_only: false };
        assert_ne!(Origin::of(&resource, Some(0), 100).position(), Some(0));
        let mut origin = Origin::of(&resource, Some(1), 100);
        (0..100).for_each(|_| pool.note_check(1, false));
        assert!(origin.is_down() && origin.leave(100) && !origin.is_down());
        assert_eq!((origin.position(), origin.server.port), (Some(2), 3));
        assert!(origin.fail_over(
            100,
            &OriginError::of_connect(([127, 0, 0, 1], 80).into(), Errno::CONNREFUSED.into()),
            true
        ));
        assert_eq!(failures(&pool), [0, 0, 1]);
        assert!(origin.is_down() && !origin.leave(100));
    }

    #[test]
    fn server_is_not_charged_with_an_exhausted_host() {
        let of = |errno: Errno| OriginError::of_connect(([127, 0, 0, 1], 80).into(), io::Error::from(errno));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            let pool = pool(2);
            let mut origin = origin(&pool);
            let first = origin.position();
            assert!(origin.fail_over(100, &of(errno), true) && origin.position() != first, "{errno}");
            assert!(!origin.fail_over(100, &of(errno), true), "{errno}");
            assert_eq!((origin.last_error(of(errno)).status(), failures(&pool)), (503, vec![0, 0]));
        }
        let pool = pool(1);
        assert!(!origin(&pool).fail_over(100, &of(Errno::CONNREFUSED), true));
        assert_eq!(failures(&pool), [1]);
    }
}
