//! Reading of `strait.toml`: from its text to a [`Config`], and messages with line numbers.

use crate::config::check;
use crate::config::error::{Error, Result};
use crate::config::file::Config;
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

    /// Returns the notes that [`crate::Proxy::notes`] will have.
    pub fn notes(&self) -> Vec<String> {
        self.settings.notes()
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
                let locate = |message: &str| match line_of(text, key_of(message)) {
                    Some(line) => format!("line {line}: {message}"),
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
        let settings = Settings::new(&self)?;
        Ok(Checked { config: self, settings })
    }

    /// Checks the directory of the store and the access log. Creates and changes nothing.
    ///
    /// # Errors
    /// One line for each path that would fail at the start.
    pub fn check_places(&self) -> Result<()> {
        check::refused(&check::places(self))
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

/// Returns the number of the line that sets a key, from 1.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut section = String::new();
    // Sites, and routes of the last site.
    let (mut sites, mut routes) = (0, 0);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("[[site]]") {
            (sites, routes) = (sites + 1, 0);
            section = format!("site[{sites}]");
        } else if line.starts_with("[[site.route]]") {
            routes += 1;
            section = format!("site[{sites}].route[{routes}]");
        } else if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            name.trim().clone_into(&mut section);
        }
        if section == key {
            return Some(index + 1);
        }
        let Some((own, _)) = line.split_once('=') else { continue };
        let in_section = key.strip_prefix(&*section).and_then(|rest| rest.strip_prefix('.'));
        let wanted = if section.is_empty() { Some(key) } else { in_section };
        let is_wanted = |wanted: &str| {
            wanted.strip_prefix(own.trim()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if wanted.is_some_and(is_wanted) {
            return Some(index + 1);
        }
    }
    None
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
