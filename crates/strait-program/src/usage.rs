//! Mistakes on the command line, each in one line, with the command that shows the options.
//!
//! [`main`](crate::main) passes the result of the parser. Help and versions go to standard output
//! as the parser formats them.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error as Mistake};

use crate::output::print_stderr;
use crate::{Error, Streams, name, prefix};

/// Maximum words of a command line that are searched for the mistake.
const WORDS_MAX: usize = 256;
/// Words of the parser before a wrong value.
const VALUE: &str = "invalid value '";

/// Prints help, a version, or the mistake in the command line `words`. Returns false for a mistake.
pub(crate) fn print(mistake: &Mistake, command: &Command, words: &[OsString]) -> Result<bool, Error> {
    match mistake.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Streams::output(true).check()?;
            mistake.print().map_err(Error::Output).map(|()| true)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed pipe at standard error does not change the exit code.
            let _ = mistake.print();
            Ok(false)
        }
        _ => {
            let words = &words[..words.len().min(WORDS_MAX)];
            let (path, inner) = subcommand(command, words);
            let line = negative(mistake, inner, words).unwrap_or_else(|| one_line(&mistake.to_string()));
            print_stderr(format_args!("{}: {}\ntry '{path} --help'\n", prefix(), without_secrets(&line)));
            Ok(false)
        }
    }
}

/// Replaces the query of a URL that is a wrong value, and the users of all URLs.
fn without_secrets(line: &str) -> String {
    without_users(&without_query(line).unwrap_or_else(|| line.to_owned()))
}

/// Replaces the query of a URL that is a wrong value; `None` if there is none.
fn without_query(line: &str) -> Option<String> {
    let (head, rest) = line.split_once(VALUE)?;
    let (value, tail) = rest.split_once('\'')?;
    let (place, _) = value.split_once('?').filter(|_| value.contains("://"))?;
    Some(format!("{head}{VALUE}{place}?...'{tail}"))
}

/// Replaces the users of URLs, which may have a password. Standard error may go to a log.
fn without_users(line: &str) -> String {
    let (mut shown, mut rest) = (String::new(), line);
    while let Some((head, tail)) = rest.split_once("://") {
        shown.push_str(head);
        shown.push_str("://");
        let authority = tail.split(['/', '?', '#', ' ', '\'']).next().unwrap_or(tail);
        rest = match authority.rfind('@') {
            Some(user) => {
                shown.push_str("...");
                &tail[user..]
            }
            None => tail,
        };
    }
    shown + rest
}

/// Returns the command of a line, as in `strait cache ls`, and its definition.
fn subcommand<'a>(command: &'a Command, words: &[OsString]) -> (String, &'a Command) {
    let (mut path, mut inner) = (name().to_owned(), command);
    for word in words.iter().skip(1) {
        if let Some(found) = inner.find_subcommand(word) {
            inner = found;
            path = format!("{path} {}", found.get_name());
        }
        if !inner.has_subcommands() {
            break;
        }
    }
    (path, inner)
}

/// Returns the message for a value below 0, which the parser takes for an unknown option.
fn negative(mistake: &Mistake, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = mistake.get(ContextKind::InvalidArg) else { return None };
    if mistake.kind() != ErrorKind::UnknownArgument || !is_negative(unknown) {
        return None;
    }
    let is_unknown = |word: &OsString| word.to_string_lossy().starts_with(&**unknown);
    let at = words.iter().position(is_unknown)?;
    let (option, value) = (words.get(at.checked_sub(1)?)?, words[at].to_string_lossy());
    let option = takes_a_value(command, option).then(|| option.to_string_lossy())?;
    Some(format!("invalid value '{value}' for '{option}': it cannot be below 0"))
}

/// Returns true for a number below 0, as in `-5` or `-5s`.
fn is_negative(text: &str) -> bool {
    let rest = text.strip_prefix('-').unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// Returns true for an option that takes a value, as in `--duration`, `-d` and `-nd`.
fn takes_a_value(command: &Command, word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    let is_named = |argument: &&clap::Arg| match word.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => word.starts_with('-') && word.len() > 1 && argument.get_short() == word.chars().next_back(),
    };
    command.get_arguments().find(is_named).is_some_and(|argument| argument.get_action().takes_values())
}

