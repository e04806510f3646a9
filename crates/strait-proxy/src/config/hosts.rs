//! Table of hosts: names, addresses, domains with all names below them, and a default. Without I/O.

use std::collections::HashMap;
use std::fmt::Write as _;

use rapidhash::fast::RandomState;
use smallvec::SmallVec;
use strait_http::target::{Authority, Host};

/// Hosts with their values.
#[derive(Clone, Debug)]
pub(crate) struct Hosts<T> {
    /// By host in lower case without a trailing dot.
    exact: HashMap<Box<str>, T, RandomState>,
    /// For all names below a domain, by that domain.
    domains: HashMap<Box<str>, T, RandomState>,
    /// For all other hosts.
    pub(crate) default: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<T> Hosts<T> {
    pub(crate) fn new(default: Option<T>) -> Self {
        Self { exact: HashMap::default(), domains: HashMap::default(), default }
    }

    /// Adds a host, or `*.` and a domain.
    ///
    /// # Errors
    /// The text is no host, or the host is there already.
    pub(crate) fn add(&mut self, text: &str, value: T) -> Result<(), &'static str> {
        let (table, name) = match text.strip_prefix("*.") {
            Some(domain) => (&mut self.domains, domain),
            None => (&mut self.exact, text),
        };
        let host = normalised(name).ok_or(
            "is no host; expected a name or an address without a port, as \"www.example.org\", or \"*.example.org\" for all names below a domain",
        )?;
        table.insert(host.into(), value).map_or(Ok(()), |_| Err("occurs twice"))
    }

    /// Returns all hosts with their values, domains without `*.`, and `*` for the others.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let named = self.exact.iter().chain(&self.domains).map(|(name, value)| (&**name, value));
        named.chain(self.default.iter().map(|value| ("*", value)))
    }

    /// Returns the value of the host of a request.
    pub(crate) fn find(&self, host: &Host<'_>) -> Option<&T> {
        if self.exact.is_empty() && self.domains.is_empty() {
            return self.default.as_ref();
        }
        let mut lower = LowerCase::default();
        match host {
            Host::Name(name) if !name.bytes().any(|byte| byte.is_ascii_uppercase()) => self.find_lower(name),
            host => self.find_lower(lower.of(host)?),
        }
    }

    /// Like [`Self::find`], for a name in lower case.
    pub(crate) fn find_lower(&self, name: &str) -> Option<&T> {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.exact.get(name).or_else(|| self.find_domain(name)).or(self.default.as_ref())
    }

    /// Returns the value of the longest domain that a name is below.
    fn find_domain(&self, name: &str) -> Option<&T> {
        if self.domains.is_empty() {
            return None;
        }
        let dots = name.bytes().enumerate().filter(|(_, byte)| *byte == b'.').map(|(at, _)| at);
        // A label is not empty, so the first byte is no dot.
        dots.filter(|at| *at > 0).find_map(|at| self.domains.get(name.get(at + 1..)?))
    }
}

/// Returns a host in the form in which requests are looked up.
fn normalised(text: &str) -> Option<String> {
    let authority = Authority::parse(text).ok().filter(|authority| authority.port.is_none())?;
    let host = authority.host.to_string();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let is_name = matches!(authority.host, Host::Name(_));
    let has_labels = !is_name || host.split('.').all(|label| !label.is_empty());
    (has_labels && !text.ends_with(':')).then(|| host.to_owned())
}

/// Memory for a host in lower case: a hit allocates none.
#[derive(Default)]
struct LowerCase(SmallVec<[u8; 256]>);

impl LowerCase {
    fn of(&mut self, host: &Host<'_>) -> Option<&str> {
        write!(self, "{host}").ok()?;
        std::str::from_utf8(&self.0).ok()
    }
}

impl std::fmt::Write for LowerCase {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_match_is_found_in_any_case() {
        let mut hosts = Hosts::default();
        for (index, text) in
            ["www.example.org", "10.0.0.1", "[2001:db8::1]", "*.example.org", "*.x.example.org"]
                .iter()
                .enumerate()
        {
            hosts.add(text, index).unwrap();
        }
        let find = |hosts: &Hosts<usize>, text| hosts.find(&Authority::parse(text).unwrap().host).copied();
        for (host, expected) in [
            ("www.example.org", Some(0)),
            ("WWW.Example.ORG:8080", Some(0)),
            ("www.example.org.", Some(0)),
            ("10.0.0.1", Some(1)),
            ("[2001:DB8:0::1]", Some(2)),
            ("a.b.example.org", Some(3)),
            ("a.x.example.org", Some(4)),
            ("x.example.org", Some(3)),
            ("example.org", None),
            ("www.example.com", None),
        ] {
            assert_eq!(find(&hosts, host), expected, "{host}");
        }
        hosts.default = Some(9);
        assert_eq!(find(&hosts, "www.example.com"), Some(9));
    }

    #[test]
    fn hosts_are_unique_and_valid() {
        let mut hosts = Hosts::default();
        hosts.add("a.example", ()).unwrap();
        for text in ["A.example", "a.example."] {
            assert_eq!(hosts.add(text, ()), Err("occurs twice"), "{text}");
        }
        for text in ["", "*", "a b", "a:80", "a:", "a..b", "a/b", "*.", "a.*.b", "http://a"] {
            assert!(hosts.add(text, ()).is_err_and(|why| why.starts_with("is no host")), "{text}");
        }
    }
}
