//! Lines on the standard streams.

use std::fmt::{Arguments, Display};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
pub use strait_os::text::printable;

use crate::{Error, Streams};

/// Prints an account: text, or one JSON object.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_account(account: &(impl Display + Serialize), json: bool) -> Result<(), Error> {
    print_notice(&account_text(account, json)?)
}

/// Prints one line on standard output, or nothing if standard output was closed at the start.
/// Commands with requested data, which must not be lost, check [`Streams`] first.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_notice(line: &str) -> Result<(), Error> {
    if strait_os::stdio::is_output_closed() { Ok(()) } else { print_line(line) }
}

/// Returns an account as text, or as one JSON object, without the end of the line.
///
/// # Errors
/// The account cannot be represented as JSON.
pub fn account_text(account: &(impl Display + Serialize), json: bool) -> Result<String, Error> {
    if !json {
        return Ok(printable(account.to_string().trim_end()));
    }
    serde_json::to_string(account).map_err(|error| Error::Failed(error.to_string()))
}

/// True if [`print_stderr`] prints nothing.
static OMITS_NOTICES: AtomicBool = AtomicBool::new(false);

/// Makes [`print_stderr`] print nothing from now on. The failure of the program is still printed.
/// For callers that show each line on standard error as an error.
pub fn omit_notices() {
    OMITS_NOTICES.store(true, Ordering::Relaxed);
}

/// Prints text on standard error, with control characters as [`printable`] writes them. Ignores
/// errors: a closed pipe must not end the program.
pub fn print_stderr(text: Arguments<'_>) {
    if !OMITS_NOTICES.load(Ordering::Relaxed) {
        print_failure(text);
    }
}

/// Like [`print_stderr`], also after [`omit_notices`].
pub(crate) fn print_failure(text: Arguments<'_>) {
    let _ = io::stderr().write_all(printable(&text.to_string()).as_bytes());
}

/// Prints a message on standard error, after the name of the program.
pub fn warn(text: Arguments<'_>) {
    print_stderr(format_args!("{}: {text}", crate::prefix()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_an_account_are_escaped() {
        assert_eq!(account_text(&"e\x1b[2J\n", false).unwrap(), "e\\u{1b}[2J");
    }
}
