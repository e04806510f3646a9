//! Admission: decides by the rules of a route whether a request is answered at all, before any
//! lookup, so that a stored response reaches only clients that would have got it from the origin.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use strait_http::head::Request;

use crate::config::rate::RateLimit;
use crate::config::rules::Rules;
use crate::io::gate::Client;
use crate::io::head::push_number;

/// Response to a request that is not admitted.
#[derive(Debug)]
pub(crate) struct Denial {
    pub(crate) status: u16,
    pub(crate) why: &'static str,
    /// Lines of its fields.
    pub(crate) field_lines: Vec<u8>,
}

/// Returns the denial of a client's request; `None` if the rules admit it.
pub(crate) fn denial(rules: &Rules, request: &Request<'_>, client: IpAddr) -> Option<Denial> {
    let rate = rules.rate.as_ref()?;
    take(rate, request, client, Instant::now()).err().map(too_many)
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
    use crate::config::edge::Rate;

    #[test]
    fn value_of_the_field_or_the_address_is_limited() {
        let config = Rate { requests: 1, per: 3600, field: Some("X-Key".to_owned()), ..Rate::default() };
        let rate = RateLimit::new("a", &config);
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
