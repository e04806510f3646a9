//! Keys of `strait.toml` and the values that they accept.
//!
//! `read` checks a file here before it becomes a [`Config`], so that all wrong values are reported
//! at once, each with its key, its value, the accepted values and an example.

use std::net::SocketAddr;

use strait_ledger::quantity;
use toml::{Table, Value};

use crate::config::edge::Balance;
use crate::config::file::Config;
use crate::config::sections;

/// Kind of values that a key accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Bool,
    /// Whole number in this range, which includes both.
    Number(u64, u64),
    /// Seconds, up to a day.
    Seconds,
    Size,
    Text,
    Path,
    Paths,
    Address,
    Addresses,
    Networks,
    Hosts,
    Servers,
    Resolvers,
    Ports,
    /// Statuses of errors.
    Statuses,
    /// Names of fields.
    Fields,
    Methods,
    Codings,
    MediaTypes,
    /// Names of parameters or cookies.
    Names,
    OneOf(&'static [&'static str]),
    Balance,
    /// Share from 0 to 1.
    Share,
    Abandoned,
}

/// Seconds of a day, the maximum of all times.
const DAY: u64 = 86_400;

/// All keys. Errors about a key that only [`Config`] has are reported without details.
const KEYS: &[(&str, Kind)] = &[
    ("listen", Kind::Addresses),
    ("workers", Kind::Number(0, 256)),
    ("origin", Kind::Text),
    ("name", Kind::Text),
    ("hosts", Kind::Hosts),
    ("forwarded", Kind::OneOf(&["off", "append", "replace"])),
    ("cache.dir", Kind::Path),
    ("cache.further_dirs", Kind::Paths),
    ("cache.size", Kind::Size),
    ("cache.memory", Kind::Size),
    ("cache.memory_object", Kind::Size),
    ("cache.object", Kind::Size),
    ("cache.sync", Kind::Seconds),
    ("cache.scrub", Kind::Size),
    ("cache.scrub_every", Kind::Number(1, 366 * DAY)),
    ("cache.check_hits", Kind::OneOf(&["off", "first", "always"])),
    ("cache.heuristic_max", Kind::Seconds),
    ("cache.negative", Kind::Number(0, u64::MAX)),
    ("cache.store_errors", Kind::Statuses),
    ("cache.store_set_cookie", Kind::Bool),
    ("cache.key_fields", Kind::Fields),
    ("cache.bypass_fields", Kind::Fields),
    ("cache.abandoned", Kind::Abandoned),
    ("access.allow", Kind::Networks),
    ("access.connect_ports", Kind::Ports),
    ("access.reach", Kind::Networks),
    ("access.purge", Kind::Networks),
    ("access.refresh", Kind::Networks),
    ("timeouts.idle", Kind::Seconds),
    ("timeouts.head", Kind::Seconds),
    ("timeouts.client", Kind::Seconds),
    ("timeouts.body_grace", Kind::Seconds),
    ("timeouts.body", Kind::Seconds),
    ("timeouts.response_grace", Kind::Seconds),
    ("timeouts.connect", Kind::Seconds),
    ("timeouts.origin", Kind::Seconds),
    ("timeouts.origin_idle", Kind::Seconds),
    ("timeouts.tunnel", Kind::Seconds),
    ("timeouts.drain", Kind::Seconds),
    ("limits.connections", Kind::Number(1, u32::MAX as u64)),
    ("limits.connections_per_client", Kind::Number(0, u32::MAX as u64)),
    ("limits.origin_connections", Kind::Number(1, u32::MAX as u64)),
    ("limits.origin_connections_per_client", Kind::Number(0, u32::MAX as u64)),
    ("limits.background_fetches", Kind::Number(0, u32::MAX as u64)),
    ("limits.background_fetches_per_client", Kind::Number(0, u32::MAX as u64)),
    ("limits.request_body", Kind::Size),
    ("limits.request_body_rate", Kind::Size),
    ("limits.request_ahead", Kind::Size),
    ("limits.request_ahead_memory", Kind::Size),
    ("limits.request_ahead_memory_per_client", Kind::Size),
    ("limits.response_rate", Kind::Size),
    ("limits.origin_idle", Kind::Number(0, u32::MAX as u64)),
    ("transfer.sendfile", Kind::Bool),
    ("transfer.sendfile_from", Kind::Size),
    ("transfer.splice", Kind::Bool),
    ("transfer.splice_from", Kind::Size),
    ("transfer.fill", Kind::OneOf(&["auto", "splice", "copy"])),
    ("tls.listen", Kind::Addresses),
    ("tls.https_port", Kind::Number(1, 65_535)),
    ("tls.certificate", Kind::Path),
    ("tls.key", Kind::Path),
    ("tls.ocsp", Kind::Path),
    ("tls.origin_ca", Kind::Path),
    ("tls.kernel", Kind::Bool),
    ("http2.enabled", Kind::Bool),
    ("http2.streams", Kind::Number(1, u32::MAX as u64)),
    ("dns.servers", Kind::Resolvers),
    ("dns.ttl_min", Kind::Number(1, DAY)),
    ("dns.ttl_max", Kind::Number(1, DAY)),
    ("log.access", Kind::Path),
    ("log.format", Kind::OneOf(&["common", "combined", "squid", "json"])),
    ("log.sample", Kind::Share),
    ("trace.context", Kind::OneOf(&["pass", "join", "begin"])),
    ("trace.sample", Kind::Share),
    ("trace.request_id", Kind::Text),
    ("trace.export", Kind::Text),
    ("admin.listen", Kind::Address),
    ("admin.allow", Kind::Networks),
    ("admin.change", Kind::Networks),
    ("admin.hosts", Kind::Hosts),
    ("proxy_protocol.on", Kind::Addresses),
    ("proxy_protocol.from", Kind::Networks),
];

