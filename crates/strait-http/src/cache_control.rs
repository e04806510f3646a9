//! Directives of Cache-Control (RFC 9111, section 5.2; RFC 5861; RFC 8246) and of CDN-Cache-Control
//! (RFC 9213).
//!
//! Unknown directives are ignored. A repeated directive, or one with an invalid value, counts in
//! the way that stores and reuses less (RFC 9111, section 4.2.1).

mod targeted;

use crate::fields::{Fields, is_closed, parameter, split_list};

/// Largest number of seconds that a cache must represent (RFC 9111, section 1.2.2).
pub(crate) const SECONDS_MAX: u64 = 1 << 31;

/// Scope of a directive that applies to the whole response or to the fields it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    None,
    /// The directive applies to these fields, in lower case.
    Fields(Vec<String>),
    /// The directive applies to the whole response.
    All,
}

impl Scope {
    /// Adds an occurrence of the directive.
    fn add(&mut self, value: Option<&str>) {
        let Some(value) = value else { return *self = Self::All };
        let names = split_list(value).map(str::to_ascii_lowercase);
        match self {
            Self::None => *self = Self::Fields(names.collect()),
            Self::Fields(all) => all.extend(names),
            Self::All => {}
        }
    }
}

/// Directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a directive, and any may stand beside any")]
pub struct OfResponse {
    /// True if CDN-Cache-Control applies. Cache-Control and Expires are then ignored (RFC 9213,
    /// section 2.2).
    pub targeted: bool,
    /// A cache must not store the response.
    pub no_store: bool,
    /// A cache must not reuse the response, or these fields of it, without validation.
    pub no_cache: Scope,
    /// A shared cache must not store the response, or these fields of it.
    pub private: Scope,
    /// A shared cache may store a response that it otherwise might not.
    pub public: bool,
    /// Freshness lifetime in seconds.
    pub max_age: Option<u64>,
    /// Freshness lifetime in seconds for a shared cache.
    pub s_maxage: Option<u64>,
    /// A cache must not reuse the stale response without validation.
    pub must_revalidate: bool,
    /// A shared cache must not reuse the stale response without validation.
    pub proxy_revalidate: bool,
    /// A cache must store the response only if it understands the status.
    pub must_understand: bool,
    /// An intermediary must not change the content.
    pub no_transform: bool,
    /// The response does not change while it is fresh (RFC 8246).
    pub immutable: bool,
    /// Seconds for which the stale response may be reused during validation (RFC 5861, section 3).
    pub stale_while_revalidate: Option<u64>,
    /// Seconds for which the stale response may be reused if the origin fails (RFC 5861, section
    /// 4).
    pub stale_if_error: Option<u64>,
}

impl OfResponse {
    /// Reads the directives of `fields`. CDN-Cache-Control, if it is valid, replaces Cache-Control,
    /// because it is meant for caches like this one (RFC 9213, section 2.2).
    pub fn of(fields: &Fields<'_>) -> Self {
        match targeted::read(fields, "cdn-cache-control") {
            Some(targeted) if targeted.is_doubtful => {
                targeted.directives.restricted_by(&Self::general(fields))
            }
            Some(targeted) => targeted.directives,
            None => Self::general(fields),
        }
    }

    /// Directives of Cache-Control.
    fn general(fields: &Fields<'_>) -> Self {
        let mut directives = Self::default();
        let is_legible = for_each_element(fields, |element| {
            let (name, value) = parameter(element);
            directives.add(name, value);
        });
        // An unreadable field might forbid storing.
        directives.no_store |= !is_legible;
        directives
    }

    /// Returns the directives with the prohibitions of `other` added. A cache may always store
    /// less. If it had to ignore a value of its own field, the origin does not expect it to store
    /// responses that other caches must not.
    fn restricted_by(self, other: &Self) -> Self {
        let private = if other.private == Scope::All { Scope::All } else { self.private };
        Self { no_store: self.no_store || other.no_store, private, ..self }
    }

