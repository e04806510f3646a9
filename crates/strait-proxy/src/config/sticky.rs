//! Sticky sessions of a pool: a cookie that names the server of a client.
//!
//! The value is a keyed hash of the server's address. It discloses no address, and is the same
//! after a reload that moves the server. [`crate::upstream::origin`] reads the cookie, and
//! [`crate::serve`] sets it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};
use strait_http::chunked::is_token;
use strait_http::cookies;
use strait_http::head::Request;

use crate::config::edge;
use crate::config::member::Member;
use crate::config::server::Server;

/// Maximum length in bytes of the name of a cookie.
const NAME_BYTES_MAX: usize = 64;
/// Minimum length in bytes of the secret.
const KEY_BYTES_MIN: usize = 16;

/// Cookie of a pool.
#[derive(Debug)]
pub(crate) struct Sticky {
    pub(crate) name: Box<str>,
    pool: Box<str>,
    key: [u8; 32],
}

impl Sticky {
    /// Makes the cookie of a pool; `None` if it has none.
    pub(crate) fn new(pool: &str, config: &edge::Pool) -> Option<Self> {
        let name = config.sticky.as_deref()?.into();
        let key = config.sticky_key.as_ref().map_or(of_process(), |key| Sha256::digest(key).into());
        Some(Self { name, pool: pool.into(), key })
    }

    /// Returns the value for a server. The key has a fixed length, and no name of a pool a line
    /// feed.
    pub(crate) fn value(&self, server: &Server) -> Box<str> {
        let hash = Sha256::new().chain_update(self.key).chain_update(self.pool.as_bytes());
        let hash = hash.chain_update("\n").chain_update(server.to_string()).finalize();
        let first = hash.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        format!("{first:016x}").into()
    }

    /// Returns the server that a request names. If it has several such cookies, as a page of
    /// another subdomain can set, the first known value counts.
    pub(crate) fn named(&self, request: &Request<'_>, members: &[Arc<Member>]) -> Option<Arc<Member>> {
        let of_value = |value: &[u8]| {
            let is_named = |own: &&Arc<Member>| own.cookie.as_ref().is_some_and(|it| it.as_bytes() == value);
            members.iter().find(is_named)
        };
        cookies::values(&request.fields, &self.name).find_map(of_value).cloned()
    }

    /// Returns the value of Set-Cookie that names a server.
    pub(crate) fn set_cookie(&self, member: &Member) -> Option<String> {
        let (name, id) = (&self.name, member.cookie.as_ref()?);
        Some(format!("{name}={id}; Path=/; HttpOnly; SameSite=Lax"))
    }
}

/// Returns the key of pools without a secret, which is random for each process.
fn of_process() -> [u8; 32] {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    *KEY.get_or_init(|| {
        let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
        Sha256::digest([random(), random()].concat()).into()
    })
}

/// Returns the key of the configuration that is wrong, and the reason.
pub(crate) fn why_not(config: &edge::Pool) -> Option<(&'static str, &'static str)> {
    let is_name = |name: &String| is_token(name.as_bytes()) && name.len() <= NAME_BYTES_MAX;
    if config.sticky.as_ref().is_some_and(|name| !is_name(name)) {
        Some(("sticky", "expected the name of a cookie of at most 64 bytes, for example \"STRAIT\""))
    } else if config.sticky_key.as_ref().is_some_and(|key| key.len() < KEY_BYTES_MIN) {
        Some(("sticky_key", "the secret is too short; write at least 16 random characters"))
    } else if config.sticky_key.is_some() && config.sticky.is_none() {
        Some(("sticky_key", "the pool sets no cookie; set sticky, or remove it"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;
    use crate::config::entry::Entry;
    use crate::config::member::MemberOptions;
    use crate::config::pool::{Members, ServerPool};

    /// Returns the cookie of a pool and its servers.
    fn sticky(pool: &str, key: Option<&str>, ports: &[u16]) -> (Sticky, Members) {
        let (sticky, sticky_key) = (Some("S".to_owned()), key.map(str::to_owned));
        let config = edge::Pool { sticky, sticky_key, ..edge::Pool::default() };
        let server = |port| Server::tcp("10.0.0.1", port, false);
        let entries = ports.iter().map(|port| Entry::new(server(*port), MemberOptions::default())).collect();
        let pool = ServerPool::new(Some(pool), &config, entries);
        let members = pool.members();
        (pool.sticky.unwrap(), members)
    }

    /// Returns the values of the cookie.
    fn ids(pool: &str, key: Option<&str>, ports: &[u16]) -> Vec<Box<str>> {
        let (_, members) = sticky(pool, key, ports);
        members.iter().map(|member| member.cookie.clone().unwrap()).collect()
    }

    fn named((sticky, members): &(Sticky, Members), fields: &str) -> Option<usize> {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let named = sticky.named(&head::request(bytes.as_bytes()).unwrap().unwrap().0, members)?;
        members.iter().position(|member| member.is_same(&named))
    }

    #[test]
    fn value_names_a_server_at_any_position_and_no_address() {
        let one = ids("p", None, &[80, 81]);
        assert_eq!(one, ids("p", None, &[80, 81]));
        assert_eq!(one[0], ids("p", None, &[9, 80])[1]);
        let secret = "0123456789abcdef";
        let keyed = ids("p", Some(secret), &[80]);
        assert_eq!(keyed, ids("p", Some(secret), &[80]));
        let others = [&one, &ids("q", None, &[80]), &keyed, &ids("q", Some(secret), &[80])];
        let ids: std::collections::BTreeSet<_> = others.into_iter().flatten().collect();
        assert_eq!(ids.len(), 5);
        assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }

    #[test]
    fn first_known_value_of_the_cookie_counts() {
        let sticky = sticky("p", None, &[80, 81]);
        let [first, second] = [0, 1].map(|at: usize| sticky.1[at].cookie.clone().unwrap());
        for (fields, expected) in [
            (String::new(), None),
            (format!("Cookie: S={second}\r\n"), Some(1)),
            (format!("cookie: a=b;S={second} ; c\r\n"), Some(1)),
            (format!("Cookie: a=b\r\nCookie: S={first}\r\n"), Some(0)),
            (format!("Cookie: S=x; S={second}; S={first}\r\n"), Some(1)),
            (format!("Cookie: s={first}; XS={first}; S{first}; S ={first}\r\n"), None),
            (format!("Cookie: S={first}0; S=\"{first}\"; S=; S\r\n"), None),
        ] {
            assert_eq!(named(&sticky, &fields), expected, "{fields}");
        }
    }
}