/// Returns all errors in keys and values, in the order of the file. Each text begins with the key.
pub(crate) fn problems(file: &Table) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, value) in file {
        if let Some(own) = sections::problems(name, value) {
            problems.extend(own);
            continue;
        }
        let is_section = KEYS.iter().any(|(key, _)| key.split_once('.').is_some_and(|(own, _)| own == name));
        match value {
            Value::Table(section) if is_section => {
                let of_key = |(key, value): (&String, &Value)| problem(&format!("{name}.{key}"), value);
                problems.extend(section.iter().filter_map(of_key));
            }
            value if is_section => {
                problems.push(format!(
                    "{name} = {value}: this is a section; write [{name}] and its keys below it"
                ));
            }
            value => problems.extend(problem(name, value)),
        }
    }
    problems
}

fn problem(key: &str, value: &Value) -> Option<String> {
    let Some((_, kind)) = KEYS.iter().find(|(own, _)| *own == key) else { return unlisted(key, value) };
    kind.problem(key, value)
}

/// Returns the error of [`Config`] for a key that is not in the list.
fn unlisted(key: &str, value: &Value) -> Option<String> {
    let (section, name) = key.split_once('.').unwrap_or(("", key));
    let mut table = Table::from_iter([(name.to_owned(), value.clone())]);
    if !section.is_empty() {
        table = Table::from_iter([(section.to_owned(), Value::Table(table))]);
    }
    let error = table.try_into::<Config>().err()?;
    if error.message().starts_with("unknown field") {
        let keys = KEYS.iter().map(|(own, _)| *own);
        let own_sections = keys.clone().filter_map(|key| Some(key.split_once('.')?.0));
        let hint = hint(key, keys.chain(own_sections).chain(sections::NAMES));
        return Some(format!("{key}: unknown key{hint}; strait proxy --print-default-config lists all keys"));
    }
    Some(format!(
        "{key} = {}: wrong value; strait proxy --print-default-config has the accepted ones",
        shown(value)
    ))
}

/// Returns a question for the known name that is most like an unknown one; empty if none is like
/// it.
pub(crate) fn hint<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> String {
    /// Least similarity: two letters of five may differ.
    const ALIKE: f64 = 0.6;
    let scored = known.map(|name| (likeness(unknown, name), name));
    let best = scored.filter(|(score, _)| *score >= ALIKE).max_by(|one, other| one.0.total_cmp(&other.0));
    best.map_or_else(String::new, |(_, name)| format!(" (did you mean {name}?)"))
}

