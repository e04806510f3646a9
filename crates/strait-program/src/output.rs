//! Lines on the standard streams.

use std::fmt::{Arguments, Display};
use std::io::{self, Write};

use serde::Serialize;

use crate::{Error, Streams};

/// Prints an account: text, or one JSON object.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_account(account: &(impl Display + Serialize), json: bool) -> Result<(), Error> {
    print_notice(&account_text(account, json)?)
}

/// Prints one line on standard output, or nothing if that was closed at the start. Commands check
/// [`Streams`] before they make data that the user asked for.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_notice(line: &str) -> Result<(), Error> {
    if strait_sys::stdio::is_output_closed() { Ok(()) } else { print_line(line) }
}

/// Returns an account as text, or as one JSON object, without the end of the line.
///
/// # Errors
/// The account cannot be represented as JSON.
pub fn account_text(account: &(impl Display + Serialize), json: bool) -> Result<String, Error> {
    if !json {
        return Ok(account.to_string().trim_end().to_owned());
    }
    serde_json::to_string(account).map_err(|error| Error::Failed(error.to_string()))
}

/// Writes a message to standard error. A closed pipe there ends nothing.
pub fn tell(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Writes a message of one line to standard error, after the name of the program.
pub fn warn(text: Arguments<'_>) {
    tell(format_args!("{}: {text}", crate::prefix()));
}

/// Prints one line on standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_line(line: &str) -> Result<(), Error> {
    print_text(&format!("{line}\n"))
}

/// Prints text on standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_text(text: &str) -> Result<(), Error> {
    Streams::output(true).check()?;
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