    fn add(&mut self, name: &str, value: Option<&str>) {
        match lowered(name, &mut [0; NAME_BYTES_MAX]) {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache.add(value),
            b"private" => self.private.add(value),
            b"public" => self.public = true,
            b"max-age" => least(&mut self.max_age, value),
            b"s-maxage" => least(&mut self.s_maxage, value),
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"no-transform" => self.no_transform = true,
            b"immutable" => self.immutable = true,
            b"stale-while-revalidate" => least(&mut self.stale_while_revalidate, value),
            b"stale-if-error" => least(&mut self.stale_if_error, value),
            _ => {}
        }
    }
}

/// Directives of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a directive, and any may stand beside any")]
pub struct OfRequest {
    /// A stored response must be validated before it is reused.
    pub no_cache: bool,
    /// The response must not be stored.
    pub no_store: bool,
    /// Highest acceptable age in seconds.
    pub max_age: Option<u64>,
    /// Seconds by which a response may be stale; [`u64::MAX`] without a limit.
    pub max_stale: Option<u64>,
    /// Seconds for which the response must stay fresh.
    pub min_fresh: Option<u64>,
    /// Only a stored response is acceptable, or 504.
    pub only_if_cached: bool,
    /// An intermediary must not change the content.
    pub no_transform: bool,
    /// Seconds for which a stale response may be reused if the origin fails (RFC 5861, section 4).
    pub stale_if_error: Option<u64>,
}

impl OfRequest {
    /// Reads the directives of `fields`: Cache-Control, or Pragma if that is absent (RFC 9111,
    /// section 5.4).
    pub fn of(fields: &Fields<'_>) -> Self {
        let mut directives = Self::default();
        directives.no_store |= !for_each_element(fields, |element| directives.add(element));
        if !fields.has("cache-control") {
            directives.no_cache =
                fields.elements("pragma").any(|element| element.eq_ignore_ascii_case("no-cache"));
        }
        directives
    }

    /// Directives without those that demand a new response, for clients that may not: the stored
    /// response answers them like a plain GET.
    #[must_use]
    pub fn without_refresh(self) -> Self {
        Self { no_cache: false, max_age: None, min_fresh: None, ..self }
    }

    fn add(&mut self, element: &str) {
        let (name, value) = parameter(element);
        match lowered(name, &mut [0; NAME_BYTES_MAX]) {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"max-age" => least(&mut self.max_age, value),
            b"max-stale" if value.is_none() && self.max_stale.is_none() => self.max_stale = Some(u64::MAX),
            b"max-stale" if value.is_none() => {}
            b"max-stale" => least(&mut self.max_stale, value),
            b"min-fresh" => self.min_fresh = self.min_fresh.max(Some(seconds(value).unwrap_or(SECONDS_MAX))),
            b"only-if-cached" => self.only_if_cached = true,
            b"no-transform" => self.no_transform = true,
            b"stale-if-error" => least(&mut self.stale_if_error, value),
            _ => {}
        }
    }
}

/// Calls `read` with each element of Cache-Control; returns false if some elements cannot be read,
/// as [`Fields::is_legible`] does.
fn for_each_element(fields: &Fields<'_>, mut read: impl FnMut(&str)) -> bool {
    let mut is_legible = true;
    for line in fields.all("cache-control") {
        let text = line.text();
        is_legible &= text.is_some_and(is_closed);
        text.into_iter().flat_map(split_list).for_each(&mut read);
    }
    is_legible
}

/// Limit of the names of directives; `stale-while-revalidate` is the longest one.
const NAME_BYTES_MAX: usize = 24;

/// Returns the name of a directive in lower case; empty if it is too long to be one.
fn lowered<'m>(name: &str, memory: &'m mut [u8; NAME_BYTES_MAX]) -> &'m [u8] {
    let Some(lowered) = memory.get_mut(..name.len()) else { return &[] };
    lowered.copy_from_slice(name.as_bytes());
    lowered.make_ascii_lowercase();
    lowered
}

