//! Cache policy of a route: which requests use the cache, what is part of their keys, and how long
//! responses are fresh.
//!
//! A parameter or cookie that is removed from the key is removed from the request to the origin as
//! well. Otherwise the response to one client could depend on it, and would answer all others.

use std::sync::Arc;

use strait_http::chunked::is_token;
use strait_http::cookies::{self, KEY_PREFIX};
use strait_http::fields::Fields;
use strait_http::lifetimes::LifetimePolicy;
use strait_http::poisoning::why_no_key;

use crate::config::edge::RouteCache;
use crate::config::keys::{KEY_FIELDS_MAX, field_names};

/// Maximum of names in each list: each is compared with each name of a request.
const NAMES_MAX: usize = 64;
/// Maximum of cookies in the key: all cookies are searched for each.
const KEY_COOKIES_MAX: usize = 4;

/// Cache policy of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheRules {
    /// False if its requests bypass the cache.
    pub(crate) is_enabled: bool,
    pub(crate) lifetimes: LifetimePolicy,
    pub(crate) query: Option<QueryRules>,
    /// Cookies of requests that bypass the cache.
    bypass_cookies: Names,
    /// Request fields and cookies that are part of the key, in lower case.
    pub(crate) keys: Vec<String>,
}

/// Names, of which those that end with `*` stand for all that begin so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names(Arc<[Box<str>]>);

impl Names {
    /// Returns true if there are none.
    fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if one of them is `name`, or stands for it.
    fn have(&self, name: &[u8]) -> bool {
        self.0.iter().any(|own| match own.strip_suffix('*') {
            Some(begin) => name.starts_with(begin.as_bytes()),
            None => own.as_bytes() == name,
        })
    }

    /// Returns true if programs could read a cookie with one of them.
    fn may_have(&self, pair: &[u8]) -> bool {
        self.0.iter().any(|own| match own.strip_suffix('*') {
            Some(begin) => cookies::may_be(pair, begin, true),
            None => cookies::may_be(pair, own, false),
        })
    }

    /// Iterates over them as they are written.
    fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    fn new(key: &str, names: &[String]) -> Result<Self, String> {
        let is_name = |name: &str| {
            let name = name.strip_suffix('*').unwrap_or(name);
            name.bytes().all(|byte| byte.is_ascii_graphic() && !b"*&=#;,\"\\".contains(&byte))
        };
        if names.len() > NAMES_MAX {
            return Err(format!(".{key}: {} names; the maximum is {NAMES_MAX}", names.len()));
        }
        if let Some(name) = names.iter().find(|name| name.is_empty() || !is_name(name)) {
            let name = name.escape_default();
            return Err(format!(".{key}: \"{name}\": expected a name, or its begin with \"*\" behind it"));
        }
        Ok(Self(names.iter().map(|name| name.as_str().into()).collect()))
    }
}

/// Names that are kept in requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Selection {
    ignored: Names,
    /// `None`: all others are kept.
    kept: Option<Names>,
}

impl Selection {
    /// Makes it from the keys `ignore_...` and `keep_...` of a kind of names.
    fn new(kind: &str, ignored: &[String], kept: Option<&[String]>) -> Result<Self, String> {
        if kept.is_some() && !ignored.is_empty() {
            return Err(format!(
                ".ignore_{kind}: keep_{kind} leaves out all others already; remove one of them"
            ));
        }
        let kept = kept.map(|names| Names::new(&format!("keep_{kind}"), names)).transpose()?;
        Ok(Self { ignored: Names::new(&format!("ignore_{kind}"), ignored)?, kept })
    }

    /// Returns true if all names are kept.
    fn is_all(&self) -> bool {
        self.ignored.are_none() && self.kept.is_none()
    }

    /// Returns true if a name is kept.
    fn keeps(&self, name: &[u8]) -> bool {
        !self.ignored.have(name) && self.kept.as_ref().is_none_or(|kept| kept.have(name))
    }
}

/// Changes of the query of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryRules {
    selection: Selection,
    is_sorted: bool,
}

