//! Properties of the user's terminal: input, size, colours.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;

use rustix::termios::{Winsize, tcgetwinsize};

/// Opens the terminal's input: standard input if that is a terminal, else the controlling terminal.
pub(crate) fn input() -> io::Result<File> {
    let input = io::stdin();
    if input.is_terminal() {
        input.as_fd().try_clone_to_owned().map(File::from)
    } else {
        File::open("/dev/tty")
    }
}

/// Returns the size of the terminal of standard output.
pub(crate) fn size() -> io::Result<Winsize> {
    Ok(tcgetwinsize(io::stdout())?)
}

/// Returns true unless the user wants no colours (no-color.org), or the terminal has none
/// (`TERM=dumb`).
pub(crate) fn allows_colours() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !is_dumb && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