/// Joins the lines of the parser's text, without its usage lines.
fn one_line(text: &str) -> String {
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let mut line = String::new();
    for part in lines.filter(|line| !line.is_empty()) {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        match part.strip_prefix("tip: ") {
            // If a similar name exists, the user did not mean `-- --jsn`.
            Some(tip) if tip.starts_with("to pass ") && line.contains("; ") => {}
            Some(tip) => line = format!("{line}; {tip}"),
            None if line.is_empty() => part.clone_into(&mut line),
            None if line.ends_with(':') || part.starts_with('[') => line = format!("{line} {part}"),
            None => line = format!("{line}, {part}"),
        }
    }
    reworded(&line)
}

/// Replaces Rust's phrases, such as `0 is not in 1..=256`, and removes a repeated value.
fn reworded(line: &str) -> String {
    let Some((start, reason)) =
        line.split_once("': ").filter(|(start, _)| start.starts_with("invalid value '"))
    else {
        return line.to_owned();
    };
    let value = start.trim_start_matches("invalid value '").split("' for '").next().unwrap_or_default();
    let reason = reason.strip_prefix(&format!("'{value}': ")).unwrap_or(reason);
    let reason = match reason.split_once(" is not in ") {
        Some((_, range)) => in_words(range),
        None if reason == "invalid digit found in string" => "give a whole number, not below 0".into(),
        None if reason.starts_with("number too large") => "the number is too large".into(),
        None => reason.to_owned(),
    };
    format!("{start}': {reason}")
}

/// Returns a range such as `1..=256` in words.
fn in_words(range: &str) -> String {
    match range.split_once("..") {
        Some((first, "")) => format!("give {first} or more"),
        Some(("", last)) => format!("give {} at most", last.trim_start_matches('=')),
        Some((first, last)) => format!("give {first} to {}", last.trim_start_matches('=')),
        None => format!("give {range}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_wrong_queries_of_urls_are_not_shown() {
        for (line, shown) in [
            ("value 'nats://u:SECRET@host/x' for '--to'", "value 'nats://...@host/x' for '--to'"),
            ("http://a@b@host and s3://u@lake", "http://...@host and s3://...@lake"),
            ("file://host/a@b, user@host", "file://host/a@b, user@host"),
            (
                "invalid value 'nats://h/f?token=SECRET' for '--to': as in tcp://h?domain=7",
                "invalid value 'nats://h/f?...' for '--to': as in tcp://h?domain=7",
            ),
            ("invalid value 'a?b' for 'X'", "invalid value 'a?b' for 'X'"),
        ] {
            assert_eq!(without_secrets(line), shown);
        }
    }

    #[test]
    fn several_lines_become_one() {
        let text = "error: unexpected argument '--jsn' found\n\n  tip: a similar argument exists: '--json'\n  \
            tip: to pass '--jsn' as a value, use '-- --jsn'\n\nUsage: strait cache\n\nFor more information, try '--help'.\n";
        let expected = "unexpected argument '--jsn' found; a similar argument exists: '--json'";
        assert_eq!(one_line(text), expected);
        let text =
            "error: the following required arguments were not provided:\n  <FILE>\n  <TO>\n\nUsage: x\n";
        assert_eq!(one_line(text), "the following required arguments were not provided: <FILE>, <TO>");
        let text = "error: invalid value 'fast' for '--path <PATH>'\n  [possible values: auto, recv]\n";
        assert_eq!(one_line(text), "invalid value 'fast' for '--path <PATH>' [possible values: auto, recv]");
    }

    #[test]
    fn ranges_are_shown_in_words() {
        for (reason, expected) in [
            ("0 is not in 1..=256", "give 1 to 256"),
            ("0 is not in 1..", "give 1 or more"),
            ("9 is not in ..=5", "give 5 at most"),
            ("invalid digit found in string", "give a whole number, not below 0"),
            ("number too large to fit in target type", "the number is too large"),
            ("'x': give a size", "give a size"),
        ] {
            let line = one_line(&format!("error: invalid value 'x' for '--most <N>': {reason}\n"));
            assert_eq!(line, format!("invalid value 'x' for '--most <N>': {expected}"));
        }
    }

    #[test]
    fn negative_number_is_no_option() {
        assert!(is_negative("-5") && is_negative("-.5") && !is_negative("-d") && !is_negative("5"));
    }
}
