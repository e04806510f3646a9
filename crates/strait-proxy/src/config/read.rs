//! Reading of `strait.toml`: from its text to a [`Config`], and messages with line numbers.

use toml::de::{DeTable, DeValue};

use crate::config::check;
use crate::config::error::{Error, Result};
use crate::config::file::Config;
use crate::config::pieces;
use crate::config::schema;
use crate::config::settings::Settings;

/// Configuration that was checked, with its certificates and keys.
#[derive(Debug)]
pub struct Checked {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
}

impl Checked {
    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Checks another configuration. Certificates of unchanged files are not parsed again.
    ///
    /// # Errors
    /// As of [`Config::check`].
    pub fn check_again(&self, config: &Config) -> Result<()> {
        self.settings.check_again(config)
    }

    /// Returns the notes that [`crate::Proxy::notes`] will have, and those about values that are
    /// valid and have little use.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.settings.notes();
        notes.extend(self.config.hints());
        notes.extend(self.settings.tls.foreign_hosts(&self.config));
        notes
    }
}

impl Config {
    /// File with every key, its default and an explanation.
    pub const DEFAULT_TOML: &str = include_str!("strait.toml");

    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text is not TOML, or has unknown keys or wrong values. The message has one line for
    /// each, with its line number in the file.
    pub fn from_toml(text: &str) -> Result<Self> {
        if let Some(config) = pieces::config(text, pieces::PIECE_BYTES) {
            return Ok(config);
        }
        let table: toml::Table = toml::from_str(text).map_err(|error| not_toml(text, &error))?;
        let problems = schema::problems(&table);
        if !problems.is_empty() {
            return Err(Self::locate(text, Error::Config(problems.join("\n"))));
        }
        let unread = |_| Error::Config("a key has a wrong value".to_owned());
        schema::with_sizes_in_bytes(table).try_into().map_err(unread)
    }

    /// Returns true if a file sets no key.
    pub fn is_blank(text: &str) -> bool {
        text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    }

    /// Adds the line number to each message of an error that begins with a key of the file.
    pub fn locate(text: &str, error: Error) -> Error {
        match error {
            Error::Config(message) => {
                let file = DeTable::parse(text).ok();
                let position = |key: &str| file.as_ref().and_then(|file| position_of(file.get_ref(), key));
                let locate = |message: &str| match position(key_of(message)) {
                    Some(at) => format!("line {}: {message}", line_at(text, at)),
                    None => message.to_owned(),
                };
                Error::Config(message.lines().map(locate).collect::<Vec<_>>().join("\n"))
            }
            other => other,
        }
    }

    /// Checks the values against each other, and reads the TLS files. Returns the notes that
    /// [`crate::Proxy::notes`] will have.
    ///
    /// # Errors
    /// Values contradict each other or are refused.
    pub fn check(&self) -> Result<Vec<String>> {
        Ok(Settings::new(self)?.notes())
    }

    /// Like [`Self::check`], but returns the configuration with the certificates and keys, so that
    /// a start need not read them again.
    ///
    /// # Errors
    /// As of [`Self::check`].
    pub fn checked(self) -> Result<Checked> {
        let settings = Settings::new(&self).map_err(|error| error.and(|| self.check_places().err()))?;
        Ok(Checked { config: self, settings })
    }

    /// Checks the directories and the access log. Creates and changes nothing.
    ///
    /// # Errors
    /// One line for each path that would fail at the start.
    pub fn check_places(&self) -> Result<()> {
        let log = check::log(self);
        check::refused(&check::directories(self).into_iter().chain(log).collect::<Vec<_>>())
    }

    /// Like [`Self::check_places`], without the access log.
    ///
    /// # Errors
    /// One line for each directory that would fail at the start.
    pub fn check_directories(&self) -> Result<()> {
        check::refused(&check::directories(self))
    }

    /// Returns notes about directories of files that have little use. Each begins with its key.
    pub fn hints(&self) -> Vec<String> {
        check::missing_paths(self)
    }

    /// Checks whether the store fits its file system.
    ///
    /// # Errors
    /// The store is larger. The proxy can run, but the file system is full before the store is.
    pub fn check_room(&self) -> Result<()> {
        check::refused(&check::room(self).into_iter().collect::<Vec<_>>())
    }
}

/// Returns the error for a file that is not TOML. The parser's own messages change with its
/// versions.
fn not_toml(text: &str, error: &toml::de::Error) -> Error {
    let line = error.span().map_or(1, |span| line_at(text, span.start));
    let why = if error.message().contains("duplicate") {
        "a key or section occurs twice"
    } else {
        "this is not TOML; write key = value, text in \"quotes\", lists in [ ], and sections as [cache]"
    };
    Error::Config(format!("line {line}: {why}"))
}

/// Returns the line number of a byte, from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the key at the start of a message.
fn key_of(message: &str) -> &str {
    message.split([' ', ':']).next().unwrap_or_default()
}

/// Sections that only the file has: an option of the command line can set keys of others.
const ONLY_IN_FILE: [&str; 3] = ["pool", "site", "tls"];