/// Keeps the least of several values. An invalid value counts as 0.
fn least(so_far: &mut Option<u64>, value: Option<&str>) {
    let value = seconds(value).unwrap_or(0);
    *so_far = Some(so_far.map_or(value, |so_far| so_far.min(value)));
}

fn seconds(value: Option<&str>) -> Option<u64> {
    let digits =
        value.filter(|value| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some(digits.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    fn response(value: &'static str) -> OfResponse {
        OfResponse::of(&fields(&[("Cache-Control", value)]))
    }

    fn request(value: &'static str) -> OfRequest {
        OfRequest::of(&fields(&[("Cache-Control", value)]))
    }

    #[test]
    fn directives_of_a_response_are_read() {
        let read =
            response(r#"Public, max-age="60" ,s-maxage=5,no-cache="Set-Cookie, X", immutable, unknown=1"#);
        let expected = OfResponse {
            public: true,
            max_age: Some(60),
            s_maxage: Some(5),
            no_cache: Scope::Fields(vec!["set-cookie".into(), "x".into()]),
            immutable: true,
            ..OfResponse::default()
        };
        assert_eq!(read, expected);
        assert_eq!(response("private=\"a\", private").private, Scope::All);
        assert_eq!(response("private, private=\"a\"").private, Scope::All);
    }

    #[test]
    fn repeated_or_invalid_directives_store_and_reuse_less() {
        assert_eq!(response("max-age=60, max-age=5").max_age, Some(5));
        for value in ["max-age=x", "max-age", "max-age=-1", "max-age=1.5", "max-age="] {
            assert_eq!(response(value).max_age, Some(0), "{value}");
        }
        assert_eq!(response("max-age=99999999999999999999").max_age, Some(SECONDS_MAX));
        assert_eq!(request("min-fresh=5, min-fresh=9").min_fresh, Some(9));
        assert_eq!(request("min-fresh=x").min_fresh, Some(SECONDS_MAX));
        assert_eq!(request("max-stale").max_stale, Some(u64::MAX));
        assert_eq!(request("max-stale, max-stale=3").max_stale, Some(3));
        assert_eq!(request("max-stale=3, max-stale").max_stale, Some(3));
    }

    #[test]
    fn cdn_cache_control_replaces_cache_control() {
        let both = fields(&[("Cache-Control", "no-store"), ("CDN-Cache-Control", "max-age=9")]);
        let expected = OfResponse { targeted: true, max_age: Some(9), ..OfResponse::default() };
        assert_eq!(OfResponse::of(&both), expected);
        // A malformed or empty field is ignored.
        for value in ["", "immutable", "none", "Max-Age=9"]
            .map(|value| [("Cache-Control", "no-store"), ("CDN-Cache-Control", value)])
        {
            let is_targeted = matches!(value[1].1, "immutable" | "none");
            assert_eq!(OfResponse::of(&fields(&value)).no_store, !is_targeted, "{value:?}");
        }
        for value in ["max-age=\"10000\"", "max-age", "s-maxage=5, private=a", "no-store=1, max-age=5"] {
            let both = |general| [("Cache-Control", general), ("CDN-Cache-Control", value)];
            assert!(OfResponse::of(&fields(&both("no-store"))).no_store, "{value}");
            assert_eq!(OfResponse::of(&fields(&both("private"))).private, Scope::All, "{value}");
            assert!(!OfResponse::of(&fields(&both("max-age=60"))).no_store, "{value}");
        }
        assert!(OfRequest::of(&fields(&[("Pragma", "no-cache")])).no_cache);
        assert!(!OfRequest::of(&fields(&[("Pragma", "no-cache"), ("Cache-Control", "max-age=1")])).no_cache);
    }
}