/// Returns the similarity of two names, from 0 to 1. An abbreviation, and a key without its
/// section, are more alike than names with a different letter.
fn likeness(unknown: &str, known: &str) -> f64 {
    /// Fewest letters of an abbreviation.
    const SHORT: usize = 3;
    let (section, last) = known.rsplit_once('.').unwrap_or(("", known));
    let (own_section, own) = unknown.rsplit_once('.').unwrap_or(("", unknown));
    let is_begin = |begin: &str, all: &str| begin.len() >= SHORT && all.starts_with(begin);
    if own_section != section {
        return if own_section.is_empty() && own == last { 0.9 } else { 0.0 };
    }
    let abbreviates = is_begin(own, last) || is_begin(last, own);
    strsim::normalized_damerau_levenshtein(own, last).max(if abbreviates { 0.95 } else { 0.0 })
}

/// Returns a value as the file writes it, on one line and shortened.
pub(crate) fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = value.to_string().replace('\n', " ");
    if text.chars().count() <= CHARS_MAX {
        return text;
    }
    text.chars().take(CHARS_MAX).collect::<String>() + "..."
}

/// Converts sizes with units to bytes.
pub(crate) fn with_sizes_in_bytes(mut file: Table) -> Table {
    sections::sizes(&mut file).into_iter().for_each(to_bytes);
    for (key, _) in KEYS.iter().filter(|(_, kind)| matches!(kind, Kind::Size)) {
        let Some((section, name)) = key.split_once('.') else { continue };
        let section = file.get_mut(section).and_then(Value::as_table_mut);
        if let Some(value) = section.and_then(|section| section.get_mut(name)) {
            to_bytes(value);
        }
    }
    file
}

fn to_bytes(value: &mut Value) {
    if let Some(bytes) = value.as_str().and_then(size) {
        *value = Value::Integer(bytes);
    }
}

/// Converts a size to bytes, at most the largest number of TOML.
fn size(text: &str) -> Option<i64> {
    Some(i64::try_from(quantity::bytes(text, 1).ok()?).unwrap_or(i64::MAX))
}

impl Kind {
    /// Returns the text for a wrong value of a key.
    pub(crate) fn problem(self, key: &str, value: &Value) -> Option<String> {
        (!self.accepts(value)).then(|| format!("{key} = {}: {}", shown(value), self.expected()))
    }

    fn accepts(self, value: &Value) -> bool {
        let strings = |is_right: fn(&str) -> bool| {
            let right = |item: &Value| item.as_str().is_some_and(is_right);
            value.as_array().is_some_and(|items| items.iter().all(right))
        };
        let within = |value: &Value, from: u64, to: u64| {
            value
                .as_integer()
                .and_then(|number| u64::try_from(number).ok())
                .is_some_and(|it| (from..=to).contains(&it))
        };
        match self {
            Self::Bool => value.is_bool(),
            Self::Number(from, to) => within(value, from, to),
            Self::Seconds => within(value, 0, DAY),
            Self::Size => {
                within(value, 0, u64::MAX) || value.as_str().is_some_and(|text| size(text).is_some())
            }
            Self::Text => value.is_str(),
            Self::Path => value.as_str().is_some_and(|path| !path.contains('\0')),
            Self::Address => value.as_str().is_some_and(|text| text.parse::<SocketAddr>().is_ok()),
            Self::Paths => strings(|path| !path.contains('\0')),
            Self::Addresses => strings(|text| text.parse::<SocketAddr>().is_ok()),
            Self::Networks
            | Self::Hosts
            | Self::Servers
            | Self::Resolvers
            | Self::Fields
            | Self::Methods
            | Self::Codings
            | Self::MediaTypes
            | Self::Names => strings(|_| true),
            Self::Ports => {
                value.as_array().is_some_and(|ports| ports.iter().all(|port| within(port, 1, 65_535)))
            }
            Self::Statuses => {
                value.as_array().is_some_and(|all| all.iter().all(|status| within(status, 400, 599)))
            }
            Self::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Balance => value.as_str().is_some_and(|text| Balance::parse(text).is_some()),
            Self::Share => {
                within(value, 0, 1) || value.as_float().is_some_and(|share| (0.0..=1.0).contains(&share))
            }
            Self::Abandoned => match value {
                Value::String(word) => word == "finish" || word == "drop",
                Value::Table(table) => {
                    table.len() == 1 && table.get("past").is_some_and(|past| within(past, 0, 100))
                }
                _ => false,
            },
        }
    }