/// Returns the position in the text of a key as messages write it, for example
/// `site[1].route[2].pool`. Sites and routes are numbered from 1. For a key that the file does not
/// set, returns the position of its section if only the file can have it.
fn position_of(file: &DeTable<'_>, key: &str) -> Option<usize> {
    let is_only_in_file = ONLY_IN_FILE.iter().any(|name| after(key, name).is_some());
    let (mut table, mut rest, mut position) = (file, key, None);
    loop {
        // Names in quotes may have dots, so the longest one that fits is meant.
        let fitting =
            table.iter().filter_map(|(name, value)| Some((name, value, after(rest, name.get_ref())?)));
        let Some((name, value, behind)) = fitting.min_by_key(|(_, _, behind)| behind.len()) else {
            return position.filter(|_| is_only_in_file);
        };
        position = Some(name.span().start);
        let mut value = value.get_ref();
        rest = behind;
        if let Some((number, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let number = number.parse::<usize>().ok()?;
            let item = value.as_array()?.get(number.checked_sub(1)?)?;
            position = Some(item.span().start);
            (value, rest) = (item.get_ref(), behind);
        }
        match value {
            DeValue::Table(inner) if !rest.is_empty() => table = inner,
            _ => return position,
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
}

/// Returns the part of a key after a name, if it begins with this name.
fn after<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    key.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(toml: &str) -> Result<Config> {
        let config = Config::from_toml(toml)?;
        config.check().map_err(|error| Config::locate(toml, error))?;
        Ok(config)
    }

    #[test]
    fn the_default_file_has_the_default_values() {
        assert_eq!(checked(Config::DEFAULT_TOML).unwrap(), Config::default());
        assert_eq!(checked("").unwrap(), Config::default());
    }

    /// Keys that are commented out are valid as well, and no key is missing.
    #[test]
    fn the_default_file_has_every_key() {
        let uncomment = |line: &str| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|first: char| first.is_ascii_lowercase() || first == '[') => {
                rest.to_owned()
            }
            _ => line.to_owned(),
        };
        let all = Config::DEFAULT_TOML.lines().map(uncomment).collect::<Vec<_>>().join("\n");
        let written: toml::Table = toml::from_str(&all).unwrap();
        let known = toml::Table::try_from(Config::from_toml(&all).unwrap()).unwrap();
        let keys = |table: &toml::Table| {
            let of = |(section, value): (&String, &toml::Value)| {
                let inner = value.as_table().map(|table| table.keys().cloned().collect::<Vec<_>>());
                (section.clone(), inner)
            };
            table.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(keys(&written), keys(&known));
    }

    #[test]
    fn keys_of_sites_and_pools_are_found_however_the_file_writes_them() {
        let toml = r#"name = """
[[site]]
"""
pool = { x = { servers = [
  "127.0.0.1:1",
], "a.b" = 1 } }
[[ site ]] # the first one
hosts = ["a"]
[[site.route]]
path = "/"
[site.route.rate]
requests = 1
[[site]]
"hosts" = ["b"]
route = [
  { pool = "x" },
  { pool = "x", rate.requests = 1,
    path = "/b" },
]
[tls]
listen = []
"#;
        let file = DeTable::parse(toml).unwrap();
        let line = |key| position_of(file.get_ref(), key).map(|at| line_at(toml, at));
        for (key, expected) in [
            ("name", Some(1)),
            ("pool.x.servers", Some(4)),
            ("pool.x.sticky", Some(4)),
            ("pool.x.a.b", Some(6)),
            ("site[1]", Some(7)),
            ("site[1].hosts", Some(8)),
            ("site[1].route[1]", Some(9)),
            ("site[1].route[1].path", Some(10)),
            ("site[1].route[1].rate", Some(11)),
            ("site[1].route[1].rate.requests", Some(12)),
            ("site[1].key", Some(7)),
            ("site[2]", Some(13)),
            ("site[2].hosts", Some(14)),
            ("site[2].route[1].pool", Some(16)),
            ("site[2].route[2].rate.requests", Some(17)),
            ("site[2].route[2].path", Some(18)),
            ("tls.certificate", Some(20)),
            ("site[3].hosts", None),
            ("site[0]", None),
            ("cache.size", None),
            ("names", None),
            ("", None),
        ] {
            assert_eq!(line(key), expected, "{key}");
        }
    }

    #[test]
    fn wrong_values_are_reported_with_their_lines() {
        for (toml, expected) in [
            ("workers = 2\nlisten = 3", "line 2: "),
            ("workers = 2\nsise = 3", "line 2: sise: unknown key"),
            ("workers = 2\n[cache]\nsize = \"x\"", "line 3: "),
            ("workers = 2\n\nname = \"a b\"", "line 3: name = \"a b\": "),
            ("[access]\npurge = []\nallow = [\"x\"]", "line 3: access.allow: "),
            ("\naccess.allow = [\"x\"]", "line 2: access.allow: "),
            ("[", "line 1: "),
        ] {
            let error = checked(toml).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{toml}: {error}");
        }
    }
}
