//! External commands: separate programs, which `strait` finds and executes like git.
//!
//! `strait proxy` executes `strait-proxy`. It searches the directory of this program, then Cargo's
//! directory of programs if this program is below it, then the PATH, and skips a program that
//! another user may have planted. This keeps the HTTP proxy, benchmarks and the clients of object
//! stores and brokers out of `strait`, to which users give capabilities.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Arg, Command as Definition};
use strait_program::output::print_stderr;
use strait_program::{definition, pages};

use crate::Error;
use crate::trust;

/// Command of another program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct External {
    /// Name as a command of `strait`.
    name: &'static str,
    /// Name of the program. A program with several commands gets the command as its first argument.
    program: &'static str,
    /// First line of the help.
    about: &'static str,
}

/// Every external command: name, program, first line of the help.
const EXTERNALS: [External; 5] = [
    external(
        "proxy",
        "strait-proxy",
        "Cache HTTP between clients and servers, with bodies that stay in the kernel",
    ),
    external(
        "bench",
        "strait-bench",
        "Measure ways to capture and to send, and caching proxies, on this machine",
    ),
    external("cache", "strait-proxy", "List, remove and check stored responses of strait proxy"),
    external(
        "query",
        "strait-query",
        "Run a query in SQL over capture files or the tables of strait capture",
    ),
    UPLOAD,
];

const UPLOAD: External =
    external("upload", "strait-upload", "Send the tables in a spool directory to a bucket of Amazon S3");

const fn external(name: &'static str, program: &'static str, about: &'static str) -> External {
    External { name, program, about }
}

/// Returns the external command of a command line, with its arguments.
pub(crate) fn parse(words: &[OsString]) -> Option<(External, Vec<OsString>)> {
    let (first, rest) = words.get(1..)?.split_first()?;
    let named = |word: &OsString| EXTERNALS.into_iter().find(|external| word == external.name);
    if first == "help" {
        let (word, rest) = rest.split_first()?;
        let help = rest.iter().cloned().chain([OsString::from("--help")]);
        return Some((named(word)?, help.collect()));
    }
    Some((named(first)?, rest.to_vec()))
}

/// Returns the path of the program that uploads tables and publishes flows.
pub(crate) fn upload_program() -> Result<PathBuf, Error> {
    UPLOAD.path()
}

/// Definitions for the help. clap does not parse their arguments: [`parse`] is called first.
pub(crate) fn definitions() -> impl Iterator<Item = Definition> {
    EXTERNALS.into_iter().map(External::definition)
}

/// Definitions for completion scripts, with the options of installed programs.
pub(crate) fn full_definitions() -> impl Iterator<Item = Definition> {
    EXTERNALS.into_iter().map(|external| external.full_definition().unwrap_or_else(|| external.definition()))
}

impl External {
    /// Executes the program. Returns only on an error.
    pub(crate) fn exec(self, arguments: &[OsString]) -> Result<(), Error> {
        let path = self.path()?;
        // The program's messages show argument 0, which is the command as typed by the user.
        let (name, command) = if self.is_whole_program() {
            (format!("strait {}", self.name), None)
        } else {
            ("strait".to_owned(), Some(self.name))
        };
        strait_os::stdio::close_again_on_exec();
        let error = Command::new(&path).arg0(name).args(command).args(arguments).exec();
        Err(Error::Failed(format!("run {}: {error}", path.display())))
    }

    fn definition(self) -> Definition {
        let arguments = Arg::new("arguments").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        Definition::new(self.name).about(self.about).disable_help_flag(true).arg(arguments)
    }

    /// Runs the program to get its definition. None if it is missing or prints none.
    fn full_definition(self) -> Option<Definition> {
        let Search { found, skipped } = find(self.program);
        // The program of two commands is reported once.
        if let Some(skipped) = skipped.filter(|_| self.is_whole_program()) {
            report(&skipped);
        }
        let mut program = Command::new(found?);
        let answer = program.arg(definition::ARGUMENT).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let whole = definition::parse(std::str::from_utf8(&answer.ok()?.stdout).ok()?)?;
        if self.is_whole_program() {
            return Some(whole.name(self.name));
        }
        whole.find_subcommand(self.name).cloned()
    }

    fn is_whole_program(self) -> bool {
        self.program.strip_prefix("strait-") == Some(self.name)
    }

    fn path(self) -> Result<PathBuf, Error> {
        let Self { name, program, .. } = self;
        match find(program) {
            Search { found: Some(path), skipped } => {
                if let Some(skipped) = skipped {
                    report(&skipped);
                }
                Ok(path)
            }
            Search { skipped: Some(skipped), .. } => {
                Err(Error::Refused(format!("strait {name} needs the program {program}: {skipped}")))
            }
            Search { .. } => Err(self.missing()),
        }
    }

