//! Completion scripts and man pages, made from a program's definition of its command line.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::Error;
use crate::output::print_text;
use crate::replace::replace;

/// Options of the command that prints a completion script.
#[derive(Args)]
pub struct CompletionArgs {
    /// The shell to complete for.
    shell: Shell,
}

/// Options of the command that writes man pages.
#[derive(Args)]
pub struct ManArgs {
    /// Directory for strait.1, strait-capture.1, ...; it is made if its parent exists
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
/// The directory or a file in it cannot be made.
pub fn man(directory: &Path, command: Command) -> Result<(), Error> {
    write_pages(command, directory)
        .map_err(|error| Error::Failed(format!("write man pages to {}: {error}", directory.display())))
}

/// Puts the end of the help under the headings of man-pages(7): exit codes, or examples with their
/// lines as they are.
fn with_examples(page: &str) -> String {
    let Some((before, behind)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    if let Some(codes) = behind.strip_prefix("Exit codes: ") {
        return format!("{before}.SH \"EXIT STATUS\"\n{codes}");
    }
    let behind = behind.strip_prefix("Examples:\n").unwrap_or(behind);
    let (examples, rest) = behind.find(".SH ").map_or((behind, ""), |at| behind.split_at(at));
    format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n{rest}")
}

fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    // A missing parent is probably a typing mistake.
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages_of(&command, directory)
}

/// Writes the pages of the subcommands of `command`, then its own.
fn write_pages_of(command: &Command, directory: &Path) -> io::Result<()> {
    // A command without a help flag of its own is another program, which writes its page.
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

/// Writes a page, in place of the file at `path` if there is one.
///
/// # Errors
/// The file cannot be made.
pub fn write_page(path: &Path, text: &[u8]) -> Result<(), Error> {
    replace(path, text).map_err(|error| Error::Failed(format!("write {}: {error}", path.display())))
}
