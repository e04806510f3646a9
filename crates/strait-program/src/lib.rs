//! Base of Strait's programs: command lines, messages, exit codes, man pages and completions.
//!
//! `strait` and the programs that it starts (`strait proxy`) share it, so that a value, a mistake
//! and a failure look the same in each. A program defines its commands and calls [`main`], which
//! parses the line and turns an error into one line on standard error and an exit code: 0 done,
//! 1 failed, 2 usage, 3 refused.

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

use clap::{ArgMatches, Command};

pub use error::{Error, Failure, exit_code};
pub use name::{name, prefix};
pub use standard::Streams;
/// Services of the system that programs use: capabilities, signals, the service manager.
pub use strait_sys::{Kind, process, service};

/// Exit code of a command line with a mistake.
const USAGE: u8 = 2;

/// Parses the program's arguments as `command` defines them, and runs the command. Prints help,
/// mistakes and failures.
pub fn main<E: Failure>(command: &Command, run: impl FnOnce(&ArgMatches) -> Result<(), E>) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.len() == 2 && words[1] == definition::ARGUMENT {
        return end(definition::print(command));
    }
    match command.clone().try_get_matches_from(&words) {
        Ok(matches) => end(run(&matches)),
        Err(mistake) => match usage::print(&mistake, command, &words) {
            Ok(false) => ExitCode::from(USAGE),
            printed => end(printed.map(drop)),
        },
    }
}

/// Prints the failure of a program, if it failed. Returns its exit code.
pub fn end<E: Failure>(done: Result<(), E>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_reader_gone() => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(format_args!("{}: {error}\n", prefix()));
            ExitCode::from(error.exit_code())
        }
    }
}