    /// Returns the accepted values with an example.
    fn expected(self) -> String {
        let text = match self {
            Self::Bool => "expected true or false",
            Self::Number(from, u64::MAX) => {
                return format!("expected a whole number from {from}, for example 60");
            }
            Self::Number(from, to) => {
                return format!(
                    "expected a whole number from {from} to {to}, for example {}",
                    from.max(4).min(to)
                );
            }
            Self::Seconds => "expected whole seconds from 0 to 86400, for example 60",
            Self::Size => {
                "expected a size, in bytes or with a unit (KiB, MiB, GiB, TiB, kB, MB, GB, TB), for example \"512MiB\""
            }
            Self::Text => "expected text in quotes",
            Self::Path => "expected a path in quotes, for example \"/var/cache/strait\"",
            Self::Paths => "expected a list of paths, for example [\"/disk2/strait\"]",
            Self::Address => {
                "expected an address with a port, for example \"127.0.0.1:3128\" or \"[::1]:3128\""
            }
            Self::Addresses => {
                "expected a list of addresses with ports, for example [\"127.0.0.1:3128\", \"[::1]:3128\"]"
            }
            Self::Networks => "expected a list of networks, for example [\"10.0.0.0/8\", \"::1\"]",
            Self::Hosts => "expected a list of host names, for example [\"www.example.org\"]",
            Self::Servers => {
                "expected a list of servers, for example [\"127.0.0.1:8080\", \"https://app.example.org weight=2\"]"
            }
            Self::Resolvers => "expected a list of addresses, for example [\"127.0.0.53\", \"[::1]:5353\"]",
            Self::Ports => "expected a list of ports from 1 to 65535, for example [443]",
            Self::Statuses => "expected a list of statuses from 400 to 599, for example [404, 410]",
            Self::Methods => "expected a list of methods, for example [\"GET\"]",
            Self::Codings => "expected a list of codings, for example [\"zstd\", \"br\", \"gzip\"]",
            Self::MediaTypes => {
                "expected a list of media types, for example [\"text/*\", \"application/json\"]"
            }
            Self::Fields => "expected a list of field names, for example [\"X-Tenant\"]",
            Self::Names => "expected a list of names, for example [\"utm_*\", \"id\"]",
            Self::OneOf(words) => return format!("expected one of \"{}\"", words.join("\", \"")),
            Self::Balance => {
                "expected one of \"round-robin\", \"least-connections\", \"power-of-two\", \"uri\", \"header:NAME\" and \"cookie:NAME\", with the name of a field or a cookie"
            }
            Self::Share => "expected a share from 0 to 1, for example 0.01",
            Self::Abandoned => "expected \"finish\", \"drop\" or { past = 80 }, with 0 to 100 per cent",
        };
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of the configuration is listed, so that none is reported without details.
    #[test]
    fn every_key_of_the_default_file_is_listed() {
        let uncomment = |line: &str| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => {
                rest.to_owned()
            }
            _ => line.to_owned(),
        };
        let all = Config::DEFAULT_TOML.lines().map(uncomment).collect::<Vec<_>>().join("\n");
        let file: Table = toml::from_str(&all).unwrap();
        let is_listed = |(name, _): &(&String, &Value)| !sections::NAMES.contains(&name.as_str());
        let listed: Vec<_> = file.iter().filter(is_listed).collect();
        let sections = listed.iter().filter_map(|(name, value)| value.as_table().map(|table| (name, table)));
        let keys = sections.flat_map(|(name, table)| table.keys().map(move |key| format!("{name}.{key}")));
        let top = listed.iter().filter(|(_, value)| !value.is_table()).map(|(name, _)| (*name).clone());
        for key in keys.chain(top) {
            assert!(KEYS.iter().any(|(own, _)| *own == key), "{key}");
        }
        assert_eq!(problems(&file), Vec::<String>::new());
    }

    #[test]
    fn sizes_are_read_as_on_the_command_line() {
        let read = |text: &str| Config::from_toml(&format!("[limits]\nrequest_body = \"{text}\""));
        for text in ["4096", "100k", "1.5KiB", "10 GiB", "1.9999kB"] {
            let bytes = read(text).unwrap().limits.request_body.as_u64();
            assert_eq!(Ok(bytes), quantity::bytes(text, 1), "{text}");
        }
        for text in ["", ".5k", "1.5", "16EiB", "99999999999TiB", "10XB"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("request_body") && error.contains("expected a size"), "{error}");
        }
    }
}
