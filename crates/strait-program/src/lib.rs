//! Base of Strait's programs: command lines, messages, exit codes, man pages and completions.
//!
//! `strait` and the programs that it starts (`strait-proxy`, `strait-bench`, `strait-upload`) share
//! it, so that values and messages have the same form in each. A program defines its commands and
//! calls [`main`], which parses the command line and turns an error into one line on standard error
//! and an exit code: 0 done, 1 failed, 2 usage, 3 refused.

pub mod authority;
pub mod broker;
pub mod bucket;
pub mod definition;
mod error;
pub mod files;
mod name;
pub mod output;
pub mod pages;
pub mod parse;
pub mod replace;
mod standard;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, Command, FromArgMatches};

pub use error::{Error, Failure, exit_code};
pub use name::{name, prefix};
pub use standard::Streams;
pub use strait_os::Kind;

/// Exit code of a command line with a mistake.
const USAGE: u8 = 2;

/// Parses the program's arguments as `command` defines them, and runs the command. Prints help,
/// mistakes and failures.
pub fn main<P: FromArgMatches, E: Failure + From<Error>>(
    command: &Command,
    run: impl FnOnce(P) -> Result<(), E>,
) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.len() == 2 && words[1] == definition::ARGUMENT {
        return end(definition::print(command));
    }
    match command.clone().try_get_matches_from(&words) {
        Ok(matches) => end(parsed(&matches).map_err(E::from).and_then(run)),
        Err(mistake) => match usage::print(&mistake, command, &words) {
            Ok(false) => ExitCode::from(USAGE),
            result => end(result.map(drop)),
        },
    }
}

fn parsed<P: FromArgMatches>(matches: &ArgMatches) -> Result<P, Error> {
    P::from_arg_matches(matches).map_err(|mistake| Error::usage(mistake.to_string()))
}

/// Prints the failure of a program, if it failed. Returns its exit code.
pub fn end<E: Failure>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_reader_gone() => ExitCode::SUCCESS,
        Err(error) => {
            output::print_failure(format_args!("{}: {error}\n", prefix()));
            ExitCode::from(error.exit_code())
        }
    }
}