    fn missing(self) -> Error {
        let Self { name, program, .. } = self;
        Error::Refused(format!(
            "strait {name} needs the program {program}, which is not installed beside strait nor on the PATH: \
             install the package {program}, or in Strait's source directory: cargo install --path crates/{program}"
        ))
    }
}

/// Result of the search for a program.
struct Search {
    found: Option<PathBuf>,
    /// Reason for which an earlier file was skipped, and the remedy.
    skipped: Option<String>,
}

fn report(skipped: &str) {
    print_stderr(format_args!("strait: {skipped}\n"));
}

/// Finds a program: beside this one, where Cargo puts programs, or on the PATH. Skips programs that
/// another user may have planted.
fn find(program: &str) -> Search {
    // The kernel resolves links in the path of the running program.
    let running = env::current_exe().unwrap_or_default();
    let mut skipped = None;
    let found = candidates(program, &running).find(|path| match trust::untrusted_program(path, &running) {
        None => true,
        Some(untrusted) => {
            skipped.get_or_insert_with(|| not_trusted(path, &untrusted));
            false
        }
    });
    Search { found, skipped }
}

fn not_trusted(path: &Path, untrusted: &Path) -> String {
    let (path, untrusted) = (path.display(), untrusted.display());
    format!(
        "{path} is not executed: another user owns {untrusted} or may write to it. Remove the write permission \
         (chmod go-w {untrusted}), or execute {path} itself"
    )
}

/// Returns the executable files with the name of the program, in the order of the search.
fn candidates(program: &str, running: &Path) -> impl Iterator<Item = PathBuf> {
    let own = running.parent();
    // Cargo puts tests and examples one directory below programs.
    let cargo = own.filter(|own| own.ends_with("deps") || own.ends_with("examples")).and_then(Path::parent);
    let mut directories: Vec<PathBuf> = own.into_iter().chain(cargo).map(Path::to_owned).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    // A relative directory would depend on the working directory.
    directories.extend(env::split_paths(&path).filter(|directory| directory.is_absolute()));
    directories.into_iter().map(move |directory| directory.join(program)).filter(|path| is_executable(path))
}

/// Returns true for a file that has an execute permission.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Writes the man pages of the external programs to `directory`. A command that is part of a
/// program gets a page that refers to the program's. A missing program is reported and omitted.
pub(crate) fn man(directory: &Path) -> Result<(), Error> {
    for external in EXTERNALS {
        let External { name, program, .. } = external;
        match external.path() {
            Ok(path) if external.is_whole_program() => run_man(&path, directory)?,
            Ok(_) => {
                let page = format!(".so man1/{program}-{name}.1\n");
                pages::write_page(&directory.join(format!("strait-{name}.1")), page.as_bytes())?;
            }
            Err(missing) if external.is_whole_program() => {
                print_stderr(format_args!("strait: no man pages of {program}: {missing}\n"));
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn run_man(program: &Path, directory: &Path) -> Result<(), Error> {
    let failed = |cause: &dyn Display| Error::Failed(format!("run {} man: {cause}", program.display()));
    let ended = Command::new(program).arg("man").arg(directory).stdin(Stdio::null()).status();
    let ended = ended.map_err(|error| failed(&error))?;
    if ended.success() { Ok(()) } else { Err(failed(&ended)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Option<(&'static str, Vec<OsString>)> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse(&words).map(|(external, arguments)| (external.name, arguments))
    }

    #[test]
    fn external_commands_are_called_by_name_and_by_help() {
        assert_eq!(call("strait proxy --listen :1"), Some(("proxy", vec!["--listen".into(), ":1".into()])));
        assert_eq!(call("strait help proxy"), Some(("proxy", vec!["--help".into()])));
        assert_eq!(call("strait help cache ls"), Some(("cache", vec!["ls".into(), "--help".into()])));
        for line in ["strait", "strait help", "strait help capture", "strait capture proxy", "strait prox"] {
            assert_eq!(call(line), None, "{line}");
        }
    }

    #[test]
    fn missing_program_is_reported_with_the_install_command() {
        let message = EXTERNALS[0].missing().to_string();
        assert!(message.starts_with("strait proxy needs the program strait-proxy"), "{message}");
        assert!(
            message.ends_with("cargo install --path crates/strait-proxy") && !message.contains('\n'),
            "{message}"
        );
    }
}
