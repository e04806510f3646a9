//! Admission: decides by the rules of a route whether a request is answered at all, before any
//! lookup, so that a stored response reaches only clients that would have got it from the origin.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strait_http::head::Request;

use crate::cache::worker::Worker;
use crate::config::auth::{BasicAuth, Checked, Credentials};
use crate::config::rate::RateLimit;
use crate::config::rules::Rules;
use crate::io::gate::{Client, Key};
use crate::io::head::{push_field, push_number};

/// Maximum wait for the hash of a password.
const PASSWORD_WAIT: Duration = Duration::from_secs(10);

/// Response to a request that is not admitted.
#[derive(Debug)]
pub(crate) struct Denial {
    pub(crate) status: u16,
    pub(crate) why: &'static str,
    /// Lines of its fields.
    pub(crate) field_lines: Vec<u8>,
}

/// Decision about a request.
#[derive(Debug)]
pub(crate) enum Admission<'r> {
    Admitted,
    Denied(Denial),
    /// Its password has to be verified first.
    Unverified(&'r BasicAuth, Credentials),
}

/// Decides about a client's request. The network comes first: a refused client takes no token. Then
/// comes the rate: it limits attempts of passwords too.
pub(crate) fn admission<'r>(rules: &'r Rules, request: &Request<'_>, client: IpAddr) -> Admission<'r> {
    if rules.access.as_ref().is_some_and(|access| !access.admits(client)) {
        return Admission::Denied(forbidden());
    }
    let rate = rules.rate.as_ref().map(|rate| take(rate, request, client, Instant::now()));
    if let Some(Err(wait)) = rate {
        return Admission::Denied(too_many(wait));
    }
    let Some(auth) = &rules.auth else { return Admission::Admitted };
    match auth.check(request) {
        Checked::Passed => Admission::Admitted,
        Checked::Failed => Admission::Denied(unauthorized(auth)),
        Checked::Unverified(credentials) => Admission::Unverified(auth, credentials),
    }
}

/// Verifies a password on another thread. A client has one password hashed at a time, so that
/// guesses of one do not delay the others, and its parallel requests find that of the first.
pub(crate) async fn verify(
    worker: &Worker,
    auth: &BasicAuth,
    credentials: Credentials,
    client: IpAddr,
) -> Result<(), Denial> {
    let (gates, deadline) = (&worker.shared.gates, tokio::time::Instant::now() + PASSWORD_WAIT);
    let own = gates.enter(Key::PasswordsOf(Client::of(client)), deadline).await;
    let Some(_own) = own else { return Err(busy()) };
    if credentials.are_verified() {
        return Ok(());
    }
    // Taken first, so that requests that wait for memory hold no permit of the others.
    let memory = if credentials.need_memory() {
        let Some(permit) = gates.enter(Key::PasswordMemory, deadline).await else { return Err(busy()) };
        Some(permit)
    } else {
        None
    };
    let Some(permit) = gates.enter(Key::Passwords, deadline).await else { return Err(busy()) };
    auth.counts.hashed.fetch_add(1, Ordering::Relaxed);
    // The thread holds the permits, also if the client leaves.
    let hashed = tokio::task::spawn_blocking(move || {
        let is_right = credentials.verify();
        drop((permit, memory));
        is_right
    });
    match hashed.await {
        Ok(true) => Ok(()),
        _ => Err(unauthorized(auth)),
    }
}

fn forbidden() -> Denial {
    Denial { status: 403, why: "the route is not for this client's network", field_lines: Vec::new() }
}

fn unauthorized(auth: &BasicAuth) -> Denial {
    auth.counts.refused.fetch_add(1, Ordering::Relaxed);
    let mut field_lines = Vec::new();
    push_field(&mut field_lines, "WWW-Authenticate", auth.challenge.as_bytes());
    Denial { status: 401, why: "a user and a password are needed", field_lines }
}

fn busy() -> Denial {
    Denial { status: 503, why: "too many passwords are being verified", field_lines: Vec::new() }
}

/// Takes a token for a request: of the bucket of its field's value, or of its client's if it has no
/// such field.
fn take(rate: &RateLimit, request: &Request<'_>, client: IpAddr, now: Instant) -> Result<(), Duration> {
    match rate.field().filter(|name| request.fields.has(name)) {
        Some(name) => {
            let values: Vec<_> = request.fields.all(name).map(|field| field.value).collect();
            rate.take(values, now)
        }
        None => rate.take(Client::of(client), now),
    }
}

fn too_many(wait: Duration) -> Denial {
    let mut field_lines = Vec::new();
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    push_number(&mut field_lines, "Retry-After", seconds.max(1));
    Denial { status: 429, why: "too many requests", field_lines }
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;
    use crate::config::edge::{Rate, Route};
    use crate::config::route_name::RouteName;

    #[test]
    fn value_of_the_field_or_the_address_is_limited() {
        let config = Rate { requests: 1, per: 3600, field: Some("X-Key".to_owned()), ..Rate::default() };
        let name = RouteName::new("a", &[], &Route::default());
        let rate = RateLimit::new(&name, &config, &[]);
        let mut denied = Vec::new();
        for (client, fields) in [
            ("192.0.2.1", "X-Key: a\r\n"),
            ("192.0.2.2", "x-key: a\r\n"),
            ("192.0.2.1", "X-Key: b\r\n"),
            ("192.0.2.1", "X-Key: a\r\nX-Key: b\r\n"),
            ("192.0.2.1", ""),
            ("192.0.2.1", ""),
            ("2001:db8::1", ""),
            ("2001:db8::2", ""),
            ("2001:db8:0:1::1", ""),
        ] {
            let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let (request, _) = head::request(bytes.as_bytes()).unwrap().unwrap();
            denied.push(take(&rate, &request, client.parse().unwrap(), Instant::now()).is_err());
        }
        assert_eq!(denied, [false, true, false, false, false, true, false, true, false]);
    }

    #[test]
    fn wait_is_given_in_whole_seconds() {
        for (ms, expected) in [(1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            let denial = too_many(Duration::from_millis(ms));
            assert_eq!(denial.field_lines, format!("Retry-After: {expected}\r\n").into_bytes());
        }
    }
}
