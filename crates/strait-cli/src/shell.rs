//! What packagers and shells want: completion scripts and man pages, made from the command line's own definition.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::Error;
use crate::output::print_text;

/// Which shell.
#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for.
    shell: Shell,
}

/// Where to.
#[derive(Args)]
pub(crate) struct ManArgs {
    /// Directory for strait.1, strait-capture.1, ...; it is made if its parent exists
    directory: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(args: &CompletionArgs, command: &mut Command) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "strait", &mut script);
    print_text(&String::from_utf8_lossy(&script))
}

/// Writes one man page for the program and one for each command.
pub(crate) fn man(args: &ManArgs, command: Command) -> Result<(), Error> {
    write_pages(command, &args.directory)
        .map_err(|error| Error::Failed(format!("write man pages to {}: {error}", args.directory.display())))
}

/// What the help says last is examples: man-pages(7) has a heading for them, and their lines stay as they are.
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
    // A missing parent is more often a mistake than meant.
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    clap_mangen::generate_to(command, directory)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("strait"));
        if is_ours && path.extension().is_some_and(|extension| extension == "1") {
            fs::write(&path, with_examples(&fs::read_to_string(&path)?))?;
        }
    }
    Ok(())
}