impl QueryRules {
    /// Returns a path with the query that cache and origin get; `None` if it is the same.
    pub(crate) fn apply(&self, path: &str) -> Option<String> {
        let (before, query) = path.split_once('?')?;
        let names = || query.split('&').map(name_of);
        if names().all(|name| self.keeps(name)) && (!self.is_sorted || names().is_sorted()) {
            return None;
        }
        let mut parameters: Vec<_> =
            query.split('&').filter(|parameter| self.keeps(name_of(parameter))).collect();
        if self.is_sorted {
            // Stable: programs use the first or the last of several with one name.
            parameters.sort_by(|one, other| name_of(one).cmp(name_of(other)));
        }
        let kept = parameters.join("&");
        Some(if kept.is_empty() { before.to_owned() } else { format!("{before}?{kept}") })
    }

    fn keeps(&self, name: &str) -> bool {
        self.selection.keeps(name.as_bytes())
    }
}

fn name_of(parameter: &str) -> &str {
    parameter.split('=').next().unwrap_or_default()
}

impl CacheRules {
    /// Checks the keys of a route; returns the reason, after the key, if they are wrong. `base` has
    /// the lifetimes of routes without any.
    pub(crate) fn new(cache: &RouteCache, base: &LifetimePolicy) -> Result<Self, String> {
        if cache.r#override && cache.ttl.is_none() && cache.negative.is_none() {
            return Err(".override: there is no lifetime that could override; add ttl or negative".to_owned());
        }
        let selection = Selection::new("query", &cache.ignore_query, cache.keep_query.as_deref())?;
        let changes = !selection.is_all() || cache.sort_query;
        let query = QueryRules { selection, is_sorted: cache.sort_query };
        let stored = LifetimePolicy {
            fresh: cache.ttl,
            negative: cache.negative.or(base.negative),
            stale_while_revalidate: cache.stale_while_revalidate,
            stale_if_error: cache.stale_if_error,
            is_overriding: cache.r#override,
            ..*base
        };
        Ok(Self {
            is_enabled: cache.enabled,
            lifetimes: stored,
            query: changes.then_some(query),
            bypass_cookies: Names::new("bypass_cookies", &cache.bypass_cookies)?,
            keys: keys(cache)?,
        })
    }

    /// Returns true if a request uses the cache. Cookies that `is_dropped` accepts do not count.
    pub(crate) fn admit(&self, request: &Fields<'_>, is_dropped: impl Fn(&[u8]) -> bool) -> bool {
        let bypasses =
            |pair: &[u8]| self.bypass_cookies.may_have(pair) && !is_dropped(cookies::name_of(pair));
        self.is_enabled && (self.bypass_cookies.are_none() || !cookies::pairs(request).any(bypasses))
    }

    /// Returns true if the request has a cookie that is not part of the key.
    pub(crate) fn has_other_cookie(&self, request: &Fields<'_>) -> bool {
        let is_key = |name: &[u8]| {
            let own = self.keys.iter().filter_map(|key| key.strip_prefix(KEY_PREFIX));
            own.map(str::as_bytes).any(|own| own.eq_ignore_ascii_case(name))
        };
        cookies::pairs(request).any(|pair| !is_key(cookies::name_of(pair)))
    }
}

/// Cookies that a route removes from requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CookieRules(Selection);

impl CookieRules {
    /// Checks the keys of a route; returns the reason, after the key, if they are wrong.
    pub(crate) fn new(cache: &RouteCache) -> Result<Self, String> {
        Selection::new("cookies", &cache.ignore_cookies, cache.keep_cookies.as_deref()).map(Self)
    }

    /// Returns true if they remove none.
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_all()
    }

    /// Returns true if they remove the cookie of that name.
    pub(crate) fn drop(&self, name: &[u8]) -> bool {
        !self.0.keeps(name)
    }

    /// Returns them as text, a line for each name.
    pub(crate) fn text(&self) -> String {
        let Selection { ignored, kept: own } = &self.0;
        let ignored = ignored.iter().map(|name| format!("drop cookie {name}\n"));
        let kept = own.iter().flat_map(Names::iter).map(|name| format!("keep cookie {name}\n"));
        let others = if own.is_some() { "drop other cookies\n" } else { "" };
        ignored.chain(kept).chain([others.to_owned()]).collect()
    }
}

