//! Keys of the sections that a file can have several times, `[pool.NAME]` and `[[site]]`, and the
//! values that they accept. Like [`crate::config::schema`], for nested sections.

use toml::{Table, Value};

use crate::config::compress::BODY_BYTES_MAX;
use crate::config::schema::{Kind, hint};

/// Maximum of lifetimes, in seconds: a year.
const SECONDS_MAX: u64 = 366 * 86_400;

/// Names of these sections.
pub(crate) const NAMES: [&str; 3] = ["pool", "site", "site.route"];

/// Key of a section: a value, a section below it, or a list of sections.
#[derive(Clone, Copy)]
enum Key {
    Value(Kind),
    Section(&'static [(&'static str, Key)]),
    List(&'static [(&'static str, Key)]),
    /// Names with texts.
    Texts,
}

const POOL: &[(&str, Key)] = &[
    ("servers", Key::Value(Kind::Servers)),
    ("balance", Key::Value(Kind::Balance)),
    ("failures", Key::Value(Kind::Number(0, 1000))),
    ("eject", Key::Value(Kind::Number(1, 3600))),
    ("slow_start", Key::Value(Kind::Number(0, 3600))),
    ("queue", Key::Value(Kind::Number(0, 65_536))),
    ("queue_timeout", Key::Value(Kind::Number(1, 3600))),
    ("retries", Key::Value(Kind::Number(0, 16))),
    ("sticky", Key::Value(Kind::Text)),
    ("sticky_key", Key::Value(Kind::Text)),
    ("http2", Key::Value(Kind::OneOf(&["off", "auto", "on"]))),
    ("check", Key::Section(CHECK)),
    ("outlier", Key::Section(OUTLIER)),
    ("hedge", Key::Section(HEDGE)),
];

const HEDGE: &[(&str, Key)] =
    &[("after_ms", Key::Value(Kind::Number(1, 60_000))), ("percent", Key::Value(Kind::Number(1, 50)))];

const OUTLIER: &[(&str, Key)] = &[
    ("times", Key::Value(Kind::Number(2, 1000))),
    ("floor_ms", Key::Value(Kind::Number(0, 60_000))),
    ("windows", Key::Value(Kind::Number(1, 100))),
    ("responses", Key::Value(Kind::Number(4, 1024))),
];

const CHECK: &[(&str, Key)] = &[
    ("path", Key::Value(Kind::Text)),
    ("host", Key::Value(Kind::Text)),
    ("status", Key::Value(Kind::Number(200, 599))),
    ("interval", Key::Value(Kind::Number(1, 3600))),
    ("timeout", Key::Value(Kind::Number(1, 3600))),
    ("rise", Key::Value(Kind::Number(1, 100))),
    ("fall", Key::Value(Kind::Number(1, 100))),
];

const SITE: &[(&str, Key)] = &[
    ("hosts", Key::Value(Kind::Hosts)),
    ("certificate", Key::Value(Kind::Path)),
    ("key", Key::Value(Kind::Path)),
    ("ocsp", Key::Value(Kind::Path)),
    ("https", Key::Value(Kind::Bool)),
    ("route", Key::List(ROUTE)),
];

const ROUTE: &[(&str, Key)] = &[
    ("path", Key::Value(Kind::Text)),
    ("path_exact", Key::Value(Kind::Text)),
    ("path_regex", Key::Value(Kind::Text)),
    ("methods", Key::Value(Kind::Methods)),
    ("has_headers", Key::Texts),
    ("rewrite", Key::Value(Kind::Text)),
    ("pool", Key::Value(Kind::Text)),
    ("files", Key::Value(Kind::Path)),
    ("precompressed", Key::Value(Kind::Bool)),
    ("redirect", Key::Section(REDIRECT)),
    ("respond", Key::Section(RESPOND)),
    ("request_headers", Key::Section(HEADERS)),
    ("response_headers", Key::Section(HEADERS)),
    ("timeouts", Key::Section(TIMEOUTS)),
    ("retries", Key::Value(Kind::Number(0, 16))),
    ("request_body", Key::Value(Kind::Size)),
    ("access", Key::Section(ACCESS)),
    ("rate", Key::Section(RATE)),
    ("auth", Key::Section(AUTH)),
    ("auth_request", Key::Section(AUTH_REQUEST)),
    ("compress", Key::Section(COMPRESS)),
    ("cache", Key::Section(CACHE)),
];

