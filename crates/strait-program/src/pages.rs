//! Completion scripts and man pages, made from a program's definition of its command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use strait_os::output;

use crate::Error;
use crate::output::print_text;
use crate::replace::replace;

/// Mode of a new directory, before the umask.
const DIRECTORY: Mode = Mode::from_bits_retain(0o777);

/// Options of the command that prints a completion script.
#[derive(Args)]
pub struct CompletionArgs {
    /// Shell of the script.
    shell: Shell,
}

/// Options of the command that writes man pages.
#[derive(Args)]
pub struct ManArgs {
    /// Directory for strait.1, strait-capture.1, ...; it is created if its parent exists
    pub directory: PathBuf,
}

/// Prints the completion script.
///
/// # Errors
/// Standard output cannot be written to.
pub fn completions(args: &CompletionArgs, command: &mut Command) -> Result<(), Error> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, command, name, &mut script);
    print_text(&String::from_utf8_lossy(&script))
}

/// Writes one man page for the program and one for each command.
///
/// # Errors
/// The directory or a file in it cannot be created.
pub fn man(directory: &Path, command: Command) -> Result<(), Error> {
    write_pages(command, directory)
        .map_err(|error| Error::Failed(format!("write man pages to {}: {error}", directory.display())))
}

/// Moves the end of the help to sections of man-pages(7): exit codes, or examples and signals with
/// their line breaks.
fn with_examples(page: &str) -> String {
    let Some((before, extra)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    if let Some(codes) = extra.strip_prefix("Exit codes: ") {
        return format!("{before}.SH \"EXIT STATUS\"\n{codes}");
    }
    let extra = extra.strip_prefix("Examples:\n").unwrap_or(extra);
    let (examples, rest) = extra.find(".SH ").map_or((extra, ""), |at| extra.split_at(at));
    let examples = examples.replacen("Signals:\n", ".fi\n.SH SIGNALS\n.nf\n", 1);
    format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n{rest}")
}

fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    make_directory(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages_of(&command, directory)
}

/// Makes the directory if it is missing, but not its parent: that is probably a typing mistake. No
/// link in the path is followed that another user may have planted.
fn make_directory(path: &Path) -> io::Result<()> {
    match output::directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found.map(drop),
    }
    let Some(name) = path.file_name() else { return Err(Errno::NOENT.into()) };
    let parent = output::directory(path.parent().unwrap_or(Path::new("")))?;
    match mkdirat(parent, name, DIRECTORY) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes the pages of the subcommands of `command`, then its own.
fn write_pages_of(command: &Command, directory: &Path) -> io::Result<()> {
    // A command with a disabled help flag is another program, which writes its own page.
    let has_page = |command: &&Command| !command.is_hide_set() && !command.is_disable_help_flag_set();
    for subcommand in command.get_subcommands().filter(has_page) {
        write_pages_of(subcommand, directory)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = with_examples(&String::from_utf8_lossy(&text));
    let path = directory.join(page.get_filename());
    replace(&path, text.as_bytes()).map_err(|error| {
        let name = page.get_filename();
        io::Error::new(error.kind(), format!("{name}: {error}"))
    })
}

/// Writes a page, and replaces an existing file at `path`.
///
/// # Errors
/// The file cannot be created.
pub fn write_page(path: &Path, text: &[u8]) -> Result<(), Error> {
    replace(path, text).map_err(|error| Error::Failed(format!("write {}: {error}", path.display())))
}