/// Returns the fields and cookies that are part of the key.
fn keys(cache: &RouteCache) -> Result<Vec<String>, String> {
    let mut keys = field_names(&cache.key_fields, KEY_FIELDS_MAX, why_no_key)
        .map_err(|why| format!(".key_fields: {why}"))?;
    if cache.key_cookies.len() > KEY_COOKIES_MAX {
        let number = cache.key_cookies.len();
        return Err(format!(".key_cookies: {number} names; the maximum is {KEY_COOKIES_MAX}"));
    }
    if let Some(name) = cache.key_cookies.iter().find(|name| !is_token(name.as_bytes())) {
        return Err(format!(".key_cookies: \"{}\": this is not the name of a cookie", name.escape_default()));
    }
    let cookies = cache.key_cookies.iter().map(|name| name.to_ascii_lowercase());
    keys.extend(cookies.map(|name| format!("{KEY_PREFIX}{name}")));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(toml: &str) -> Result<CacheRules, String> {
        let cache = toml::from_str(toml).unwrap();
        CookieRules::new(&cache)?;
        CacheRules::new(&cache, &LifetimePolicy::default())
    }

    #[test]
    fn query_is_changed_by_the_names_of_parameters() {
        for (toml, path, expected) in [
            ("ignore_query = [\"utm_*\", \"id\"]", "/a?utm_x=1&b=2&id=3&idx=4", Some("/a?b=2&idx=4")),
            ("ignore_query = [\"utm_*\"]", "/a?utm_x", Some("/a")),
            ("ignore_query = [\"utm_*\"]", "/a?b=utm_x", None),
            ("ignore_query = [\"utm_*\"]", "/utm_a", None),
            ("ignore_query = [\"*\"]", "/a?b", Some("/a")),
            ("ignore_query = [\"*\"]", "/a?", Some("/a")),
            ("keep_query = [\"page\"]", "/a?page=2&x&page=3", Some("/a?page=2&page=3")),
            ("keep_query = []", "/a?page=2", Some("/a")),
            ("sort_query = true", "/a?b=1&a=2&b=0", Some("/a?a=2&b=1&b=0")),
            ("sort_query = true", "/a?a=2&b=1&b=0", None),
            ("sort_query = true", "/a?b?&a", Some("/a?a&b?")),
        ] {
            let query = rules(toml).unwrap().query.unwrap();
            assert_eq!(query.apply(path).as_deref(), expected, "{toml} {path}");
        }
        assert!(rules("ttl = 5").unwrap().query.is_none());
    }

    #[test]
    fn wrong_keys_are_named() {
        for (toml, expected) in [
            ("override = true", ".override: there is no lifetime"),
            ("ignore_query = [\"a\"]\nkeep_query = [\"b\"]", "remove one of them"),
            ("ignore_query = [\"\"]", ".ignore_query: \"\": expected a name"),
            ("keep_query = [\"a*b\"]", ".keep_query: \"a*b\": expected a name"),
            ("bypass_cookies = [\"a=b\"]", ".bypass_cookies: \"a=b\""),
            ("key_cookies = [\"a b\"]", ".key_cookies: \"a b\": this is not the name of a cookie"),
            ("key_fields = [\"Host\"]", ".key_fields: \"Host\": the host is part of every key"),
            ("key_cookies = [\"a\", \"b\", \"c\", \"d\", \"e\"]", "the maximum is 4"),
            ("keep_cookies = []\nignore_cookies = [\"a\"]", ".ignore_cookies: keep_cookies leaves out"),
        ] {
            let why = rules(toml).unwrap_err();
            assert!(why.contains(expected), "{toml}: {why}");
        }
    }

    proptest! {
        #[test]
        fn second_change_of_a_query_changes_nothing(query in "[ab=&?u]{0,16}") {
            for toml in ["ignore_query = [\"a\"]", "keep_query = [\"a*\"]", "sort_query = true"] {
                let rules = rules(toml).unwrap().query.unwrap();
                let path = format!("/x?{query}");
                let once = rules.apply(&path).unwrap_or(path);
                prop_assert_eq!(rules.apply(&once), None);
            }
        }
    }
}
