//! Settings of the user for programs without options for them: `STRAIT_PATH`, `STRAIT_WAIT`,
//! `STRAIT_QUEUES`, `STRAIT_STRICT`, `STRAIT_REPORT`, and a prefix of the device's name such as
//! `xdp:eth0`; and the broker of taps that `strait run` started.

use strait_capture::broker::{self, Broker};
use strait_capture::{Path, Queues, Wait};

use crate::notice::Notices;

/// Settings for one device.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) device: String,
    pub(crate) path: Path,
    pub(crate) wait: Wait,
    pub(crate) queues: Queues,
    /// Fail instead of falling back to libpcap.
    pub(crate) strict: bool,
    /// Print the ledger when the program closes the handle.
    pub(crate) report: bool,
    /// Destination of the report and of all other notices.
    pub(crate) notices: Notices,
    /// Opens taps without a privilege of this process.
    pub(crate) broker: Option<Broker>,
}

impl Choice {
    /// Returns the settings for `device`. `variable` looks up environment variables.
    ///
    /// # Errors
    /// A message that names a variable with an invalid value.
    pub(crate) fn new(device: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let variable = |name| variable(name).filter(|text| !text.is_empty());
        let (prefix, name) = split(device);
        let chosen = match variable("STRAIT_PATH") {
            Some(text) => {
                let names = Path::ALL.iter().map(|path| path.name());
                Some(Path::from_name(&text).ok_or_else(|| unknown("STRAIT_PATH", &text, names))?)
            }
            None => None,
        };
        let wait = match variable("STRAIT_WAIT") {
            None => Wait::Balanced,
            Some(text) => {
                let names = Wait::ALL.iter().map(|wait| wait.name());
                Wait::from_name(&text).ok_or_else(|| unknown("STRAIT_WAIT", &text, names))?
            }
        };
        let queues = match variable("STRAIT_QUEUES") {
            None => Queues::Default,
            Some(text) => text.parse().map_err(|error| format!("STRAIT_QUEUES={text}: {error}"))?,
        };
        let is_set = |name| variable(name).is_some_and(|text| text != "0");
        Ok(Self {
            device: name.to_owned(),
            path: prefix.or(chosen).unwrap_or(Path::Auto),
            wait,
            queues,
            strict: is_set("STRAIT_STRICT"),
            report: is_set("STRAIT_REPORT"),
            notices: match variable("STRAIT_REPORT").as_deref() {
                None | Some("0" | "1") => Notices::Stderr,
                Some(file) => Notices::to_file(file)?,
            },
            broker: variable(broker::VARIABLE).and_then(|value| Broker::inherited(&value)),
        })
    }
}

/// Splits a device's name into the path that it begins with, if any, and the rest.
pub(crate) fn split(device: &str) -> (Option<Path>, &str) {
    match device.split_once(':') {
        Some((prefix, name)) if Path::from_name(prefix).is_some() => (Path::from_name(prefix), name),
        _ => (None, device),
    }
}

/// Returns the message for the value `text` of a variable that accepts only `names`.
fn unknown(variable: &str, text: &str, names: impl Iterator<Item = &'static str>) -> String {
    format!("{variable}={text}: give one of {}", names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_takes_precedence_over_the_variable() {
        let variable = |name: &str| (name == "STRAIT_PATH").then(|| "v2".to_owned());
        let choice = Choice::new("xdp:eth0", variable).unwrap();
        assert_eq!((choice.device.as_str(), choice.path), ("eth0", Path::Xdp));
        let choice = Choice::new("eth0:1", variable).unwrap();
        assert_eq!((choice.device.as_str(), choice.path), ("eth0:1", Path::V2));
        assert!(!choice.strict && !choice.report);
    }

    #[test]
    fn an_unknown_value_is_reported_with_its_variable() {
        for name in ["STRAIT_PATH", "STRAIT_WAIT", "STRAIT_QUEUES"] {
            let error = Choice::new("eth0", |variable| (variable == name).then(|| "fast".to_owned()));
            assert!(error.unwrap_err().starts_with(&format!("{name}=fast: ")));
        }
    }

    #[test]
    fn an_unknown_path_or_policy_is_refused_with_every_name() {
        let refused = |name: &str| {
            let choice = Choice::new("eth0", |variable| (variable == name).then(|| "fast".to_owned()));
            choice.unwrap_err()
        };
        let error = refused("STRAIT_PATH");
        assert!(Path::ALL.iter().all(|path| error.contains(path.name())), "{error}");
        assert_eq!(error.matches(", ").count() + 1, Path::ALL.len(), "{error}");
        assert_eq!(refused("STRAIT_WAIT"), "STRAIT_WAIT=fast: give one of latency, balanced, busy");
    }

    #[test]
    fn queues_are_a_list() {
        let choice =
            Choice::new("eth0", |variable| (variable == "STRAIT_QUEUES").then(|| "0,2-3".to_owned()));
        assert_eq!(choice.unwrap().queues, Queues::These(vec![0, 2, 3]));
    }

    #[test]
    fn a_report_goes_to_standard_error_or_to_a_file() {
        let reporting = |value: &'static str| {
            Choice::new("eth0", |name| (name == "STRAIT_REPORT").then(|| value.to_owned()))
        };
        assert!(matches!(reporting("1"), Ok(Choice { report: true, notices: Notices::Stderr, .. })));
        assert!(matches!(reporting("/dev/null"), Ok(Choice { report: true, notices: Notices::File(_), .. })));
        assert!(
            reporting("/nosuch/file")
                .unwrap_err()
                .starts_with("strait run --report=/nosuch/file (STRAIT_REPORT): ")
        );
    }

    #[test]
    fn zero_and_empty_values_are_off() {
        for value in ["0", ""] {
            let flags = ["STRAIT_STRICT", "STRAIT_REPORT"];
            let choice = Choice::new("eth0", |name| flags.contains(&name).then(|| value.to_owned())).unwrap();
            assert!(!choice.strict && !choice.report);
        }
    }
}