const CACHE: &[(&str, Key)] = &[
    ("enabled", Key::Value(Kind::Bool)),
    ("ttl", Key::Value(Kind::Number(1, SECONDS_MAX))),
    ("negative", Key::Value(Kind::Number(1, SECONDS_MAX))),
    ("stale_while_revalidate", Key::Value(Kind::Number(0, SECONDS_MAX))),
    ("stale_if_error", Key::Value(Kind::Number(0, SECONDS_MAX))),
    ("override", Key::Value(Kind::Bool)),
    ("ignore_query", Key::Value(Kind::Names)),
    ("keep_query", Key::Value(Kind::Names)),
    ("sort_query", Key::Value(Kind::Bool)),
    ("ignore_cookies", Key::Value(Kind::Names)),
    ("keep_cookies", Key::Value(Kind::Names)),
    ("bypass_cookies", Key::Value(Kind::Names)),
    ("key_cookies", Key::Value(Kind::Names)),
    ("key_fields", Key::Value(Kind::Fields)),
];

const TIMEOUTS: &[(&str, Key)] = &[
    ("connect", Key::Value(Kind::Number(1, 86_400))),
    ("origin", Key::Value(Kind::Number(1, 86_400))),
    ("body", Key::Value(Kind::Number(1, 86_400))),
    ("tunnel", Key::Value(Kind::Number(1, 86_400))),
];

const ACCESS: &[(&str, Key)] = &[("allow", Key::Value(Kind::Networks)), ("deny", Key::Value(Kind::Networks))];

const AUTH_REQUEST: &[(&str, Key)] = &[("pool", Key::Value(Kind::Text)), ("path", Key::Value(Kind::Text))];

const COMPRESS: &[(&str, Key)] = &[
    ("codings", Key::Value(Kind::Codings)),
    ("types", Key::Value(Kind::MediaTypes)),
    ("min_bytes", Key::Value(Kind::Number(1, BODY_BYTES_MAX))),
    ("level", Key::Value(Kind::OneOf(&["fast", "balanced", "best"]))),
];

const AUTH: &[(&str, Key)] =
    &[("users", Key::Value(Kind::Path)), ("realm", Key::Value(Kind::Text)), ("keep", Key::Value(Kind::Bool))];

const RATE: &[(&str, Key)] = &[
    ("requests", Key::Value(Kind::Number(1, 1_000_000))),
    ("per", Key::Value(Kind::Number(1, 86_400))),
    ("burst", Key::Value(Kind::Number(1, 1_000_000))),
    ("field", Key::Value(Kind::Text)),
    ("clients", Key::Value(Kind::Number(8, 16_777_216))),
];

const HEADERS: &[(&str, Key)] =
    &[("set", Key::Texts), ("add", Key::Texts), ("remove", Key::Value(Kind::Fields))];

const REDIRECT: &[(&str, Key)] =
    &[("status", Key::Value(Kind::Number(0, 999))), ("location", Key::Value(Kind::Text))];

const RESPOND: &[(&str, Key)] = &[
    ("status", Key::Value(Kind::Number(200, 599))),
    ("body", Key::Value(Kind::Text)),
    ("headers", Key::Texts),
];

/// Returns all errors in a section of that name; `None` for any other name.
pub(crate) fn problems(name: &str, value: &Value) -> Option<Vec<String>> {
    let mut problems = Vec::new();
    match (name, value) {
        ("pool", Value::Table(pools)) => {
            for (name, pool) in pools {
                check(&format!("pool.{name}"), Key::Section(POOL), pool, &mut problems);
            }
        }
        ("pool", _) => {
            problems.push("pool: expected sections with a name, for example [pool.app]".to_owned());
        }
        ("site", sites) => check("site", Key::List(SITE), sites, &mut problems),
        _ => return None,
    }
    Some(problems)
}

/// Returns the values of all keys for sizes.
pub(crate) fn sizes(file: &mut Table) -> Vec<&mut Value> {
    let mut found = Vec::new();
    if let Some(sites) = file.get_mut("site") {
        add_sizes(Key::List(SITE), sites, &mut found);
    }
    found
}

fn add_sizes<'v>(kind: Key, value: &'v mut Value, found: &mut Vec<&'v mut Value>) {
    match (kind, value) {
        (Key::Value(Kind::Size), value) => found.push(value),
        (Key::List(keys), Value::Array(items)) => {
            for item in items {
                add_sizes(Key::Section(keys), item, found);
            }
        }
        (Key::Section(keys), Value::Table(table)) => {
            for (name, value) in table {
                if let Some((_, kind)) = keys.iter().find(|(own, _)| own == name) {
                    add_sizes(*kind, value, found);
                }
            }
        }
        _ => {}
    }
}

fn check(key: &str, kind: Key, value: &Value, problems: &mut Vec<String>) {
    let (form, keys) = match (kind, value) {
        (Key::Value(kind), value) => return problems.extend(kind.problem(key, value)),
        (Key::Texts, Value::Table(table)) => {
            let wrong = table.iter().filter(|(_, value)| !value.is_str());
            return problems.extend(wrong.map(|(name, _)| format!("{key}.{name}: expected text in quotes")));
        }
        (Key::List(keys), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check(&format!("{key}[{}]", index + 1), Key::Section(keys), item, problems);
            }
            return;
        }
        (Key::Section(keys), Value::Table(table)) => {
            for (name, value) in table {
                let path = format!("{key}.{name}");
                if let Some((_, kind)) = keys.iter().find(|(own, _)| own == name) {
                    check(&path, *kind, value, problems);
                } else {
                    let hint = hint(name, keys.iter().map(|(own, _)| *own));
                    problems.push(format!(
                        "{path}: unknown key{hint}; strait proxy --print-default-config lists all keys"
                    ));
                }
            }
            return;
        }
        (Key::List(keys), _) => ("sections, for example [[site]] or [[site.route]]", keys),
        (Key::Section(keys), _) => ("a section", keys),
        (Key::Texts, _) => ("names with texts, for example { Cache-Control = \"no-store\" }", &[][..]),
    };
    let keys: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
    let keys = if keys.is_empty() { String::new() } else { format!(" with the keys {}", keys.join(", ")) };
    problems.push(format!("{key}: expected {form}{keys}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::Config;

    #[test]
    fn the_default_file_has_every_key() {
        for (name, _) in [
            POOL, CHECK, OUTLIER, HEDGE, SITE, ROUTE, REDIRECT, RESPOND, HEADERS, TIMEOUTS, ACCESS, RATE,
            AUTH, CACHE,
        ]
        .into_iter()
        .flatten()
        {
            let is_there = match *name {
                "route" => Config::DEFAULT_TOML.contains("#[[site.route]]"),
                name => Config::DEFAULT_TOML.contains(&format!("{name} = ")),
            };
            assert!(is_there, "{name}");
        }
    }

    #[test]
    fn wrong_keys_and_values_are_named_with_their_lines() {
        for (toml, expected) in [
            ("[pool.a]\nserver = [\"a:1\"]", "line 2: pool.a.server: unknown key (did you mean servers?)"),
            ("[pool.a]\nservers = \"a:1\"", "line 2: pool.a.servers = \"a:1\": expected a list of servers"),
            ("[pool.a]\nbalance = \"random\"", "line 2: pool.a.balance = \"random\": expected one of"),
            ("pool = 3", "line 1: pool: expected sections with a name"),
            ("[site]\nhosts = []", "site: expected sections, for example [[site]]"),
            ("[[site]]\n[[site]]\nhost = []", "line 3: site[2].host: unknown key (did you mean hosts?)"),
            (
                "[[site]]\n[[site.route]]\n[[site.route]]\nprefix = 3",
                "line 4: site[1].route[2].prefix: unknown key;",
            ),
            (
                "[[site]]\n[[site.route]]\nrespond = { status = 99 }",
                "site[1].route[1].respond.status = 99: expected a whole number from 200 to 599",
            ),
            (
                "[[site]]\n[[site.route]]\nrespond = { headers = { a = 1 } }",
                "site[1].route[1].respond.headers.a: expected text",
            ),
            (
                "[[site]]\n[[site.route]]\nredirect = \"x\"",
                "expected a section with the keys status, location",
            ),
            ("sites = []", "line 1: sites: unknown key (did you mean site?)"),
            ("[cache]\nmemroy = 1", "line 2: cache.memroy: unknown key (did you mean cache.memory?)"),
            ("[tls]\ncert = \"x\"", "line 2: tls.cert: unknown key (did you mean tls.certificate?)"),
            ("memory = 1", "line 1: memory: unknown key (did you mean cache.memory?)"),
            ("[cahce]\ndir = \"x\"", "cahce: unknown key (did you mean cache?)"),
            ("[timeout]\nconnect = 1", "timeout: unknown key (did you mean timeouts?)"),
            ("[[route]]\npath = \"/\"", "route: unknown key (did you mean site.route?)"),
        ] {
            let error = Config::from_toml(toml).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{toml}: {error}");
        }
    }
}
